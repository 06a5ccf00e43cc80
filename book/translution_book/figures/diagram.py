"""An inclusion diagram: point at an encoding or an arrow, and its statement, proof and numbers appear below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from .output import Output, attribute, checked_alt, wrap
from .panels import short, svg_element, text_width
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["Arrow", "Node", "diagram"]

_STEP = np.array([80.0, 76.0])  # from column to column and from row to row, in pixels
_LINE, _PAD = 15.0, 7.0
_PAPER = "var(--pst-color-background,var(--jp-layout-color0,Canvas))"
_PLAIN = "color:var(--pst-color-text-base,inherit);text-decoration:none"
_SCROLL = "overflow-x:auto"  # a phone scrolls a wide diagram rather than shrinking its words
_ITEM = "border-left:3px solid var(--pst-color-border,#888);padding:.1em 0 .1em .8em;margin:.7em 0;text-align:left"


@dataclass(frozen=True)
class Node:
    """An encoding of the diagram.

    Args:
        label: its name; a line break breaks the line.
        at: its place (column, row); row 0 is on top, and places may lie between columns.
        text: what it is, as simple HTML; mathematics in backslash parentheses is set by the page.
        numbers: measured numbers by what they measure.
        href: where the page says more, such as "#thm-taxonomy-rotations".
    """

    label: str
    at: tuple[float | int, float | int]
    text: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict)
    href: str | None = None


@dataclass(frozen=True)
class Arrow:
    """`start` is contained in `end`; with `holds=False`, it is proved not to be.

    Args:
        start: key of a node.
        end: key of another node.
        statement: what is proved, as simple HTML.
        proof: the proof in short.
        numbers: measured numbers by what they measure.
        href: where the page proves it.
        holds: whether the inclusion holds: a solid arrow, or a dashed one with a cross.
        bend: how far the arrow bends to its left, as a part of its length.
    """

    start: str
    end: str
    statement: str
    proof: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict)
    href: str | None = None
    holds: bool = True
    bend: float | int = 0


def diagram(
    nodes: Mapping[str, Node],
    arrows: Sequence[Arrow],
    *,
    alt: str,
    caption: str | None = None,
    start: int = 0,
    width: float | int = 620,
) -> Output:
    """Inclusions of encodings: solid arrows lead to what contains, dashed ones to what does not.

    A selected encoding lights up all that contain it, along solid arrows. Without JavaScript, and in print, all
    statements stand below the drawing.

    Args:
        nodes: the encodings by key.
        arrows: the proved inclusions and exclusions.
        alt: what the diagram shows.
        caption: a line below the figure; it may hold simple HTML.
        start: number of the statement shown first: the nodes in order, then the arrows.
        width: the largest width in CSS pixels.

    Raises:
        ValueError: if `alt` is empty, an arrow names no node or leads to where it starts, or `start` is no item.
    """
    alt, keys = checked_alt(alt), list(nodes)
    for arrow in arrows:
        if arrow.start not in nodes or arrow.end not in nodes or arrow.start == arrow.end:
            raise ValueError(f"arrows must join two of the nodes {keys}, got {arrow.start!r} and {arrow.end!r}")
    if not 0 <= start < len(nodes) + len(arrows):
        raise ValueError(f"start must be an item from 0 to {len(nodes) + len(arrows) - 1}, got {start}")
    titles = [_plain(node.label) for node in nodes.values()] + [_title(arrow, nodes) for arrow in arrows]
    uid = fingerprint(alt, str(caption), *titles)
    boxes, size = _boxes(nodes)
    drawn = [_node(node, boxes[key]) for key, node in nodes.items()]
    drawn += [_arrow(arrow, boxes[arrow.start], boxes[arrow.end]) for arrow in arrows]
    links = [
        f'<a href="#{uid}-{k}" aria-label="{attribute(title)}" style="{_PLAIN}">{inside}</a>'
        for k, (title, inside) in enumerate(zip(titles, drawn, strict=True))
    ]
    picture = svg_element(uid, alt, size[0], size[1], "".join(links)).replace('role="img"', 'role="group"', 1)
    narrow = min(380.0, size[0])
    sizes = f"min-width:{narrow:.0f}px;max-width:{width:.0f}px"
    picture = picture.replace(f"max-width:{size[0]:.0f}px", sizes, 1)
    texts = [(node.text, "", node) for node in nodes.values()] + [(a.statement, a.proof, a) for a in arrows]
    items = "".join(
        _item(f"{uid}-{k}", title, text, proof, entry.numbers, entry.href)
        for k, (title, (text, proof, entry)) in enumerate(zip(titles, texts, strict=True))
    )
    data = {"start": start, "lit": _lit(keys, arrows), "colour": palette.orange}
    extra = script("diagram", uid, data)
    legend = '<div style="font-size:.85em">solid: contained in what it points to; dashed: not contained</div>'
    entries = f'<div class="tl-list mathjax_process" style="max-width:44em;margin:0 auto">{items}</div>'
    body = f'<div style="{_SCROLL}">{picture}</div>{legend}{entries}'
    return Output(wrap(body, caption, extra, f'class="tl-figure tl-interactive" id="{uid}"'), alt)


def _plain(label: str) -> str:
    return " ".join(label.replace("-\n", "-").split())


def _title(arrow: Arrow, nodes: Mapping[str, Node]) -> str:
    return f"{_plain(nodes[arrow.start].label)} {'⊂' if arrow.holds else '⊄'} {_plain(nodes[arrow.end].label)}"


def _lit(keys: Sequence[str], arrows: Sequence[Arrow]) -> list[list[int]]:
    """For each item, the items that light up: a node with all above it, an arrow with its ends."""
    n, lit = len(keys), []
    for key in keys:
        reached, new = {key}, {key}
        while new:
            new = {a.end for a in arrows if a.holds and a.start in new} - reached
            reached |= new
        along = [n + k for k, a in enumerate(arrows) if a.holds and a.start in reached]
        lit.append([k for k, other in enumerate(keys) if other in reached] + along)
    return lit + [[keys.index(a.start), keys.index(a.end), n + k] for k, a in enumerate(arrows)]


def _boxes(nodes: Mapping[str, Node]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Middle and half size of each node's box, as (2, 2), and the size of the drawing."""
    boxes = {}
    for key, node in nodes.items():
        lines = node.label.split("\n")
        half = np.array([max(map(text_width, lines)) / 2 + _PAD, len(lines) * _LINE / 2 + 4])
        boxes[key] = np.array([np.array(node.at, dtype=float) * _STEP, half])
    low = np.min([middle - half for middle, half in boxes.values()], axis=0) - 3
    high = np.max([middle + half for middle, half in boxes.values()], axis=0) + 3
    return {key: box - np.array([low, [0, 0]]) for key, box in boxes.items()}, high - low


