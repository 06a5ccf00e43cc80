"""Where the ink of MNIST's images lies, and which digits they show: facts that pages use without the data set.

MNIST scales a digit to a box of 20 pixels and centres it by mass in a frame of 28 (LeCun et al., 1998).
`mnist_ink.json` holds the box and the digit of every test image and, for both splits, how long the longer sides of the
boxes are; a test computes all anew where the files of MNIST are at hand.
"""

import json
import zlib
from base64 import b64decode, b64encode
from functools import cache
from importlib.resources import files

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

FRAME = 28  # side of an image in pixels


def ink_boxes(images: UInt8[Tensor, "n 1 h w"]) -> Int64[Tensor, "n 4"]:
    """First and last row, first and last column that hold a pixel other than zero, both included.

    Raises:
        ValueError: an image without ink.
    """
    ink = images[:, 0] != 0
    if not bool(ink.flatten(1).any(1).all()):
        raise ValueError("images: one of them has no ink, so that its box is not defined")
    return torch.stack([end for axis in (2, 1) for end in _ends(ink.any(axis))], dim=1)


def pack(boxes: Int64[Tensor, "n 4"]) -> str:
    """The boxes as text: the numbers as bytes, compressed, in base64."""
    return b64encode(zlib.compress(boxes.to(torch.uint8).numpy().tobytes(), 9)).decode("ascii")


def mnist_boxes() -> Int64[Tensor, "n 4"]:
    """The boxes of MNIST's 10,000 test images, in the order of the set."""
    return _unpacked("boxes").view(-1, 4)


def mnist_labels() -> Int64[Tensor, "n"]:
    """The digits that MNIST's 10,000 test images show, in the order of the set."""
    return _unpacked("labels")


def longest_sides(split: str) -> dict[int, int]:
    """How many images of "train" or "test" have a box with a longer side of so many pixels.

    Raises:
        ValueError: an unknown split.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split: got {split!r}, expected 'train' or 'test'")
    return {int(side): count for side, count in _stored()[split]["longest_side"].items()}


def _ends(present: Tensor) -> tuple[Tensor, Tensor]:
    """First and last place of a True in every row."""
    size = present.shape[1]
    return present.int().argmax(1), size - 1 - present.flip(1).int().argmax(1)


def _unpacked(name: str) -> Tensor:
    """The bytes of a text of `pack`, as integers."""
    values = np.frombuffer(zlib.decompress(b64decode(_stored()["test"][name])), np.uint8)
    return torch.from_numpy(values.astype(np.int64))


@cache
def _stored() -> dict:
    return json.loads(files("translution_book.facts").joinpath("mnist_ink.json").read_text(encoding="utf-8"))
