"""What runs reach against what they cost: a mark for every run, with a choice of task, of test and of cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10
from typing import Any

from .output import Output, attribute, checked_alt, wrap
from .panels import short, svg_element
from .scales import in_few_digits, linear, logarithmic
from .script import script
from .style import palette
from .svg import fingerprint

__all__ = ["Run", "trade_off"]

_BOX, _SIZE = (46, 34, 360, 220), (420, 296)
_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-5L4.8 3.6h-9.6z", "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L4.8-3.6h-9.6z", "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", "M-5-2.2h10v4.4h-10z",
)  # fmt: skip
_CHOICES = ("task", "trained on", "tested on", "across")
_ROW = "display:none;flex-wrap:wrap;gap:.4em 1em;justify-content:center;align-items:end;margin:.5em 0;text-align:left"
_FIELD = "max-width:100%;font:inherit;font-size:.95em"


@dataclass(frozen=True)
class Run:
    """One mark of `trade_off`.

    Attributes:
        name: of the run, as the reader is told it.
        family: which decides about colour and shape.
        task: what is learnt, such as the data and their size.
        trained: what was trained on.
        across: the costs, one for each name of `across`.
        tested: by the name of a test, what was reached.
    """

    name: str
    family: str
    task: str
    trained: str
    across: Sequence[float | int]
    tested: Mapping[str, float | int]


@dataclass(frozen=True)
class _Chosen:
    """The four choices: their names, and what can be chosen, in order."""

    values: tuple[list[str], list[str], list[str], list[str]]
    upward: Mapping[str, str] = field(default_factory=dict)

    def number(self, choice: int, value: str) -> int:
        return self.values[choice].index(value)


def trade_off(
    runs: Sequence[Run],
    across: Sequence[str],
    *,
    alt: str,
    upward: str | Mapping[str, str],
    caption: str | None = None,
    start: Sequence[str] = (),
) -> Output:
    """A mark for every run at what it cost (a logarithmic axis) and what it reached; pointer or slider name the run.

    Without JavaScript it shows the runs of the first choices.

    Args:
        runs: the marks.
        across: the names of the costs.
        alt: what the figure shows; the choices and the run that is pointed at are added to it.
        upward: the name of what is reached, with its unit; or by task where tasks differ.
        caption: a line below the figure; it may hold simple HTML.
        start: task, trained on, tested on and cost that are shown first; as many of them as are to be fixed.

    Raises:
        ValueError: if `alt` is empty, there are no runs, a run has another number of costs, one that is not above
            zero, or no test, a task has no name of what is reached, or nothing was run for `start`.
    """
    alt = checked_alt(alt)
    _check(runs, across)
    tasks = list(dict.fromkeys(run.task for run in runs))
    words = {task: upward for task in tasks} if isinstance(upward, str) else dict(upward)
    if set(tasks) - set(words):
        raise ValueError(f"upward must name what is reached in {', '.join(tasks)}, got {', '.join(words)}")
    chosen = _Chosen((tasks, _distinct(run.trained for run in runs),
                      _distinct(test for run in runs for test in run.tested), list(across)), words)
    views = _views(runs, chosen)
    first = _first(views, chosen, start)
    families = sorted({run.family for run in runs})
    data = _data(runs, chosen, families) | {"alt": alt, "views": views}
    uid = fingerprint(alt, str(caption), first, *(run.name for run in runs))
    view = views[first]
    told = _told(data, view, first, view["start"])
    stage = svg_element(uid, f"{alt} {view['said']} {told}", *_SIZE, _drawn(data, view))
    inside = stage + _legend(data, view, families) + _controls(chosen, first, view, told)
    extra = script("trade_off", uid, data)
    kind = f'class="tl-figure tl-interactive" id="{uid}"'
    return Output(wrap(inside, caption, extra, kind), f"{alt} {view['said']} {told}")


def _check(runs: Sequence[Run], across: Sequence[str]) -> None:
    if not (runs and across):
        raise ValueError(f"runs and across must not be empty, got {len(runs)} runs and {len(across)} costs")
    for run in runs:
        if len(run.across) != len(across) or min(run.across) <= 0 or not run.tested:
            raise ValueError(f"run {run.name!r} must have {len(across)} costs above zero and at least one test, got "
                             f"{tuple(run.across)} and {len(run.tested)} tests")


def _distinct(values) -> list[str]:
    return list(dict.fromkeys(values))


def _views(runs: Sequence[Run], chosen: _Chosen) -> dict[str, dict[str, Any]]:
    """By the numbers of the choices, every view that has runs."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, run in enumerate(runs):
        for test in run.tested:
            key = (chosen.number(0, run.task), chosen.number(1, run.trained), chosen.number(2, test))
            groups.setdefault(key, []).append(i)
    return {"/".join(map(str, (*key, cost))): _view(runs, chosen, key, cost, found)
            for key, found in sorted(groups.items()) for cost in range(len(chosen.values[3]))}


