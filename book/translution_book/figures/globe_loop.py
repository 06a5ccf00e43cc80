"""A loop on the globe: where it runs, the vector carried around it, and its measures; the mathematics is `geometry`'s.

A place is a colatitude θ and a longitude φ in degrees. A loop is a list of places: the corners of a geodesic polygon,
or one place alone, which stands for its whole circle of latitude, walked eastwards from there. Points are rows of ℝ³.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..geometry import sphere

__all__ = ["CIRCLE", "EDGE", "FINE", "Loop", "angles", "area", "carried", "frame", "stations", "turn", "unit"]

EDGE, CIRCLE, FINE = 20, 60, 30  # steps per edge and per circle; parts of a circle's step
Loop = Sequence[Sequence[float | int]]


def frame(place: Sequence[float | int]) -> np.ndarray:
    """South, east and up at a place, as rows."""
    (s, t), (c, u) = np.sin(np.radians(place)), np.cos(np.radians(place))
    return np.array([[c * u, c * t, -s], [-t, u, 0], [s * u, s * t, c]])


def unit(place: Sequence[float | int]) -> np.ndarray:
    """The point of the sphere at a place."""
    return frame(place)[2]


def _corners(loop: Loop) -> Tensor:
    return torch.from_numpy(np.array([unit(place) for place in loop]))


def _circle(loop: Loop, parts: int) -> Tensor:
    """The points that divide a circle of latitude; first and last are the same."""
    return _corners([(loop[0][0], loop[0][1] + 360 * k / parts) for k in range(parts + 1)])


def stations(loop: Loop) -> np.ndarray:
    """The points that a walk around the loop stops at; first and last are the same."""
    if len(loop) == 1:
        return _circle(loop, CIRCLE).numpy()
    a = _corners(loop)[:, None]
    way = sphere.logarithm(a, a.roll(-1, 0))
    part = torch.arange(EDGE, dtype=a.dtype)[None, :, None] / EDGE
    return torch.cat([sphere.exponential(a, part * way).flatten(0, 1), a[0]]).numpy()


def carried(loop: Loop, bearing: float | int) -> np.ndarray:
    """A unit vector at every station, carried without turning.

    The first one stands `bearing` degrees counterclockwise of the first edge, or on a circle of the south.
    """
    # A circle of latitude is no great circle: short steps approach it.
    points = torch.from_numpy(stations(loop)) if len(loop) > 1 else _circle(loop, CIRCLE * FINE)
    south, _, up = torch.from_numpy(frame(loop[0]))
    ahead = sphere.logarithm(points[0], points[1]) if len(loop) > 1 else south
    ahead, angle = ahead / torch.linalg.vector_norm(ahead), np.radians(bearing)
    vectors = sphere.carried(points, np.cos(angle) * ahead + np.sin(angle) * torch.linalg.cross(up, ahead))
    return vectors[:: 1 if len(loop) > 1 else FINE].numpy()


def area(loop: Loop) -> float:
    """The area to the left of the loop in radians: of a polygon's areas, 4π apart, the one nearest to zero."""
    if len(loop) == 1:
        return float(2 * np.pi * (1 - np.cos(np.radians(loop[0][0]))))
    return float(sphere.spherical_area(_corners(loop)))


def turn(loop: Loop, vectors: np.ndarray) -> float:
    """The angle from the first to the last vector in radians, among its values the one nearest to the area."""
    first, last = torch.from_numpy(vectors[[0, -1]])
    angle = float(sphere.turn(_corners(loop)[0], first, last))
    return angle + 2 * np.pi * round((area(loop) - angle) / (2 * np.pi))


def angles(loop: Loop) -> list[float]:
    """A polygon's angles at its corners in radians, on the side whose area is counted."""
    left = sphere.interior_angles(_corners(loop))
    return (left if area(loop) >= 0 else 2 * np.pi - left).tolist()
