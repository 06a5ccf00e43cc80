"""A query's attention row and, beside it, the relation through which it reads each key."""

import re
from typing import Any

import numpy as np

from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import Panel, short, svg_element, text_width, token_places
from .plots import _array
from .script import script
from .style import legible, palette
from .svg import fingerprint

__all__ = ["attention_map"]

_NAMES = ("query i", "weight α of key j", "its matrix: δ")
_ROW = "display:flex;flex-wrap:wrap;gap:.4em .8em;justify-content:center"  # a phone gets two panels and one below


def attention_map(weights, relations, *, alt: str, caption: str | None = None, start: int | None = None) -> Output:
    """Point at a query: its attention weights appear beside it, and the relation of each pair beside those.

    The deepest blue is the largest weight of the selected query.

    Args:
        weights: attention weights (n, n), row = query, column = key; rows sum to one.
        relations: the table of the pairs; it needs a grid of one or two dimensions.
        alt: what the figure shows; the selected query is added to it.
        caption: a line below the figure; it may hold simple HTML.
        start: the query selected at first, default: the middle one.

    Raises:
        ValueError: if `alt` is empty, the shapes do not fit, or `start` is no token.
    """
    alt, rows = checked_alt(alt), np.asarray(_array(weights), dtype=float)
    n, shape = relations.n, relations.shape
    if shape is None or len(shape) > 2 or rows.shape != (n, n):
        raise ValueError(f"weights must be {n} × {n} on a grid of one or two dimensions, got {rows.shape} on {shape}")
    start = n // 2 if start is None else start
    if not 0 <= start < n:
        raise ValueError(f"start must be a token from 0 to {n - 1}, got {start}")
    places = token_places(shape, relations.cls)
    labels = _token_names(shape, relations.cls)
    data = _data(rows, relations) | {"alt": alt, "labels": labels, "step": shape[-1]}
    uid = fingerprint(alt, str(caption), *labels)
    panel = Panel.fit(places, 360.0 if places[:, 1].max() == 0 else 160.0)
    stage = _stage(panel, _inside(panel, data, start, uid), uid, f"{alt} {labels[start]}")
    extra = script("attention_map", uid, data)
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(stage + slider("query", labels, start), caption, extra, kind), f"{alt} {labels[start]}")


def _token_names(shape, cls: bool) -> list[str]:
    names = [", ".join(map(str, p)) for p in np.ndindex(*shape)]
    return ["CLS", *names] if cls else names


def _data(rows: np.ndarray, relations) -> dict[str, Any]:
    """What the script needs; a relation's name is its offset, and nothing for a role of CLS."""
    colours = palette.categorical(relations.count)
    names = [",".join(map(str, k)).replace("-", "−") if isinstance(k, tuple) else "cls" for k in relations.labels]
    return {
        "rows": [[float(short(v, 4)) for v in row] for row in rows],
        "ids": relations.index.tolist(),
        "high": [float(short(row.max(), 4)) for row in rows],
        "colours": colours,
        "inks": [legible(colour) for colour in colours],
        "names": names,
    }


def _stage(panel: Panel, inside: list[str], uid: str, alt: str) -> str:
    """Three drawings in a row that breaks before it shrinks far; the first one is named in full."""
    width = max(panel.right, *map(text_width, _NAMES)) + 2
    least = width if panel.places[:, 1].max() == 0 else 126
    drawings = (
        svg_element(uid if k == 0 else fingerprint(uid, name), alt if k == 0 else name, width, panel.bottom + 2, drawn)
        for k, (name, drawn) in enumerate(zip(_NAMES, inside, strict=True))
    )
    cards = (f'<div style="flex:1 1 {least:.0f}px;max-width:{width:.0f}px">{svg}</div>' for svg in drawings)
    return f'<div style="{_ROW}">{"".join(cards)}</div>'


def _inside(panel: Panel, data: dict[str, Any], start: int, uid: str) -> list[str]:
    """The query's place, the weights of its keys, and their relations."""
    ids, count = data["ids"][start], len(data["rows"])
    fills = [data["colours"][k] if k >= 0 else f"url(#{uid}m)" for k in ids]
    alphas = [v / data["high"][start] for v in data["rows"][start]]
    cells = (
        panel.cells("tl-l", [("transparent", 1.0)] * count),
        panel.cells("tl-r", [(palette.blue, alpha) for alpha in alphas]),
        panel.cells("tl-m", [(fill, 1.0) for fill in fills]) + _names(panel, data, ids),
    )
    frame = panel.frame("tl-a", start)
    return [panel.label(name) + drawn + frame for name, drawn in zip(_NAMES, cells, strict=True)]


def _names(panel: Panel, data: dict[str, Any], ids: list[int]) -> str:
    """The relations' names in the cells, small enough for the longest of them."""
    texts = [data["names"][k] if k >= 0 else "" for k in ids]
    marks = panel.values("tl-v", texts, [data["inks"][k] if k >= 0 else "currentColor" for k in ids])
    size = min(11.0, 1.45 * panel.side / max(map(len, data["names"])))
    return re.sub(r'font-size="[^"]*"', f'font-size="{short(size, 1)}"', marks, count=1)
