"""New memory in large pages: the system then finds and clears one where it would find and clear 512."""

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

from torch import Tensor

PAGE = 2**21
LEAST = 2**25
"""From this size on, glibc's defaults take a block from the system by itself, and give it back when it is freed."""


def in_large_pages(x: Tensor) -> Tensor:
    """Ask for large pages behind a new tensor of the CPU, if it is large, and return it.

    Linux alone is asked, which serves the wish under ``transparent_hugepage`` "madvise" or "always", and only where
    nothing has been written yet. Chapter "Making it fit", "The pages of the gather".
    """
    ask = _madvise()
    if ask and type(x) is Tensor and x.device.type == "cpu" and x.nbytes >= LEAST:
        begin, end = -(-x.data_ptr() // PAGE) * PAGE, (x.data_ptr() + x.nbytes) // PAGE * PAGE
        ask(begin, end - begin)
    return x


@cache
def _madvise() -> Callable[[int, int], int] | None:
    """Return the system's function, from address and length, or None where there is none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return lambda begin, length: function(begin, length, mmap.MADV_HUGEPAGE)