def _node(node: Node, box: np.ndarray) -> str:
    (x, y), (w, h) = box
    lines = node.label.split("\n")
    text = "".join(
        f'<text x="{short(x)}" y="{short(y + (k - (len(lines) - 1) / 2) * _LINE)}" dy=".35em">{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    return (
        f'<rect class="tl-mark" x="{short(x - w)}" y="{short(y - h)}" width="{short(2 * w)}" height="{short(2 * h)}" '
        f'rx="6" fill="{_PAPER}" stroke="currentColor" stroke-width="1.2"/>'
        f'<g text-anchor="middle" fill="currentColor">{text}</g>'
    )


def _edge(box: np.ndarray, towards: np.ndarray, gap: float) -> np.ndarray:
    """Where the line from the box's middle towards a point leaves the box, `gap` pixels further."""
    middle, half = box
    way = towards - middle
    scale = np.min(half / np.maximum(np.abs(way), 1e-9))
    return middle + way * scale + gap * way / np.hypot(*way)


def _arrow(arrow: Arrow, start: np.ndarray, end: np.ndarray) -> str:
    """A path with a head, its cross if it does not hold, and a wide invisible twin to point at."""
    way = end[0] - start[0]
    knee = (start[0] + end[0]) / 2 + arrow.bend * np.array([way[1], -way[0]])
    a, b = _edge(start, knee, 2.0), _edge(end, knee, 3.0)
    line = f"M{_point(a)}Q{_point(knee)} {_point(b)}"
    along = (b - knee) / np.hypot(*(b - knee)) * 7.0
    across = np.array([along[1], -along[0]]) * 0.5
    head = f"M{_point(b - along + across)}L{_point(b)}L{_point(b - along - across)}"
    dash = "" if arrow.holds else ' stroke-dasharray="5 4"'
    cross = "" if arrow.holds else f'<path d="{_cross((a + 2 * knee + b) / 4)}" stroke-width="1.8"/>'
    return (
        f'<g fill="none" stroke="currentColor"><path d="{line}" stroke="transparent" stroke-width="18" '
        f'pointer-events="stroke"/><g class="tl-mark" stroke="currentColor" stroke-width="1.2" stroke-linecap="round">'
        f'<path d="{line}"{dash}/><path d="{head}"/>{cross}</g></g>'
    )


def _cross(middle: np.ndarray) -> str:
    x, y = middle
    return f"M{_point((x - 4, y - 4))}L{_point((x + 4, y + 4))}M{_point((x - 4, y + 4))}L{_point((x + 4, y - 4))}"


def _point(point) -> str:
    return f"{short(float(point[0]), 1)} {short(float(point[1]), 1)}"


def _item(uid: str, title: str, text: str, proof: str, numbers: Mapping[str, str], href: str | None) -> str:
    """One entry of the list below the drawing."""
    parts = [f'<div style="font-weight:600">{escape(title)}</div>']
    parts += [f"<div>{text}</div>"] if text else []
    parts += [f"<div><i>Proof.</i> {proof}</div>"] if proof else []
    parts += [f"<div>{escape(name)}: {escape(str(value))}</div>" for name, value in numbers.items()]
    parts += [f'<div><a href="{attribute(href)}">Where it is shown</a></div>'] if href else []
    return f'<div class="tl-item" id="{uid}" style="{_ITEM}">{"".join(parts)}</div>'
