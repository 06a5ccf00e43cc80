"""What run records say: the printed numbers that they repeat, and comparisons of rows and columns of a grid.

Only records of the profile ``DECIDING``, the sources' own setting, decide; those of a smaller profile make a remark.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import hypot
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from translution_runs import read_records, verdicts
from translution_runs.grids import GridFile, Result, grid_files, read_file, read_grid, results, store_of
from translution_runs.kinds import KINDS
from translution_runs.printed import Cell
from translution_runs.verdicts import Estimate

from translution_book.facts.ledger.row import Ruling
from translution_book.facts.ledger.rules import LEAST_SEEDS, compatible, interval

DECIDING, SMALLER = "paper", "cpu"
Place = tuple[str, ...]


class Difference(BaseModel):
    """The sum of some results minus the sum of others lies above a number of points, or of units of perplexity.

    Attributes:
        plus: results by row and column, or by grid, row and column; one that is named twice counts twice.
        minus: likewise.
        over: the number of points.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    plus: tuple[Place, ...] = Field(min_length=1)
    minus: tuple[Place, ...] = ()
    over: float = 0.0

    @model_validator(mode="after")
    def _places(self) -> "Difference":
        wrong = [place for place in (*self.plus, *self.minus) if len(place) not in (2, 3)]
        if wrong:
            raise ValueError(f"a result is named by row and column, or by grid, row and column, got {list(wrong[0])}")
        return self


