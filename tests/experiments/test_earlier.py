"""Runs of an earlier recipe: the committed file is whole, and a damaged line is refused by its place."""

from pathlib import Path

import pytest
from translution_runs import earlier

FILE = Path(__file__).resolve().parents[2] / "results" / "earlier-performers.csv"


def test_the_committed_runs_are_81_of_one_rate():
    found = [one for runs in earlier.read(FILE).values() for one in runs]
    assert len({one.run for one in found}) == 81
    assert {one.recipe[0] for one in found} == {"0.001"}


@pytest.mark.parametrize(("old", "new"), [(",4459\n", ",5001\n"), (",4459\n", ",x\n"), (",0.8912,", ",1.8912,"),
                                          ("grid,row", "grid,rows")])
def test_a_damaged_line_is_named(tmp_path, old, new):
    path = tmp_path / "earlier.csv"
    path.write_text(FILE.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"earlier\.csv, line 2: "):
        earlier.read(path)
