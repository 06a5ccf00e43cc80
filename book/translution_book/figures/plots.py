"""Static plots that several chapters draw. Each gives a matplotlib figure; `show` puts it into a page."""

from collections.abc import Sequence

import numpy as np

from .style import legible, palette

__all__ = ["bars", "heatmap", "kernel_taps", "loglog", "relation_table", "token_grid"]

_RECTANGLES = 400  # up to so many cells are drawn as rectangles; a larger matrix as one small image


def heatmap(
    matrix,
    *,
    ax=None,
    cmap: str = "sequential",
    text: str | bool = False,
    xlabel: str = "",
    ylabel: str = "",
    xticks: Sequence | None = None,
    yticks: Sequence | None = None,
    colorbar: bool | str = False,
    limits: Sequence | None = None,
    title: str = "",
    size: float | int = 2.6,
):
    """A matrix as coloured cells, row 0 on top; gives the figure.

    Args:
        matrix: rows × columns; NaN, or −1 in a categorical matrix, is hatched ("masked").
        ax: the axes to draw into, default: a new figure `size` inches high.
        cmap: "sequential" (from zero up), "diverging" (around zero) or "categorical" (ids).
        text: True or a format such as ".2f" writes the values into the cells.
        xlabel: what the columns are.
        ylabel: what the rows are.
        xticks: the columns' labels, one each.
        yticks: the rows' labels, one each.
        colorbar: True, or the bar's label.
        limits: the values of no and of full colour, default: those of the matrix.
        title: a few words above the cells, to tell panels apart.
        size: height in inches of a new figure.

    Raises:
        ValueError: if `matrix` is not a matrix, or `cmap` is unknown.
    """
    values = _matrix(matrix)
    ax = ax if ax is not None else _axes(values.shape, size, bool(colorbar))
    low, high = _limits(values, cmap, limits)
    colours = _colours(values, cmap, low, high)
    _cells(ax, colours)
    _hatch(ax, colours[..., 3] < 0)
    _frame(ax, values.shape, xticks, yticks)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if title:
        ax.set_title(title)
    if text:
        _write(ax, values, colours, ("d" if values.dtype.kind in "iu" else ".2f") if text is True else text)
    if colorbar:
        _colorbar(ax, cmap, low, high, colorbar if isinstance(colorbar, str) else "")
    return ax.figure


def relation_table(relations, *, ax=None, text: bool = False, xlabel="key j", ylabel="query i", **options):
    """The table of relation ids, one colour per relation: pairs of one colour share their parameters.

    Masked pairs are hatched. `relations` needs `.index` only; `options` go to `heatmap`.
    """
    return heatmap(relations.index, ax=ax, cmap="categorical", text=text, xlabel=xlabel, ylabel=ylabel, **options)


def token_grid(values, shape: Sequence[int] | None = None, *, ax=None, cmap="sequential", text=False, **options):
    """One value per token (n,), drawn on the tokens' grid `shape` (default: the shape of `values`); 1-D is one row."""
    values = _array(values)
    rows = values.reshape(tuple(shape)) if shape is not None else values
    options = ({"yticks": [""]} if rows.ndim == 1 else {}) | options
    return heatmap(np.atleast_2d(rows), ax=ax, cmap=cmap, text=text, **options)


