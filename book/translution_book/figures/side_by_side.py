"""What several encodings learned, offset by offset: biases, vectors, rotations and matrices under one pointer."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import Panel, labels_of, short, svg_element, text_width
from .plots import _array
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["OffsetMap", "side_by_side"]

_WIDTH, _ENTRIES, _RADIUS = 150.0, 256, 10.0
_WORDS = {"value": "", "norm": "norm ", "cosine": "cosine ", "angle": "mean cosine "}
_CARDS = "display:flex;flex-wrap:wrap;gap:.8em;justify-content:center;align-items:flex-start"


@dataclass(frozen=True, eq=False)
class OffsetMap:
    """One table of parameters, an entry per offset, and the number that colours an offset.

    Args:
        name: the map's name.
        table: numbers (m,), vectors (m, d), matrices (m, h, w), or with show="angle" angles in radians (m, k); rows
            after the offsets, such as those of CLS, are left out.
        show: "value" of a number; "norm" of an entry; "cosine" of every entry with the entry at the pointer; "angle":
            the mean cosine of the angles, tr R_δ / d. Default: the value of numbers, the norm of anything else.
    """

    name: str
    table: Any
    show: str | None = None


def side_by_side(
    relations,
    maps: Sequence[OffsetMap],
    *,
    alt: str,
    caption: str | None = None,
    start: int | None = None,
) -> Output:
    """Point at an offset in any map: all maps mark it and show their entry at it below.

    Args:
        relations: the table that numbers the offsets, in one or two dimensions.
        maps: the tables of parameters.
        alt: what the figure shows; the selected offset is added to it.
        caption: a line below the figure; it may hold simple HTML.
        start: the relation selected at first, default: the middle one, the offset zero.

    Raises:
        ValueError: if `alt` is empty, the table has no offsets, a map does not fit to it, or `start` is no offset.
    """
    alt = checked_alt(alt)
    deltas = [label for label in relations.labels if isinstance(label, tuple)]
    if not deltas or relations.shape is None or len(deltas[0]) > 2 or not maps:
        raise ValueError(f"relations must hold offsets in one or two dimensions, and maps a map, got {relations}")
    start = len(deltas) // 2 if start is None else start
    if not 0 <= start < len(deltas):
        raise ValueError(f"start must be an offset from 0 to {len(deltas) - 1}, got {start}")
    places = np.array([(δ[-1], δ[0] if len(δ) > 1 else 0) for δ in deltas], dtype=float)
    labels, data = labels_of(deltas), [_data(given, len(deltas)) for given in maps]
    uid = fingerprint(alt, str(caption), *labels, *(given.name for given in maps))
    cards = "".join(
        _card(fingerprint(uid, str(k)), entry, places, start, labels[start]) for k, entry in enumerate(data)
    )
    step = int(np.ptp(places[:, 0])) + 1 if np.ptp(places[:, 1]) else 1
    numbers = {"labels": labels, "step": step, "radius": _RADIUS, "colours": [palette.blue, palette.orange]}
    extra = script("side_by_side", uid, numbers | {"maps": data})
    body = f'<div style="{_CARDS}">{cards}</div>{slider("offset", labels, start, 9)}'
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(body, caption, extra, kind), f"{alt} {labels[start]}")


def _data(given: OffsetMap, m: int) -> dict[str, Any]:
    """What the script needs of one map; entries and numbers have three decimals."""
    table = np.asarray(_array(given.table), dtype=float)
    show = given.show or ("value" if table.ndim == 1 else "norm")
    dims = {"value": (1,), "norm": (2, 3), "cosine": (2, 3), "angle": (2,)}.get(show)
    if dims is None or table.ndim not in dims or len(table) < m or table[0].size > _ENTRIES:
        raise ValueError(
            f"maps: {given.name!r} must hold {m} entries of at most {_ENTRIES} numbers that fit "
            f'show="value", "norm", "cosine" or "angle", got the shape {table.shape} and show={show!r}'
        )
    rows = table[:m].reshape(m, -1)
    values = {"value": rows[:, 0], "angle": np.cos(rows).mean(axis=1)}.get(show, np.linalg.norm(rows, axis=1))
    return {
        "name": given.name,
        "show": show,
        "word": _WORDS[show],
        "shape": list(table.shape[1:] if table.ndim == 3 else (1, *table.shape[1:])),
        "entries": _rounded(rows),
        "most": float(np.abs(rows).max().round(3)),
        "values": _rounded(values),
        "high": 1.0 if show in ("angle", "cosine") else float(np.abs(values).max().round(3)),
    }


def _rounded(values: np.ndarray) -> list:
    return (values.round(3) + 0.0).tolist()


def _card(uid: str, data: dict[str, Any], places: np.ndarray, start: int, label: str) -> str:
    """A map with its name above, and below it the entry at the pointer."""
    panel = Panel(places - places.min(axis=0), min(22.0, _WIDTH / (np.ptp(places, axis=0).max() + 1)))
    entry = data["entries"][start]
    if data["show"] == "cosine":
        values, text = [_cosine(entry, other) for other in data["entries"]], "cosines with this entry"
    else:
        values, text = data["values"], data["word"] + f"{data['values'][start]:.3f}".replace("-", "−")
    line = panel.bottom + 16
    detail, bottom = _detail(data, entry, line + 8)
    inside = (
        panel.label(data["name"])
        + panel.cells("tl-l", _paints(values, data["high"]))
        + panel.frame("tl-a", start).replace(palette.orange, "currentColor")
        + f'<text class="tl-t" x="2" y="{short(line)}" font-size="11">{escape(text)}</text>{detail}'
    )
    width = max(panel.right, text_width(data["name"]) + 4, _WIDTH + 2) + 2
    svg = svg_element(uid, f"{data['name']} at {label}: {text}", width, bottom + 2, inside)
    return f'<div class="tl-card" style="flex:1 1 126px;max-width:{width:.0f}px">{svg}</div>'


def _detail(data: dict[str, Any], entry: list[float], top: float) -> tuple[str, float]:
    """The entry at the pointer, as dials or as cells, and where it ends."""
    count, (h, w) = len(entry), (data["shape"] * 2)[:2]
    if data["show"] == "value":
        return "", top
    if data["show"] == "angle":
        columns = int(_WIDTH // (2 * _RADIUS + 4))
        middles = [
            (2 + _RADIUS + (k % columns) * (2 * _RADIUS + 4), top + _RADIUS + k // columns * (2 * _RADIUS + 4))
            for k in range(count)
        ]
        return "".join(map(_dial, middles, entry)), middles[-1][1] + _RADIUS
    cells = Panel(np.array([(c, r) for r in range(h) for c in range(w)], dtype=float), min(14.0, _WIDTH / w), top=top)
    return cells.cells("tl-e", _paints(entry, data["most"])), cells.bottom


def _dial(middle: tuple[float, float], angle: float) -> str:
    x, y = middle
    dx, dy = _RADIUS * np.cos(angle), _RADIUS * np.sin(angle)
    return (
        f'<g class="tl-h" fill="none">'
        f'<circle cx="{short(x)}" cy="{short(y)}" r="{short(_RADIUS)}" stroke="{palette.grey}"/>'
        f'<line x1="{short(x)}" y1="{short(y)}" x2="{short(x + dx)}" y2="{short(y - dy)}" stroke="{palette.blue}" '
        f'stroke-width="2"/></g>'
    )


def _paints(values: Sequence[float], high: float) -> list[tuple[str, float]]:
    return [(palette.orange if v < 0 else palette.blue, min(1.0, abs(v) / high) if high else 0.0) for v in values]


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.dot(a, b)) / (float(np.sqrt(np.dot(a, a) * np.dot(b, b))) or 1.0)