class Comparison(BaseModel):
    """What a claim says about runs: all of the differences.

    Attributes:
        grid: a file of ``notebooks/grids``.
        all: the differences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    grid: str
    all: tuple[Difference, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Runs:
    """The records of all grids.

    Attributes:
        grids: folder of the grid files.
        store: folder of the run records, with a folder for each kind of experiment.
    """

    grids: Path
    store: Path
    _read: dict[tuple[str, str], dict[tuple[str, str], Result]] = field(default_factory=dict, repr=False)

    @cached_property
    def known(self) -> Mapping[str, GridFile]:
        """What the grid files say, by name."""
        return {name: read_file(path) for name, path in grid_files(self.grids).items()}

    @cached_property
    def recorded(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """The parameters of all records, by the kind of experiment."""
        return {folder.name: [record.parameters for record in read_records(folder)]
                for folder in self.store.glob("*") if folder.name in KINDS}

    def possible(self, grid: str, profile: str) -> bool:
        """Whether some record has the numbers that all runs of a grid share; if none, the grid has not to be made."""
        file = self.known[grid]
        if profile not in file.profiles:
            return False
        chosen = file.profiles[profile]
        parts = [*(row.run for row in file.rows.values()), *(column.run for column in file.columns.values())]
        own = {name for part in parts for name in part}
        own |= {name for part in (*chosen.rows.values(), *chosen.columns.values()) for name in part}
        shared = {name: value for name, value in {**file.common, **chosen.common}.items()
                  if name not in own and isinstance(value, int | float)
                  and name not in KINDS[file.experiment].config.KEEPING}
        return any(all(found.get(name, value) == value for name, value in shared.items())
                   for found in self.recorded.get(file.experiment, []))

    def results(self, grid: str, profile: str) -> dict[tuple[str, str], Result]:
        """By row and column, what the records of a grid in a profile say; nothing where there is no record at all."""
        if not self.possible(grid, profile):
            return {}
        if (grid, profile) not in self._read:
            made = read_grid(grid, profile, folder=self.grids)
            found = results(made, store_of(made, self.store))
            self._read[grid, profile] = {(one.row, one.column): one for one in found}
        return self._read[grid, profile]

    def check(self, comparison: Comparison) -> None:
        """Raise a ValueError for a grid, row or column that does not exist."""
        for difference in comparison.all:
            for place in (*difference.plus, *difference.minus):
                grid, row, column = place if len(place) == 3 else (comparison.grid, *place)
                if grid not in self.known:
                    raise ValueError(f"grid must be one of {', '.join(self.known)}, got {grid!r}")
                content = self.known[grid]
                for what, name, names in (("row", row, content.rows), ("column", column, content.columns)):
                    if name not in names:
                        raise ValueError(f"{what} of {grid} must be one of {', '.join(names)}, got {name!r}")

    def compared(self, comparison: Comparison) -> Ruling | None:
        """What decides about a claim; None where the deciding records are not all there or leave it open."""
        verdict, records = self.verdict(comparison, DECIDING)
        by = f"runs of {comparison.grid}, profile {DECIDING}"
        if verdict == verdicts.HOLDS:
            return Ruling("reproduced", by, "", records)
        if verdict == verdicts.CONTRADICTED:
            return Ruling("contradicted", by, "", records)
        return None

    def remark(self, comparison: Comparison) -> tuple[str, tuple[str, ...]]:
        """What is to be said where nothing decides, and the records that were read."""
        deciding, ours = self.verdict(comparison, DECIDING)
        if deciding == verdicts.OPEN:
            return f"Profile {DECIDING}: not decided by {LEAST_SEEDS} seeds or more; run more seeds", ours
        small, read = self.verdict(comparison, SMALLER)
        words = {verdicts.HOLDS: "agrees", verdicts.CONTRADICTED: "disagrees", verdicts.OPEN: "does not decide"}
        return (f"Profile {SMALLER} {words[small]}", read) if small in words else ("", ())

    def verdict(self, comparison: Comparison, profile: str) -> tuple[str, tuple[str, ...]]:
        """One of the words of `verdicts` for a profile, and the records that were read; three seeds are needed."""
        answers: list[bool | None] = []
        records: dict[str, None] = {}
        for difference in comparison.all:
            factors = Counter(difference.plus)
            factors.subtract(Counter(difference.minus))
            there = [(factor, self._result(comparison.grid, place, profile)) for place, factor in factors.items()]
            known = [(factor, one) for factor, one in there if one is not None and len(one.values) >= LEAST_SEEDS]
            if len(known) < len(there):
                return verdicts.MISSING, ()
            answers.append(_total(known).above(difference.over))
            records |= {record.name: None for _, one in known for record in one.records}
        return verdicts.verdict(answers), tuple(records)

    def _result(self, grid: str, place: Place, profile: str) -> Result | None:
        grid, row, column = place if len(place) == 3 else (grid, *place)
        return self.results(grid, profile).get((row, column))

    @cached_property
    def printed(self) -> dict[str, dict[tuple, Result]]:
        """By profile and by the paper and key of a printed cell, the result that repeats it."""
        found: dict[str, dict[tuple, Result]] = {DECIDING: {}, SMALLER: {}}
        for name, file in self.known.items():
            for profile in set(found) & set(file.profiles):
                for one in self.results(name, profile).values():
                    if one.printed is not None and one.placement is not None:
                        found[profile][one.printed.paper, *one.printed.key] = one
        return found

    def repeated(self, cell: Cell, text: str) -> Ruling:
        """Rule about a printed accuracy or perplexity by the runs that repeat it, if there are any.

        Args:
            cell: the printed number.
            text: its digits as printed, trailing zeros included.
        """
        one = self.printed[DECIDING].get((cell.paper, *cell.key))
        names = tuple(record.name for record in one.records) if one else ()
        if one is None or len(one.values) < LEAST_SEEDS:
            small, read = self._smaller(cell)
            few = f"{len(names)} of at least {LEAST_SEEDS} seeds. " if names else ""
            return Ruling("not yet run", "no records that decide", few + small, names + read)
        low, high = interval(one.values)
        status = "reproduced" if compatible(text, one.values) else "contradicted"
        remark = f"{one.text} in {len(names)} seeds; a further seed from {low:.2f} to {high:.2f}"
        return Ruling(status, f"runs of profile {DECIDING}", remark, names)

    def _smaller(self, cell: Cell) -> tuple[str, tuple[str, ...]]:
        """What the smaller profile says about a cell: its number, and its order among the others of its column."""
        group = {key: one for key, one in self.printed[SMALLER].items()
                 if key[:3] == (cell.paper, cell.table, cell.subject) and key[-1] == cell.metric and one.values}
        one = group.pop((cell.paper, *cell.key), None)
        if one is None:
            return "", ()
        mine = Estimate.of(one.values)
        answers = {_agrees(cell, other.printed, mine, Estimate.of(other.values)) for other in group.values()}
        order = ("its order among the rows disagrees" if False in answers else
                 "where decided, its order among the rows agrees" if True in answers else
                 "its order among the rows is not decided")
        return f"Profile {SMALLER}: {one.text}; {order}", tuple(record.name for record in one.records)


def _total(terms: list[tuple[int, Result]]) -> Estimate:
    """Sum of results times whole numbers. Results of the same runs are added run by run, the others as independent."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for factor, one in terms:
        runs = tuple(record.name for record in one.records)
        before = sums.get(runs, [0.0] * len(one.values))
        sums[runs] = [whole + factor * value for whole, value in zip(before, one.values, strict=True)]
    deviation = hypot(*map(stdev, sums.values()))
    return Estimate(sum(map(mean, sums.values())), deviation, min(map(len, sums.values())))


def _agrees(cell: Cell, other: Cell | None, mine: Estimate | None, others: Estimate | None) -> bool | None:
    """Whether two results differ in the direction in which the printed numbers do; None where that is open."""
    if other is None or mine is None or others is None or cell.value == other.value:
        return None
    above = (mine - others).above()
    return None if above is None else above == (cell.value > other.value)


__all__ = ["DECIDING", "SMALLER", "Comparison", "Difference", "Runs"]
