"""The whole story in one figure: four operators on nine tokens, which pairs share parameters, and what that costs."""

import math
from collections.abc import Iterable
from html import escape
from itertools import product

from .output import Output, wrap
from .style import FONTS, _oklch, palette

__all__ = ["overview", "overview_svg"]

SIDE = 3  # tokens on a 3 × 3 grid
CHANNELS, RANK = 192, 24  # the sizes of the smallest model of the papers: C, and R = r·h of LoR-Translution
MATRIX = 9.5  # side of a C × C matrix in pixels; R × R cores and C × R factors are drawn to its scale
TOKENS = list(product(range(SIDE), repeat=2))
OFFSETS = list(product(range(1 - SIDE, SIDE), repeat=2))
NEAR = [d for d in OFFSETS if max(map(abs, d)) <= 1]
QUERY, KEY = 2, 3  # the pair that the figure points at: tokens (0, 2) and (1, 0)
CARD, HEAD = (246, 254), (246, 144)
SHARED = palette.grey
ALT = (
    "Four tables of the 81 ordered pairs of nine tokens, coloured by shared parameters. Convolution: nine colours, one "
    "for each near offset, and no far pair. Self-attention: one colour for all pairs. Translution: 25 colours, one for "
    "each offset. LoR-Translution: one colour for all pairs with a small core of 25 colours. Below each table its "
    "matrices: 9, 3 and 75 of size C by C; for LoR-Translution 3 of them, 4 thin factors and 75 small cores."
)
NOTE = (
    "Sizes of one layer without its output projection: N tokens, "
    f"C\u00a0=\u00a0{CHANNELS} channels, R\u00a0=\u00a0{RANK}.",
    "The squares below the tables are its matrices, drawn to scale.",
)
NAMES = ("Convolution", "Self-attention", "Translution", "LoR-Translution")

Number = float | int
Square = tuple[Number, Number, Number, Number, str, Number]  # left, top, width, height, fill, opacity


def overview(caption: str | None = " ".join(NOTE)) -> Output:
    """Convolution, self-attention, Translution and LoR-Translution: what pairs share, and what that costs.

    Five drawings, in two columns on a wide page and in one on a narrow page.
    """
    drawings = [_inline(_head(), HEAD, f"{ALT} First, the tokens and the colours of the offsets.", "grid-column:1/-1;")]
    drawings += [_inline(card, CARD, name) for card, name in zip(_cards(), NAMES, strict=True)]
    grid = (
        '<div style="display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:1.2em 1em;'
        f'max-width:640px;margin:0 auto">{"".join(drawings)}</div>'
    )
    return Output(wrap(grid, caption), ALT)


def overview_svg(ink: str = "#767676") -> str:
    """The same as one SVG file; the default ink is legible on white and on black."""
    gap, (width, height) = 28, CARD
    corners = [(x, HEAD[1] + 14 + y) for y in (0, height + 16) for x in (0, width + gap)]
    inside = f'<g transform="translate({(width + gap) / 2:g})">{_head()}</g>'
    for (x, y), card in zip(corners, _cards(), strict=True):
        inside += f'<g transform="translate({x} {y})">{card}</g>'
    bottom = corners[-1][1] + height + 20
    inside += "".join(_text(0, bottom + 16 * k, line, 10) for k, line in enumerate(NOTE))
    size = (2 * width + gap + 16, bottom + 34)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(ALT)}" '
        f'viewBox="-8 -8 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" {_root(ink)}>{inside}</svg>\n'
    )


def _inline(inside: str, size: tuple[int, int], label: str, style: str = "") -> str:
    width, height = size
    style += f"display:block;margin:0 auto;width:100%;max-width:{1.15 * width:.0f}px;height:auto"
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" {_root("currentColor")} '
        f'style="{style}">{inside}</svg>'
    )


def _root(ink: str) -> str:
    return f'fill="{ink}" color="{ink}" font-family="{", ".join(FONTS)}"'


