"""Labelled pictures that are read and decoded when they are asked for; no picture stays in memory.

Pictures differ in size, so the cut to one size happens here, on the CPU. Chapter "ImageNet".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from translution_runs.data.counts import refuse_count
from translution_runs.data.pictures import resized

SIZE = 224  # pixels, height and width of what a model sees
KEPT = 0.875  # side of the square that is judged, of the picture's shorter side: 224 of 256
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random part: share of the picture, width over height
TRIES = 10

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class LazyImages:
    """Labelled pictures outside memory.

    Attributes:
        read: number → the encoded picture and its name; to be pickled, for processes that read.
        labels: n, class numbers from 0.
        classes: number of classes.
        name: the data set.
        split: "train" or "validation".
        sha256: "files" and the checksum of the list of files with their sizes.
        size: height and width that pictures are cut and scaled to.
        refused: called when a picture turns out not to be whole, so that nothing recorded stands in a repair's way.
    """

    read: Callable[[int], tuple[bytes, str]]
    labels: Int64[Tensor, " n"]
    classes: int
    name: str
    split: str
    sha256: Mapping[str, str]
    size: int = SIZE
    refused: Callable[[], object] = bool

    def __len__(self) -> int:
        return len(self.labels)

    def on(self, device: torch.device | str) -> "LazyImages":
        """These pictures themselves: they are read one by one, wherever they are used."""
        return self

    def bytes(self, index: Int64[Tensor, " b"], seeds: Sequence[int] | None = None) -> UInt8[Tensor, "b 3 h w"]:
        """The pictures numbered `index`, cut and scaled to `size` by `size` pixels.

        Args:
            index: numbers of pictures.
            seeds: one for each picture, which decides on a part to train on and on mirroring (`random_view`); None
                takes the central square of 7/8 of the shorter side.

        Raises:
            ValueError: a picture that is truncated or corrupted, whose name the message gives; or another number of
                seeds than of pictures.
        """
        numbers = index.tolist()
        if seeds is not None and len(seeds) != len(numbers):
            raise ValueError(f"seeds: got {len(seeds)} for {len(numbers)} pictures, expected one for each")
        views = [self._view(number, None if seeds is None else seeds[k]) for k, number in enumerate(numbers)]
        return torch.stack(views) if views else torch.zeros(0, 3, self.size, self.size, dtype=torch.uint8)

    def _view(self, number: int, seed: int | None) -> UInt8[Tensor, "3 h w"]:
        data, name = self.read(number)
        view, mirrored = (central_box, False) if seed is None else random_view(seed)
        try:
            picture = resized(data, self.size, view, name)
        except ValueError:
            self.refused()
            raise
        return picture.flip(-1) if mirrored else picture

    def pixels(self, index: Int64[Tensor, " b"]) -> Float32[Tensor, "b 3 h w"]:
        """The central squares of the pictures numbered `index`, as numbers from 0 to 1; errors as in `bytes`."""
        return self.bytes(index).float() / 255

    def scaled(self, size: int) -> "LazyImages":
        """The same pictures, to be cut to another size."""
        return replace(self, size=size)

    def first(self, count: int) -> "LazyImages":
        """So many of the pictures, taken evenly from the list, which goes class by class; 0 means all of them.

        Raises:
            ValueError: `count` is negative or larger than the set.
        """
        refuse_count(count, len(self), f"the size of {self.name}'s {self.split} split")
        if count in (0, len(self)):
            return self
        chosen = torch.arange(count) * len(self) // count
        return replace(self, read=Chosen(self.read, chosen), labels=self.labels[chosen])


@dataclass(frozen=True)
class Chosen:
    """Reads some of the pictures that `read` gives, numbered anew."""

    read: Callable[[int], tuple[bytes, str]]
    numbers: Int64[Tensor, " n"]

    def __call__(self, number: int) -> tuple[bytes, str]:
        """The picture and its name."""
        return self.read(int(self.numbers[number]))


def central_box(height: int, width: int) -> Box:
    """Left, top, right and bottom of the square that a model is judged on.

    Scaled to 224 pixels, it is the centre of the picture whose shorter side was scaled to 256.

    Label: eq-imagenet-centre.
    """
    side = KEPT * min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_view(seed: int) -> tuple[Callable[[int, int], Box], bool]:
    """Which part of a picture is trained on, and whether it is mirrored left to right.

    The seed decides on both, whatever else is read before or beside: first on mirroring, then on the part.
    """
    generator = torch.Generator().manual_seed(seed)
    mirrored = bool(torch.rand((), generator=generator) < 0.5)
    return lambda height, width: random_box(height, width, generator), mirrored


def random_box(height: int, width: int, generator: torch.Generator) -> Box:
    """Left, top, right and bottom of a part drawn at random (Szegedy et al., 2015).

    It has 8 to 100 % of the picture's area, uniformly, and sides in a ratio of 3:4 to 4:3, uniformly in its logarithm.
    A part that does not fit is drawn again, ten times at most; then the central square is taken.

    Label: eq-imagenet-crop.
    """
    for _ in range(TRIES):
        area, ratio, top, left = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
        shape = math.exp(math.log(RATIO[0]) + ratio * (math.log(RATIO[1]) - math.log(RATIO[0])))
        h, w = math.sqrt(pixels / shape), math.sqrt(pixels * shape)
        if h <= height and w <= width:
            return left * (width - w), top * (height - h), left * (width - w) + w, top * (height - h) + h
    return central_box(height, width)
