"""Tables of a grid: what its records say, with the spread over seeds, beside the printed numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from pathlib import Path
from statistics import fmean

import numpy as np

from translution_runs.evaluation import unpack
from translution_runs.grids.grid import Grid, Row
from translution_runs.grids.status import status
from translution_runs.image_classification import SHAPES
from translution_runs.kinds import TEXTS
from translution_runs.printed import Cell
from translution_runs.records import Record
from translution_runs.tables import Table, provenance
from translution_runs.verdicts import MISSING, TRAINED, Effect, Estimate, Sample

CANNOT, NOT_RUN = "cannot", "not run here"
MINUS = "−"


@dataclass(frozen=True)
class Result:
    """One row and one column of a grid: what was measured, and what the paper prints.

    Attributes:
        row: name of the row.
        column: heading of the column.
        records: of the seeds that have one.
        placement: of the test images, or length of the windows of text; None where the column is printed alone.
        seeds: how many the profile asks for.
        printed: the paper's cell, or None.
        unit: "%" for accuracies, "" for perplexities.
    """

    row: str
    column: str
    records: tuple[Record, ...]
    placement: str | None
    seeds: int
    printed: Cell | None
    unit: str = "%"

    @property
    def accuracies(self) -> list[float]:
        """Of the records of images, in per cent."""
        return [100 * record.evaluations[self.placement].accuracy for record in self.records if self.placement]

    @property
    def values(self) -> list[float]:
        """Of the records: accuracies in per cent, or perplexities of those that can read such a text."""
        if self.unit:
            return self.accuracies
        name = self.placement or ""
        return [record.texts[name].perplexity for record in self.records if name in record.texts]

    def tested(self, placement: str) -> "Result":
        """The same runs, tested on images at another placement; it has no printed number."""
        return replace(self, placement=placement, printed=None)

    def lost(self, before: str, after: str) -> Estimate | None:
        """Points that each run loses from one placement of the test images to another; None without records."""
        pairs = zip(self.tested(before).accuracies, self.tested(after).accuracies, strict=True)
        return Estimate.of([a - b for a, b in pairs])

    @property
    def cannot(self) -> str:
        """Why no record could be tested so; empty where one could, or where there is none."""
        reasons = {record.cannot.get(self.placement or "", "") for record in self.records}
        return min(reasons) if reasons and "" not in reasons else ""

    @property
    def estimate(self) -> Estimate | None:
        """Mean and standard deviation over the seeds, in per cent for accuracies; None without values."""
        return Estimate.of(self.values)

    @cached_property
    def effect(self) -> Effect | None:
        """What verdicts are made of: points of accuracy, or bits a token, with the test set's error; None without."""
        sample = self.points if self.unit else self.bits
        return None if sample is None else Effect(((1.0, sample),))

    @property
    def points(self) -> Sample | None:
        """Accuracies in per cent, with the outcomes of the test images where every record keeps them."""
        if not self.records or not self.placement:
            return None
        found = [record.evaluations[self.placement] for record in self.records]
        names = tuple(record.name for record in self.records)
        tests = {record.data["test"].model_dump_json() for record in self.records}
        values = tuple(100 * one.accuracy for one in found)
        if len(tests) == 1 and all(one.outcomes for one in found):
            right = np.stack([unpack(one.outcomes, one.n).numpy() for one in found])
            return Sample(values, runs=names, shares=100 * right.mean(0), test=min(tests), trained=self.trained)
        error = binomial_error([one.n for one in found], [one.accuracy for one in found])
        return Sample(values, runs=names, test_error=error, trained=self.trained)

    @property
    def trained(self) -> bool:
        """Whether every run of images ended with more of its training images right than guesses would be, by far."""
        return all(record.curve[-1].accuracy >= TRAINED / classes(record) for record in self.records if record.curve)

    @property
    def bits(self) -> Sample | None:
        """Losses in bits a token, with those of the text's blocks where every record keeps them.

        Where they are missing the error is that of one text, as if two models erred independently on it.
        """
        name = self.placement or ""
        records = [record for record in self.records if name in record.texts]
        if not records:
            return None
        found = [record.texts[name] for record in records]
        runs, values = tuple(record.name for record in records), tuple(one.loss / log(2) for one in found)
        tests = {f"{record.data['test'].model_dump_json()} {record.texts[name].block}" for record in records}
        if len(tests) == 1 and all(one.losses for one in found):
            blocks = np.array([one.losses for one in found]).mean(0) / log(2)
            return Sample(values, "bits", runs, shares=blocks, test=min(tests))
        return Sample(values, "bits", runs, fmean(one.error for one in found) / log(2))

    @property
    def mean(self) -> float | None:
        """Over the seeds, in per cent for accuracies; None without values."""
        estimate = self.estimate
        return None if estimate is None else estimate.mean

    @property
    def difference(self) -> float | None:
        """Mean minus printed number, in points; None where one of them is missing."""
        return None if self.mean is None or self.printed is None else self.mean - self.printed.value

    @property
    def text(self) -> str:
        """Mean and spread, or that there is nothing yet, or never will be."""
        if self.cannot:
            return CANNOT
        if self.estimate is not None:
            return str(self.estimate)
        return MISSING if self.placement else NOT_RUN


