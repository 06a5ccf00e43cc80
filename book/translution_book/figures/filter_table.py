"""A long table that a reader narrows by its columns and by words, above it how its rows are divided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .output import Output, attribute, checked_alt, wrap
from .panels import short, svg_element, text_width
from .script import script
from .svg import fingerprint

__all__ = ["Link", "Tag", "filter_table"]

_WIDTH, _HEIGHT, _STEP = 340.0, 16.0, 24.0
_CONTROL = "display:none;flex-wrap:wrap;gap:.5em 1em;align-items:end;margin:.8em 0;text-align:left"
_FIELD = "max-width:100%;font:inherit;font-size:.95em;padding:.2em .4em"
_TABLE = "table-layout:fixed;width:100%;text-align:left;font-size:.9em;overflow-wrap:anywhere;border-collapse:collapse"
_GROUND = "background:var(--pst-color-background,var(--jp-layout-color0,Canvas))"


@dataclass(frozen=True)
class Link:
    """A text that leads somewhere, in the page or to another one."""

    text: str
    href: str


@dataclass(frozen=True)
class Tag:
    """A text with a colour beside it."""

    text: str
    colour: str


Part = str | Link | Tag
Line = Part | Sequence[Part]


@dataclass(frozen=True)
class _Filter:
    """A choice: its name, its values in order, and the value of every row as an index."""

    name: str
    values: list[str]
    keys: list[int]


def filter_table(
    header: Sequence[str],
    rows: Mapping[str, Sequence[Sequence[Line]]],
    filters: Mapping[str, Sequence[str]],
    *,
    alt: str,
    caption: str,
    bars: tuple[str, Mapping[str, str]],
    words: Mapping[str, str] | None = None,
    widths: Sequence[float | int] = (),
) -> Output:
    """A table with a choice for every filter and a search for words; above it a bar for every value of one filter.

    Without JavaScript the whole table shows, without the choices. An address that ends in ``#id`` of a row shows it.

    Args:
        header: headings of the columns; the first column names its row.
        rows: by an id that is unique in the page, the cells of a row, each a sequence of lines; a line is a text, a
            `Link`, a `Tag`, or several of them. The first line of a cell is as large as the text, the others smaller.
        filters: by name, the value of every row.
        alt: what the bars show; how many rows of which kind is added to it.
        caption: of the table.
        bars: the filter that has a bar for each of its values, and the colour of every value of the second filter,
            which divides the bars; its name is that of the filter with these values.
        words: longer words for the values of filters.
        widths: of the columns, in per cent; equal ones by default.

    Raises:
        ValueError: if `alt` or `caption` is empty, there are no rows, cells or values of a filter are missing, or
            the filters of the bars are not there.
    """
    alt, caption = checked_alt(alt), caption.strip()
    if not (rows and caption):
        raise ValueError(f"rows and caption must not be empty, got {len(rows)} rows and the caption {caption!r}")
    uneven = [name for name, cells in rows.items() if len(cells) != len(header)]
    short_ = [name for name, values in filters.items() if len(values) != len(rows)]
    if uneven or short_:
        raise ValueError(f"every row must have {len(header)} cells, and every filter {len(rows)} values; not so in "
                         f"{', '.join((uneven + short_)[:3])}")
    made = [_filter(name, values, bars) for name, values in filters.items()]
    by = _by(made, bars)
    uid = fingerprint(alt, caption, *header, *rows)
    data: dict[str, Any] = {
        "alt": alt, "keys": [one.keys for one in made], "by": by, "groups": made[by[0]].values,
        "parts": made[by[1]].values, "left": _left(made[by[0]]), "width": _WIDTH, "total": len(rows),
    }  # fmt: skip
    counts = [[0] * len(data["parts"]) for _ in data["groups"]]
    for group, part in zip(made[by[0]].keys, made[by[1]].keys, strict=True):
        counts[group][part] += 1
    stage = _chart(data, counts, list(bars[1].values()), uid)
    legend = _legend(bars[1])
    table = _table(header, rows, caption, widths, uid)
    inside = stage + legend + _controls(made, words or {}, len(rows)) + table
    extra = script("filter_table", uid, data)
    return Output(wrap(inside, None, extra, f'class="tl-figure tl-interactive" id="{uid}"'), _told(data, counts))


def _filter(name: str, values: Sequence[str], bars: tuple[str, Mapping[str, str]]) -> _Filter:
    """Values in the order in which they come, those of the bars' parts in the order of their colours."""
    found = list(dict.fromkeys(values))
    if set(found) <= set(bars[1]):
        found = list(bars[1])
    return _Filter(name, found, [found.index(value) for value in values])


