"""The globe's drawing: graticule, loop, filled area, arrows and corners, in the groups that the script redraws."""

from collections.abc import Callable, Sequence

import numpy as np

from . import globe_loop
from .globe_loop import Loop, unit
from .panels import short
from .style import palette

__all__ = ["ARC", "ARROW", "EVERY", "MESH", "RADIUS", "SIZE", "drawing"]

SIZE, RADIUS = 344, 148  # pixels
ARROW, ARC, EVERY = 0.34, 0.2, 4  # an arrow's length, the turned angle's radius; steps between ghosts
MESH = 12  # parts of a facet's edge
_ROUND = 'stroke-linecap="round" stroke-linejoin="round" '
Place = Callable[[np.ndarray], str]


def drawing(
    places: Loop, names: Sequence[str], vectors: np.ndarray, step: int, view: Sequence[float | int]
) -> str:
    """The sphere seen from the place `view`, with the vector carried by `step` stations."""
    south, east, up = globe_loop.frame(view)
    axes = np.array([east, -south, up]).T
    angle = globe_loop.turn(places, vectors) if step == len(vectors) - 1 else None
    points, vectors, grey = globe_loop.stations(places) @ axes, vectors @ axes, f'stroke="{palette.grey}" '
    ghosts = [_arrow(points[k], vectors[k]) for k in range(EVERY, step, EVERY)]
    back, front = ("".join(d for d, behind in ghosts if behind is side) for side in (True, False))
    arrows = ((n, c, _arrow(points[k], vectors[k])) for n, c, k in
              (("start", palette.blue, 0), ("now", palette.orange, step)))  # fmt: skip
    return "".join([
        f'<circle cx="{SIZE / 2:g}" cy="{SIZE / 2:g}" r="{RADIUS}" fill="{palette.grey}" fill-opacity=".07" {grey}/>',
        _sides("grid", [curve @ axes for curve in graticule()], grey + 'stroke-width=".7"',
               ' stroke-opacity=".5" stroke-dasharray="1 4"'),
        f'<path class="tl-fill" d="{_fill([f @ axes for f in facets(places)])}" fill="{palette.green}" '
        'fill-opacity=".3"/>',
        _sides("loop", [points], _ROUND + 'stroke="currentColor" stroke-width="2"',
               ' stroke-dasharray="3 4" stroke-opacity=".6"'),
        _path("ghosts1", back, _ROUND + grey + 'stroke-width="1.2" stroke-opacity=".5"'),
        _path("ghosts0", front, _ROUND + grey + 'stroke-width="1.8"'),
        _path("turned", _turned(points[0], vectors[0], angle), f'stroke="{palette.purple}" stroke-width="2.2"'),
        *(_path(name, d, _ROUND + f'stroke="{colour}" stroke-width="3.2" stroke-opacity="{0.4 if behind else 1}"')
          for name, colour, (d, behind) in arrows),
        _corners(names, np.array([unit(place) for place in places]) @ axes),
    ])  # fmt: skip


def _at(point: np.ndarray) -> str:
    return f"{short(SIZE / 2 + RADIUS * point[0], 1)} {short(SIZE / 2 - RADIUS * point[1], 1)}"


def _path(name: str, d: str, style: str) -> str:
    return f'<path class="tl-{name}" d="{d}" fill="none" {style}/>'


def _sides(name: str, curves: Sequence[np.ndarray], style: str, behind: str) -> str:
    """The back and the front of curves, as two paths."""
    front, back = zip(*(split(curve, _at) for curve in curves), strict=True)
    return _path(f"{name}1", "".join(back), style + behind) + _path(f"{name}0", "".join(front), style)


def _arrow(p: np.ndarray, v: np.ndarray) -> tuple[str, bool]:
    """A tangent vector's path, and whether it lies behind."""
    v, side = ARROW * v, ARROW * np.cross(p, v)
    one, two = (p + 0.74 * v + sign * 0.15 * side for sign in (1, -1))
    return f"M{_at(p)}L{_at(p + v)}M{_at(one)}L{_at(p + v)}L{_at(two)}", bool(p[2] < 0)


def _fill(facets: Sequence[np.ndarray]) -> str:
    """The front of the facets; corners behind the limb move to it."""
    paths = []
    for facet in facets:
        if facet[:, 2].max() > 0:
            reach = np.where(facet[:, 2] < 0, np.maximum(np.hypot(facet[:, 0], facet[:, 1]), 1e-9), 1.0)
            paths.append("M" + "L".join(map(_at, facet / reach[:, None])) + "z")
    return "".join(paths)


def _turned(p: np.ndarray, v: np.ndarray, angle: float | None) -> str:
    """The arc from the first to the last vector; nothing as long as the loop is not complete."""
    if angle is None:
        return ""
    steps = float(np.angle(np.exp(1j * angle))) * np.arange(25) / 24
    return "M" + "L".join(_at(p + ARC * (np.cos(a) * v + np.sin(a) * np.cross(p, v))) for a in steps)


def _corners(names: Sequence[str], points: np.ndarray) -> str:
    """Handles with their names, which stand away from the loop's middle."""
    away = points[:, :2] - points[:, :2].mean(axis=0) + np.array([0, 1e-6 if len(points) > 1 else -1])
    away = away / np.hypot(*away.T)[:, None]
    return "".join(
        f'<g class="tl-corner" transform="translate({_at(p)})" opacity="{0.4 if p[2] < 0 else 1}" '
        f'style="cursor:move"><circle r="18" fill="transparent"/><circle r="4.5"/>'
        f'<text x="{short(15 * a[0], 1)}" y="{short(-15 * a[1], 1)}" dy=".35em" text-anchor="middle" font-size="14" '
        f'font-weight="600">{name}</text></g>'
        for name, p, a in zip(names, points, away, strict=True)
    )


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
