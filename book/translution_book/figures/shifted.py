"""A picture that the reader shifts: what each layer makes of it, what did not follow, and how much by the shift."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, log10
from typing import Any

import numpy as np

from .axes import Axes
from .encoding import moved
from .interactive import slider
from .levels import codes, panel
from .output import Output, checked_alt, wrap
from .panels import short, svg_element
from .plots import _array
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["change", "shifted"]

_SIDE, _MOST = 128, 300_000  # a map's side in pixels; the largest data in bytes
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "1 4", "12 4")
_FLEX = "display:flex;flex-wrap:wrap;justify-content:center;align-items:center;gap:.4em 1.6em"
_GRID = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(270px,100%),1fr));gap:.9em 1.2em;margin-top:.6em"


def shifted(
    picture,
    maps: Mapping[str, Any],
    shifts: Sequence,
    *,
    alt: str,
    caption: str | None = None,
    changes: Mapping[str, Any] | None = None,
    start: int | None = None,
    query: Sequence[int] | None = None,
    magnify: int | None = None,
    unit: str = "pixels to the right",
    change_label: str = "change of the output, relative",
) -> Output:
    """Shift a picture by a slider or the arrow keys; each layer shows its map, and where the map did not follow.

    What did not follow is the map of the shifted picture minus the shifted map of the picture at shift 0, drawn where
    both lie on the grid (elsewhere grey); its root mean square there, divided by the map's at shift 0, is the change.
    Maps are stored with 31 levels of either sign, relative to each layer's largest value.

    Args:
        picture: (H, W), values from 0 to 1, moved by the shifts; or one picture for every shift, (S, H, W).
        maps: by name, one map for every shift, (S, h, w): an output channel, an attention row. A map of another size
            than the picture moves in proportion.
        shifts: S steps to the right, or pairs (down, right), in the picture's pixels; one of them is zero.
        alt: what the figure shows; the shift and the changes are added to it.
        caption: a line below the figure; it may hold simple HTML.
        changes: by name, the numbers of the curves, if they are to be others.
        start: index of the shift shown first, and in print; default: the last one.
        query: a pixel (row, column) of the unshifted picture that is marked, and moves along.
        magnify: how much stronger what did not follow is painted than the maps; default: as the largest of all
            layers allows.
        unit: what the shifts below the curves count.
        change_label: what the curves show.

    Raises:
        ValueError: if `alt` is empty, no shift is zero, a shift moves a map off its grid or by a part of a cell,
            shapes do not fit, or the data exceed 300 kB.

    Example:
        With one map (17, 28, 28) per name::

            maps = {"no position": y0, "strategy 2": y2}
            figures.shifted(digit, maps, range(-8, 9), alt="A digit and two layers' outputs, shifted.", start=12)
    """
    alt, steps = checked_alt(alt), [_pair(step) for step in shifts]
    if not maps or (0, 0) not in steps:
        raise ValueError(f"shifted needs maps, and a shift of zero among its shifts, got {list(maps)} and {steps}")
    zero, labels = steps.index((0, 0)), [_label(step) for step in shifts]
    pictures = _array(picture).astype(float)
    if pictures.ndim == 2:
        pictures = np.stack([moved(pictures, step) for step in steps])
    start = len(steps) - 1 if start is None else start
    stacks = {name: _array(stack).astype(float) for name, stack in maps.items()}
    for name, stack in {"picture": pictures, **stacks}.items():
        if stack.ndim != 3 or len(stack) != len(steps) or not 0 <= start < len(steps):
            raise ValueError(f"{name} must hold one map for each of {len(steps)} shifts, got {stack.shape}; {start=}")
    size = pictures.shape[1:]
    left = {name: np.stack([_difference(stack, k, zero, step, size) for k, step in enumerate(steps)])
            for name, stack in stacks.items()}  # fmt: skip
    curves = {name: change(stack, left[name], zero) for name, stack in stacks.items()} if changes is None else {
        name: np.asarray(_array(changes[name]), dtype=float) for name in stacks}  # fmt: skip
    highs = {name: float(np.nanmax(np.abs(stack))) or 1.0 for name, stack in stacks.items()}
    magnify = _gain([left[name] / highs[name] for name in stacks]) if magnify is None else magnify
    places = _places(query, steps, size)
    data = {
        "alt": alt, "labels": labels, "size": list(size), "pictures": codes(pictures, 1.0), "places": places,
        "colours": [palette.blue, palette.orange, palette.grey], "names": list(stacks),
        "maps": [{"size": list(stack.shape[1:]), "shown": codes(stack, highs[name]),
                  "left": codes(left[name], highs[name] / magnify)} for name, stack in stacks.items()],
        "changes": [[round(float(v), 4) for v in curves[name]] for name in stacks],
    }  # fmt: skip
    if (weight := len(json.dumps(data))) > _MOST:
        raise ValueError(f"maps must make at most {_MOST} bytes, got {weight}: use fewer shifts, or smaller maps")
    values = [row[start] for row in data["changes"]]
    said = f"{alt} Shifted by {labels[start]}: " + ", ".join(
        f"{name} {value:.3f}" for name, value in zip(stacks, values, strict=True)
    )
    uid = fingerprint(alt, str(caption), *labels, *stacks)
    xs = _across(steps)
    axes, chart = _chart(xs, data["changes"], start, unit, change_label)
    height = 4 + 176 * size[0] / size[1]
    digit = panel("tl-picture", data["pictures"][start], size, 2, 2, 176) + _mark(places[start], 176 / size[1])
    top = f'<div style="flex:0 1 180px">{svg_element(uid, said, 180, height, digit)}</div>'
    top += f'<div style="flex:0 1 340px">{svg_element(fingerprint(uid), change_label, 340, 230, chart)}</div>'
    cards = "".join(_card(uid, k, entry, data, start, magnify) for k, entry in enumerate(data["maps"]))
    extra = script("shifted", uid, data | {"axes": axes.data(), "xs": xs})
    body = f'<div style="{_FLEX}">{top}</div>{slider("shift", labels, start, 14)}<div style="{_GRID}">{cards}</div>'
    return Output(wrap(body, caption, extra, f'class="tl-figure tl-interactive" id="{uid}"'), said)


def change(stack: np.ndarray, left: np.ndarray, zero: int) -> np.ndarray:
    """For every shift, the root mean square of what did not follow over that of the map at shift 0."""
    base = float(np.sqrt(np.mean(stack[zero] ** 2))) or 1.0
    return np.array([np.sqrt(np.nanmean(part**2)) / base for part in left])


def _gain(parts: Sequence[np.ndarray]) -> int:
    """The largest round number by which all parts stay within one."""
    most = max(float(np.nanmax(np.abs(part))) for part in parts)
    return max((g for g in (1, 2, 5, 10, 20, 50, 100) if g * most <= 1), default=1) if most > 1e-9 else 1


def _difference(stack: np.ndarray, k: int, zero: int, step: tuple[int, int], size: Sequence[int]) -> np.ndarray:
    """Map k minus the shifted map of the unshifted picture; NaN where nothing came."""
    shape = stack.shape[1:]
    cells = [by * cells / pixels for by, cells, pixels in zip(step, shape, size, strict=True)]
    whole = [round(by) for by in cells]
    if any(abs(by - cell) > 1e-9 for by, cell in zip(cells, whole, strict=True)):
        raise ValueError(f"shifts must move a map of {shape} cells by whole cells, got {step} on a picture of {size}")
    came = moved(np.ones(shape), whole) > 0
    if not came.any():
        raise ValueError(f"shifts must leave a part of the map of {shape} cells on its grid, got {step}")
    return np.where(came, stack[k] - moved(stack[zero], whole), np.nan)


def _pair(step) -> tuple[int, int]:
    return (0, int(step)) if np.ndim(step) == 0 else (int(step[0]), int(step[1]))


def _label(step) -> str:
    text = str(int(step)) if np.ndim(step) == 0 else f"{int(step[0])} down, {int(step[1])} right"
    return text.replace("-", "−")


def _across(steps: Sequence[tuple[int, int]]) -> list[int]:
    """Where a shift stands in the chart: how far to the right, or down, or its number where both change."""
    columns = [sorted({step[axis] for step in steps}) for axis in (1, 0)]
    for axis, column in zip((1, 0), columns, strict=True):
        if len(column) == len(steps):
            return [step[axis] for step in steps]
    return list(range(len(steps)))


def _places(query: Sequence[int] | None, steps: Sequence[tuple[int, int]], size: Sequence[int]) -> list:
    """The marked pixel after every shift, None beyond the edge."""
    if query is None:
        return [None] * len(steps)
    moves = [(query[0] + down, query[1] + right) for down, right in steps]
    return [[x, y] if 0 <= y < size[0] and 0 <= x < size[1] else None for y, x in moves]


def _mark(place: Sequence[int] | None, scale: float) -> str:
    """A frame around the marked pixel."""
    x, y = place or (0, 0)
    return (
        f'<g transform="translate(2 2) scale({short(scale, 4)})"><rect class="tl-mark" x="{x}" y="{y}" width="1" '
        f'height="1" fill="none" stroke="{palette.orange}" stroke-width="{short(2.5 / scale, 3)}" '
        f'stroke-opacity="{int(place is not None)}"/></g>'
    )


def _card(uid: str, k: int, entry: dict[str, Any], data: dict[str, Any], start: int, magnify: int) -> str:
    """A layer: its map, what did not follow, and the change, below the stroke of its curve."""
    name, value, size = data["names"][k], data["changes"][k][start], entry["size"]
    rest = f"did not follow, × {magnify}" if magnify > 1 else "what did not follow"
    parts = [
        f'<text x="{left}" y="12" font-size="11">{word}</text>' + panel(kind, entry[key][start], size, left, 18, _SIDE)
        for left, word, kind, key in ((2, "map", "tl-shown", "shown"),
                                      (_SIDE + 14, rest, "tl-left", "left"))
    ]  # fmt: skip
    alt = f"{name}: map and what did not follow, change {value:.3f}"
    svg = svg_element(fingerprint(uid, str(k)), alt, 2 * _SIDE + 18, 20 + _SIDE * size[0] / size[1], "".join(parts))
    sample = f'<path d="M0 6H32" stroke="{palette[k]}" stroke-width="2.5" {_dash(k)}/>'
    line = f'<svg aria-hidden="true" width="32" height="12" style="vertical-align:middle">{sample}</svg>'
    return (
        f'<div class="tl-card"><div style="font-size:.92em">{line} <b>{escape(name)}</b></div>{svg}'
        f'<div style="font-size:.88em">change <span class="tl-word">{value:.3f}</span></div></div>'
    )


def _dash(k: int) -> str:
    return f'stroke-dasharray="{_DASHES[k % len(_DASHES)]}"' if k % len(_DASHES) else ""


def _chart(xs: Sequence[int], rows: Sequence[Sequence[float | int]], start: int, unit: str, name: str) -> tuple:
    """The changes against the shift, with a dot for every layer at the current one."""
    top = _nice(max(v for row in rows for v in row if v == v))
    axes = Axes((46, 24, 284, 158), (min(xs), max(xs)), (0, top))
    middle = {0.0: "0", top / 2: f"{top / 2:g}", top: f"{top:g}"}
    ends = sorted({min(xs), 0, max(xs)})
    ticks = {float(x): str(x).replace("-", "−") for x in ends}
    parts = []
    for k, row in enumerate(rows):
        x, y = axes.at(xs[start], row[start]).split()
        parts.append(
            f'<path d="{axes.line(xs, row)}" fill="none" stroke="{palette[k]}" stroke-width="2.2" {_dash(k)}/>'
            f'<circle class="tl-dot" cx="{x}" cy="{y}" r="4.5" fill="{palette[k]}"/>'
        )
    return axes, axes.frame(ticks, middle, f"shift ({unit})" if unit else "shift", name) + "".join(parts)


def _nice(value: float) -> float:
    """A round number at or above `value`."""
    power = 10.0 ** ceil(log10(max(value, 1e-3)) - 1e-9) / 10
    return next(n * power for n in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if n * power >= value - 1e-12)
