"""A picture that the reader drags over a grid of patches: its phase, what it covers, and the offsets that it needs."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import numpy as np

from .interactive import slider
from .levels import cells, codes
from .output import Output, checked_alt, wrap
from .panels import Panel, grid_places, short, svg_element
from .plots import _array
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["placement"]

_SIDE = 252.0
_ROW = "display:flex;flex-wrap:wrap;justify-content:center;align-items:flex-start;gap:.4em 1.6em"
_TRAINED, _NEW, _RESERVE, _IDLE = ("trained", 0.75), ("new", 0.95), ("trained", 0.14), ("trained", 0.0)
_FILLS = {"trained": palette.blue, "new": palette.orange}


def placement(
    picture,
    rates: Mapping[str, Any] | None = None,
    *,
    alt: str,
    canvas: int = 84,
    patch: int = 12,
    start: Sequence[int] | None = None,
    caption: str | None = None,
) -> Output:
    """Drag a picture over a canvas of patches, or move it by two sliders.

    Beside it all offsets δ of the grid are shown. Filled are those that a query on the picture's ink meets where it
    now lies: blue where a query on the centred picture, frame and all, meets them too, orange where it does not. A dot
    marks the offsets between two patches with ink. Below stand the phase and, where given, what was measured nearby.

    Args:
        picture: (h, w), values from 0 to 1; what is not 0 is ink.
        rates: by name, a square of numbers from 0 to 1 by the corner's place: row 0 is the top of the canvas, and the
            squares' cells share out the corners evenly; NaN where nothing was measured.
        alt: what the figure shows; the place is added to it.
        canvas: side of the canvas in pixels.
        patch: side of a patch in pixels.
        start: row and column of the corner shown first, and in print; default: the centre.
        caption: a line below the figure; it may hold simple HTML.

    Raises:
        ValueError: if `alt` is empty, the picture has no ink or is no square that fits, patches do not divide the
            canvas, `start` is off the canvas, or a map is not square.
    """
    ink, alt = _array(picture).astype(float), checked_alt(alt)
    data = _data(ink, rates or {}, canvas, patch)
    room = canvas - len(ink)
    corner = [room // 2] * 2 if start is None else [int(v) for v in start]
    if len(corner) != 2 or not all(0 <= v <= room for v in corner):
        raise ValueError(f"start must be a row and a column from 0 to {room}, got {start!r}")
    uid, now = fingerprint(alt, str(caption), json.dumps(data), str(corner)), state(data, corner)
    said = f"{alt} {now['said']}"
    panels = "".join(f'<div style="flex:0 1 {_SIDE + 4:.0f}px">{part}</div>'
                     for part in (_scene(uid, said, ink, data, corner, now), _offsets(uid, data, now)))
    steps, axes = [str(v) for v in range(room + 1)], zip(("row", "column"), corner, strict=True)
    sliders = "".join(slider(f"corner, {axis}", steps, v, 12) for axis, v in axes)
    words = f'<div class="tl-said" style="font-size:.9em;margin:.3em 0">{escape(now["said"])}</div>'
    body = f'<div style="{_ROW}">{panels}</div>{sliders}{words}{_bars(now["rates"])}'
    extra = script("placement", uid, data | {"alt": alt, "fills": _FILLS})
    return Output(wrap(body, caption, extra, f'class="tl-figure tl-interactive" id="{uid}"'), said)


def state(data: Mapping[str, Any], corner: Sequence[int]) -> dict[str, Any]:
    """What the figure shows where the picture's corner lies: what the script computes, for the first view and print."""
    g, patch, room = data["grid"], data["patch"], data["room"]
    ends = [[(c + end) // patch for end in box] for c, box in zip(corner, data["box"], strict=True)]
    touched = [range(first, last + 1) for first, last in ends]
    met = [{q - k for q in axis for k in range(g)} for axis in touched]
    pairs = [[q - k in data["known"] for q in axis for k in range(g)] for axis in touched]
    within = [{q - k for q in axis for k in axis} for axis in touched]
    phase = [(c - room // 2) % patch for c in corner]
    new = 1 - float(np.prod([np.mean(axis) for axis in pairs]))
    line = list(range(1 - g, g))
    paints = []
    for δ in product(line, line):
        known = all(v in data["known"] for v in δ)
        now = all(v in axis for v, axis in zip(δ, met, strict=True))
        paints.append((_TRAINED if known else _NEW) if now else (_RESERVE if known else _IDLE))
    cell = [c * data["cells"] // (room + 1) for c in corner]
    rates = {name: values[cell[0] * data["cells"] + cell[1]] for name, values in data["rates"].items()}
    edge = min(min(c, room - c) for c in corner)
    said = (f"Corner ({corner[0]}, {corner[1]}), phase ({phase[0]}, {phase[1]}), {edge} pixels from the edge; the "
            f"ink touches {len(touched[0])} by {len(touched[1])} patches; {100 * new:.0f} % of the pairs of its "
            "queries have an offset that no centred picture meets.")
    dots = [all(v in axis for v, axis in zip(δ, within, strict=True)) for δ in product(line, line)]
    hit = [y in touched[0] and x in touched[1] for y, x in product(range(g), repeat=2)]
    return {"paints": paints, "dots": dots, "hit": hit, "rates": rates, "said": said}


def _data(ink: np.ndarray, rates: Mapping[str, Any], canvas: int, patch: int) -> dict[str, Any]:
    if ink.ndim != 2 or ink.shape[0] != ink.shape[1] or not 0 < len(ink) <= canvas or not ink.any():
        raise ValueError(f"picture must be a square with ink that fits a canvas of {canvas}, got shape {ink.shape}")
    if patch < 1 or canvas % patch:
        raise ValueError(f"patch must divide the canvas, {canvas}, got {patch}")
    maps = {name: _array(values).astype(float) for name, values in rates.items()}
    sides = {values.shape for values in maps.values()}
    if len(sides) > 1 or any(len(side) != 2 or side[0] != side[1] for side in sides):
        raise ValueError(f"rates must hold squares of one size, got {sorted(sides)}")
    g, first = canvas // patch, (canvas - len(ink)) // 2
    low, high = first // patch, (first + len(ink) - 1) // patch
    box = [[int(v) for v in np.flatnonzero(ink.any(axis=axis))[[0, -1]]] for axis in (1, 0)]
    kept = {name: [None if v != v else round(float(v), 3) for v in values.ravel()] for name, values in maps.items()}
    return {"grid": g, "patch": patch, "canvas": canvas, "room": canvas - len(ink), "box": box, "rates": kept,
            "known": list(range(low - g + 1, high + 1)), "cells": next(iter(sides))[0] if sides else 1}


def _scene(uid: str, alt: str, ink: np.ndarray, data: Mapping[str, Any], corner: Sequence[int], now: Mapping) -> str:
    """The canvas: its patches, those with ink, the frame of the centred picture, and the picture."""
    places, scale = Panel(grid_places((data["grid"],) * 2), _SIDE / data["grid"], top=2.0), _SIDE / data["canvas"]
    size, centre = len(ink), data["room"] // 2
    picture = (f'<g transform="translate(2 2) scale({short(scale, 4)})">'
               + _frame(size, scale, f'x="{centre}" y="{centre}" stroke="{palette.grey}" stroke-dasharray="2 1.4"')
               + f'<g class="tl-picture" transform="translate({corner[1]} {corner[0]})">'
               + f'<g shape-rendering="crispEdges">{cells(codes(ink[None], 1.0)[0], size)}</g>'
               + _frame(size, scale, f'stroke="{palette.blue}"') + "</g></g>")
    hit = places.cells("tl-hit", [(palette.ochre, 0.25 * on) for on in now["hit"]])
    svg = svg_element(uid, alt, _SIDE + 4, _SIDE + 4, hit + picture)
    return svg.replace("touch-action:pan-y", "touch-action:none;cursor:grab")


def _frame(size: int, scale: float, rest: str) -> str:
    """The edge of a picture."""
    return f'<rect width="{size}" height="{size}" fill="none" stroke-width="{short(1.6 / scale, 3)}" {rest}/>'


def _offsets(uid: str, data: Mapping[str, Any], now: Mapping) -> str:
    """All offsets, those that are met filled, those between patches with ink dotted."""
    n = 2 * data["grid"] - 1
    panel = Panel(grid_places((n, n)), _SIDE / n)
    dots = "".join(
        f'<circle cx="{short(x)}" cy="{short(y)}" r="{short(panel.side / 6)}" fill-opacity="{int(on)}"/>'
        for (x, y), on in zip(map(panel.middle, range(n * n)), now["dots"], strict=True)
    )
    inside = (panel.label("offsets δ of queries on ink")
              + panel.cells("tl-met", [(_FILLS[kind], opacity) for kind, opacity in now["paints"]])
              + f'<g class="tl-dots" pointer-events="none">{dots}</g>')
    alt = "All offsets between patches: met now and by centred pictures blue, met now for the first time orange."
    return svg_element(fingerprint(uid, "offsets"), alt, _SIDE + 4, panel.bottom + 2, inside)


def _bars(rates: Mapping[str, float | None]) -> str:
    """What was measured near the place, a bar each."""
    if not rates:
        return ""
    rows = "".join(
        f'<div style="display:flex;gap:.6em;align-items:center;font-size:.88em"><span style="flex:0 0 11em;'
        f'text-align:right">{escape(name)}</span><span style="flex:1 1 auto;height:.7em;border:1px solid '
        f'{palette.grey}"><span class="tl-bar" style="display:block;height:100%;width:{100 * (value or 0):.0f}%;'
        f'background:{palette[k]}"></span></span><span class="tl-rate" style="flex:0 0 3.6em;text-align:left">'
        f"{percent(value)}</span></div>"
        for k, (name, value) in enumerate(rates.items())
    )
    return f'<div style="max-width:520px;margin:.3em auto">{rows}</div>'


def percent(value: float | None) -> str:
    """A share in whole per cent; a dash where nothing was measured."""
    return "–" if value is None else f"{100 * value:.0f} %"