def _view(runs: Sequence[Run], chosen: _Chosen, key: Sequence[int], cost: int, found: Sequence[int]) -> dict[str, Any]:
    """Where the runs lie in pixels, from left to right, and the ticks."""
    test = chosen.values[2][key[2]]
    places = sorted((runs[i].across[cost], runs[i].tested[test], i) for i in found)
    xs, ys = [log10(x) for x, _, _ in places], [y for _, y, _ in places]
    low, high = min(xs) - 0.06, max(xs) + 0.06
    bottom, top, step = linear(min(ys), max(ys))
    left, up, width, height = _BOX
    at_x = lambda v: _number(left + width * (v - low) / (high - low))  # noqa: E731
    at_y = lambda v: _number(up + height * (top - v) / (top - bottom))  # noqa: E731
    digits = max(0, -floor(log10(step) + 1e-9))
    steps = [bottom + k * step for k in range(round((top - bottom) / step) + 1)]
    task = chosen.values[0][key[0]]
    return {
        "runs": [i for _, _, i in places], "at": [[at_x(x), at_y(y)] for x, y in zip(xs, ys, strict=True)],
        "x": [[at_x(log10(v)), in_few_digits(v)] for v in logarithmic(10**low, 10**high)],
        "y": [[at_y(v), f"{v:.{digits}f}".replace("-", "−")] for v in steps],
        "names": [chosen.values[3][cost], chosen.upward[task]], "start": 0,
        "said": f"{task}, trained on {chosen.values[1][key[1]]}, tested on {test}: {len(found)} runs.",
    }  # fmt: skip


def _number(value: float | int) -> float | int:
    found = float(short(value, 1))
    return int(found) if found == int(found) else found


def _first(views: Mapping[str, Any], chosen: _Chosen, start: Sequence[str]) -> str:
    """The view that is shown first."""
    for key in views:
        names = [values[int(k)] for values, k in zip(chosen.values, key.split("/"), strict=True)]
        if names[: len(start)] == list(start):
            return key
    raise ValueError(f"start must be choices that have runs, such as {', '.join(v[0] for v in chosen.values)}; got "
                     f"{', '.join(start)}")


def _data(runs: Sequence[Run], chosen: _Chosen, families: Sequence[str]) -> dict[str, Any]:
    """What the script needs, without the views."""
    looks = [[palette[k], _SHAPES[k % len(_SHAPES)]] for k in range(len(families))]
    lines: list[tuple[str, int, dict[int, str], int]] = []  # name, family, by test what was reached, cost
    costs: dict[tuple[str, ...], int] = {}  # runs of one network cost the same: each text once
    for run in runs:
        reached = {chosen.number(2, test): f"{value:.4g}" for test, value in run.tested.items()}
        paid = costs.setdefault(tuple(in_few_digits(value) for value in run.across), len(costs))
        lines.append((run.name, families.index(run.family), reached, paid))
    return {"box": _BOX, "size": _SIZE, "grey": palette.grey, "looks": looks, "runs": lines, "costs": list(costs)}


def _told(data: Mapping[str, Any], view: Mapping[str, Any], key: str, k: int) -> str:
    """The run that is pointed at in words: the script's `told`."""
    (name, _, tested, across), (*_, test, cost) = data["runs"][view["runs"][k]], map(int, key.split("/"))
    paid, reached = view["names"]
    return f"{name}: {reached} {tested[test]}, {paid} {data['costs'][across][cost]}"


