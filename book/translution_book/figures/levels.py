"""Maps in 31 levels of either sign: one character for every cell, one path for every level."""

from collections.abc import Sequence

import numpy as np

from .panels import short
from .style import palette

__all__ = ["LEVELS", "cells", "codes", "panel"]

LEVELS, _OUTSIDE, _MIDDLE = 31, "~", 79  # level k is the character 79 + k


def codes(stack: np.ndarray, high: float) -> list[str]:
    """One text for every map, one character for every cell."""
    levels = np.round(np.clip(np.nan_to_num(stack) / high, -1, 1) * LEVELS).astype(int)
    return [
        "".join(_OUTSIDE if v != v else chr(_MIDDLE + n) for v, n in zip(row, level, strict=True))
        for row, level in zip(stack.reshape(len(stack), -1), levels.reshape(len(stack), -1), strict=True)
    ]


def cells(code: str, width: int) -> str:
    """The cells of a map, one path for each level: what the script's `cells` writes."""
    paths: dict[str, str] = {}
    for start in range(0, len(code), width):
        row, column = code[start : start + width], 0
        while column < width:
            run = next((n for n in range(column, width) if row[n] != row[column]), width) - column
            paths[row[column]] = paths.get(row[column], "") + f"M{column} {start // width}h{run}v1h-{run}z"
            column += run
    return "".join(f'<path d="{paths[key]}" {_paint(key)}/>' for key in sorted(paths) if key != chr(_MIDDLE))


def _paint(key: str) -> str:
    if key == _OUTSIDE:
        return f'fill="{palette.grey}" fill-opacity=".25"'
    level = ord(key) - _MIDDLE
    return f'fill="{palette.orange if level < 0 else palette.blue}" fill-opacity="{short(abs(level) / LEVELS, 3)}"'


def panel(name: str, code: str, size: Sequence[int], left: float | int, top: float | int, side: float | int) -> str:
    """A map `side` pixels wide, in a frame."""
    scale = side / size[1]
    return (
        f'<g class="{name}" transform="translate({short(left)} {short(top)}) scale({short(scale, 4)})" '
        f'shape-rendering="crispEdges">{cells(code, size[1])}</g><rect x="{short(left)}" y="{short(top)}" '
        f'width="{short(side)}" height="{short(scale * size[0])}" fill="none" stroke="{palette.grey}"/>'
    )
