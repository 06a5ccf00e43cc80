"""Panels of cells, written as SVG text: what a few lines of JavaScript can recolour later."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .style import FONTS, palette

__all__ = ["HATCH", "Panel", "grid_places", "image", "labels_of", "short", "svg_element", "text_width", "token_places"]

LABEL = 20  # height in pixels of the line above a panel
HATCH = (
    '<pattern id="{uid}m" width="5" height="5" patternUnits="userSpaceOnUse"><path d="M0 5L5 0" '
    f'stroke="{palette.grey}" stroke-width=".7"/></pattern>'
)


@dataclass(frozen=True)
class Panel:
    """Square cells at `places` (column, row), `side` pixels wide, with the panel's corner at (`left`, `top`)."""

    places: np.ndarray
    side: float
    left: float = 2.0
    top: float = float(LABEL)

    @classmethod
    def fit(cls, places, width: float, left: float = 2.0, top: float = float(LABEL)) -> "Panel":
        """The panel of the given width in pixels, with cells of at most 36."""
        places = np.asarray(places, dtype=float)
        places = places - places.min(axis=0)
        return cls(places, min(36.0, width / (places.max() + 1)), left, top)

    @property
    def width(self) -> float:
        """Width in pixels."""
        return float((self.places[:, 0].max() + 1) * self.side)

    @property
    def height(self) -> float:
        """Height in pixels, without the label."""
        return float((self.places[:, 1].max() + 1) * self.side)

    @property
    def right(self) -> float:
        """The panel's right edge in pixels."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The panel's lower edge in pixels."""
        return self.top + self.height

    def corner(self, k: int) -> tuple[float, float]:
        """The upper left corner of cell k."""
        return self.left + self.places[k, 0] * self.side, self.top + self.places[k, 1] * self.side

    def middle(self, k: int) -> tuple[float, float]:
        """The middle of cell k."""
        return self.left + (self.places[k, 0] + 0.5) * self.side, self.top + (self.places[k, 1] + 0.5) * self.side

    def cells(self, name: str, paints: Sequence[tuple[str, float]]) -> str:
        """One rectangle per cell, in a group of class `name`; a paint is a fill and its opacity."""
        side = short(self.side)
        rects = "".join(
            f'<rect x="{short(x)}" y="{short(y)}" width="{side}" height="{side}" fill="{fill}" '
            f'fill-opacity="{short(opacity, 3)}"/>'
            for (x, y), (fill, opacity) in zip(map(self.corner, range(len(paints))), paints, strict=True)
        )
        return f'<g class="{name}" stroke="{palette.grey}" stroke-opacity=".55" stroke-width=".6">{rects}</g>'

    def values(self, name: str, texts: Sequence[str], inks: Sequence[str] | None = None) -> str:
        """One text per cell, in a group of class `name`; `inks` are the texts' colours."""
        inks = inks or ["currentColor"] * len(texts)
        size = short(min(11.0, self.side * 0.36))
        marks = "".join(
            f'<text x="{short(x)}" y="{short(y)}" dy=".35em" fill="{ink}">{escape(text)}</text>'
            for (x, y), text, ink in zip(map(self.middle, range(len(texts))), texts, inks, strict=True)
        )
        return f'<g class="{name}" text-anchor="middle" font-size="{size}" pointer-events="none">{marks}</g>'

    def frame(self, name: str, k: int) -> str:
        """A thick outline around cell k."""
        x, y = self.corner(k)
        side = short(self.side)
        return (
            f'<rect class="{name}" x="{short(x)}" y="{short(y)}" width="{side}" height="{side}" fill="none" '
            f'stroke="{palette.orange}" stroke-width="2.5" pointer-events="none"/>'
        )

    def label(self, text: str) -> str:
        """The panel's name, above it."""
        return f'<text x="{short(self.left)}" y="{short(self.top - 6)}">{escape(text)}</text>' if text else ""


def grid_places(shape: Sequence[int]) -> np.ndarray:
    """(column, row) of the cells of a grid, row-major; one axis is a row."""
    rows, columns = (1, shape[0]) if len(shape) == 1 else shape
    return np.array([(c, r) for r in range(rows) for c in range(columns)], dtype=float)


def token_places(shape: Sequence[int], cls: bool = False) -> np.ndarray:
    """(column, row) of tokens on their grid; a CLS token lies above, a little apart."""
    places = grid_places(shape)
    return np.vstack([[0.0, 0.0], places + [0.0, 1.4]]) if cls else places


def svg_element(uid: str, alt: str, width: float | int, height: float | int, inside: str) -> str:
    """An `<svg>` of the given size in pixels that shrinks with the page."""
    return (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {short(width)} {short(height)}" fill="currentColor" '
        f'font-family="{", ".join(FONTS)}" font-size="12" style="display:block;margin:0 auto;width:100%;'
        f'max-width:{width:.0f}px;height:auto;touch-action:pan-y"><defs>{HATCH.format(uid=uid)}</defs>{inside}</svg>'
    )


def text_width(text: str) -> float:
    """About how many pixels a line of 12-pixel text takes."""
    return 7.4 * len(text)


def image(pixels, left: float, top: float, width: float, height: float, opacity: float = 1.0) -> str:
    """A grey picture (values from 0 to 1) as an `<image>`: mid-grey ink, as opaque as the pixel is bright."""
    alpha = np.round(np.clip(np.asarray(pixels, dtype=float), 0, 1) * 255 * opacity).astype(np.uint8)
    rows = np.zeros((alpha.shape[0], 1 + 2 * alpha.shape[1]), dtype=np.uint8)
    rows[:, 1::2], rows[:, 2::2] = 128, alpha
    head = struct.pack(">IIBBBBB", alpha.shape[1], alpha.shape[0], 8, 4, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return (
        f'<image x="{short(left)}" y="{short(top)}" width="{short(width)}" height="{short(height)}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" pointer-events="none" '
        f'href="data:image/png;base64,{base64.b64encode(png).decode()}"/>'
    )


def labels_of(labels: Sequence, positions: bool = True) -> list[str]:
    """Relations' labels in words: an offset as δ = (0, −2), anything else as it is."""
    return [_label(label, positions) for label in labels]


def _label(label, positions: bool) -> str:
    if isinstance(label, str):
        return label
    numbers = label if isinstance(label, tuple) else (label,)
    text = ", ".join(str(int(c)) for c in numbers).replace("-", "−")
    text = f"({text})" if len(numbers) > 1 else text
    return f"δ = {text}" if positions else f"pair {text}"


def short(value: float | int, decimals: int = 2) -> str:
    """A number with at most `decimals` places."""
    text = f"{value:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
