"""The recipe of grids in one table: what a chapter's captions do not print of how its rows were trained.

Chapters "Performers under shifts", "RiemannFormer on CIFAR", "Language models".
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from torch import nn

from translution_lib.mixers.encodings.rotary import Rotary
from translution_lib.mixers.encodings.transport import Transport
from translution_runs.grids.grid import Grid
from translution_runs.kinds import AnyConfig, kind_of
from translution_runs.language_modelling import LanguageModellingConfig
from translution_runs.tables import Table

HEADER = ("grid", "rows", "steps", "rate", "weight decay", "features drawn anew", "base of the angles")
NONE = "–"


def recipe(grids: Iterable[Grid], caption: str = "") -> Table:
    """A line for all rows of a grid that were trained alike: steps, rate, decay, redraws, base of the angles.

    Every word of it follows from the grids' files and from the models that they describe.

    Raises:
        ValueError: no grids.
    """
    lines, names = [], []
    for grid in grids:
        names.append(grid.name)
        found: dict[tuple[str, ...], list[str]] = {}
        for row in grid.rows.values():
            for line in dict.fromkeys(trained(config) for cell in row.cells.values() for config in cell[:1]):
                found.setdefault(line, []).append(row.name)
        by_length = sorted(found.items(), key=lambda one: len(one[1]))
        lines += [(grid.name, spoken(rows, grid, found), *line) for line, rows in by_length]
    if not lines:
        raise ValueError("grids: got none with a row, expected at least one")
    kept = [k for k in range(len(HEADER)) if any(line[k] != NONE for line in lines)]
    return Table(tuple(HEADER[k] for k in kept), tuple(tuple(line[k] for k in kept) for line in lines), caption,
                 tuple(f"notebooks/grids/{name}.yaml" for name in names))


def spoken(rows: Sequence[str], grid: Grid, found: Mapping[tuple[str, ...], Sequence[str]]) -> str:
    """The rows of a line: all, the one longest list as "the other rows", or their names."""
    lengths = [len(others) for others in found.values()]
    if len(rows) == len(grid.rows) and len(found) == 1:
        return "all"
    longest = len(rows) > 2 and len(rows) == max(lengths) and lengths.count(len(rows)) == 1
    return "the other rows" if longest and sum(lengths) == len(grid.rows) else "; ".join(rows)


def trained(config: AnyConfig) -> tuple[str, ...]:
    """How the model of a run is trained."""
    made = kind_of(config).skeleton(config)
    number = steps(config)
    return (f"{number:,}", f"{config.learning_rate:g}", f"{config.weight_decay:g}", redrawn(made, number), bases(made))


def steps(config: AnyConfig) -> int:
    """Of the whole training.

    Raises:
        ValueError: the number of images is left to a data set that is not at hand.
    """
    if isinstance(config, LanguageModellingConfig):
        return config.epochs * config.steps
    kind, images = kind_of(config), config.train_samples
    if not images and config.data not in kind.embedded:
        raise ValueError(f"train_samples: got 0, all images of {config.data}; expected how many")
    return config.epochs * ceil((images or len(kind.load(config)["train"])) / config.batch_size)


def redrawn(model: nn.Module, number: int) -> str:
    """How often random features are drawn anew, and whether the training lasts so long."""
    found = {layer.redraw_interval for layer in model.modules() if hasattr(layer, "redraw_interval")}
    said = [f"every {every:,} steps: {counted((number - 1) // every)}" for every in found if isinstance(every, int)]
    return "; ".join([*sorted(said), *["never"] * (None in found)]) or NONE


def bases(model: nn.Module) -> str:
    """The bases of the angles by which queries and keys turn."""
    turning = [part for part in model.modules()
               if isinstance(part, Rotary) or (isinstance(part, Transport) and part.transport != "none")]
    return ", ".join(f"{base:,.0f}" for base in sorted({float(part.base) for part in turning})) or NONE


def counted(times: int) -> str:
    """How often, in words."""
    return {0: "not once", 1: "once"}.get(times, f"{times:,} times")
