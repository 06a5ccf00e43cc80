"""A grid in one profile: which configurations its rows and columns stand for, and which of them are wanted.

Chapter "From laptop to cluster".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from translution_runs.grids.files import PROFILES, GridFile, Parameters, Printed, find, read_file
from translution_runs.kinds import KINDS, AnyConfig, Kind
from translution_runs.printed import Cell, cells

Config = AnyConfig


@dataclass(frozen=True)
class Row:
    """A row: for each column that has runs, the configurations of its seeds.

    Attributes:
        name: of the row.
        method: what the paper calls the method, or the mixer.
        printed: the line of the printed table, or None.
        cells: by column heading, one configuration a seed.
    """

    name: str
    method: str
    printed: Printed | None
    cells: Mapping[str, tuple[Config, ...]]


@dataclass(frozen=True)
class Grid:
    """The runs of one table in one profile.

    Attributes:
        file: what the grid's file says.
        profile: "smoke", "cpu" or "paper".
        rows: by name, without those that the profile leaves out.
    """

    file: GridFile
    profile: str
    rows: Mapping[str, Row]

    @property
    def name(self) -> str:
        """The grid's."""
        return self.file.name

    @property
    def kind(self) -> Kind:
        """The kind of the runs."""
        return KINDS[self.file.experiment]

    @property
    def runs(self) -> list[Config]:
        """All configurations, each once, the first seed of every row before the second."""
        found = {config.fingerprint(): config for row in self.rows.values() for cell in row.cells.values()
                 for config in cell}
        return sorted(found.values(), key=lambda config: config.seed)

    @property
    def methods(self) -> list[str]:
        """The methods of the rows, each once."""
        return list(dict.fromkeys(row.method for row in self.rows.values()))

    @property
    def differs(self) -> str:
        """How the profile differs from the paper, its numbers taken from the parameters."""
        return differs(self.file, self.profile)

    def select(self, rows: Sequence[str] = (), methods: Sequence[str] = (), seeds: Sequence[int] = (),
               columns: Sequence[str] = ()) -> "Grid":
        """The grid with these rows, methods, seeds and columns alone; an empty choice leaves all.

        Raises:
            ValueError: a name or seed that the grid does not have in this profile; the message lists the choices.
        """
        require("row", rows, self.rows)
        require("method", methods, self.methods)
        require("seed", seeds, sorted({config.seed for config in self.runs}))
        require("column", columns, {heading: None for row in self.rows.values() for heading in row.cells})
        kept = {name: replace(row, cells={heading: tuple(c for c in cell if not seeds or c.seed in seeds)
                                          for heading, cell in row.cells.items() if not columns or heading in columns})
                for name, row in self.rows.items()
                if (not rows or name in rows) and (not methods or row.method in methods)}
        if not kept:
            raise ValueError(f"row, method: no row of {self.name} is both in {list(rows)} and of {list(methods)}")
        return replace(self, rows=kept)

    def printed(self, row: Row, heading: str) -> Cell | None:
        """The printed number of a row and a column, or None where the paper has none."""
        metric, subject = self.file.columns[heading].metric, self.file.columns[heading].subject
        if self.file.table is None or row.printed is None or metric is None:
            return None
        line = (subject or row.printed.architecture, row.printed.method, row.printed.variant)
        found = [c for c in cells(self.file.paper, self.file.table, metric) if (c.subject, c.method, c.variant) == line]
        if not found:
            raise ValueError(f"{self.name}: row {row.name!r}: printed: no cell {', '.join(map(repr, line))} with "
                             f"metric {metric!r} in table {self.file.table} of {self.file.paper}")
        return found[0]


def require(what: str, given: Iterable[object], known: Iterable[object]) -> None:
    """Raise a ValueError for what is not known, with the choices."""
    known = list(known)
    for one in given:
        if one not in known:
            raise ValueError(f"{what}: got {one!r}, expected one of {', '.join(map(str, known))}")


