"""The relation table, explored: point at a pair, and every pair that shares its parameters lights up."""

import numpy as np

from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import Panel, grid_places, labels_of, short, svg_element, token_places
from .plots import _array
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["relation_map"]


def relation_map(
    relations,
    *,
    alt: str,
    caption: str | None = None,
    start: int | None = None,
    slider_label: str = "relation",
) -> Output:
    """The table of pairs, and the tokens with an arc from key to query for each pair of the selected relation.

    Args:
        relations: needs `.index`, `.count` and `.labels`; `.shape` and `.cls` place the tokens.
        alt: what the figure shows; the selected relation is added to it.
        caption: a line below the figure; it may hold simple HTML.
        start: the relation selected at first, default: the middle one.
        slider_label: the slider's name.

    Raises:
        ValueError: if `alt` is empty, or `start` is no relation.
    """
    alt = checked_alt(alt)
    index, count = _array(relations.index).astype(int), int(relations.count)
    start = count // 2 if start is None else start
    if not 0 <= start < count:
        raise ValueError(f"start must be a relation from 0 to {count - 1}, got {start}")
    n, shape = len(index), getattr(relations, "shape", None)
    table = Panel.fit(grid_places((n, n)), 216.0)
    places = token_places(shape or (n,), getattr(relations, "cls", False))
    tokens = Panel.fit(places, 190.0, max(table.right, 160.0) + 32, table.top + (0 if places[:, 1].max() else 48))
    labels = [
        f"{name}: {size} {'pair' if size == 1 else 'pairs'}"
        for name, size in zip(labels_of(relations.labels, shape is not None), _sizes(index, count), strict=True)
    ]
    data = {
        "alt": alt,
        "labels": labels,
        "ids": index.ravel().tolist(),
        "colours": palette.categorical(count),
        "paths": [_arcs(tokens, *np.nonzero(index == k)) for k in range(count)],
    }
    uid = fingerprint(alt, str(caption), *labels)
    stage = svg_element(
        uid, f"{alt} {labels[start]}", max(tokens.right, tokens.left + 125) + 2, max(table.bottom, tokens.bottom) + 2,
        table.label("rows: query i, columns: key j") + table.cells("tl-l", _paints(data, start, uid))
        + Panel(places, 1.0, tokens.left).label("arcs: key → query") + tokens.cells("tl-r", [("transparent", 1.0)] * n)
        + f'<path class="tl-p" d="{data["paths"][start]}" fill="none" stroke="{data["colours"][start]}" '
        'stroke-width="2" stroke-linecap="round" pointer-events="none"/>',
    )  # fmt: skip
    extra = script("relation_map", uid, data)
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(stage + slider(slider_label, labels, start), caption, extra, kind), f"{alt} {labels[start]}")


def _sizes(index: np.ndarray, count: int) -> list[int]:
    return np.bincount(index[index >= 0], minlength=count).tolist()


def _paints(data: dict, start: int, uid: str) -> list[tuple[str, float]]:
    fills = [data["colours"][k] if k >= 0 else f"url(#{uid}m)" for k in data["ids"]]
    return [(fill, 1.0 if k < 0 or k == start else 0.16) for fill, k in zip(fills, data["ids"], strict=True)]


def _arcs(tokens: Panel, queries: np.ndarray, keys: np.ndarray) -> str:
    """Path data: from each key an arc with an arrow head to its query; a dot where they are the same token."""
    pairs = zip(queries.tolist(), keys.tolist(), strict=True)
    return "".join(_arc(tokens.middle(j), tokens.middle(i)) for i, j in pairs)


def _arc(key: tuple[float, float], query: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = key, query
    dx, dy = x1 - x0, y1 - y0
    length = float(np.hypot(dx, dy))
    if length == 0:
        return f"M{short(x0 - 2, 1)} {short(y0, 1)}a2 2 0 1 0 4 0a2 2 0 1 0-4 0"
    bend = 0.22
    mx, my = (x0 + x1) / 2 + bend * dy, (y0 + y1) / 2 - bend * dx
    ux, uy = x1 - mx, y1 - my
    scale = 6.0 / float(np.hypot(ux, uy))
    ux, uy = ux * scale, uy * scale
    wings = [(x1 - ux - 0.5 * uy, y1 - uy + 0.5 * ux), (x1 - ux + 0.5 * uy, y1 - uy - 0.5 * ux)]
    (ax, ay), (bx, by) = wings
    points = [f"{short(a, 1)} {short(b, 1)}" for a, b in ((x0, y0), (mx, my), (x1, y1), (ax, ay), (x1, y1), (bx, by))]
    return "M{}Q{} {}M{}L{}L{}".format(*points)
