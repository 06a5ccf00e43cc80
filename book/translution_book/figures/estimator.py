"""Random features in the page: estimates of exp(x·y) and their spread beside the exact variance."""

from collections.abc import Sequence

import numpy as np

from .axes import Axes
from .interactive import slider
from .output import Output, checked_alt, wrap
from .panels import svg_element
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["deviations", "estimates", "estimator"]

_TRIALS, _MOST, _DRAWS = 400, 1024, 2**20  # estimates per picture; draws of each; numbers between two seeds
_COUNTS = [2**k for k in range(10)]
_NORMS = [k / 10 for k in range(21)]
_ANGLES = list(range(0, 181, 5))
_BINS, _RANGE = 48, (-1.0, 3.0)
_NAMES = ("trigonometric", "positive")
_UPPER = Axes((12, 24, 316, 84), _RANGE, (0, 1))
_LOWER = Axes((12, 150, 316, 84), _RANGE, (0, 1))
_SPREAD = Axes((46, 26, 280, 206), (0, 180), (0.01, 1000), log=True)
_FLEX = "display:flex;flex-wrap:wrap;justify-content:center;align-items:flex-start;gap:.6em 1.6em"
_ROW = "display:none;flex-wrap:wrap;gap:.4em .8em;justify-content:center;margin:.3em 0"
_PLAIN = 'data-lm-suppress-shortcuts="true" style="font:inherit"'


def estimator(
    *,
    alt: str,
    caption: str | None = None,
    m: int = 32,
    norms: Sequence[float | int] = (1.0, 1.0),
    angle: int = 60,
    equal: str = "draws",
) -> Output:
    """Random-feature estimates of exp(x·y), drawn by the page: their histograms, and the exact spread by the angle.

    Estimates are divided by the exact value. Trigonometric features see ω(x − y) alone, positive ones ω(x + y) alone:
    one Gaussian number per draw each, whatever the dimension (chapter "Random features"). The exact relative standard
    deviations are √(2/m)·sinh(‖x − y‖²/2) and √((exp(‖x + y‖²) − 1)/m). The page's random numbers are a fixed sequence;
    a button turns to the next part of it.

    Args:
        alt: what the figure shows; the measured and the exact spread are added to it.
        caption: a line below the figure; it may hold simple HTML.
        m: draws of the trigonometric features at first: a power of two up to 512.
        norms: ‖x‖ and ‖y‖ at first, multiples of 0.1 up to 2.
        angle: the angle between x and y at first, in degrees: a multiple of 5.
        equal: "draws" gives both kinds m draws; "features" gives the positive ones 2m, since a draw makes two
            trigonometric features. The reader may choose.

    Raises:
        ValueError: if `alt` is empty, or a start value is none that the sliders reach.

    Example:
        >>> from translution_book import figures
        >>> figures.estimator(alt="Estimates of exp(x·y).", m=64, norms=(1.5, 1.5), angle=30)  # doctest: +ELLIPSIS
        figure: Estimates of exp(x·y). m = 64, norms 1.5 and 1.5, angle 30°: trigonometric features: ...
    """
    alt = checked_alt(alt)
    x, y = (round(float(norm), 1) for norm in norms)
    if m not in _COUNTS or not {x, y} <= set(_NORMS) or angle not in _ANGLES or equal not in ("draws", "features"):
        raise ValueError(
            "m must be a power of two up to 512, norms multiples of 0.1 up to 2, angle one of 5 up to 180 degrees, "
            f'equal "draws" or "features", got {m=}, {norms=}, {angle=}, {equal=}'
        )
    counts = (m, m if equal == "draws" else 2 * m)
    both = estimates(counts, x, y, angle)
    rows = _rows(both, deviations(counts, x, y, angle))
    said = f"{alt} m = {m}, norms {x:.1f} and {y:.1f}, angle {angle}°: " + "; ".join(
        f"{name} features: mean {row[0]}, standard deviation {row[1]}, exactly {row[2]}"
        for name, row in zip(_NAMES, rows, strict=True)
    )
    uid = fingerprint(alt, str(caption), said, equal)
    exact = [deviations(counts, x, y, a) for a in _ANGLES]
    left = svg_element(uid, said, 340, 274, _histograms(both, deviations(counts, x, y, angle)))
    right = svg_element(fingerprint(uid), "The exact relative standard deviations against the angle between x and y",
                        340, 274, _curves(exact, angle, [_deviation(ratios) for ratios in both]))  # fmt: skip
    cards = "".join(f'<div style="flex:1 1 290px;max-width:340px">{svg}</div>' for svg in (left, right))
    data = {
        "alt": alt, "counts": _COUNTS, "norms": _NORMS, "angles": _ANGLES, "trials": _TRIALS, "most": _MOST,
        "draws": _DRAWS, "bins": _BINS, "names": _NAMES, "boxes": [_UPPER.data(), _LOWER.data(), _SPREAD.data()],
    }  # fmt: skip
    note = "dashed: the exact value; shaded: one exact standard deviation to either side"
    body = (
        f'<div style="{_FLEX}">{cards}</div><div style="font-size:.85em">{note}</div>'
        f"{_table(rows)}{_controls(m, x, y, angle, equal)}"
    )
    extra = script("estimator", uid, data)
    return Output(wrap(body, caption, extra, f'class="tl-figure tl-interactive" id="{uid}"'), said)