def _head() -> str:
    """Nine tokens with a query, a key and their offset; beside them the colours of the offsets."""
    cell = 26.0
    middles = [((column + 0.5) * cell - 1, 19 + (row + 0.5) * cell) for row, column in TOKENS]
    query, key = middles[QUERY], middles[KEY]
    dy, dx = _difference(QUERY, KEY)
    return "".join([
        _text(0, 11, "nine tokens", 10),
        _draw((x - 12, y - 12, 24, 24, SHARED, 0.22) for x, y in middles),
        _text(query[0], query[1] + 4, "i", 13, 'text-anchor="middle" font-weight="bold" font-style="italic"'),
        _text(key[0], key[1] + 4, "j", 13, 'text-anchor="middle" font-weight="bold" font-style="italic"'),
        _arrow(key, query, _colour((dy, dx))),
        _text(146, 11, "offset δ = pᵢ − pⱼ", 10),
        _draw(_block(146, 20, 15, OFFSETS)),
        _ring(146 + (dx + SIDE - 1) * 16 - 1, 20 + (dy + SIDE - 1) * 16 - 1, 17),
        _text(0, 120, "81 ordered pairs: row = query i, column = key j.", 10),
        _text(0, 136, "Pairs of one colour share their parameters.", 10),
    ])  # fmt: skip


def _cards() -> list[str]:
    """The four operators, each with its table, its two answers, its matrices and its costs."""
    square, count = CHANNELS**2, len(OFFSETS)
    shared = [(12.0 * k, 0.0, MATRIX, MATRIX, SHARED, 0.7) for k in range(3)]
    by_content, small = ["by content", "and offset"], ["one map for all", "+ a small one", "by the offset"]
    return [
        _card(0, _table(lambda d: _cell(d) if d in NEAR else _dot()), ["fully, if near"], ["by the offset"],
              _block(0, 0, MATRIX, NEAR), "9 C²", 9 * square, "≤ 9 N C²"),
        _card(1, _table(lambda d: _cell(None)), ["by content"], ["one map for all"],
              shared, "3 C²", 3 * square, "3 N C² + 2 N² C"),
        _card(2, _table(_cell), by_content, ["by the offset"],
              [s for k in range(3) for s in _block(56.0 * k, 0, MATRIX, OFFSETS)],
              f"3·{count} C²", 3 * count * square, "3 N² C² + 2 N² C"),
        _card(3, _table(lambda d: _cell(None, 0.45) + _cell(d, inset=3.0)), by_content, small,
              shared + _factors(44.0), f"3 C² + 4 C R + 3·{count} R²",
              3 * square + 4 * CHANNELS * RANK + 3 * count * RANK**2, "3 N C² + 3 N² R² + …"),
    ]  # fmt: skip


def _card(number: int, table: str, much, what, matrices, formula: str, parameters: int, work: str) -> str:
    y, answers = 34.0, ""
    for question, lines in (("i attends to j", much), ("j passes on", what)):
        answers += _text(136, y, question, 10)
        for line in lines:
            y += 15.5
            answers += _text(136, y, line, 12)
        y += 25
    return "".join([
        _text(0, 13, NAMES[number], 14, 'font-weight="bold"'),
        table,
        answers,
        f'<g transform="translate(0 157)">{_draw(matrices)}</g>',
        _text(0, 229, f"{formula} = {parameters / 1e6:.2f} M parameters", 10.5),
        _text(0, 247, f"{work} multiplications", 10.5),
    ])  # fmt: skip


