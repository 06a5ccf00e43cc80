"""The unit sphere as a page draws it: seen from far away, with loops on it and vectors carried along them.

A place is a colatitude θ and a longitude φ in degrees. A loop is a list of places: the corners of a geodesic polygon,
or one place alone, which stands for its whole circle of latitude, walked eastwards from there. Points are rows of ℝ³.
"""

from collections.abc import Callable, Sequence

import numpy as np

__all__ = [
    "angles", "area", "carried", "carry", "facets", "frame", "graticule", "split", "stations", "turn", "unit",
]  # fmt: skip

EDGE, CIRCLE, FINE, MESH = 20, 60, 30, 12  # steps per edge and per circle; parts of a circle's step, and of a facet
Loop = Sequence[Sequence[float | int]]


def frame(place: Sequence[float | int]) -> np.ndarray:
    """South, east and up at a place, as rows."""
    (s, t), (c, u) = np.sin(np.radians(place)), np.cos(np.radians(place))
    return np.array([[c * u, c * t, -s], [-t, u, 0], [s * u, s * t, c]])


def unit(place: Sequence[float | int]) -> np.ndarray:
    """The point of the sphere at a place."""
    return frame(place)[2]


def carry(v: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The vector v, tangent at a, carried to b along the shorter great circle."""
    return v - (b @ v) / max(1 + a @ b, 1e-12) * (a + b)


def stations(loop: Loop) -> np.ndarray:
    """The points that a walk around the loop stops at; first and last are the same."""
    if len(loop) == 1:
        return np.array([unit((loop[0][0], loop[0][1] + 360 * k / CIRCLE)) for k in range(CIRCLE + 1)])
    corners = [unit(place) for place in loop]
    edges = zip(corners, [*corners[1:], corners[0]], strict=True)
    return np.array([*(point for a, b in edges for point in _arc(a, b)), corners[0]])


def _arc(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """The stops from a towards b along the shorter great circle, without b."""
    way = b - (a @ b) * a
    size = float(np.linalg.norm(way))
    angle, way = np.arctan2(size, a @ b), way / max(size, 1e-12)
    return [a * np.cos(angle * k / EDGE) + way * np.sin(angle * k / EDGE) for k in range(EDGE)]


def carried(loop: Loop, bearing: float | int) -> np.ndarray:
    """A unit vector at every station, carried without turning.

    The first one stands `bearing` degrees counterclockwise of the first edge, or on a circle of the south.
    """
    points, (south, _, up) = stations(loop), frame(loop[0])
    ahead = south if len(loop) == 1 else points[1] - (points[1] @ up) * up
    ahead = ahead / np.linalg.norm(ahead)
    vectors = [np.cos(np.radians(bearing)) * ahead + np.sin(np.radians(bearing)) * np.cross(up, ahead)]
    for k in range(len(points) - 1):
        stops, v = [points[k], points[k + 1]], vectors[-1]
        if len(loop) == 1:  # a circle of latitude is no great circle: short steps approach it
            step = 360 / CIRCLE / FINE
            stops = [unit((loop[0][0], loop[0][1] + (k * FINE + n) * step)) for n in range(FINE + 1)]
        for a, b in zip(stops, stops[1:], strict=False):
            v = carry(v, a, b)
        vectors.append(v)
    return np.array(vectors)


def area(loop: Loop) -> float:
    """The enclosed area, in radians: positive if the loop runs counterclockwise, seen from outside."""
    if len(loop) == 1:
        return float(2 * np.pi * (1 - np.cos(np.radians(loop[0][0]))))
    a, *others = (unit(place) for place in loop)
    pairs = zip(others, others[1:], strict=False)
    return float(sum(2 * np.arctan2(a @ np.cross(b, c), 1 + a @ b + b @ c + c @ a) for b, c in pairs))


def turn(loop: Loop, vectors: np.ndarray) -> float:
    """The angle from the first to the last vector in radians, among its values the one nearest to the area."""
    up, first, last = unit(loop[0]), vectors[0], vectors[-1]
    angle = np.arctan2(last @ np.cross(up, first), last @ first)
    return float(angle + 2 * np.pi * np.round((area(loop) - angle) / (2 * np.pi)))


def angles(loop: Loop) -> list[float]:
    """The inner angles of a polygon at its corners, in radians."""
    points, sign = [unit(place) for place in loop], 1 if area(loop) >= 0 else -1
    result = []
    for k, b in enumerate(points):
        a, c = points[k - 1], points[(k + 1) % len(points)]
        came, goes = (a @ b) * b - a, c - (c @ b) * b
        result.append(float(np.pi - sign * np.arctan2(b @ np.cross(came, goes), came @ goes)))
    return result


def facets(loop: Loop) -> list[np.ndarray]:
    """Small polygons that fill the loop, each (corners, 3)."""
    if len(loop) == 1:
        step = loop[0][0] / MESH
        cells = [(step * r, 10.0 * c) for r in range(MESH) for c in range(36)]
        return [np.array([unit(q) for q in ((y, x), (y, x + 10), (y + step, x + 10), (y + step, x))]) for y, x in cells]
    a, *others = (unit(place) for place in loop)
    return [facet for b, c in zip(others, others[1:], strict=False) for facet in _triangles(a, b, c)]


def _triangles(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    def at(i: int, j: int) -> np.ndarray:
        point = (MESH - i - j) * a + i * b + j * c
        return point / max(float(np.linalg.norm(point)), 1e-9)

    cells = [(i, j) for i in range(MESH) for j in range(MESH - i)]
    up = [np.array([at(i, j), at(i + 1, j), at(i, j + 1)]) for i, j in cells]
    return up + [np.array([at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)]) for i, j in cells if i + j < MESH - 1]


def graticule() -> list[np.ndarray]:
    """Meridians and circles of latitude, 30 degrees apart."""
    turns = np.arange(0, 361, 7.5)
    return [np.array([unit((t, lon)) for t in turns]) for lon in range(0, 180, 30)] + [
        np.array([unit((colatitude, t)) for t in turns]) for colatitude in range(30, 180, 30)
    ]


def split(curve: np.ndarray, draw: Callable[[np.ndarray], str]) -> tuple[str, str]:
    """Path data of a curve's front and back; rows are (right, up, towards the reader), `draw` places a point."""
    paths, last = ["", ""], -1
    for a, b in zip(curve, curve[1:], strict=False):
        pieces = [(a, b, int(a[2] + b[2] < 0))]
        if (a[2] < 0) != (b[2] < 0):
            limb = a + (b - a) * a[2] / (a[2] - b[2])
            limb = limb / max(float(np.hypot(limb[0], limb[1])), 1e-9)
            pieces = [(a, limb, int(a[2] < 0)), (limb, b, int(b[2] < 0))]
        for start, end, side in pieces:
            paths[side] += ("" if side == last else f"M{draw(start)}L") + f"{draw(end)} "
            last = side
    return paths[0].strip(), paths[1].strip()
