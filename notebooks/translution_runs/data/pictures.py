"""Encoded pictures (PNG or JPEG) to bytes of pixels, by pillow."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

MODES = {1: "L", 3: "RGB"}  # pillow's names
FORMATS = ("JPEG", "PNG")
"""What pictures of the data sets are. Pillow opens others too, and some of them start another program."""
PIXELS = 90_000_000
"""A picture of more is refused before it is decoded; ImageNet's largest has 61 million."""
JPEG = b"\xff\xd8\xff"


def decode(encoded: bytes, channels: int, where: str, size: int | None = None) -> UInt8[Tensor, "ch h w"]:
    """One picture, converted to grey (1 channel) or red, green and blue (3), of `size` by `size` pixels where given.

    Raises:
        ValueError: the bytes are no JPEG and no PNG, a truncated one, or one of another size, which is not decoded; the
            message begins with `where`.
        ImportError: pillow is not installed.
    """
    with opened(encoded, where) as picture:
        if size is not None and picture.size != (size, size):
            raise Refused(f"{where}: {picture.height} by {picture.width} pixels, expected {size} by {size}")
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # this module has a limit of its own
            picture = Image.open(io.BytesIO(encoded), formats=FORMATS)
        with picture:
            refuse_size(picture, where)
            yield picture
    except UnidentifiedImageError as error:
        raise ValueError(f"{where}: {len(encoded)} bytes that are no picture in {' or '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{where}: more than {PIXELS:,} pixels, which are not decoded ({error})") from error
    except Refused:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # pillow's words for damaged streams
        raise ValueError(f"{where}: the picture is truncated or corrupted ({error})") from error


class Refused(ValueError):
    """A picture that is whole, and not what is expected."""


def refuse_size(picture: Any, where: str) -> None:
    """Raise an error for a picture whose header claims more pixels than are decoded."""
    if picture.width * picture.height > PIXELS:
        raise Refused(f"{where}: {picture.height} by {picture.width} pixels, expected at most {PIXELS:,} in all")


def tensor(picture: Any, channels: int) -> UInt8[Tensor, "ch h w"]:
    """Pillow's picture as bytes."""
    pixels = np.array(picture).reshape(picture.height, picture.width, channels)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def decode_all(encoded: Sequence[bytes], channels: int, size: int, where: str) -> UInt8[Tensor, "n ch h w"]:
    """Pictures that must all be `size` by `size` pixels; errors as in `decode`, naming the picture's number."""
    pixels = torch.empty(len(encoded), channels, size, size, dtype=torch.uint8)
    for number, data in enumerate(encoded):
        pixels[number] = decode(data, channels, f"{where}, picture {number}", size)
    return pixels


def is_jpeg(encoded: bytes) -> bool:
    """Whether these are the bytes of a JPEG picture, which are not exactly the pixels that were encoded."""
    return encoded.startswith(JPEG)
