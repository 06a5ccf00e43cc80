"""Grids: every row of every file is a configuration, a small one runs, and the table says what is missing."""

from functools import cache
from pathlib import Path

import pytest
import torch

from translution_lib import MIXERS, cost, facts
from translution_lib.experiments import ImageClassificationConfig, Run, build_model, read_records
from translution_lib.experiments.grids import MISSING, main, read_grid, summary

GRIDS = Path(__file__).resolve().parents[2] / "notebooks" / "grids"
TABLE_4 = GRIDS / "table4-dynamic-mnist.yaml"
TINY = {"epochs": 1, "train_samples": 64, "test_samples": 32, "batch_size": 16, "threads": 1, "canvas": 16,
        "patch_size": 4, "digit_size": 0}
SMALL = """
name: small
seeds: [0, 1]
common: {epochs: 1, train_samples: 48, test_samples: 24, threads: 1, canvas: 16, patch_size: 4,
         train_placement: dynamic}
rows:
  turned: {mixer: rotary}
  plain: {mixer: self-attention}
"""


stored = cache(read_grid)


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_grid_can_be_read_and_built(path):
    grid = stored(path)
    assert grid.name == path.stem and len({config.name for config in grid.runs}) == len(grid.runs)
    for config, *_ in grid.rows.values():
        with torch.device("meta"):
            assert cost.count_parameters(build_model(config)) > 0


def test_the_nine_methods_are_those_of_table_4():
    grid = read_grid(TABLE_4)
    assert list(grid.rows) == [cell.method for cell in facts.cells("000", 4, "parameters")]
    for cell in facts.cells("000", 4, "parameters"):
        first, *rest = grid.rows[cell.method]
        assert {config.seed for config in (first, *rest)} == {0, 1, 2}
        assert first.mixers == [facts.config_of(cell).mixer[0]]


NAMES = sorted(set(MIXERS) - {"convolution"})


@pytest.mark.parametrize("mixer", NAMES)
def test_every_mixer_trains_and_leaves_a_record(tmp_path, mixer):
    config = ImageClassificationConfig.of({**TINY, "mixer": mixer, "results_dir": str(tmp_path)})
    record = Run.begin(config).complete()
    assert record.evaluations["dynamic"].n == 32 and record.curve[0].loss > 0
    assert record.cost["parameters"] == cost.parameters(build_model(config))
    assert [found.name for found in read_records(tmp_path)] == [record.name]


def test_a_grid_runs_what_is_missing_and_sums_up(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(SMALL)
    grid, results = read_grid(tmp_path / "small.yaml"), tmp_path / "results"
    assert [row[1] for row in summary(grid, results).rows] == [MISSING, MISSING]
    arguments = [str(tmp_path / "small.yaml"), "--results", str(results)]
    main([*arguments, "--row", "turned"])
    dates = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    assert {path.name for path in dates} == {"dynamic-rotary-seed0.json", "dynamic-rotary-seed1.json"}
    assert MISSING in capsys.readouterr().out
    main(arguments)
    assert all(path.stat().st_mtime_ns == date for path, date in dates.items())
    table = summary(grid, results)
    assert [row[-1] for row in table.rows] == ["2 of 2", "2 of 2"] and len(table.provenance) == 4
    assert all(" ± " in row[2] for row in table.rows)


def test_a_record_of_another_run_is_refused(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    main([str(tmp_path / "small.yaml"), "--results", str(tmp_path), "--row", "plain"])
    (tmp_path / "small.yaml").write_text(SMALL.replace("epochs: 1", "epochs: 2"))
    with pytest.raises(ValueError, match="not a run of this grid; epochs differ"):
        summary(read_grid(tmp_path / "small.yaml"), tmp_path)


@pytest.mark.parametrize("text", ["rows: {a: {}}", "[1]", "name: x\nseeds: [0]\nrows: {}"])
def test_a_file_that_is_no_grid_is_refused(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match="is missing"):
        read_grid(tmp_path / "x.yaml")


def test_an_unknown_row_is_refused(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "small.yaml"), "--row", "none"])


def test_the_four_performers_are_those_of_table_1_of_seed_002():
    grid = stored(GRIDS / "table1-performers.yaml")
    rows = [cell.method for cell in facts.cells("002", 1, "top1")
            if cell.subject == "MNIST" and cell.method.startswith("Performer")]
    mixers = ["performer", "performer-absolute", "performer-s1", "performer-s2"]
    assert [grid.rows[row][0].mixer for row in rows] == mixers
    assert list(grid.rows) == rows
    for config in grid.runs:
        assert (config.sizes.dim, config.sizes.depth, config.sizes.heads) == (256, 6, 8)        # appendix A.2
        assert (config.batch_size, config.learning_rate, config.shift) == (22, 5e-4, 8)
        assert config.canvas == config.image_size == 32 and config.patch_size == 1
    assert [row[0] for row in summary(grid, "nowhere").rows] == rows
    assert summary(grid, "nowhere").header == ("method", "parameters", "static, %", "seeds")
