"""The committed records: each can be read, run again, and agrees with itself and with the library."""

from pathlib import Path

import nbformat
import pytest
import torch

from translution_lib import cost
from translution_lib.data import MNIST
from translution_lib.experiments import ImageClassificationConfig, build_model, read_record, wilson_interval
from translution_lib.experiments.costs import baseline_macs
from translution_lib.experiments.evaluation import unpack

RESULTS = Path(__file__).resolve().parents[2] / "results"
PATHS = sorted((RESULTS / "image-classification").rglob("*.json"))


def test_there_are_results():
    assert PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestRecord:
    def test_the_parameters_are_a_configuration_of_that_name(self, path):
        record = read_record(path)
        config = ImageClassificationConfig.of(record.parameters)
        assert record.name == path.stem == config.name and record.seed == config.seed
        assert len(record.curve) == config.epochs

    def test_the_numbers_agree_with_each_other(self, path):
        record = read_record(path)
        config = ImageClassificationConfig.of(record.parameters)
        assert sorted(record.evaluations) == sorted(config.evaluations)
        for name, found in record.evaluations.items():
            assert not config.outcomes or int(unpack(found.outcomes, found.n).sum()) == found.correct
            samples = record.data["test"].samples
            assert found.n == samples if name in config.tested else 0 < found.n <= samples
            assert found.accuracy == found.correct / found.n
            assert found.interval == pytest.approx(wilson_interval(found.correct, found.n, found.confidence), abs=1e-12)

    def test_the_executed_notebook_lies_beside_it(self, path):
        cells = nbformat.read(path.with_suffix(".ipynb"), 4).cells
        assert any(f"{path.stem}.json" in str(cell.get("outputs")) for cell in cells)

    def test_the_cost_is_the_models(self, path):
        record = read_record(path)
        config = ImageClassificationConfig.of(record.parameters)
        with torch.device("meta"):
            model = build_model(config)
        if config.model == "vit":
            assert record.cost == {"parameters": cost.parameters(model), "macs_true": cost.macs_true(model),
                                   "macs_as_printed": cost.macs_as_printed(model)}
        else:
            assert record.cost == {"parameters": cost.count_parameters(model), "macs_true": baseline_macs(config),
                                   "macs_as_printed": baseline_macs(config)}

    def test_the_code_was_committed_and_the_data_were_mnists(self, path):
        record = read_record(path)
        assert record.source is not None and record.source["dirty"] is False
        read = {name: sha256 for part in record.data.values() for name, sha256 in part.sha256.items()}
        assert record.parameters["data"] != "mnist" or read == dict(MNIST.sha256)
