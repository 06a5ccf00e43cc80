"""What became of the runs of a grid: done, running, interrupted, missing, or invalid and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from translution_runs import lock
from translution_runs.checkpoint import finished
from translution_runs.files import checkpoint_folder, lock_file
from translution_runs.kinds import AnyConfig
from translution_runs.reading import find
from translution_runs.records import Record, problems

DONE, RUNNING, INTERRUPTED, MISSING, INVALID, FAILED = (
    "done", "running", "interrupted", "missing", "invalid", "failed")
STATES = (DONE, RUNNING, INTERRUPTED, FAILED, INVALID, MISSING)


@dataclass(frozen=True)
class Status:
    """The state of one run.

    Attributes:
        config: the run.
        state: one of `STATES`.
        detail: who runs it, the step of the last checkpoint, or why a record is invalid.
        record: the valid record, or None.
    """

    config: AnyConfig
    state: str
    detail: str = ""
    record: Record | None = None


def status(config: AnyConfig, store: str | Path) -> Status:
    """The state of a run whose record belongs into the folder `store`."""
    folder, name = Path(store), config.name
    found = recorded(config, folder)
    if found is not None and found.state == DONE:
        return found
    if holder := lock.holder(lock_file(folder, name)):
        return Status(config, RUNNING, holder)
    if steps := finished(checkpoint_folder(folder, name)):
        return Status(config, INTERRUPTED, f"after step {steps[-1]:,}")
    if found is None and (folder / f"{name}.failed.ipynb").exists():
        return Status(config, FAILED, f"{name}.failed.ipynb shows where")
    return found or Status(config, MISSING)


def recorded(config: AnyConfig, folder: Path) -> Status | None:
    """What the record of a run says, or the damage that may have been its record; None without either."""
    found = find(folder, config.name)
    if found is None:
        return None
    if found.record is None:
        return Status(config, INVALID, found.fault)
    reasons = problems(found.record, config)
    return Status(config, INVALID, "; ".join(reasons)) if reasons else Status(config, DONE, record=found.record)


def counts(found: Iterable[Status]) -> dict[str, int]:
    """How many runs are in each state, without the states that none is in."""
    states = [one.state for one in found]
    return {state: states.count(state) for state in STATES if state in states}
