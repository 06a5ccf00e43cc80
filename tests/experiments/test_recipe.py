"""The table of recipes says what the grids' files and models say."""

import pytest
from translution_runs.grids import grid_files, read_grid
from translution_runs.grids.recipe import recipe, steps


def test_redraws_are_counted():
    rows = recipe([read_grid("performers-redraws"), read_grid("performers-corner")]).rows
    said = {row[1]: row[-1] for row in rows}
    assert said["strategy 1, one draw; strategy 2, one draw"] == "every 1,000,000 steps: not once"
    assert said["the other rows"] == "every 20 steps: 156 times"
    assert said["all"] == "every 1,000 steps: once"


def test_bases_and_rates():
    table = recipe([read_grid("riemannformer-base")], "Caption.")
    assert table.header == ("grid", "rows", "steps", "rate", "weight decay", "base of the angles")
    assert {row[1]: row[-1] for row in table.rows} == {
        "no position; sinusoidal": "–", "RoPE; RiemannFormer": "10,000",
        "RoPE, base 100; RiemannFormer, base 100": "100"}
    assert {row[2:5] for row in table.rows} == {("1,000", "0.002", "0.01")}
    assert table.caption == "Caption." and table.provenance == ("notebooks/grids/riemannformer-base.yaml",)


def test_every_row_of_every_grid_is_in_one_line():
    for name in ("table-8", "riemannformer-causes", "performers-table-1"):
        grid = read_grid(name)
        named = [one for row in recipe([grid]).rows for one in row[1].split("; ")]
        assert set(named) - {"all", "the other rows"} <= set(grid.rows) and len(named) == len(set(named))
    assert name in grid_files()


def test_what_has_no_recipe_is_refused():
    with pytest.raises(ValueError, match="grids: got none"):
        recipe([])
    config = read_grid("performers-shifts").runs[0].model_copy(update={"train_samples": 0})
    with pytest.raises(ValueError, match="train_samples: got 0, all images of mnist"):
        steps(config)
