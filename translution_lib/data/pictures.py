"""Encoded pictures (PNG, JPEG …) to bytes of pixels, by pillow."""

import io
from collections.abc import Sequence

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
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ImportError("pictures are decoded by pillow: install pillow") from error
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            pixels = np.array(picture.convert(MODES[channels]))
    except UnidentifiedImageError as error:
        raise ValueError(f"{where}: {len(encoded)} bytes that are no picture") from error
    except (OSError, SyntaxError, ValueError) as error:  # pillow's words for damaged streams
        raise ValueError(f"{where}: the picture is truncated or corrupted ({error})") from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1).contiguous()


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