def _by(made: Sequence[_Filter], bars: tuple[str, Mapping[str, str]]) -> list[int]:
    """The indices of the two filters of the bars."""
    names = [one.name for one in made]
    parts = [k for k, one in enumerate(made) if one.values == list(bars[1])]
    if bars[0] not in names or not parts:
        raise ValueError(f"bars must name a filter of {', '.join(names)} and colour all values of another, got "
                         f"{bars[0]!r} and {', '.join(bars[1])}")
    return [names.index(bars[0]), parts[0]]


def _left(groups: _Filter) -> float:
    return max(map(text_width, [groups.name, *groups.values])) + 10


def _told(data: dict, counts: Sequence[Sequence[int]]) -> str:
    """What the bars show in words: the script's `tell`."""
    lines = [f"{group}: " + ", ".join(f"{n} {part}" for n, part in zip(line, data["parts"], strict=True) if n)
             for group, line in zip(data["groups"], counts, strict=True) if sum(line)]
    return f"{data['alt']} {'; '.join(lines)}."


def _chart(data: dict, counts: Sequence[Sequence[int]], colours: Sequence[str], uid: str) -> str:
    """A bar for every group, divided in proportion; the number of its rows beside it."""
    pieces = []
    for g, (group, line) in enumerate(zip(data["groups"], counts, strict=True)):
        top, x, total = g * _STEP, data["left"], sum(line)
        middle = top + _HEIGHT / 2 + 4
        pieces.append(f'<text x="{short(x - 8)}" y="{short(middle)}" text-anchor="end">{escape(group)}</text>')
        for n, colour in zip(line, colours, strict=True):
            width = _WIDTH * n / total if total else 0.0
            pieces.append(f'<rect x="{short(x)}" y="{short(top)}" width="{short(width)}" height="{short(_HEIGHT)}" '
                          f'fill="{colour}" stroke="currentColor" stroke-width=".5"/>')
            x += width
        end = data["left"] + _WIDTH + 8
        pieces.append(f'<text class="tl-n" x="{short(end)}" y="{short(middle)}">{total}</text>')
    return svg_element(uid, _told(data, counts), data["left"] + _WIDTH + 48, _STEP * len(counts), "".join(pieces))


def _legend(colours: Mapping[str, str]) -> str:
    items = "".join(f'<span style="white-space:nowrap">{_part(Tag(name, c))}</span> ' for name, c in colours.items())
    return f'<p style="display:flex;flex-wrap:wrap;gap:.2em 1em;justify-content:center;font-size:.9em">{items}</p>'


def _controls(made: Sequence[_Filter], words: Mapping[str, str], total: int) -> str:
    fields = []
    for one in made:
        options = "".join(f'<option value="{k}">{escape(words.get(value, value))}</option>'
                          for k, value in enumerate(one.values))
        fields.append(f'<label>{escape(one.name)}<br><select style="{_FIELD}"><option value="">all</option>{options}'
                      "</select></label>")
    fields.append(f'<label>words<br><input type="search" autocomplete="off" data-lm-suppress-shortcuts="true" '
                  f'style="{_FIELD}"></label>')
    fields.append(f'<button type="button" style="{_FIELD}">Show all</button>')
    fields.append(f'<output aria-live="polite">{total} of {total} rows</output>')
    return f'<div class="tl-control" role="search" style="{_CONTROL}">{"".join(fields)}</div>'


def _table(header: Sequence[str], rows: Mapping[str, Sequence[Sequence[Line]]], caption: str,
           widths: Sequence[float | int], uid: str) -> str:
    columns = "".join(f'<col style="width:{short(w)}%">' for w in widths or [100 / len(header)] * len(header))
    heads = "".join(f'<th scope="col" style="position:sticky;top:0;{_GROUND}">{escape(name)}</th>' for name in header)
    body = "".join(_row(name, cells) for name, cells in rows.items())
    return (f'<div class="tl-scroll" role="region" tabindex="0" aria-labelledby="{uid}c" style="position:relative">'
            f'<table style="{_TABLE}"><caption id="{uid}c" style="text-align:left">{escape(caption)}</caption>'
            f"<colgroup>{columns}</colgroup><thead><tr>{heads}</tr></thead>"
            f'<tbody style="vertical-align:top">{body}</tbody></table></div>')


def _row(name: str, cells: Sequence[Sequence[Line]]) -> str:
    first, *others = map(_cell, cells)
    row = f'<th scope="row" style="font-weight:400">{first}</th>'
    return f'<tr id="{attribute(name)}">{row}{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _cell(lines: Sequence[Line]) -> str:
    texts = [_part(line) if isinstance(line, Part) else " · ".join(map(_part, line)) for line in lines]
    return "<br>".join([texts[0], *(f"<small>{text}</small>" for text in texts[1:])]) if texts else ""


def _part(part: Part) -> str:
    if isinstance(part, Link):
        return f'<a href="{attribute(part.href)}">{escape(part.text)}</a>'
    if isinstance(part, Tag):
        return f'<span style="border-left:.6em solid {part.colour};padding-left:.4em">{escape(part.text)}</span>'
    return escape(part)
