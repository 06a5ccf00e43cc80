"""What run records say: the printed numbers that they repeat, and comparisons of rows and columns of a grid.

A printed number is compared with records of the profile ``DECIDING``, the sources' own setting. A number that they do
not reproduce is not contradicted: no source prints its whole recipe, such as the length of training. A sentence about
what training gives is put to the one rule of ``translution_runs.verdicts``, over all sentences at once. Networks of the
source's own size that train on as many images or tokens as there decide about it; smaller ones, and those that see
fewer, agree, disagree or do not decide.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator
from translution_runs import read_records, verdicts
from translution_runs.building import arguments
from translution_runs.grids import Grid, GridFile, Result, grid_files, read_file, read_grid, results, store_of
from translution_runs.kinds import KINDS, AnyConfig
from translution_runs.language_modelling import LanguageModellingConfig
from translution_runs.printed import Cell
from translution_runs.verdicts import SMALLEST, WAITING, Effect, Part, Verdict

from translution_book.facts.ledger.row import Ruling
from translution_book.facts.ledger.rules import LEAST_SEEDS, compatible, interval

DECIDING, SMALLER = "paper", "cpu"
Place = tuple[str, ...]
STATUS = {verdicts.HOLDS: "reproduced", verdicts.WAITING: "not yet run"}
"""The status of a row by the word of its verdict, where it is another word."""


class Difference(BaseModel):
    """The sum of some results minus the sum of others lies above a number of points, or of bits a token of text.

    Attributes:
        plus: results by row and column, or by grid, row and column; one that is named twice counts twice. Of texts the
            number is the loss, so that what is to be lower is subtracted.
        minus: likewise.
        over: the number; None asks for the smallest effect of interest above zero.
        no_less: the sum lies above minus the smallest effect of interest: nothing is lost that matters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    plus: tuple[Place, ...] = Field(min_length=1)
    minus: tuple[Place, ...] = ()
    over: float | None = None
    no_less: bool = False

    @model_validator(mode="after")
    def _places(self) -> "Difference":
        wrong = [place for place in (*self.plus, *self.minus) if len(place) not in (2, 3)]
        if wrong:
            raise ValueError(f"a result is named by row and column, or by grid, row and column, got {list(wrong[0])}")
        if self.no_less and self.over is not None:
            raise ValueError(f"over is not given beside no_less, got {self.over}")
        return self

    @property
    def name(self) -> str:
        """The results, as a difference in words."""
        sides = [" + ".join(f"{f} × {p}" if f > 1 else p for p, f in Counter(map(", ".join, side)).items())
                 for side in (self.plus, self.minus)]
        return " − ".join(f"({side})" if " + " in side and all(sides) else side for side in sides if side)


