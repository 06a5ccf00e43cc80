"""A stand-in for ImageNet: as many pictures in as many classes, drawn and encoded as JPEG when they are read.

Nothing lies on a disk, and every step of the way that a real picture takes is taken: bytes, decoding, cutting, scaling.
What is learnt on them means nothing.
"""

import hashlib
import io
from dataclasses import dataclass

import numpy as np
import torch

from translution_runs.data.lazy_images import LazyImages

SIDES = (40, 100)  # pixels, the range of a picture's sides; ImageNet's are about ten times as long
GRID = 5  # a picture is interpolated between so many random colours along each side
RECIPE = "generated pictures, version 1"
SPLITS = {"train": 0, "validation": 1}


@dataclass(frozen=True)
class Draw:
    """Draws the picture of a number."""

    split: str

    def __call__(self, number: int) -> tuple[bytes, str]:
        """A JPEG file and its name."""
        return picture(self.split, number), f"generated {self.split} picture {number}"


def picture(split: str, number: int) -> bytes:
    """One JPEG file, decided by split and number alone."""
    from PIL import Image

    rng = np.random.default_rng([SPLITS[split], number])
    width, height = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, 2))
    colours = rng.integers(0, 256, (GRID, GRID, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def generated(split: str, count: int, classes: int) -> LazyImages:
    """So many pictures, in classes of nearly equal size, listed class by class.

    Args:
        split: "train" or "validation".
        count: number of pictures.
        classes: number of classes.

    Raises:
        ValueError: an unknown split, or fewer pictures than classes.
    """
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, expected one of {sorted(SPLITS)}")
    if not 1 <= classes <= count:
        raise ValueError(f"count, classes: got {count} pictures in {classes} classes, expected one a class or more")
    digest = hashlib.sha256(f"{RECIPE}: {split}, {count} in {classes} classes".encode()).hexdigest()
    return LazyImages(Draw(split), torch.arange(count) * classes // count, classes, "generated pictures", split,
                      {"files": digest})