def _table(paint) -> str:
    """The 9 × 9 table of pairs; `paint(δ)` gives the squares of a pair's cell."""
    step, gap, squares, ring = 12.5, 2.0, [], ""
    for i, j in product(range(len(TOKENS)), repeat=2):
        x, y = j * step + (j // SIDE) * gap, 24 + i * step + (i // SIDE) * gap
        squares += [(x + a, y + b, *rest) for a, b, *rest in paint(_difference(i, j))]
        ring = _ring(x - 1, y - 1, step + 1) if (i, j) == (QUERY, KEY) else ring
    return _draw(squares) + ring


def _cell(offset, opacity: Number = 1.0, inset: Number = 0.0) -> list[Square]:
    """A table's cell in the colour of an offset, or of what all pairs share (None)."""
    fill, opacity = (SHARED, min(opacity, 0.7)) if offset is None else (_colour(offset), opacity)
    return [(inset, inset, 11.5 - 2 * inset, 11.5 - 2 * inset, fill, opacity)]


def _dot() -> list[Square]:
    """A table's cell without any parameter."""
    return [(4.5, 4.5, 2.5, 2.5, SHARED, 0.6)]


def _factors(left: Number) -> list[Square]:
    """LoR's four factors (C × R) and three blocks of cores (R × R), to the scale of the C × C matrices."""
    thin = MATRIX * RANK / CHANNELS
    factors: list[Square] = [(left + 4.0 * k, 0.0, thin, MATRIX, SHARED, 0.9) for k in range(4)]
    return factors + [s for k in range(3) for s in _block(left + 22 + 10.0 * k, 0, thin, OFFSETS, gap=0.3)]


def _block(left: Number, top: Number, side: Number, offsets, gap: Number = 1.0) -> list[Square]:
    """One square per offset, at its place."""
    (row, column), step = offsets[0], side + gap
    places = [(left + (d[1] - column) * step, top + (d[0] - row) * step) for d in offsets]
    return [(x, y, side, side, _colour(d), 1.0) for (x, y), d in zip(places, offsets, strict=True)]


def _difference(i: int, j: int) -> tuple[int, int]:
    """The offset δ, query minus key."""
    return TOKENS[i][0] - TOKENS[j][0], TOKENS[i][1] - TOKENS[j][1]


def _colour(offset: tuple[int, int]) -> str:
    """Hue by direction, strength by distance, lightness by row, so that neighbours differ in grey too."""
    dy, dx = offset
    if dy == dx == 0:
        return "#e3b21c"
    return _oklch(0.64 - 0.055 * dy, 0.065 * min(math.hypot(dy, dx), 2.0), math.degrees(math.atan2(dy, dx)) + 20)


def _draw(squares: Iterable[Square]) -> str:
    """The squares, those of one colour as one path."""
    paths: dict[tuple[str, Number], str] = {}
    for x, y, width, height, fill, opacity in squares:
        mark = f"M{x:.4g} {y:.4g}h{width:.4g}v{height:.4g}h-{width:.4g}z"
        paths[fill, opacity] = paths.get((fill, opacity), "") + mark
    return "".join(
        f'<path d="{d}" fill="{fill}"' + (f' fill-opacity="{opacity:g}"/>' if opacity < 1 else "/>")
        for (fill, opacity), d in paths.items()
    )


def _ring(x: Number, y: Number, side: Number) -> str:
    box = f'x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"'
    return f'<rect {box} fill="none" stroke="currentColor" stroke-width="1.6"/>'


def _arrow(start: tuple[Number, Number], end: tuple[Number, Number], colour: str) -> str:
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    x0, y0, x1, y1 = x0 + 9 * ux, y0 + 9 * uy, x1 - 9 * ux, y1 - 9 * uy
    wings = [f"{x1 - 7 * ux + s * 3.5 * uy:.1f} {y1 - 7 * uy - s * 3.5 * ux:.1f}" for s in (1, -1)]
    return (
        f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}M{wings[0]}L{x1:.1f} {y1:.1f}L{wings[1]}" fill="none" '
        f'stroke="{colour}" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round"/>'
    )


def _text(x: Number, y: Number, text: str, size: Number, marks: str = "") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" font-size="{size:g}"{" " * bool(marks)}{marks}>{escape(text)}</text>'
