"""Plans stand before runs: a grid of the commit that a run was made from asks for that very run, and is older."""

import re
import subprocess
from collections import defaultdict
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from translution_runs.grids import read_file, read_grid
from translution_runs.reading import all_places

ROOT = Path(__file__).resolve().parents[2]
PLANS = "notebooks/grids/"
PROFILES = {"cpu", "paper"}      # on this book's own machines, and on a card
PAPER = re.compile("^seed:.*$", re.MULTILINE)     # what grids called their paper at first, by another list of names


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout


@cache
def history() -> bool:
    try:
        return git("rev-parse", "--is-shallow-repository").strip() == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.fixture(scope="module")
def by_commit():
    if not history():
        pytest.skip("no whole history here, as in an archive or a shallow clone")
    found = defaultdict(list)
    for place in all_places(ROOT / "results"):
        found[place.read().source["commit"]].append(place)
    return found


def planned(commit: str, folder: Path, grids: set[str]) -> set[str]:
    """Names of the runs that some grids ask for in a commit, by today's rule of names."""
    for path in git("ls-tree", "--name-only", commit, PLANS).split():
        if path.endswith(".yaml"):
            text = PAPER.sub("paper: translution", git("show", f"{commit}:{path}"))
            (folder / Path(path).name).write_text(text, encoding="utf-8")
    there = [path for path in folder.glob("*.yaml") if path.stem in grids]
    return {run.name for path in there for profile in PROFILES & set(read_file(path).profiles)
            for run in read_grid(path, profile).runs}


def test_every_run_was_planned_in_the_commit_that_it_ran_from(by_commit, tmp_path):
    unplanned, every = {}, {place.path.stem for places in by_commit.values() for place in places}
    for commit, places in by_commit.items():
        (folder := tmp_path / commit).mkdir()
        missing = {place.name for place in places} - planned(commit, folder, {place.path.stem for place in places})
        if missing and (missing := missing - planned(commit, folder, every)):     # a run may have changed its grid
            unplanned[commit] = sorted(missing)
    assert len(by_commit) >= 20 and unplanned == {}


def test_every_plan_is_older_than_its_runs(by_commit):
    for commit, places in by_commit.items():
        planned_at = int(git("show", "-s", "--format=%ct", commit))
        for place in places:
            record = place.read()
            began = datetime.fromisoformat(record.date).timestamp() - record.seconds["total"]
            assert planned_at <= began + 1, record.name    # seconds are rounded
