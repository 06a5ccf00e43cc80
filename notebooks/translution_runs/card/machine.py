"""What a card is and what it reaches, noted by a process of its own: ``python -m … --device cuda --seconds 110``.

Prints lines of JSON: what the card is, its ceilings, and the verdict on each form of the grouped product.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from translution_lib.backends import choice
from translution_runs import environment

TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def facts(device: str) -> dict[str, Any]:
    """The card, its driver's CUDA and the versions."""
    found: dict[str, Any] = {"device": environment.device(device), "versions": environment.versions(),
                             "triton": triton_version()}
    if device.startswith("cuda"):
        card = torch.cuda.get_device_properties(device)
        found |= {"memory_bytes": card.total_memory, "processors": card.multi_processor_count,
                  "capability": f"{card.major}.{card.minor}", "cuda": torch.version.cuda}
    return found


def triton_version() -> str | None:
    """Of the package, or None where there is none."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def ceilings(device: str) -> dict[str, float]:
    """A large copy, in bytes read and written a second, and a large product in each type, in operations a second."""
    large = device.startswith("cuda")
    numbers, side = (2**29, 8192) if large else (2**16, 64)
    a, b = torch.zeros(numbers, device=device), torch.ones(numbers, device=device)
    found = {"copy_bytes_per_second": 2 * a.nbytes / best(lambda: b.copy_(a), device)}
    del a, b
    for name, dtype in TYPES.items():
        x, y = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        step = partial(torch.mm, x, y, out=torch.empty_like(x))
        found[f"{name}_operations_per_second"] = 2 * side**3 / best(step, device)
    return {**found, "side": side, "numbers": numbers}


def best(step: Callable[[], Any], device: str, runs: int = 10) -> float:
    """Seconds of a step, the best of a few, after two that are not timed."""
    times = []
    for k in range(runs + 2):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times += [time.perf_counter() - start] if k > 1 else []
    return min(times)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def main() -> None:
    """Print what is found, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=90, help="for the check of the forms")
    args = parser.parse_args()
    start = time.monotonic()
    print(json.dumps({"card": facts(args.device)}), flush=True)
    print(json.dumps({"ceilings": ceilings(args.device)}), flush=True)
    for k, dtype in enumerate(TYPES.values()):
        left = args.seconds - (time.monotonic() - start)
        choice.self_check(args.device, dtype, max(1.0, left / (len(TYPES) - k)))
    print(json.dumps({"forms": choice.report(), "exported": choice.exported()}), flush=True)


if __name__ == "__main__":
    main()
