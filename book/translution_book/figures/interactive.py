"""Figures that move: live under a kernel, precomputed without one, and still when printed."""

from collections.abc import Callable, Sequence
from html import escape

from .output import Output, attribute, checked_alt, render, wrap
from .script import script
from .svg import Drawing, fingerprint

__all__ = ["frames"]

_CONTROL = "display:none;gap:.6em;justify-content:center;align-items:center;flex-wrap:wrap;margin:.4em 0"


def frames(
    draw: Callable,
    values: Sequence,
    *,
    label: str,
    alt: str | Callable,
    caption: str | None = None,
    start: int = 0,
    format: Callable[..., str] = str,
    width: float | int | None = None,
) -> Output:
    """A figure with a slider: one drawing per value.

    With a kernel the slider calls `draw`; without one it turns the pages of precomputed drawings; without JavaScript,
    and in print, the figure shows `values[start]`.

    Args:
        draw: takes a value and gives a matplotlib figure.
        values: what the slider steps through.
        label: the slider's name.
        alt: what the figure shows: a text, or a function of the value.
        caption: a line below the figure; it may hold simple HTML.
        start: the index of the first value shown.
        format: gives a value's text.
        width: the largest width in CSS pixels, default: the natural one.

    Raises:
        ValueError: if `alt` or `label` is empty, there are no values, or `start` is not the index of one.
    """
    values = list(values)
    if not values or not 0 <= start < len(values):
        raise ValueError(f"start must be the index of one of the {len(values)} values, got {start}")
    if not label.strip():
        raise ValueError(f"label must name the slider, got {label!r}")
    alts = [checked_alt(alt(value) if callable(alt) else alt) for value in values]
    texts = [format(value) for value in values]
    pictures = _aligned([draw(value) for value in values])
    uid = fingerprint(label, str(caption), *alts, *texts)
    stage = pictures[start].svg(uid, alts[start], width)
    html = wrap(
        stage + slider(label, texts, start),
        caption,
        script("frames", uid, _table(pictures, uid) | {"alts": alts, "values": texts}),
        f'class="tl-figure tl-interactive" id="{uid}"',
    )
    return Output(html, alts[start], lambda: _widget(draw, values, texts, alts, label, start, width, caption))


def slider(label: str, texts: Sequence[str], start: int, length: float | int = 16) -> str:
    """A native slider over `texts`, hidden until a script moves it; JupyterLab leaves its arrow keys to it."""
    room = min(0.55 * max(map(len, texts)) + 0.5, 16.0)  # so that the slider stays in place when the text changes
    return (
        f'<div class="tl-control" style="{_CONTROL}"><label style="display:contents">'
        f'<span>{escape(label)}</span><input type="range" min="0" max="{len(texts) - 1}" step="1" value="{start}" '
        f'aria-label="{attribute(label)}" aria-valuetext="{attribute(texts[start])}" '
        f'data-lm-suppress-shortcuts="true" style="flex:0 1 {length:g}em;min-width:8em">'
        f'</label><output style="min-width:{room:.1f}em;text-align:left">{escape(texts[start])}</output></div>'
    )


def _aligned(figures: Sequence) -> list[Drawing]:
    """Render all figures in one common box, so that nothing jumps from frame to frame."""
    from matplotlib.transforms import Bbox

    for fig in figures:
        fig.draw_without_rendering()
    box = Bbox.union([fig.get_tightbbox() for fig in figures]).padded(0.02)
    return [render(fig, box) for fig in figures]


def _table(pictures: Sequence[Drawing], uid: str) -> dict[str, list]:
    """Each frame as indices into a table of pieces: what frames share is stored once."""
    index: dict[str, int] = {}
    rows = [[index.setdefault(p.replace("\0", uid), len(index)) for p in picture.pieces] for picture in pictures]
    return {"parts": list(index), "frames": rows}


def _widget(draw, values, texts, alts, label, start, width, caption):
    """The live face: a slider that calls `draw`."""
    import ipywidgets

    control = ipywidgets.SelectionSlider(options=[(t, i) for i, t in enumerate(texts)], index=start, description=label)
    control.style.description_width = "initial"
    stage = ipywidgets.HTML()

    def redraw(change=None) -> None:
        picture = render(draw(values[control.value]))
        stage.value = wrap(picture.svg(fingerprint(*picture.pieces), alts[control.value], width), caption)

    control.observe(redraw, "value")
    redraw()
    return ipywidgets.VBox([control, stage])
