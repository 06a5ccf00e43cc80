"""Reading the IDX format, in which MNIST and its relatives come: plain or compressed by gzip.

An IDX file starts with four bytes: 0, 0, the type of the elements (8 = unsigned byte) and the number of dimensions;
then each dimension as a big-endian 32-bit integer; then the elements, the last dimension fastest.
"""

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

UNSIGNED_BYTE = 8


def find(folder: Path, name: str) -> Path:
    """The file `name`, or `name` with the ending `.gz`, in `folder`.

    Raises:
        FileNotFoundError: neither is there; the message says what to put where.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{name} is missing: put the file {name} or {name}.gz into the folder {folder}")


def content(path: Path, limit: int) -> bytes:
    """The uncompressed bytes of a file, of which at most `limit` are read into memory.

    Raises:
        ValueError: it holds more, or the gzip stream is cut short or damaged.
    """
    try:
        with (gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise ValueError(f"{path}: holds more than {limit:,} bytes, the largest file that is expected here")
        return data
    except EOFError as error:
        raise ValueError(f"{path}: the gzip file is truncated; copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: the gzip file is corrupted ({error}); copy it again") from error


def sha256(data: bytes) -> str:
    """The sha256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes, dimensions: int, where: Path) -> UInt8[Tensor, "*shape"]:
    """The array in the bytes of an IDX file of unsigned bytes with `dimensions` dimensions.

    Raises:
        ValueError: another magic number, too few bytes, or too many.
    """
    expected = (UNSIGNED_BYTE << 8) | dimensions
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 or magic != expected:
        raise ValueError(f"{where}: the magic number is 0x{magic:08x}, expected 0x{expected:08x} "
                         f"(unsigned bytes, {dimensions} dimension{'s' * (dimensions > 1)})")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise ValueError(f"{where}: truncated in its header, {len(data)} of {start} bytes")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    found, needed = len(data) - start, math.prod(shape)
    if found != needed:
        what = "truncated" if found < needed else "too long"
        raise ValueError(f"{where}: {what}, {found} bytes of elements where the shape {shape} needs {needed}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy())
