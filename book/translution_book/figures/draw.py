"""Draw an object, move it, and see which encodings follow: softmax attention computed by the page itself."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from .encoding import Encoding, follow, moved
from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import Panel, grid_places, short, svg_element
from .plots import _array
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["draw_and_move"]

_TINTS = ("transparent", palette.purple, palette.ochre, palette.green, palette.grey)
_BUTTON = "font:inherit;padding:.15em .6em"
_FLEX = "display:flex;flex-wrap:wrap;justify-content:center;align-items:center;gap:.4em 1.6em"
_GRID = "display:grid;grid-template-columns:repeat(auto-fit,minmax(min(270px,100%),1fr));gap:.9em 1.2em;margin-top:.6em"


def draw_and_move(
    shape: Sequence[int],
    encodings: Mapping[str, Encoding | Sequence[Encoding]],
    *,
    alt: str,
    caption: str | None = None,
    objects: Mapping[str, Any] | None = None,
    inks: Mapping[str, Any] | None = None,
    backgrounds: Mapping[str, Any] | None = None,
    layers: Sequence[int] = (1,),
    move: tuple[int, int] = (1, 1),
    query: int | None = None,
    channel: int = 0,
) -> Output:
    """Draw an object and move it: for each encoding a query's attention, the output, and what did not follow.

    The difference is the output of the moved object minus the moved output of the object, where both lie on the grid
    (elsewhere hatched). An encoding *follows* if no channel differs by more than 10⁻⁹ of the largest output.

    Args:
        shape: sides (H, W) of the grid.
        encodings: by name, one head or the heads of one layer; their outputs are added.
        alt: what the figure shows; the move and the verdicts are added to it.
        caption: a line below the figure; it may hold simple HTML.
        objects: by name, kinds of ink (H, W): 0 is empty, k the k-th of `inks`; default: an angle of three cells.
        inks: by name, the feature vectors (C,) of the kinds of ink, at most four; default: all ones.
        backgrounds: by name, the feature vectors of an empty cell to choose from; default: zero.
        layers: how many times a layer is applied, to choose from.
        move: the move (rows, columns) shown first, and in print.
        query: the token whose attention is shown first; default: the object's first cell after the move.
        channel: the output channel that is drawn; the difference is taken over all.

    Raises:
        ValueError: if `alt` is empty, shapes do not fit, or the first object leaves the grid.
    """
    alt, names = checked_alt(alt), list(encodings)
    heads = [[given] if isinstance(given, Encoding) else list(given) for given in encodings.values()]
    if not heads or not all(heads) or len(shape) != 2 or not all(count > 0 for count in layers):
        raise ValueError(f"draw_and_move needs a grid (H, W), encodings and layers ≥ 1, got {shape}, {names}, {layers}")
    c = heads[0][0].channels[0]
    ink = _vectors("inks", inks or {"ink": (1.0,) * c}, c)
    grounds = _vectors("backgrounds", backgrounds or {"zero": (0.0,) * c}, c)
    pictures = _pictures(objects or {"angle": _angle(shape)}, shape, len(ink))
    tables = [[head.tables(shape) for head in layer] for layer in heads]
    for name, layer in zip(names, heads, strict=True):
        _check(name, layer, c, max(layers), channel)
    start = next(iter(pictures.values()))
    now = moved(start, move)
    if not start.any() or (now > 0).sum() != (start > 0).sum():
        raise ValueError(f"move must keep the first object on the grid, got {tuple(move)}")
    query = int(np.flatnonzero(now)[0]) if query is None else query
    if not 0 <= query < now.size:
        raise ValueError(f"query must be a token from 0 to {now.size - 1}, got {query}")
    vectors = np.array([*list(grounds.values())[:1], *ink.values()])
    states = [follow(layer, vectors[start], vectors[now], move, layers[0]) for layer in tables]
    uid = fingerprint(alt, str(caption), *names, *pictures)
    place = ", ".join(map(str, divmod(query, shape[1])))
    said = f"{alt} Moved by {', '.join(_signed(v) for v in move)} (rows, columns); query {place}."
    cards = "".join(
        _card(uid, name, state, query, shape, channel, place) for name, state in zip(names, states, strict=True)
    )
    data = {
        "alt": alt, "shape": list(shape), "names": names, "move": list(move), "object": next(iter(pictures)),
        "objects": {name: kinds.ravel().tolist() for name, kinds in pictures.items()}, "ground": 0,
        "inks": list(ink.values()), "grounds": list(grounds.values()), "depths": list(layers), "channel": channel,
        "tints": list(_TINTS[: len(ink) + 1]), "colours": [palette.blue, palette.orange],
        "encodings": [[_plain(head) for head in layer] for layer in tables],
    }  # fmt: skip
    controls = _controls(shape, query, pictures, grounds, layers, move)
    top = f'<div style="{_FLEX}"><div>{_canvas(uid, said, start, now, query)}{_legend(ink)}</div>{controls}</div>'
    extra = script("draw", uid, data)
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(f'{top}<div style="{_GRID}">{cards}</div>', caption, extra, kind), said)


def _vectors(name: str, given: Mapping[str, Any], c: int) -> dict[str, list[float]]:
    """Feature vectors by name; at most as many inks as there are tints."""
    vectors = {key: [float(v) for v in np.round(_array(row), 6)] for key, row in given.items()}
    if any(len(row) != c for row in vectors.values()) or (name == "inks" and len(vectors) >= len(_TINTS)):
        raise ValueError(f"{name} must hold vectors of {c} channels (inks at most {len(_TINTS) - 1}), got {vectors}")
    return vectors


def _pictures(given: Mapping[str, Any], shape: Sequence[int], inks: int) -> dict[str, np.ndarray]:
    pictures = {name: np.asarray(_array(kinds)).astype(int) for name, kinds in given.items()}
    for name, kinds in pictures.items():
        if kinds.shape != tuple(shape) or kinds.min() < 0 or kinds.max() > inks:
            raise ValueError(f"objects[{name!r}] must hold kinds from 0 to {inks} on {tuple(shape)}, got {kinds.shape}")
    return pictures


def _angle(shape: Sequence[int]) -> np.ndarray:
    kinds = np.zeros(shape, dtype=int)
    kinds[1, 1] = kinds[2, 1] = kinds[2, 2] = 1
    return kinds


def _check(name: str, heads: Sequence[Encoding], c: int, depth: int, channel: int) -> None:
    outputs = {head.channels[1] for head in heads}
    e = min(outputs)
    if any(head.channels[0] != c for head in heads) or len(outputs) > 1 or (depth > 1 and e != c) or channel >= e:
        raise ValueError(
            f"encodings[{name!r}] must map {c} channels to one number of channels above {channel} (to {c} where layers "
            f"follow each other), got {[head.channels for head in heads]}"
        )


def _plain(head: dict[str, Any]) -> dict[str, Any]:
    """One head's tables as lists; whole numbers without their decimals."""
    return {key: _lists(value) for key, value in head.items()}


