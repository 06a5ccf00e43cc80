"""The committed records: nothing is lost, each can be run again, and agrees with itself and with the library."""

import hashlib
import json
from collections import Counter
from functools import cache
from pathlib import Path

import nbformat
import pytest
import torch
from translution_runs import ImageClassificationConfig, build_model, wilson_interval
from translution_runs.costs import baseline_macs
from translution_runs.data import MNIST
from translution_runs.evaluation import unpack
from translution_runs.grids import grid_files, read_file, read_grid
from translution_runs.kinds import KINDS
from translution_runs.reading import lines_of, parsed_lines, stamp

from tests.experiments.faults import faults
from translution_lib import cost

ROOT = Path(__file__).resolve().parents[2]
RESULTS, GRIDS = ROOT / "results", ROOT / "notebooks" / "grids"
FILES = sorted(path for kind in KINDS for path in (RESULTS / kind).glob("*.jsonl"))
IMAGES = [path for path in FILES if path.parent.name == "image-classification"]
DIGESTS = json.loads(Path(__file__).with_name("digests.json").read_text())
"""By grid: its records up to `UNTIL`, as they were in a file for each run."""
UNTIL = "2026-11-22T23:59:59+00:00"


def records(path):
    return [one.read() for one in parsed_lines(path, stamp(path))]


def raw(path):
    """A file's records as they stand there, not read by the library."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]


@pytest.mark.parametrize("grid", sorted(DIGESTS))
def test_no_record_is_lost_and_no_number_has_changed(grid):
    """Sum of the records in a form of their own: sorted by name and by key."""
    path = RESULTS / DIGESTS[grid]["experiment"] / f"{grid}.jsonl"
    found = sorted((one for one in raw(path) if one["date"] <= UNTIL), key=lambda one: one["name"])
    lines = [json.dumps(one, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n" for one in found]
    assert len(found) == DIGESTS[grid]["runs"]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == DIGESTS[grid]["sha256"]


def test_there_are_675_records_of_before():
    assert sum(one["runs"] for one in DIGESTS.values()) == 675


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_a_line_for_each_record_sorted_by_name(path):
    content = path.read_bytes()
    lines = [json.dumps(one, separators=(",", ":"), ensure_ascii=False) + "\n" for one in raw(path)]
    assert content == "".join(lines).encode()
    assert all(line.startswith(f'{{"schema_version":2,"experiment":"{path.parent.name}","name":"') for line in lines)
    names = [record.name for record in records(path)]
    assert names == sorted(names)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_run_stands_once_and_nothing_lies_loose(kind):
    assert not list((RESULTS / kind).glob("*.json"))
    names = Counter(one["name"] for path in (RESULTS / kind).glob("*.jsonl") for one in raw(path))
    assert set(names.values()) == {1} and set(lines_of(RESULTS / kind)) == set(names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_that_some_grid_lists_stands_with_a_grid_that_lists_it(path):
    others = {record.name for record in records(path)} - listed(path.stem)
    assert not others or not others & {name for grid in grid_files(GRIDS) for name in listed(grid)}


@cache
def listed(grid):
    path = grid_files(GRIDS)[grid]
    return {config.name for profile in read_file(path).profiles for config in read_grid(path, profile).runs}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_executed_copy_is_kept_as_an_example(kind):
    cells = nbformat.read(RESULTS / "examples" / f"{kind}.ipynb", 4).cells
    shown = "".join(str(cell.get("outputs")) for cell in cells)
    assert sum(f"{name}.json" in shown for name in lines_of(RESULTS / kind)) == 1


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
class TestRecords:
    def test_the_parameters_are_a_configuration_of_that_name(self, path):
        def check(record):
            config = ImageClassificationConfig.of(record.parameters)
            assert record.name == config.name and record.seed == config.seed
            assert len(record.curve) == config.epochs

        assert not faults(check, records(path))

    def test_the_numbers_agree_with_each_other(self, path):
        def check(record):
            config = ImageClassificationConfig.of(record.parameters)
            assert sorted(record.evaluations) == sorted(config.evaluations)
            for name, found in record.evaluations.items():
                assert not config.outcomes or int(unpack(found.outcomes, found.n).sum()) == found.correct
                samples = record.data["test"].samples
                assert found.n == samples if name in config.tested else 0 < found.n <= samples
                assert found.accuracy == found.correct / found.n
                interval = wilson_interval(found.correct, found.n, found.confidence)
                assert found.interval == pytest.approx(interval, abs=1e-12)

        assert not faults(check, records(path))

    def test_the_cost_is_the_models(self, path):
        """A record keeps the multiply–adds of its day, when turning queries and keys was counted as well."""
        def check(record):
            found = size(ImageClassificationConfig.of({**record.parameters, "seed": 0}).model_dump_json())
            assert record.cost["parameters"] == found["parameters"]
            assert record.cost == pytest.approx(found, rel=0.02)

        assert not faults(check, records(path))

    def test_the_code_was_committed_and_the_data_were_mnists(self, path):
        def check(record):
            assert record.source is not None and record.source["dirty"] is False
            read = {name: sha256 for part in record.data.values() for name, sha256 in part.sha256.items()}
            held = record.parameters.get("held_out")        # tested on training images: the test files are not read
            wanted = {name: sha256 for name, sha256 in MNIST.sha256.items() if not (held and name.startswith("t10k"))}
            assert record.parameters["data"] != "mnist" or read == wanted

        assert not faults(check, records(path))


@cache
def size(parameters):
    """Of a model, the same for all seeds."""
    config = ImageClassificationConfig.model_validate_json(parameters)
    with torch.device("meta"):
        model = build_model(config)
    if config.model == "vit":
        return {"parameters": cost.parameters(model), "macs_true": cost.macs_true(model),
                "macs_as_printed": cost.macs_as_printed(model)}
    return {"parameters": cost.count_parameters(model), "macs_true": baseline_macs(config),
            "macs_as_printed": baseline_macs(config)}
