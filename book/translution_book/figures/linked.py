"""Two linked panels: point at a cell on the left, and the right panel shows that cell's matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import Panel, grid_places, image, short, svg_element, text_width, token_places
from .plots import _array
from .script import script
from .style import legible, palette
from .svg import fingerprint

__all__ = ["linked_maps", "pointer_map"]


def linked_maps(
    left,
    right,
    *,
    alt: str,
    caption: str | None = None,
    start: int = 0,
    cmap: str = "sequential",
    left_cmap: str = "sequential",
    limits: float | int | str | None = None,
    labels: Sequence[str] | None = None,
    slider_label: str = "cell",
    left_label: str = "",
    right_label: str = "",
    text: int | bool = False,
    left_text: Sequence[str] | None = None,
    left_image=None,
    right_image=None,
    outline: bool = False,
    left_places=None,
    right_places=None,
    digits: int = 3,
) -> Output:
    """Point at cell i of the left grid (or move the slider, or use the arrow keys): the right panel shows `right[i]`.

    Args:
        left: matrix (H, W) that colours the left grid, or its shape as a tuple for a plain grid; cells are row-major.
        right: one matrix per left cell, (H·W, h, w), or a function that gives the matrix of cell i; NaN is hatched.
        alt: what the figure shows; the selected cell's label is added to it.
        caption: a line below the figure; it may hold simple HTML.
        start: the cell selected at first, and in print.
        cmap: the right panel's colours: "sequential" (from zero up), "diverging" or "categorical" (ids; −1 is hatched).
        left_cmap: the left grid's colours.
        limits: the value of full colour; None: the largest of all matrices; "each": each matrix's own largest.
        labels: the left cells in words, default: "row, column".
        slider_label: the slider's name.
        left_label: the left panel's name.
        right_label: the right panel's name.
        text: True, or a number of decimals, writes the values into the right cells.
        left_text: a word for each left cell.
        left_image: a grey picture (0 to 1) behind the left grid.
        right_image: a grey picture (0 to 1) behind the right panel.
        outline: mark the cell with the selected cell's number on the right too.
        left_places: (column, row) of the left cells where they are no grid.
        right_places: (column, row) of the right cells where they are no grid; then `right` holds flat rows.
        digits: decimals of the stored values.

    Raises:
        ValueError: if `alt` is empty, or shapes do not fit.
    """
    alt = checked_alt(alt)
    shape = left if isinstance(left, tuple) else _array(left).shape
    left_places = grid_places(shape) if left_places is None else np.asarray(left_places)
    count = len(left_places)
    stack = np.stack([_array(right(i)) for i in range(count)]) if callable(right) else _array(right)
    if len(stack) != count or not 0 <= start < count:
        raise ValueError(f"right must hold one matrix for each of the {count} left cells, got {len(stack)}; {start=}")
    right_places = grid_places(stack.shape[1:]) if right_places is None else np.asarray(right_places)
    rows = stack.reshape(count, -1)
    if labels is None:
        labels = [", ".join(str(int(v)) for v in place[::-1]) for place in left_places]
    data = _data(rows, cmap, limits, digits) | {
        "alt": alt, "labels": list(labels), "text": 2 if text is True else int(text), "step": _row_length(left_places),
    }  # fmt: skip
    one, two = _layout(left_places, right_places)
    uid = fingerprint(alt, str(caption), left_label, right_label, slider_label, *labels)
    plain = isinstance(left, tuple) or left_image is not None
    ground = None if plain else _data(_array(left).reshape(1, -1), left_cmap, None, digits)
    inside = "".join([
        one.label(left_label), two.label(right_label),
        _background(one, left_image), _background(two, right_image, 0.5),
        _left_cells(one, ground, left_text, uid),
        two.cells("tl-r", _paints(data, start, uid)),
        two.values("tl-v", _texts(data, start), _inks(data, start)) if text is not False else "",
        one.frame("tl-a", start), two.frame("tl-b", start) if outline else "",
    ])  # fmt: skip
    edges = [one.right, two.right, one.left + text_width(left_label), two.left + text_width(right_label)]
    stage = svg_element(uid, f"{alt} {labels[start]}", max(edges) + 2, max(one.bottom, two.bottom) + 2, inside)
    extra = script("linked", uid, data)
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(stage + slider(slider_label, labels, start), caption, extra, kind), f"{alt} {labels[start]}")


def pointer_map(
    weights,
    shape: Sequence[int],
    *,
    alt: str,
    cls: bool = False,
    image=None,
    start: int | None = None,
    labels: Sequence[str] | None = None,
    **options: Any,
) -> Output:
    """A query's row of `weights` following the pointer: tokens on the left, what the query attends to on the right.

    Args:
        weights: (n, n), row = query, column = key; −inf and NaN are hatched.
        shape: the tokens' grid, (H, W) or (n,); with `cls`, token 0 is CLS and lies above the grid.
        alt: what the figure shows.
        cls: whether token 0 is CLS.
        image: a grey picture (0 to 1) behind both panels.
        start: the query shown first, default: the middle one.
        labels: the tokens in words, default: their positions.
        options: as in `linked_maps`, such as caption, cmap, limits, text.

    Raises:
        ValueError: if `alt` is empty, or the shapes do not fit.
    """
    rows = np.array(_array(weights), dtype=float)
    places = token_places(shape, cls)
    expected = (len(places), len(places))
    if rows.shape != expected:
        raise ValueError(f"weights must have the shape {expected} of {tuple(shape)} with cls={cls}, got {rows.shape}")
    rows[~np.isfinite(rows)] = np.nan
    if labels is None:
        labels = [f"query {int(r)}, {int(c)}" if len(shape) > 1 else f"query {int(c)}" for c, r in grid_places(shape)]
        labels = ["query CLS", *labels] if cls else labels
    drawn = None if image is None else _array(image)
    options = dict[str, Any](left_label="query i", right_label="keys j", slider_label="query", outline=True) | options
    return linked_maps(
        (len(places),), rows, alt=alt, start=len(places) // 2 if start is None else start, labels=labels,
        left_places=places, right_places=places, left_image=drawn, right_image=drawn, **options,
    )  # fmt: skip


def _row_length(places: np.ndarray) -> int:
    """How many cells an arrow key up or down passes over."""
    return int(places[:, 0].max() + 1) if places[:, 1].max() > 0 else 1


def _layout(left_places: np.ndarray, right_places: np.ndarray) -> tuple[Panel, Panel]:
    """The two panels side by side; rows of tokens one below the other."""
    if left_places[:, 1].max() == 0 == right_places[:, 1].max():
        one = Panel.fit(left_places, 400.0)
        return one, Panel.fit(right_places, 400.0, top=one.bottom + 32)
    one = Panel.fit(left_places, 190.0)
    return one, Panel.fit(right_places, 190.0, max(one.right, 110.0) + 32)


def _data(rows: np.ndarray, cmap: str, limits, digits: int) -> dict[str, Any]:
    """What the script needs to colour a panel."""
    if cmap == "categorical":
        ids = rows.astype(int)
        return {
            "ids": 1,
            "colours": (colours := palette.categorical(max(int(ids.max()) + 1, 1))),
            "inks": [legible(colour) for colour in colours],
            "high": [1] * len(ids),
            "rows": [[None if v < 0 else v for v in row] for row in ids.tolist()],
        }
    if cmap not in ("sequential", "diverging"):
        raise ValueError(f'cmap must be "sequential", "diverging" or "categorical", got {cmap!r}')
    sizes = np.nanmax(np.abs(np.where(np.isfinite(rows), rows, 0.0)), axis=1)
    high = sizes if limits == "each" else np.full(len(rows), sizes.max() if limits is None else float(limits))
    return {
        "ids": 0,
        "colours": [palette.blue, palette.orange],
        "high": [float(short(v or 1.0, digits + 2)) for v in high.tolist()],
        "rows": [[_stored(v, digits) for v in row] for row in rows.tolist()],
    }


def _stored(value: float, digits: int) -> float | int | None:
    if value != value:
        return None
    value = round(float(value), digits) + 0.0
    return int(value) if value == int(value) else value


def _paints(data: dict, i: int, uid: str) -> list[tuple[str, float]]:
    """Fill and opacity of each cell of matrix i: the script's `paint`."""
    masked = f"url(#{uid}m)"
    if data["ids"]:
        return [(masked, 1.0) if v is None else (data["colours"][v], 1.0) for v in data["rows"][i]]
    high = data["high"][i]
    return [(masked, 1.0) if v is None else (data["colours"][v < 0], min(1.0, abs(v) / high)) for v in data["rows"][i]]


