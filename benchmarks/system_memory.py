"""What a step takes of the machine's memory: its peak, and the pages that the system has to provide."""

import ctypes
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch


def memory_available(device: str) -> float:
    """Return the free bytes of a device, or infinity where the system does not say."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    return _field("/proc/meminfo", "MemAvailable", float("inf"))


def _field(file: str, name: str, otherwise: float) -> float:
    """Return a line of a file of the system, such as VmRSS, in bytes."""
    if not Path(file).exists():
        return otherwise
    return int(next(line for line in Path(file).read_text().splitlines() if line.startswith(name)).split()[1]) * 1024


def peak_bytes(step: Callable, device: str) -> int:
    """Return by how much a step raises the memory in use at its peak."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    give_back()
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")                                   # the peak starts anew
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    before = _field("/proc/self/status", "VmRSS", largest)
    step()
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(0, int(_field("/proc/self/status", "VmHWM", largest) - before))   # pages may have been given back


def give_back() -> None:
    """Hand freed memory back to the system, where the C library can: otherwise a step may find room for itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        gc.collect()
        trim(0)


def new_pages(step: Callable) -> int:
    """Return how many pages of memory the system had to provide for a step."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
