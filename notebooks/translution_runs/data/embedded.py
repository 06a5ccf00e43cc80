"""Handwritten digits of 8 by 8 pixels that scikit-learn carries inside: no file, no network."""

import hashlib

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from translution_runs.data.image_set import ImageSet

# The content that the committed results were made with: sha256 of the bytes in C order.
SHA256 = {
    "images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    "labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
}
EVERY = 5  # one image in five of each class is a test image


def digits(split: str = "train", size: int = 8, interpolation: str = "nearest") -> ImageSet:
    """The 1,797 digits of scikit-learn's `load_digits`, split the same way on every machine.

    The test split takes every fifth image of each class in the stored order, so that both splits have the classes in
    the same proportion and no random number is involved.

    Args:
        split: "train" (1,442 images) or "test" (355).
        size: height and width that the 8 by 8 images are scaled to, in pixels.
        interpolation: "nearest" or "bilinear".

    Raises:
        ValueError: an unknown split or interpolation, a size below 8, or a scikit-learn that carries other digits.
        ImportError: scikit-learn is not installed.
    """
    check(split, size, interpolation)
    images, labels = stored()
    contents = {"images": images, "labels": labels}
    sha256 = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in contents.items()}
    if sha256 != SHA256:
        raise ValueError(f"digits: scikit-learn's digits have the sha256 {sha256}, expected {SHA256}")
    chosen = is_test(labels) if split == "test" else ~is_test(labels)
    pixels = scale(torch.from_numpy(images[chosen]), size, interpolation)
    return ImageSet(pixels, torch.from_numpy(labels[chosen]).long(), "digits", split, sha256)


def check(split: str, size: int, interpolation: str) -> None:
    """Raise a ValueError that names the argument that is wrong."""
    if split not in ("train", "test"):
        raise ValueError(f"split: got {split!r}, expected 'train' or 'test'")
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"interpolation: got {interpolation!r}, expected 'nearest' or 'bilinear'")
    if size < 8:
        raise ValueError(f"size: got {size}, expected at least 8, the size of the stored images")


def stored() -> tuple[UInt8[np.ndarray, "n 8 8"], UInt8[np.ndarray, " n"]]:
    """Images (1797 8 8, values 0 to 16) and labels (1797), both as bytes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("digits() reads the images inside scikit-learn: install scikit-learn") from error
    images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype(np.uint8), labels.astype(np.uint8)


def is_test(labels: UInt8[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """True for every fifth image of each class."""
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[EVERY - 1 :: EVERY]] = True
    return chosen


def scale(images: UInt8[Tensor, "n 8 8"], size: int, interpolation: str) -> UInt8[Tensor, "n 1 h w"]:
    """Values from 0..16 to 0..255 and, where wanted, sides from 8 to `size` pixels."""
    pixels = images[:, None].float() * (255 / 16)
    if size != 8:
        options = {} if interpolation == "nearest" else {"align_corners": False}
        pixels = torch.nn.functional.interpolate(pixels, size=(size, size), mode=interpolation, **options)
    return pixels.round().to(torch.uint8)
