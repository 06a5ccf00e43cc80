"""The axes of a small chart, as SVG text that a script can draw into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from .panels import short
from .style import palette

__all__ = ["Axes"]

Number = float | int


@dataclass(frozen=True)
class Axes:
    """A box in pixels, and the values at its edges; `log` makes the upward axis logarithmic.

    Args:
        box: left, top, width and height in pixels.
        x: the values at the left and at the right edge.
        y: the values at the lower and at the upper edge.
        log: whether equal ratios of y take equal room.
    """

    box: tuple[Number, Number, Number, Number]
    x: tuple[Number, Number]
    y: tuple[Number, Number]
    log: bool = False

    def at(self, x: Number, y: Number) -> str:
        """A point of the chart, as path data; values beyond the axes move to the edge of the box."""
        left, top, width, height = self.box
        low, high, y = (log10(max(v, 1e-300)) if self.log else v for v in (*self.y, y))
        across = min(max((x - self.x[0]) / (self.x[1] - self.x[0]), 0.0), 1.0)
        up = min(max((y - low) / (high - low), 0.0), 1.0)
        return f"{short(left + width * across, 1)} {short(top + height * (1 - up), 1)}"

    def line(self, xs: Sequence[Number], ys: Sequence[Number]) -> str:
        """Path data of a line through points."""
        return "M" + "L".join(self.at(x, y) for x, y in zip(xs, ys, strict=True))

    def data(self) -> dict:
        """What a script needs to place points."""
        return {"box": list(self.box), "x": list(self.x), "y": list(self.y), "log": int(self.log)}

    def frame(self, xticks: Mapping[Number, str], yticks: Mapping[Number, str], xlabel: str, ylabel: str) -> str:
        """Axes, ticks and their words; the upward axis is named above it."""
        left, top, width, height = self.box
        rules = "".join(f"M{self.at(self.x[0], v)}h{short(width)}" for v in yticks)
        ticks = "".join(f"M{self.at(v, self.y[0])}v4" for v in xticks)
        words = [_word(self.at(v, self.y[0]), text, "middle", 16) for v, text in xticks.items()]
        words += [_word(self.at(self.x[0], v), text, "end", 4, -5) for v, text in yticks.items()]
        words += [_word(f"{short(left + width / 2)} {short(top + height)}", xlabel, "middle", 32)]
        words += [_word(f"{short(left)} {short(top)}", ylabel, "start", -9, -26)] if ylabel else []
        return (
            f'<path d="{rules}" fill="none" stroke="{palette.grey}" stroke-opacity=".4" stroke-width=".7"/>'
            f'<path d="M{short(left)} {short(top + height)}h{short(width)}{ticks}" fill="none" stroke="currentColor"/>'
            + "".join(words)
        )


def _word(point: str, text: str, anchor: str, down: Number, right: Number = 0) -> str:
    x, y = point.split()
    return (
        f'<text x="{short(float(x) + right, 1)}" y="{short(float(y) + down, 1)}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