def uniforms(first: int, count: int) -> np.ndarray:
    """Numbers `first`, … of the page's pseudo-random sequence in [0, 1): a 32-bit counter, mixed."""
    mask = 0xFFFFFFFF
    a = (np.arange(first + 1, first + 1 + count, dtype=np.uint64) * 0x6D2B79F5) & mask
    t = ((a ^ (a >> 15)) * (a | 1)) & mask
    t = t ^ ((t + (((t ^ (t >> 7)) * (t | 61)) & mask)) & mask)
    return (t ^ (t >> 14)) / 2.0**32


def gaussians(seed: int, m: int) -> np.ndarray:
    """Two independent Gaussian numbers for m draws of every trial, (trials, m, 2); fewer are the first of more."""
    starts = seed * _DRAWS + 2 * _MOST * np.arange(_TRIALS)
    u = np.stack([uniforms(int(start), 2 * m) for start in starts]).reshape(_TRIALS, m, 2)
    radius, turn = np.sqrt(-2 * np.log(1 - u[..., 0])), 2 * np.pi * u[..., 1]
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=-1)


def _squares(x: float | int, y: float | int, angle: float | int) -> tuple[float, float]:
    """The squares of ‖x − y‖ and of ‖x + y‖."""
    inner = 2 * x * y * float(np.cos(np.radians(angle)))
    return max(x * x + y * y - inner, 0.0), max(x * x + y * y + inner, 0.0)


def estimates(
    counts: Sequence[int], x: float | int, y: float | int, angle: float | int, seed: int = 0
) -> list[np.ndarray]:
    """Estimates by trigonometric and by positive features from so many draws, divided by exp(x·y), one per trial."""
    u, v = _squares(x, y, angle)
    z = gaussians(seed, max(counts))  # ω(x − y)ᵀ has the variance u, ω(x + y)ᵀ the variance v
    return [
        np.exp(u / 2) * np.cos(np.sqrt(u) * z[:, : counts[0], 0]).mean(axis=1),
        np.exp(-v / 2) * np.exp(np.sqrt(v) * z[:, : counts[1], 1]).mean(axis=1),
    ]


def deviations(counts: Sequence[int], x: float | int, y: float | int, angle: float | int) -> tuple[float, float]:
    """The exact relative standard deviations of trigonometric and of positive features."""
    u, v = _squares(x, y, angle)
    return float(np.sqrt(2 / counts[0]) * np.sinh(u / 2)), float(np.sqrt(np.expm1(v) / counts[1]))


def _deviation(ratios: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ratios - 1) ** 2)))


def _number(value: float) -> str:
    decimals = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}".replace("-", "−")


def _rows(both: Sequence[np.ndarray], exact: Sequence[float]) -> list[list[str]]:
    """For each kind: the mean, the measured and the exact standard deviation, and how many are negative."""
    return [
        [*map(_number, (ratios.mean(), _deviation(ratios), deviation)), f"{np.mean(ratios < 0):.0%}"]
        for ratios, deviation in zip(both, exact, strict=True)
    ]


def _table(rows: Sequence[Sequence[str]]) -> str:
    heads = ("", "mean", "deviation", "exact deviation", "below zero")
    cells = "".join(
        f"<span>{head}</span>" + "".join(
            f'<b style="border-right:.4em solid {colour};padding-right:.3em;text-align:right">{name}</b>' if k == 0 else
            f'<span class="tl-value" style="text-align:right">{row[k - 1]}</span>'
            for name, colour, row in zip(_NAMES, (palette.blue, palette.orange), rows, strict=True)
        )
        for k, head in enumerate(heads)
    )  # fmt: skip
    grid = "display:grid;grid-template-columns:auto auto auto;justify-content:center;gap:.1em .8em;margin:.4em 0"
    return f'<div style="{grid};text-align:left;font-size:.92em">{cells}</div>'


