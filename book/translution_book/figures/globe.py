"""A sphere that the reader turns: a loop on it, a vector carried around the loop, and the angle that it turns by."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from . import globe_loop
from .globe_drawing import ARC, ARROW, EVERY, MESH, RADIUS, SIZE, drawing
from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import svg_element
from .script import script
from .svg import fingerprint

__all__ = ["globe"]

_APART = 3.0  # degrees that corners keep between each other, and from each other's antipodes
_LOOPS: Mapping[str, Any] = {
    "octant triangle": {"N": (0, 0), "A": (90, 0), "B": (90, 90)},
    "circle of latitude": 60,
}
_FLEX = "display:flex;flex-wrap:wrap;justify-content:center;align-items:center;gap:.4em 1.6em"
_ROW = "display:none;flex-wrap:wrap;gap:.4em .8em;justify-content:center;margin:.3em 0"
_CHOICE = 'data-lm-suppress-shortcuts="true" style="font:inherit"'


def globe(
    loops: Mapping[str, Mapping[str, Sequence[float | int]] | float | int] | None = None,
    *,
    alt: str,
    caption: str | None = None,
    bearing: float | int = 0,
    view: Sequence[float | int] = (52, 42),
    step: int | None = None,
    corner: int = 1,
) -> Output:
    """Parallel transport around a loop on the unit sphere; the page itself computes angle and area.

    The reader drags the globe to turn it, drags the corners, and carries the vector by a slider. Printed are the angle
    that the vector has turned by after the whole loop, the enclosed area, and the excess of a polygon's angles over
    those of a flat one, each computed on its own (the angle from the steps, the area from the corners' coordinates).
    All are positive if the loop runs counterclockwise around the smaller side, seen from outside. Whole turns of the
    angle are invisible: of its values the one nearest to the area is printed. The button carries the vector around;
    where the reader's system asks for reduced motion, each press carries it a quarter further.

    Args:
        loops: by name, the corners of a polygon (their names and places: colatitude θ and longitude φ in degrees), or
            a number: the circle of latitude at that colatitude. The reader chooses; default: octant triangle and
            circle. Edges are the shorter great arcs.
        alt: what the figure shows; the first loop and its numbers are added to it.
        caption: a line below the figure; it may hold simple HTML.
        bearing: where the vector starts: degrees counterclockwise of the first edge, on a circle of the south.
        view: the place (θ, φ) that faces the reader at first.
        step: how far the vector is carried at first, and in print; default: around the whole loop.
        corner: the corner that the sliders move at first.

    Raises:
        ValueError: if `alt` is empty, there is no loop, a polygon has fewer than three corners, two corners are within
            3° of each other or of each other's antipodes, a circle is within 5° of a pole, or `step` leaves the loop.

    Example:
        >>> from translution_book import figures
        >>> figures.globe(alt="A vector carried around a triangle with three right angles turns by 90 degrees."
        ...               )  # doctest: +ELLIPSIS
        figure: A vector carried around a triangle with three right angles turns by 90 degrees. Octant triangle: ...
        >>> corners = {"A": (60, 0), "B": (120, 20), "C": (90, 70)}
        >>> half = figures.globe({"triangle": corners}, alt="Transport along a triangle.", step=30)
    """
    alt, loops = checked_alt(alt), _LOOPS if loops is None else loops
    table = {name: _loop(name, given) for name, given in loops.items()}
    if not table:
        raise ValueError(f"loops must hold at least one loop, got {loops}")
    name, (names, places) = next(iter(table.items()))
    last = len(globe_loop.stations(places)) - 1
    step, first = last if step is None else step, places[min(corner, len(places) - 1)]
    view = _near(view)
    if not 0 <= step <= last:
        raise ValueError(f"step must lie between 0 and {last}, got {step}")
    vectors = globe_loop.carried(places, bearing)
    rows = _rows(places, vectors)
    said = f"{alt} {name[:1].upper()}{name[1:]}: turned by {rows[0][1]}, area {rows[1][1]}."
    uid = fingerprint(alt, str(caption), *table, str(list(table.values())))
    drawn = drawing(places, names, vectors, step, view)
    svg = svg_element(uid, said, SIZE, SIZE, drawn).replace("<svg ", '<svg class="tl-globe" ', 1)
    data = {
        "alt": alt, "view": view, "bearing": bearing, "corner": corner, "edge": globe_loop.EDGE,
        "circle": globe_loop.CIRCLE, "fine": globe_loop.FINE, "mesh": MESH, "size": SIZE, "radius": RADIUS,
        "arrow": ARROW, "arc": ARC, "every": EVERY, "apart": _APART, "step": step,
        "loops": [{"name": key, "names": n, "places": p} for key, (n, p) in table.items()],
    }  # fmt: skip
    side = _table(rows) + _controls(list(table), names, corner, _sliders(first, step, last, view))
    body = (
        f'<div style="{_FLEX}"><div style="flex:1 1 280px;max-width:{SIZE}px">{svg}</div>'
        f'<div style="flex:3 1 280px;max-width:430px">{side}</div></div>'
    )
    extra = script("globe", uid, data)
    return Output(wrap(body, caption, extra, f'class="tl-figure tl-interactive" id="{uid}"'), said)


def _loop(name: str, given: Any) -> tuple[list[str], list[list[float | int]]]:
    """Names and places of a loop's corners; a circle has one, its start."""
    if not isinstance(given, Mapping):
        if not 5 <= given <= 175:
            raise ValueError(f"loops[{name!r}] must be a colatitude from 5 to 175 degrees, got {given}")
        return ["start"], [[given, 0]]
    places = [_near(place) for place in given.values()]
    points = np.array([globe_loop.unit(place) for place in places])
    cosines = np.abs(points @ points.T)[np.triu_indices(len(points), 1)]
    if len(places) < 3 or cosines.max() >= np.cos(np.radians(_APART)):
        raise ValueError(f"loops[{name!r}] must have three corners or more, none within {_APART:g} degrees of another "
                         f"or of its antipode, got {dict(given)}")  # fmt: skip
    return list(given), places


def _near(place: Sequence[float | int]) -> list[float | int]:
    """The place with its longitude between −180 and 180 degrees."""
    return [place[0], place[1] if abs(place[1]) <= 180 else (place[1] + 180) % 360 - 180]


def _degrees(angle: float | int) -> str:
    return f"{np.degrees(angle) + 0.0:.1f}°".replace("-0.0", "0.0").replace("-", "−")


def _rows(places: globe_loop.Loop, vectors: np.ndarray) -> list[tuple[str, str]]:
    """What is printed: the turned angle, the area, the angles' excess."""
    area = globe_loop.area(places)
    rows = [
        ("turned by", _degrees(globe_loop.turn(places, vectors))),
        ("enclosed area", f"{area:.4f} = {_degrees(area)}".replace("-", "−")),
    ]
    if len(places) == 1:
        return [*rows, ("angles", "no corners"), ("their excess", "–")]
    angles, sign = globe_loop.angles(places), 1 if area >= 0 else -1
    excess = sign * (sum(angles) - np.pi * (len(places) - 2))
    return [*rows, ("angles", ", ".join(map(_degrees, angles))), ("their excess", _degrees(excess))]


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<span style="text-align:right">{name}</span><b class="tl-value" style="text-align:left">{value}</b>'
        for name, value in rows
    )
    grid = "display:grid;grid-template-columns:auto auto;justify-content:center;gap:.1em .7em;margin:.3em 0"
    return f'<div style="{grid}">{cells}</div>'