def classes(record: Record) -> int:
    """Of the images of a run."""
    return int(record.parameters.get("data_classes") or SHAPES[record.parameters["data"]][2])


def binomial_error(images: Sequence[int], accuracies: Sequence[float]) -> float:
    """Standard error in points for the choice of the images, as if all runs erred on the same ones.

    One image more that is right and one that is wrong keep it above zero.
    """
    n = min(images)
    share = (n * fmean(accuracies) + 1) / (n + 2)
    return 100 * sqrt(share * (1 - share) / n)


def results(grid: Grid, store: str | Path) -> list[Result]:
    """Every row and column of a grid, row by row, from the valid records in the folder `store`."""
    return [result(grid, row, heading, Path(store)) for row in grid.rows.values() for heading in grid.file.columns]


def result(grid: Grid, row: Row, heading: str, store: Path) -> Result:
    """One row and one column."""
    configs = row.cells.get(heading, ())
    found = (status(config, store).record for config in configs)
    return Result(row.name, heading, tuple(record for record in found if record is not None),
                  grid.file.columns[heading].evaluation, len(configs), grid.printed(row, heading), unit(grid))


def unit(grid: Grid) -> str:
    """What the numbers are measured in: per cent, or nothing for perplexities."""
    return "" if grid.kind is TEXTS else "%"


def comparison(grid: Grid, store: str | Path) -> Table:
    """A line for every row and column: ours, the printed number, their difference, and how many seeds there are."""
    found = results(grid, store)
    lines = tuple((one.row, one.column, one.text, one.printed.printed if one.printed else "",
                   signed(one.difference) if comparable(grid) else "",
                   f"{len(one.records)} of {one.seeds}" if one.placement else "")
                  for one in found)
    of = f", {unit(grid)}" if unit(grid) else ""
    header = ("row", "column", f"ours{of}", f"printed{of}", "difference", "seeds")
    return Table(header, lines, caption(grid, found), origins(found))


def comparable(grid: Grid) -> bool:
    """Whether a difference from the printed numbers means something: perplexities of other tokens do not compare."""
    return grid.kind is not TEXTS or grid.profile == "paper"


def summary(grid: Grid, store: str | Path) -> Table:
    """A line for every row: parameters, mean and standard deviation in each column, and how many seeds there are."""
    found = results(grid, store)
    lines = tuple(summary_line(name, [one for one in found if one.row == name and one.placement])
                  for name in grid.rows)
    of = f", {unit(grid)}" if unit(grid) else ""
    headings = [f"{heading}{of}" for heading, column in grid.file.columns.items() if column.evaluation]
    return Table(("row", "parameters", *headings, "seeds"), lines, caption(grid, found), origins(found))


def summary_line(name: str, found: Sequence[Result]) -> tuple[str, ...]:
    """One line of `summary`; where columns have different numbers of seeds, the fewest are named."""
    records = [record for one in found for record in one.records]
    size = f"{records[0].cost['parameters']:,}" if records else MISSING
    seeds = min((len(one.records) for one in found), default=0)
    texts = ["" if not records else one.text for one in found]
    return (name, size, *texts, f"{seeds} of {max((one.seeds for one in found), default=0)}")


def caption(grid: Grid, found: Sequence[Result]) -> str:
    """Title, profile, devices, what the numbers are, and how the profile differs from the paper."""
    devices = sorted({record.device["model"] for one in found for record in one.records})
    on = f" on {', '.join(devices)}" if devices else ""
    return (f"{grid.file.title}. Profile {grid.profile}{on}; mean ± standard deviation over seeds. {grid.differs}")


def origins(found: Sequence[Result]) -> tuple[str, ...]:
    """Where the numbers are from: each record once."""
    records = {record.name: record for one in found for record in one.records}
    return tuple(provenance(record) for record in records.values())


def signed(difference: float | None) -> str:
    """A difference in points with its sign; empty where there is none."""
    return "" if difference is None else f"{difference:+.2f}".replace("-", MINUS)