def kernel_taps(kernel, *, ax=None, text: str | bool = ".2f", xlabel="tap κ₂", ylabel="tap κ₁", **options):
    """A kernel's taps (k1, k2) or (k,) around zero, for one input and one output channel."""
    taps = np.atleast_2d(_array(kernel))
    ticks = [[str(t - (size - 1) // 2).replace("-", "−") for t in range(size)] for size in taps.shape]
    options = {"yticks": ticks[0], "xticks": ticks[1], "cmap": "diverging"} | options
    return heatmap(taps, ax=ax, text=text, xlabel=xlabel, ylabel=ylabel, **options)


def bars(values: dict, *, ax=None, xlabel: str = "", format: str = ".3g", log: bool = False, spread=None):
    """Horizontal bars, one per name, with their values written at the end; `spread` maps names to error bars."""
    import matplotlib.pyplot as plt

    ax = ax if ax is not None else plt.subplots(figsize=(4.8, 0.5 + 0.32 * len(values)))[1]
    names, numbers = list(values), [float(v) for v in values.values()]
    error = None if spread is None else [spread.get(name, 0.0) for name in names]
    drawn = ax.barh(names, numbers, color=palette.blue, height=0.62, log=log, xerr=error, ecolor=palette.grey)
    ax.bar_label(drawn, [f"{v:{format}}" for v in numbers], padding=4, fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set_xlabel(xlabel)
    return ax.figure


def loglog(x, curves: dict, *, ax=None, xlabel: str = "", ylabel: str = "", points: bool = True):
    """Named curves over `x` on two logarithmic axes; each ends with its name, so that colour is not needed."""
    import matplotlib.pyplot as plt

    ax = ax if ax is not None else plt.subplots()[1]
    for k, (name, y) in enumerate(curves.items()):
        ax.loglog(_array(x), _array(y), marker="osD^v*"[k % 6] if points else None, label=name)
        ax.annotate(name, (x[-1], y[-1]), (5, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax.figure


def _array(values) -> np.ndarray:
    """A NumPy array from a tensor, an array or a sequence."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def _matrix(values) -> np.ndarray:
    array = _array(values)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"matrix must have rows and columns, got the shape {array.shape}")
    return array


def _axes(shape, size, colorbar: bool):
    import matplotlib.pyplot as plt

    wide = size * min(shape[1] / shape[0], 1.7) if shape[1] >= shape[0] else size * max(shape[1] / shape[0], 0.5)
    high = min(size, wide * shape[0] / shape[1])
    return plt.subplots(figsize=(wide + 0.6 + 0.8 * colorbar, high + 0.6))[1]


def _limits(values: np.ndarray, cmap: str, limits) -> Sequence:
    if cmap not in ("sequential", "diverging", "categorical"):
        raise ValueError(f'cmap must be "sequential", "diverging" or "categorical", got {cmap!r}')
    if limits is not None:
        return limits
    finite = values[np.isfinite(values)] if values.size else values
    top = float(np.abs(finite).max()) if finite.size else 1.0
    return (-(top or 1.0), top or 1.0) if cmap == "diverging" else (0.0, top or 1.0)


def _colours(values: np.ndarray, cmap: str, low, high) -> np.ndarray:
    """RGBA per cell; alpha −1 marks a masked cell."""
    from matplotlib.colors import to_rgba

    if cmap == "categorical":
        ids = values.astype(int)
        table = np.array([to_rgba(c) for c in palette.categorical(int(ids.max()) + 1)] or [to_rgba(palette.grey)])
        return np.where((ids < 0)[..., None], [0, 0, 0, -1], table[np.maximum(ids, 0)])
    scaled = (values.astype(float) - low) / (high - low)
    colours = np.asarray(getattr(palette, cmap)(np.nan_to_num(scaled)))
    return np.where(np.isfinite(scaled)[..., None], colours, [0, 0, 0, -1])


def _cells(ax, colours: np.ndarray) -> None:
    from matplotlib.collections import PolyCollection

    rows, columns = colours.shape[:2]
    clipped = np.clip(colours, 0, 1)
    if rows * columns > _RECTANGLES:
        ax.imshow(clipped, interpolation="none", extent=(0, columns, rows, 0))
        return
    corners = [[(c, r), (c + 1, r), (c + 1, r + 1), (c, r + 1)] for r in range(rows) for c in range(columns)]
    seen = clipped.reshape(-1, 4)[:, 3] > 0.004
    cells = [corner for corner, keep in zip(corners, seen, strict=True) if keep]
    mesh = PolyCollection(cells, facecolors=clipped.reshape(-1, 4)[seen], linewidths=0, gid="QuadMesh")
    ax.add_collection(mesh, autolim=False)


def _hatch(ax, masked: np.ndarray) -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(c, r), (c + 1, r), (c + 1, r + 1), (c, r + 1)] for r, c in zip(*np.nonzero(masked), strict=True)]
    if corners:
        cells = PolyCollection(corners, facecolors="none", edgecolors=palette.grey, linewidths=0, hatch="////")
        ax.add_collection(cells, autolim=False)


def _frame(ax, shape, xticks, yticks) -> None:
    """Square cells, row 0 on top, a thin frame, and ticks in the middle of the cells."""
    rows, columns = shape
    ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    for axis, count, labels in ((ax.xaxis, columns, xticks), (ax.yaxis, rows, yticks)):
        step = 1 if labels is not None or count <= 10 else -(-count // 8)
        shown = list(range(0, count, step))
        axis.set_ticks([k + 0.5 for k in shown], [str(labels[k] if labels is not None else k) for k in shown])
    ax.tick_params(length=0, pad=3)
    for spine in ax.spines.values():
        spine.set(visible=True, linewidth=0.6, color=palette.grey)


def _write(ax, values: np.ndarray, colours: np.ndarray, form: str) -> None:
    for (r, c), value in np.ndenumerate(values):
        if colours[r, c, 3] >= 0:
            shown = f"{value:{form}}".replace("-", "−")
            ax.text(c + 0.5, r + 0.5, shown, ha="center", va="center", fontsize=7, color=_legible(colours[r, c]))


def _legible(colour: np.ndarray) -> str:
    """A text colour that stands out from a cell: the theme's ink on a pale (transparent) one."""
    from matplotlib.colors import to_hex

    if colour[3] <= 0.6:
        return palette.ink
    return legible(to_hex(tuple(colour.tolist())))


def _colorbar(ax, cmap: str, low, high, label: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(low, high), getattr(palette, cmap))
    bar = ax.figure.colorbar(scale, ax=ax, shrink=0.9, label=label)
    bar.outline.set(linewidth=0.6, edgecolor=palette.grey)
