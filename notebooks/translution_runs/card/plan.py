"""What is done on a card, in order of value: a YAML file with a reason for every line."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from translution_runs.grids import find, read_file, read_grid
from translution_runs.grids.files import home, read_yaml
from translution_runs.kinds import AnyConfig

NAME = "card.yaml"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Bench(_Part):
    """A benchmark: its command in the folder `benchmarks`, its options, the name of its record, and why it is there."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    command: str = Field(pattern=r"^[a-z_]+$")
    options: list[str] = Field(default_factory=list)
    why: str = Field(min_length=1)


class Entry(_Part):
    """Runs of one grid: which rows, columns and seeds (none named: all), how many share the card, and why.

    A grid is run in the profile of the plan. Where `seconds` says how long a run takes beside the others, no step is
    timed first.
    """

    grid: str
    rows: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=list)
    together: int = Field(ge=1)
    seconds: float = Field(default=0, ge=0)
    why: str = Field(min_length=1)


class Plan(_Part):
    """The benchmarks, then the runs, each in the order in which they are worth most.

    Attributes:
        profile: of the grids.
        check_minutes: of the look at the card and the check of the forms, at most.
        benchmarks: measured next, within `measure_minutes`.
        measure_minutes: of the benchmarks, at most.
        runs: what the rest of the time is for.
    """

    profile: str = "paper"
    check_minutes: float = Field(gt=0)
    measure_minutes: float = Field(gt=0)
    benchmarks: list[Bench]
    runs: list[Entry] = Field(min_length=1)


def read_plan(path: str | Path | None = None) -> Plan:
    """The plan in a file; by default `notebooks/card.yaml`.

    Raises:
        ValueError: no such file, or content of another form; the message names the file and the place.
    """
    path = Path(path) if path is not None else home() / "notebooks" / NAME
    if not path.is_file():
        raise ValueError(f"plan: got {str(path)!r}, which is no file")
    try:
        return Plan.model_validate(read_yaml(path, "plan"))
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise ValueError("\n".join([f"{path.name}: not a plan", *lines])) from None


def rehearsal(plan: Plan) -> Plan:
    """The same plan at tiny sizes: every kind of benchmark once, and one row of a grid of images and of one of text."""
    kinds = {bench.command: bench for bench in plan.benchmarks}
    quick = [bench.model_copy(update={"options": ["--quick", "--threads", "1"]}) for bench in kinds.values()]
    few = {read_file(find(entry.grid)).experiment: entry for entry in reversed(plan.runs)}
    runs = [entry.model_copy(update={"rows": [*read_grid(entry.grid, "smoke").rows][:1], "together": 2})
            for entry in plan.runs if entry in few.values()]
    return plan.model_copy(update={"profile": "smoke", "check_minutes": 2, "benchmarks": quick, "runs": runs})


def runs_of(entry: Entry, profile: str, changes: Mapping[str, object] | None = None) -> list[AnyConfig]:
    """The configurations of an entry, each once.

    Raises:
        ValueError: the grid, or a row, column or seed of it, does not exist.
    """
    grid = read_grid(entry.grid, profile, changes or {})
    return grid.select(rows=entry.rows, seeds=entry.seeds, columns=entry.columns).runs
