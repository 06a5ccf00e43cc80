"""Clouds of points on simple outlines, drawn on the fly: circle, square, cross, spiral, triangle.

Every cloud has its own size, its own points and its own place; the class is the outline. Nothing is stored or
downloaded. Source: chapter "Continuous positions".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Clouds:
    """Labelled clouds of points in the plane.

    Attributes:
        positions: coordinates (x, y) of every point.
        labels: number of the outline in the list of names that was asked for.
    """

    positions: Float[Tensor, "b n 2"]
    labels: Int64[Tensor, " b"]

    def __len__(self) -> int:
        return len(self.labels)

    def shifted(self, by: Sequence[float | int]) -> "Clouds":
        """The same clouds, all moved by (x, y)."""
        if len(by) != 2:
            raise ValueError(f"by must hold two numbers (x, y), got {by!r}")
        return Clouds(self.positions + torch.tensor(by, dtype=self.positions.dtype), self.labels)


def _polygon(corners: Sequence[tuple[float, float]]) -> Callable[[Tensor], Tensor]:
    """Return the closed path through the corners, each side in the same share of u."""
    path = torch.tensor([*corners, corners[0]], dtype=torch.float64, device="cpu")

    def outline(u: Tensor) -> Tensor:
        sides = path.to(u)
        place = u * len(corners)
        start = place.long().clamp(max=len(corners) - 1)
        return torch.lerp(sides[start], sides[start + 1], (place - start)[..., None])

    return outline


def _circle(u: Tensor) -> Tensor:
    return torch.stack([torch.cos(2 * math.pi * u), torch.sin(2 * math.pi * u)], dim=-1)


def _cross(u: Tensor) -> Tensor:
    """Two bars of length two through the middle."""
    along = (4 * u) % 2 - 1
    across = torch.zeros_like(along)
    return torch.where((u < 0.5)[..., None], torch.stack([along, across], -1), torch.stack([across, along], -1))


def _spiral(u: Tensor) -> Tensor:
    """One and a half turns from the middle outwards; √u spreads the points evenly along the line."""
    r = u.sqrt()
    return r[..., None] * torch.stack([torch.cos(3 * math.pi * r), torch.sin(3 * math.pi * r)], dim=-1)


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "circle": _circle,
    "square": _polygon([(0.85, 0.85), (-0.85, 0.85), (-0.85, -0.85), (0.85, -0.85)]),
    "cross": _cross,
    "spiral": _spiral,
    "triangle": _polygon([(0.0, 1.0), (-0.9, -0.6), (0.9, -0.6)]),
}
"""Every outline by name: a function from u in [0, 1) to a point about one unit from the middle."""


def sample_shapes(count: int, points: int = 24, *, names: Sequence[str] = ("circle", "square", "cross", "spiral"),
                  shift: float | int = 0.0, noise: float | int = 0.03,
                  generator: torch.Generator | None = None) -> Clouds:
    """Draw clouds: a random outline, random points on it, a random size, a random place.

    Args:
        count: number of clouds.
        points: number of points of each.
        names: outlines to choose from, equally often in expectation; a label is a place in this list.
        shift: the middle of a cloud is uniform in the square [−shift, shift]²; 0 centres every cloud.
        noise: standard deviation added to every coordinate.
        generator: where all random numbers come from; torch's global generator when None.

    Returns:
        Clouds in torch's default dtype; their size (the factor on the outline) is uniform in [0.8, 1.2].

    Raises:
        ValueError: counts that are not positive integers, an unknown outline, a negative shift or noise.
    """
    for name, number in (("count", count), ("points", points)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {number!r}")
    for name, extent in (("shift", shift), ("noise", noise)):
        if not extent >= 0:
            raise ValueError(f"{name} must not be negative, got {extent!r}")
    if not names or set(names) - set(SHAPES):
        raise ValueError(f"names must be chosen from {sorted(SHAPES)}, got {tuple(names)}")
    labels = torch.randint(len(names), (count,), generator=generator)
    u = torch.rand(count, points, generator=generator)
    outlines = torch.stack([SHAPES[name](u) for name in names])                     # one of each: s b n 2
    place = outlines[labels, torch.arange(count)]                                   # b n 2
    size = 0.8 + 0.4 * torch.rand(count, 1, 1, generator=generator)
    middle = shift * (2 * torch.rand(count, 1, 2, generator=generator) - 1)
    jitter = noise * torch.randn(count, points, 2, generator=generator)
    return Clouds(size * place + middle + jitter, labels)
