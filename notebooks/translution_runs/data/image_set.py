"""A set of labelled images in memory, with the checksums of what it was read from.

Chapter "Static and dynamic MNIST".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor, cat
from torch.nn.functional import interpolate

from translution_runs.data.counts import refuse_count, refuse_held_out
from translution_runs.data.residence import worth_moving


@dataclass(frozen=True)
class ImageSet:
    """Labelled images, kept as bytes: 60,000 MNIST digits take 47 MB instead of 188 MB.

    Attributes:
        images: n ch h w, 0 is background, 255 is full ink.
        labels: n, class numbers from 0.
        name: the data set.
        split: "train", "test", or "held-out": a part of the training images that is not trained on.
        sha256: what was read (a file's name, or "images" and "labels") and the checksum of its uncompressed content.
    """

    images: UInt8[Tensor, "n ch h w"]
    labels: Int64[Tensor, " n"]
    name: str
    split: str
    sha256: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        """Height and width of an image, in pixels."""
        return self.images.shape[-1]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    def on(self, device: torch.device | str) -> "ImageSet":
        """The same images on a GPU, as bytes; this set itself for any other device, or where it takes too much."""
        if not worth_moving(device, self.images.nbytes):
            return self
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def pixels(self, index: Int64[Tensor, " b"]) -> Float32[Tensor, "b ch h w"]:
        """The images numbered `index` as floating-point numbers from 0 to 1."""
        return self.images[index].float() / 255

    def first(self, count: int) -> "ImageSet":
        """The first `count` images; 0 means all of them.

        Raises:
            ValueError: `count` is negative or larger than the set.
        """
        refuse_count(count, len(self), f"the size of {self.name}'s {self.split} split")
        return replace(self, images=self.images[: count or None], labels=self.labels[: count or None])

    def parted(self, last: int) -> "tuple[ImageSet, ImageSet]":
        """All images but the last ones, and the `last` ones, whose split is called "held-out".

        Raises:
            ValueError: one of the two would be empty.
        """
        refuse_held_out(last, len(self), f"{self.name} has {len(self)} images in its {self.split} split")
        rest, end = slice(None, -last), slice(-last, None)
        return (replace(self, images=self.images[rest], labels=self.labels[rest]),
                replace(self, images=self.images[end], labels=self.labels[end], split="held-out"))

    def scaled(self, size: int) -> "ImageSet":
        """The images with sides of `size` pixels, interpolated bilinearly and rounded to bytes.

        Raises:
            ValueError: `size` is smaller than the images.
        """
        if size < self.size:
            raise ValueError(f"size: got {size}, expected at least {self.size}, the size of the images")
        if size == self.size:
            return self
        parts = [interpolate(part.float(), (size, size), mode="bilinear").round().to(part.dtype)
                 for part in self.images.split(4096)]  # in parts: floating-point copies are four times as large
        return replace(self, images=cat(parts))