def _histograms(both: Sequence[np.ndarray], exact: Sequence[float]) -> str:
    ticks = {float(v): str(v).replace("-", "−") for v in range(-1, 4)}
    parts = []
    for k, (axes, ratios) in enumerate(zip((_UPPER, _LOWER), both, strict=True)):
        low, high = axes.at(1 - exact[k], 0).split(), axes.at(1 + exact[k], 1).split()
        band = f"M{low[0]} {low[1]}V{high[1]}H{high[0]}V{low[1]}z"
        x, y = axes.at(1, 0).split()
        parts.append(
            f'<path class="tl-band{k}" d="{band}" fill="{palette.grey}" fill-opacity=".25"/>'
            f'<path class="tl-bars{k}" d="{_bars(axes, ratios)}" fill="{(palette.blue, palette.orange)[k]}"/>'
            f'<path d="M{x} {y}v{-axes.box[3]:g}" stroke="currentColor" stroke-dasharray="4 3"/>'
            f'<text x="{axes.box[0]:g}" y="{axes.box[1] - 8:g}">{_NAMES[k]}</text>'
            f'<text class="tl-off{k}" x="{axes.box[0] + axes.box[2]:g}" y="{axes.box[1] - 8:g}" text-anchor="end">'
            f"{_off(ratios)}</text>" + axes.frame(ticks, {}, "estimate / exact value" if k else "", "")
        )
    return "".join(parts)


def _bars(axes: Axes, ratios: np.ndarray) -> str:
    """Path data of a histogram, as high as its box."""
    bins = np.floor((ratios - _RANGE[0]) / (_RANGE[1] - _RANGE[0]) * _BINS)
    counts = np.array([int((bins == k).sum()) for k in range(_BINS)])
    width = (_RANGE[1] - _RANGE[0]) / _BINS
    corners = [
        (axes.at(_RANGE[0] + k * width, 0), axes.at(_RANGE[0] + (k + 1) * width, n / counts.max()))
        for k, n in enumerate(counts) if n
    ]  # fmt: skip
    pairs = ((a.split(), b.split()) for a, b in corners)
    return "".join(f"M{x0} {y0}V{y1}H{x1}V{y0}z" for (x0, y0), (x1, y1) in pairs)


def _off(ratios: np.ndarray) -> str:
    low, high = int((ratios < _RANGE[0]).sum()), int((ratios >= _RANGE[1]).sum())
    return f"off the axis: {low} left, {high} right" if low or high else ""


def _curves(exact: Sequence[Sequence[float]], angle: int, measured: Sequence[float]) -> str:
    """The exact spread of both kinds against the angle, and what was measured at this angle."""
    ends = _SPREAD.y
    dashes, colours, parts = ("", ' stroke-dasharray="6 3"'), (palette.blue, palette.orange), []
    for k in range(2):
        line = _SPREAD.line(_ANGLES, [row[k] for row in exact])
        x, y = _SPREAD.at(angle, measured[k]).split()
        parts.append(
            f'<path class="tl-curve{k}" d="{line}" fill="none" stroke="{colours[k]}" stroke-width="2"{dashes[k]}/>'
            f'<circle class="tl-dot{k}" cx="{x}" cy="{y}" r="5" fill="{colours[k]}"/>'
        )
    x, y = _SPREAD.at(angle, ends[0]).split()
    mark = f'<path class="tl-mark" d="M{x} {y}v{-_SPREAD.box[3]:g}" stroke="currentColor" stroke-dasharray="2 3"/>'
    yticks = {0.01: "0.01", 0.1: "0.1", 1: "1", 10: "10", 100: "100", 1000: "1000"}
    xticks = {float(a): f"{a}°" for a in range(0, 181, 45)}
    frame = _SPREAD.frame(xticks, yticks, "angle between x and y", "standard deviation / exact value")
    return frame + mark + "".join(parts)


def _controls(m: int, x: float, y: float, angle: int, equal: str) -> str:
    """Sliders, a choice and a button, hidden until the script runs."""
    options = "".join(f"<option{' selected' * (name == equal)}>{name}</option>" for name in ("draws", "features"))
    choice = f'<label>the same number of <select name="equal" {_PLAIN}>{options}</select></label>'
    button = f'<button type="button" class="tl-again" {_PLAIN}>draw again</button>'
    return (
        slider("draws m", [str(count) for count in _COUNTS], _COUNTS.index(m), 11)
        + slider("norm of x", [f"{norm:.1f}" for norm in _NORMS], _NORMS.index(x), 11)
        + slider("norm of y", [f"{norm:.1f}" for norm in _NORMS], _NORMS.index(y), 11)
        + slider("angle", [f"{a}°" for a in _ANGLES], _ANGLES.index(angle), 11)
        + f'<div class="tl-control" style="{_ROW}">{choice}{button}</div>'
    )