def _lists(value: Any) -> Any:
    if value is None:
        return None
    if np.ndim(value):
        return [_lists(v) for v in value]
    return int(value) if value == int(value) else float(value)


def _signed(value: int) -> str:
    return str(value).replace("-", "−")


def _canvas(uid: str, alt: str, start: np.ndarray, now: np.ndarray, query: int) -> str:
    """The cells to draw on: the picture, the place before the move as dashes, the query's frame."""
    panel = Panel(grid_places(start.shape), min(30.0, 210.0 / max(start.shape)), top=2.0)
    side = short(panel.side - 5)
    dashes = "".join(
        f'<rect x="{short(x + 2.5)}" y="{short(y + 2.5)}" width="{side}" height="{side}" '
        f'stroke-opacity="{int(kind > 0 and (start != now).any())}"/>'
        for (x, y), kind in zip(map(panel.corner, range(start.size)), start.ravel(), strict=True)
    )
    inside = (
        panel.cells("tl-i", [(_TINTS[kind], float(kind > 0)) for kind in now.ravel()])
        + f'<g class="tl-g" fill="none" stroke="currentColor" stroke-dasharray="3 2" pointer-events="none">{dashes}</g>'
        + panel.frame("tl-a", query)
    )
    svg = svg_element(uid, alt, panel.right + 2, panel.bottom + 2, inside)
    return svg.replace("<svg ", '<svg class="tl-draw" ', 1).replace("touch-action:pan-y", "touch-action:none")