def read_grid(name: str | Path, profile: str = "cpu", changes: Mapping[str, Any] | None = None,
              folder: str | Path | None = None) -> Grid:
    """A grid in a profile, every configuration checked.

    The more particular parameter holds: the file's `common`, the profile's `common`, the row's, the profile's for the
    row, the column's, the profile's for the column, the seed, and last of all `changes`.

    Args:
        name: such as "table-2", or "2", or the path of a file that ends in .yaml.
        profile: "smoke", "cpu" or "paper".
        changes: parameters of every run, as the command's `--set` and `--device` give them.
        folder: where the grid files lie; `notebooks/grids` by default.

    Raises:
        ValueError: no such grid or profile, a file of another form, a wrong parameter, two rows that are the same runs.
    """
    file = read_file(find(name, folder))
    require("profile", [profile], [known for known in PROFILES if known in file.profiles])
    own, where = file.profiles[profile], f"{file.name}: profiles.{profile}"
    left_out = own.without
    require(f"{where}.without", left_out, file.rows)
    require(f"{where}.rows", own.rows, file.rows)
    require(f"{where}.columns, without_columns", [*own.columns, *own.without_columns], file.columns)
    file = printed_alone(file, own.without_columns)
    grid = Grid(file, profile, {row: build(file, profile, row, changes or {}) for row in file.rows
                                if row not in left_out})
    refuse_twins(grid)
    return grid


def printed_alone(file: GridFile, headings: Sequence[str]) -> GridFile:
    """The file with columns that have no runs: they show the printed number alone."""
    columns = {heading: column.model_copy(update={"evaluation": None}) if heading in headings else column
               for heading, column in file.columns.items()}
    return file.model_copy(update={"columns": columns})


def build(file: GridFile, profile: str, name: str, changes: Mapping[str, Any]) -> Row:
    """One row of a file."""
    spec, own = file.rows[name], file.profiles[profile]
    cells = {}
    for heading, column in file.columns.items():
        if column.evaluation is not None:
            shared = {**file.common, **own.common, **spec.run, **own.rows.get(name, {}),
                      **column.run, **own.columns.get(heading, {})}
            where = f"{file.name}, profile {profile}, row {name!r}, column {heading!r}"
            cells[heading] = tuple(configuration(file, {**shared, "seed": seed, **changes}, where)
                                   for seed in own.seeds or file.seeds)
            for config in cells[heading]:
                require(f"{where}: evaluation", [column.evaluation], config.evaluations)
    mixer = next(iter(cells.values()))[0].mixer if cells else ""
    return Row(name, spec.method or (spec.printed.method if spec.printed else mixer), spec.printed, cells)


def configuration(file: GridFile, parameters: Parameters, where: str) -> Config:
    """The configuration of these parameters; an error says in which place of the grid they stand."""
    try:
        return KINDS[file.experiment].config.of(parameters)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def refuse_twins(grid: Grid) -> None:
    """Raise a ValueError where two rows have the same runs: nothing but their names would tell them apart."""
    seen: dict[tuple, str] = {}
    for row in grid.rows.values():
        key = tuple(config.fingerprint() for cell in row.cells.values() for config in cell)
        if key in seen:
            raise ValueError(f"{grid.name}, profile {grid.profile}: rows {seen[key]!r} and {row.name!r} are the same")
        seen[key] = row.name


def differs(file: GridFile, profile: str) -> str:
    """A profile's text, with `{epochs}` and the like replaced by the values of its runs.

    Raises:
        ValueError: the text names a parameter that does not exist.
    """
    own = file.profiles[profile]
    try:
        values = KINDS[file.experiment].config.model_construct(**{**file.common, **own.common}).model_dump()
        text = own.differs.format(**values).strip()
    except (KeyError, IndexError, ValueError, AttributeError, TypeError, MemoryError, OverflowError) as error:
        raise ValueError(f"{file.name}: profiles.{profile}.differs: no parameter {error}") from error
    return f"{text} Left out: {', '.join(own.without)}." if own.without else text