def _drawn(data: Mapping[str, Any], view: Mapping[str, Any]) -> str:
    """Frame, marks and the ring around one of them: what the script draws."""
    left, up, width, height = _BOX
    base = up + height
    rules = "".join(f"M{left} {y}h{width}" for y, _ in view["y"])
    ticks = "".join(f"M{x} {base}v4" for x, _ in view["x"])
    words = "".join(_word(x, base + 16, "middle", text) for x, text in view["x"])
    words += "".join(_word(left - 5, _number(y + 4), "end", text) for y, text in view["y"])
    words += _word(left + width // 2, base + 32, "middle", view["names"][0])
    words += _word(4, up - 12, "start", view["names"][1])
    marks = "".join(_mark(data, i, at) for i, at in zip(view["runs"], view["at"], strict=True))
    x, y = view["at"][view["start"]]
    return (f'<g class="tl-frame"><path d="{rules}" fill="none" stroke="{palette.grey}" stroke-opacity=".4" '
            f'stroke-width=".7"/><path d="M{left} {base}h{width}{ticks}" fill="none" stroke="currentColor"/>{words}</g>'
            f'<g class="tl-marks">{marks}</g><circle class="tl-ring" cx="{x}" cy="{y}" r="9" fill="none" '
            'stroke="currentColor" stroke-width="2"/>')


def _word(x: float | int, y: float | int, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'


def _mark(data: Mapping[str, Any], i: int, at: Sequence[float | int]) -> str:
    colour, shape = data["looks"][data["runs"][i][1]]
    return (f'<path d="{shape}" transform="translate({at[0]} {at[1]})" fill="{colour}" fill-opacity=".75" '
            'stroke="currentColor" stroke-width=".5"></path>')


def _legend(data: Mapping[str, Any], view: Mapping[str, Any], families: Sequence[str]) -> str:
    """Colour and shape of every family; those without a run in the view are pale."""
    seen = {data["runs"][i][1] for i in view["runs"]}
    items = "".join(
        f'<span class="tl-key" style="white-space:nowrap;opacity:{1 if k in seen else 0.7}"><svg aria-hidden="true" '
        f'viewBox="-6 -6 12 12" style="width:.9em;height:.9em;vertical-align:-.1em"><path d="{shape}" fill="{colour}" '
        f'stroke="currentColor" stroke-width=".5"/></svg> {escape(families[k])}</span> '
        for k, (colour, shape) in enumerate(data["looks"])
    )
    style = "display:flex;flex-wrap:wrap;gap:.2em 1em;justify-content:center;font-size:.9em;margin:.3em 0"
    return f'<p style="{style}">{items}</p>'


def _controls(chosen: _Chosen, first: str, view: Mapping[str, Any], told: str) -> str:
    """Four choices and a slider over the runs, hidden until the script runs; the run in words is always there."""
    fields = "".join(
        f'<label style="max-width:100%">{name}<br><select data-lm-suppress-shortcuts="true" style="{_FIELD}">'
        + "".join(f'<option value="{k}"{" selected" * (str(k) == now)}>{escape(text)}</option>'
                  for k, text in enumerate(values)) + "</select></label>"
        for name, values, now in zip(_CHOICES, chosen.values, first.split("/"), strict=True)
    )  # fmt: skip
    slider = (f'<label style="display:contents"><span>run</span><input type="range" min="0" '
              f'max="{len(view["runs"]) - 1}" step="1" value="{view["start"]}" aria-valuetext="{attribute(told)}" '
              'data-lm-suppress-shortcuts="true" style="flex:0 1 18em;min-width:8em"></label>')
    row = f'<div class="tl-control" style="{_ROW}">'
    return (f"{row}{fields}</div>{row}{slider}</div>"
            f'<output class="tl-said" style="display:block;min-height:2.9em;font-size:.92em;overflow-wrap:anywhere">'
            f"{escape(told)}</output>")