class Comparison(BaseModel):
    """What a claim says about runs: all of the differences.

    Attributes:
        grid: a file of ``notebooks/grids``.
        all: the differences.
        level: whether the claim is about a level, which a small network can confirm and not deny.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    grid: str
    all: tuple[Difference, ...] = Field(min_length=1)
    level: bool = False


class Judged(NamedTuple):
    """The verdict on a comparison.

    Attributes:
        verdict: with its numbers.
        profile: of the runs.
        records: names of those that were read.
    """

    verdict: Verdict
    profile: str
    records: tuple[str, ...]

    @property
    def ruling(self) -> Ruling:
        """As a row of the ledger has it."""
        word = self.verdict.word
        grid = self.profile
        if word == WAITING:
            return Ruling("not yet run", f"no records of {grid}", "", self.records)
        return Ruling(STATUS.get(word, word), f"runs of {grid}", self.verdict.said, self.records)


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
    _made: dict[tuple[str, str], Grid] = field(default_factory=dict, repr=False)

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
            made = self.made(grid, profile)
            found = results(made, store_of(made, self.store))
            self._read[grid, profile] = {(one.row, one.column): one for one in found}
        return self._read[grid, profile]

    def made(self, grid: str, profile: str) -> Grid:
        """A grid in a profile, made once."""
        if (grid, profile) not in self._made:
            self._made[grid, profile] = read_grid(grid, profile, folder=self.grids)
        return self._made[grid, profile]

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

    def judge(self, comparisons: Mapping[str, Comparison]) -> dict[str, Judged]:
        """The verdicts on several comparisons, corrected for their number; by their keys.

        Each is put to the records of the profile ``DECIDING`` where these are complete, and to those of ``SMALLER``
        otherwise.
        """
        chosen = {key: self._chosen(one) for key, one in comparisons.items()}
        found = verdicts.judge({key: claim for key, (claim, _, _) in chosen.items()}) if chosen else {}
        return {key: Judged(found[key], f"{comparisons[key].grid}, profile {profile}", records)
                for key, (_, profile, records) in chosen.items()}

    def _chosen(self, comparison: Comparison) -> tuple[verdicts.Claim, str, tuple[str, ...]]:
        """What is asked of which profile, and its records."""
        for profile in (DECIDING, SMALLER):
            claim, records = self.claim(comparison, profile)
            if not claim.missing:
                return claim, profile, records
        return claim, DECIDING, ()

    def claim(self, comparison: Comparison, profile: str) -> tuple[verdicts.Claim, tuple[str, ...]]:
        """What is asked of the runs of one profile, and the records that answer."""
        parts: dict[str, Part] = {}
        records: dict[str, None] = {}
        places: set[Place] = set()
        for difference in comparison.all:
            factors = Counter(difference.plus)
            factors.subtract(Counter(difference.minus))
            there = {self._whole(comparison, place): factor for place, factor in factors.items()}
            found = {place: self._result(place, profile) for place in there}
            effects = [factor * one.effect for place, factor in there.items()
                       if (one := found[place]) is not None and one.effect is not None]
            total = sum(effects[1:], effects[0]) if len(effects) == len(there) else None
            parts[difference.name] = part(total, difference)
            records |= {record.name: None for one in found.values() if one is not None for record in one.records}
            places |= set(there)
        size = "source" if self.full_size(places, profile) else "small"
        return verdicts.Claim(parts, size, comparison.level), tuple(records)

    def full_size(self, places: set[Place], profile: str) -> bool:
        """Whether these cells have the networks of the profile ``DECIDING``, and train on as much."""
        return profile == DECIDING or all(
            self._networks(place, profile) == self._networks(place, DECIDING) != set() for place in places)

    def _networks(self, place: Place, profile: str) -> set[str]:
        grid, row, column = place
        if profile not in self.known[grid].profiles:
            return set()
        rows = self.made(grid, profile).rows
        return {network(config) for config in rows[row].cells.get(column, ())} if row in rows else set()

    @staticmethod
    def _whole(comparison: Comparison, place: Place) -> Place:
        return place if len(place) == 3 else (comparison.grid, *place)

    def _result(self, place: Place, profile: str) -> Result | None:
        grid, row, column = place
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

        Another number than the printed one does not contradict it, because part of the recipe is our choice.

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
        status = "reproduced" if compatible(text, one.values) else "not reproduced"
        remark = f"{one.text} in {len(names)} seeds; a further seed from {low:.2f} to {high:.2f}"
        return Ruling(status, f"runs of profile {DECIDING}", remark, names)

    def _smaller(self, cell: Cell) -> tuple[str, tuple[str, ...]]:
        """What the smaller profile measured in the place of a cell: a number of another network."""
        one = self.printed[SMALLER].get((cell.paper, *cell.key))
        if one is None or not one.values:
            return "", ()
        return f"Profile {SMALLER}: {one.text}", tuple(record.name for record in one.records)


def network(config: AnyConfig) -> str:
    """What tells the network of a run, and the images or tokens it trains on, from others: not for how long."""
    if isinstance(config, LanguageModellingConfig):
        sizes = f"{config.mixer} {config.mixer_options} {config.sizes} {config.context}"
        return f"{config.data}, {config.train_tokens or 'all'}: {sizes}"
    return f"{config.data}, {config.train_samples or 'all'}: {arguments(config)}"


def part(effect: Effect | None, difference: Difference) -> Part:
    """One number of a claim."""
    if difference.no_less:
        return verdicts.above(effect, None if effect is None else -SMALLEST[effect.unit])
    return verdicts.above(effect, difference.over)


__all__ = ["DECIDING", "SMALLER", "Comparison", "Difference", "Judged", "Runs"]
