"""Why a network trained on centred digits fails on moved ones: test images sorted by where they stand.

Three things change when a digit leaves the place that it was trained at: its *phase* (where the edges of the patches
cut it), the *offsets* between its patches and all others, and its distance from the *border*. Source: the Translution
paper, section 4.1.1, which names the second; chapter "Static and dynamic MNIST", which separates the three.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from translution_runs.intervals import wilson_interval


@dataclass(frozen=True)
class Scene:
    """Square images on a square canvas that is cut into patches; all lengths in pixels.

    Attributes:
        canvas: side of the canvas.
        image: side of an image; its corner is its top left pixel, as (row, column).
        patch: side of a patch.

    Raises:
        ValueError: an image larger than the canvas, or patches that do not divide it.
    """

    canvas: int = 84
    image: int = 28
    patch: int = 12

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit."""
        if not 0 < self.image <= self.canvas:
            raise ValueError(f"image: got {self.image}, expected 1 to {self.canvas}, the side of the canvas")
        if self.patch < 1 or self.canvas % self.patch:
            raise ValueError(f"patch: got {self.patch}, expected a divisor of the canvas, {self.canvas}")

    @property
    def grid(self) -> int:
        """Patches per side."""
        return self.canvas // self.patch

    @property
    def room(self) -> int:
        """The largest row or column of a corner."""
        return self.canvas - self.image

    @property
    def centre(self) -> int:
        """Row and column of the corner of a centred image."""
        return self.room // 2

    def everywhere(self) -> Int64[Tensor, "n 2"]:
        """All corners, row by row."""
        line = torch.arange(self.room + 1)
        return torch.cartesian_prod(line, line)

    def phase(self, corners: Int64[Tensor, "n 2"]) -> Int64[Tensor, "n 2"]:
        """Pixels from the phase of a centred image, per axis, from 0 to patch − 1."""
        return (self._checked(corners) - self.centre) % self.patch

    def phase_distance(self, corners: Int64[Tensor, "n 2"]) -> Int64[Tensor, " n"]:
        """Pixels to the nearest corner with the phase of a centred image, on the axis where they are most."""
        phase = self.phase(corners)
        return torch.minimum(phase, self.patch - phase).amax(1)

    def steps(self, corners: Int64[Tensor, "n 2"]) -> Int64[Tensor, " n"]:
        """Whole patches from the centre, rounded down, on the axis where they are most."""
        return ((self._checked(corners) - self.centre).abs() // self.patch).amax(1)

    def margin(self, corners: Int64[Tensor, "n 2"]) -> Int64[Tensor, " n"]:
        """Pixels between the image and the nearest edge of the canvas."""
        corners = self._checked(corners)
        return torch.minimum(corners, self.room - corners).amin(1)

    def cover(self, corners: Int64[Tensor, "n 2"], boxes: Int64[Tensor, "#n 4"] | None = None) -> Int64[Tensor, "n 4"]:
        """First and last row, first and last column of the patches that an image touches.

        Args:
            corners: of the images.
            boxes: what of an image counts: first and last row, first and last column of its pixels, both included; the
                whole image by default.
        """
        corners = self._checked(corners)
        whole = torch.tensor([[0, self.image - 1, 0, self.image - 1]])
        return (corners.repeat_interleave(2, 1) + (whole if boxes is None else boxes)) // self.patch

    def span(self, corners: Int64[Tensor, "n 2"], boxes: Int64[Tensor, "#n 4"] | None = None) -> Int64[Tensor, "n 2"]:
        """How many patches an image touches, per axis; `boxes` as for `cover`.

        Label: eq-static-span.
        """
        touched = self.cover(corners, boxes)
        return touched[:, 1::2] - touched[:, ::2] + 1

    def unseen(
        self, corners: Int64[Tensor, "n 2"], boxes: Int64[Tensor, "#n 4"] | None = None
    ) -> Float[Tensor, " n"]:
        """Share of the pairs of a touched patch and any patch whose offset no centred image meets.

        A query on the patches u … v of g along an axis meets the offsets u − g + 1 … v. What is met in the centre is
        taken over all images, the whole image of `image` pixels.

        Label: eq-equivariance-seen.
        """
        first, last = self.cover(torch.tensor([[self.centre, self.centre]]))[0, :2].tolist()
        touched, g = self.cover(corners, boxes), self.grid
        met = torch.tensor([0] + [sum(first - g < q - k <= last for k in range(g)) for q in range(g)]).cumsum(0)
        seen = met[touched[:, 1::2] + 1] - met[touched[:, ::2]]  # n 2: of the pairs along an axis
        pairs = (touched[:, 1::2] - touched[:, ::2] + 1) * g
        return 1 - (seen.double() / pairs).prod(1)

    def _checked(self, corners: Int64[Tensor, "n 2"]) -> Int64[Tensor, "n 2"]:
        if corners.numel() and not 0 <= int(corners.min()) <= int(corners.max()) <= self.room:
            found = f"{int(corners.min())} to {int(corners.max())}"
            raise ValueError(f"corners: got values from {found}, expected 0 to {self.room}")
        return corners


@dataclass(frozen=True)
class Group:
    """Test images of one kind, as several runs judged them.

    Attributes:
        images: how many, over all runs.
        correct: how many of them were right.
        accuracies: share of right ones, a run each; runs that met no such image are left out.
    """

    images: int
    correct: int
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Share of right ones over all runs."""
        return self.correct / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 % for the choice of the images, as if all were independent."""
        return wilson_interval(self.correct, self.images)


def sort(kinds: Int64[Tensor, " n"], outcomes: Sequence[Bool[Tensor, " n"]]) -> dict[int, Group]:
    """The images of each kind, in ascending order of the kinds.

    Args:
        kinds: what each test image is sorted by, such as `Scene.phase_distance`.
        outcomes: which images were right, for every run.

    Raises:
        ValueError: no runs, or outcomes of another number of images.
    """
    _check_outcomes(len(kinds), outcomes)
    found = {}
    for kind in kinds.unique().tolist():
        chosen = [right[kinds == kind] for right in outcomes]
        found[kind] = Group(sum(map(len, chosen)), sum(int(right.sum()) for right in chosen),
                            tuple(float(right.double().mean()) for right in chosen))
    return found


def accuracy_map(
    cells: Int64[Tensor, "n 2"], outcomes: Sequence[Bool[Tensor, " n"]], side: int
) -> Float[Tensor, "side side"]:
    """Share of right images in every cell (row, column) of a square, over all runs; NaN where there is none.

    Raises:
        ValueError: as `sort`; cells outside the square.
    """
    _check_outcomes(len(cells), outcomes)
    if len(cells) and not 0 <= int(cells.min()) <= int(cells.max()) < side:
        raise ValueError(f"cells: got {int(cells.min())} to {int(cells.max())}, expected 0 to {side - 1}")
    flat = cells[:, 0] * side + cells[:, 1]
    images = torch.bincount(flat, minlength=side ** 2) * len(outcomes)
    right = torch.stack([torch.bincount(flat[o], minlength=side ** 2) for o in outcomes]).sum(0)
    return (right.double() / images).view(side, side)


def shares(neither: Any, first: Any, second: Any, both: Any) -> tuple[Any, Any, Any]:
    """What two factors contribute to both − neither, and how far they do not add up; of numbers, or of effects.

    Each factor's contribution is the mean of its effect without and with the other one (Shapley's value for two
    players), so the two contributions sum to both − neither. The third number, the interaction, is
    both − first − second + neither: zero where the effects add up.

    Label: eq-static-shares.
    """
    one = 0.5 * ((first - neither) + (both - second))
    other = 0.5 * ((second - neither) + (both - first))
    return one, other, both - first - second + neither


def at_phases(
    kinds: Int64[Tensor, " n"], wanted: Int64[Tensor, " n"], right: Float[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """What each image adds to the mean of `right` where its kinds are as frequent as `wanted` has them.

    The mean of the result is that of `right` kind by kind, weighted by the shares of `wanted`; its spread is the error
    for the choice of the images of both. Chapter "Static and dynamic MNIST".

    Args:
        kinds: of the images that were tested, from 0 on, such as distances of the phase; none is missing.
        wanted: kinds of the images whose shares count; no other ones than in `kinds`.
        right: what is averaged, an image each.
    """
    mean = torch.stack([right[kinds == k].mean() for k in range(int(kinds.max()) + 1)])
    weight = wanted.bincount(minlength=len(mean)) / kinds.bincount()
    return weight[kinds] * (right - mean[kinds]) + mean[wanted]


def by_seed(results: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> list[tuple[float, ...]]:
    """For every seed that all of the named results have, the results in that order."""
    common = set.intersection(*(set(results[name]) for name in names)) if names else set()
    return [tuple(results[name][seed] for name in names) for seed in sorted(common)]


def _check_outcomes(count: int, outcomes: Sequence[Bool[Tensor, " n"]]) -> None:
    if not outcomes:
        raise ValueError("outcomes: got no runs, expected at least one")
    wrong = [len(right) for right in outcomes if len(right) != count]
    if wrong:
        raise ValueError(f"outcomes: got {wrong[0]} images, expected {count}")