def _controls(loops: Sequence[str], corners: Sequence[str], corner: int, sliders: Sequence[str]) -> str:
    """Choices, a button that carries the vector around, and the sliders; hidden until the script runs."""

    def choice(name: str, texts: Sequence[str], chosen: int) -> str:
        options = "".join(
            f'<option value="{k}"{" selected" * (k == chosen)}>{escape(text)}</option>' for k, text in enumerate(texts)
        )
        return f'<label style="white-space:nowrap">{name} <select name="{name}" {_CHOICE}>{options}</select></label>'

    def row(*parts: str) -> str:
        return f'<div class="tl-control" style="{_ROW}">{"".join(parts)}</div>'

    along, colatitude, longitude, turn, tilt = sliders
    hint = row('<span style="font-size:.9em">Drag the globe to turn it, a corner to move it.</span>')
    loop = choice("loop", loops, 0) if len(loops) > 1 else ""
    button = f'<button type="button" class="tl-play" {_CHOICE}>carry around</button>'
    chosen = row(choice("corner", corners, min(corner, len(corners) - 1)))
    return hint + row(loop, button) + along + chosen + colatitude + longitude + turn + tilt


def _sliders(place: Sequence[float | int], step: int, last: int, view: Sequence[float | int]) -> tuple[str, ...]:
    """Sliders from −180, −90 or 0 degrees on; the script writes their texts."""
    tilt, turn = 180 - view[0], view[1] + 180
    return (
        slider("along the loop", [f"{k}/{last}" for k in range(last + 1)], step, 8),
        slider("θ of the corner", _texts(0, 181), round(place[0]), 8),
        slider("φ of the corner", _texts(-180, 181), round(place[1]) + 180, 8),
        slider("turn the globe", _texts(-180, 181), round(turn), 8),
        slider("tilt the globe", _texts(-90, 91), round(tilt), 8),
    )


def _texts(start: int, stop: int) -> list[str]:
    return [f"{value}°".replace("-", "−") for value in range(start, stop)]
