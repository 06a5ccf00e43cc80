"""Encoded pictures (PNG, JPEG …) to bytes of pixels, by pillow."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

MODES = {1: "L", 3: "RGB"}  # pillow's names
JPEG = b"\xff\xd8\xff"


def decode(encoded: bytes, channels: int, where: str) -> UInt8[Tensor, "ch h w"]:
    """One picture, converted to grey (1 channel) or red, green and blue (3).

    Raises:
        ValueError: the bytes are no picture, or a truncated one; the message begins with `where`.
        ImportError: pillow is not installed.
    """
    with opened(encoded, where) as picture:
        return tensor(picture.convert(MODES[channels]), channels)


def resized(
    encoded: bytes, size: int, part: Callable[[int, int], tuple[float, float, float, float]], where: str
) -> UInt8[Tensor, "3 h w"]:
    """A part of a colour picture scaled to `size` by `size` pixels (bicubic); errors as in `decode`.

    Args:
        encoded: the picture.
        size: height and width of the result.
        part: height and width of the picture → left, top, right and bottom of the part.
        where: the picture's name.
    """
    from PIL import Image

    with opened(encoded, where) as picture:
        whole = picture.convert("RGB")
        return tensor(whole.resize((size, size), Image.Resampling.BICUBIC, box=part(whole.height, whole.width)), 3)


@contextmanager
def opened(encoded: bytes, where: str) -> Iterator[Any]:
    """A picture that is being decoded."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("pictures are decoded by pillow: install pillow") from error
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            yield picture
    except UnidentifiedImageError as error:
        raise ValueError(f"{where}: {len(encoded)} bytes that are no picture") from error
    except (OSError, SyntaxError, ValueError) as error:  # pillow's words for damaged streams
        raise ValueError(f"{where}: the picture is truncated or corrupted ({error})") from error


def tensor(picture: Any, channels: int) -> UInt8[Tensor, "ch h w"]:
    """Pillow's picture as bytes."""
    pixels = np.array(picture).reshape(picture.height, picture.width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def decode_all(encoded: Sequence[bytes], channels: int, size: int, where: str) -> UInt8[Tensor, "n ch h w"]:
    """Pictures that must all be `size` by `size` pixels; errors as in `decode`, naming the picture's number."""
    pixels = torch.empty(len(encoded), channels, size, size, dtype=torch.uint8)
    for number, data in enumerate(encoded):
        picture = decode(data, channels, f"{where}, picture {number}")
        if picture.shape[1:] != (size, size):
            found = " by ".join(map(str, picture.shape[1:]))
            raise ValueError(f"{where}, picture {number}: {found} pixels, expected {size} by {size}")
        pixels[number] = picture
    return pixels


def is_jpeg(encoded: bytes) -> bool:
    """Whether these are the bytes of a JPEG picture, which are not exactly the pixels that were encoded."""
    return encoded.startswith(JPEG)
