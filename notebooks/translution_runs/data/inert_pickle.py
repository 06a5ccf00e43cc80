"""Reading a pickle of plain values and one numpy array without running anything the file names.

A pickle is a program: it may call any function that can be imported. CIFAR's archives are pickles. Here every name
that a file asks for is refused, but for the few that build an array of bytes; and those give stand-ins that only keep
what they are told.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np


class Kept:
    """Stands for numpy's array and dtype: keeps arguments and state, and does nothing."""

    def __init__(self, *arguments: Any):
        self.arguments = arguments
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): Kept, ("numpy._core.multiarray", "_reconstruct"): Kept,
    ("numpy", "dtype"): Kept, ("numpy", "ndarray"): "ndarray",
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not run")
        return ALLOWED[module, name]


def read(data: bytes, where: Path | str) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text and its arrays of bytes as numpy arrays.

    Raises:
        ValueError: truncated or damaged, no dictionary, or a file that asks for anything but an array of bytes.
    """
    try:
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may fail in any way
        raise ValueError(f"{where}: not read, truncated or not a pickle of plain values ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: holds a {type(content).__name__}, expected a dictionary")
    plain = {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    return {key: array(value, f"{where}, {key}") if isinstance(value, Kept) else value for key, value in plain.items()}


def array(kept: Kept, where: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The array that numpy would have made: state is version, shape, dtype, column order, bytes."""
    try:
        _, shape, dtype, columns, data = kept.state
        kind = dtype.arguments[0]
    except (ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{where}: not an array of numpy") from error
    if kind not in (b"u1", "u1") or columns or not isinstance(data, bytes) or len(data) != math.prod(shape):
        raise ValueError(f"{where}: expected {shape} bytes in row order, got {len(data)} of type {kind!r}")
    return np.frombuffer(data, np.uint8).reshape(shape)