def _texts(data: dict, i: int) -> list[str]:
    """Text of each cell of matrix i: what the script writes."""
    form = (lambda v: str(v)) if data["ids"] else (lambda v: f"{v:.{data['text']}f}".replace("-", "−"))
    return ["" if v is None else form(v) for v in data["rows"][i]]


def _inks(data: dict, i: int) -> list[str]:
    """A text colour for each cell of matrix i that stands out from its paint."""
    return [
        "currentColor" if v is None or opacity <= 0.6 else data["inks"][v] if data["ids"] else "#fff"
        for v, (_, opacity) in zip(data["rows"][i], _paints(data, i, ""), strict=True)
    ]


def _left_cells(panel: Panel, data: dict | None, texts: Sequence[str] | None, uid: str) -> str:
    """The left grid: coloured by the one matrix in `data`, or plain."""
    paints = [("transparent", 1.0)] * len(panel.places) if data is None else _paints(data, 0, uid)
    inks = None if data is None else _inks(data, 0)
    return panel.cells("tl-l", paints) + (panel.values("tl-w", texts, inks) if texts is not None else "")


def _background(panel: Panel, pixels, opacity: float = 1.0) -> str:
    """The picture behind a panel's grid (below a CLS cell, if there is one)."""
    if pixels is None:
        return ""
    offset = 1.4 * panel.side if panel.places[:, 1].max() % 1 else 0.0
    return image(_array(pixels), panel.left, panel.top + offset, panel.width, panel.height - offset, opacity)
