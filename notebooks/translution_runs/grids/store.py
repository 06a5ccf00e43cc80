"""The folders of records: one for each kind of experiment, which all tables share."""

from pathlib import Path

from translution_runs.grids.grid import Grid
from translution_runs.reading import Place, all_places, loose

RESULTS, TRIALS = "results", "runs"
NEAR = 8
"""A message names at most so many records."""


def store_of(grid: Grid, results: str | Path = "") -> Path:
    """The folder of a grid's records: in `results`, or in `runs` for the smoke profile, whose numbers mean nothing."""
    chosen = Path(results) if str(results) else Path(TRIALS if grid.profile == "smoke" else RESULTS)
    return chosen / grid.file.experiment


def find_record(run: str, results: str | Path = "") -> Place:
    """Where a record lies: that of a run's name, of a beginning that one run alone has, or of a path.

    Without a folder, `results` is looked through and then `runs`, where the smoke profile's records lie.

    Raises:
        ValueError: none, or several; the message lists what there is.
    """
    if run.endswith(".json") and (own := loose(Path(run))) is not None:
        return own
    folders = [results] if str(results) else [RESULTS, TRIALS]
    known = {one.name: one for folder in reversed(folders) for one in all_places(folder) if one.name}
    near = [name for name in known if name == run] or [name for name in known if name.startswith(run)]
    if len(near) == 1:
        return known[near[0]]
    names = near or list(known)
    more = f" and {len(names) - NEAR} more" if len(names) > NEAR else ""
    what = f"{len(near)} records begin so" if near else f"no record in {' or '.join(map(repr, map(str, folders)))}"
    raise ValueError(f"run: got {run!r}, {what}; there are {', '.join(names[:NEAR]) or 'none'}{more}")