def _legend(inks: Mapping[str, Any]) -> str:
    names = "" if len(inks) == 1 else "".join(
        f'<span style="white-space:nowrap"><span style="color:{tint}">■</span> {escape(name)} </span>'
        for name, tint in zip(inks, _TINTS[1:], strict=False)
    )  # fmt: skip
    return f'<div style="font-size:.85em">{names}<span style="white-space:nowrap">dashed: before the move</span></div>'


def _controls(shape, query, pictures, grounds, layers, move) -> str:
    """Sliders, choices and buttons, hidden until the script runs."""
    places = [f"{y}, {x}" for y, x in np.ndindex(*shape)]
    sliders = "".join(
        slider(name, [_signed(v) for v in range(1 - size, size)], step + size - 1, 9)
        for name, size, step in zip(("move down", "move right"), shape, move, strict=True)
    ) + slider("query", places, query, 9)
    choices = _choice("object", list(pictures), True)
    choices += _choice("background", list(grounds)) if len(grounds) > 1 else ""
    choices += _choice("layers", [str(count) for count in layers]) if len(layers) > 1 else ""
    buttons = "".join(
        f'<button type="button" class="{kind}" data-lm-suppress-shortcuts="true" style="{_BUTTON}">{text}</button>'
        for kind, text in (("tl-pen", "draw at the query"), ("tl-clear", "clear"))
    )
    style = "display:none;flex-wrap:wrap;gap:.4em .8em;justify-content:center;margin:.3em 0"
    row = f'<div class="tl-control" style="{style}">'
    hint = f'{row}<span style="font-size:.9em">Click cells to draw.</span></div>'
    said = f'{row}<output class="tl-said" style="white-space:pre-line"></output></div>'
    return f'<div style="flex:1 1 260px;max-width:430px">{hint}{row}{choices}{buttons}</div>{sliders}{said}</div>'


def _choice(name: str, texts: Sequence[str], keyed: bool = False) -> str:
    """A native choice; its values are the texts or their numbers."""
    options = "".join(f'<option value="{escape(t) if keyed else k}">{escape(t)}</option>' for k, t in enumerate(texts))
    return (
        f'<label style="white-space:nowrap">{name} <select name="{name}" data-lm-suppress-shortcuts="true" '
        f'style="font:inherit">{options}</select></label>'
    )


def _card(uid: str, name: str, state: dict[str, Any], query: int, shape, channel: int, place: str) -> str:
    """One encoding: attention, output and difference side by side, and the verdict."""
    places, side = grid_places(shape), min(14.0, 100.0 / max(shape))
    panels: list[Panel] = []
    for _ in range(3):
        panels.append(Panel(places, side, panels[-1].left + max(panels[-1].width, 74.0) + 12 if panels else 2.0))
    row, output = state["weights"][query], state["output"][:, channel]
    high = float(np.abs(output).max()) or 1.0
    paints = [
        [(palette.blue, v / row.max()) for v in row],
        [_paint(v, high, uid) for v in output],
        [_paint(v, high, uid) for v in state["difference"][:, channel]],
    ]
    labels = ("attention α", "output", "difference")
    inside = "".join(
        panel.label(label) + panel.cells(name, paint)
        for panel, label, name, paint in zip(panels, labels, ("tl-p", "tl-y", "tl-d"), paints, strict=True)
    )
    alt = f"{name}: attention of query {place}, output, and difference. {state['word']}"
    width = panels[2].left + max(panels[2].width, 74.0) + 2
    frame = panels[0].frame("tl-a", query)
    svg = svg_element(fingerprint(uid, name), alt, width, panels[0].bottom + 2, inside + frame)
    return (
        f'<div class="tl-card"><div style="font-weight:600;font-size:.92em">{escape(name)}</div>{svg}'
        f'<div class="tl-word" style="font-size:.88em">{state["word"]}</div></div>'
    )


def _paint(value: float, high: float, uid: str) -> tuple[str, float]:
    if value != value:
        return f"url(#{uid}m)", 1.0
    return palette.blue if value >= 0 else palette.orange, min(1.0, abs(value) / high)
