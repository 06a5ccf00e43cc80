"""The committed records of language models: each can be run again, and agrees with itself and with the library."""

import math
from pathlib import Path

import pytest
from translution_runs import LanguageModellingConfig
from translution_runs.data.text import TEXTS
from translution_runs.reading import parsed_lines, stamp

from tests.experiments.faults import faults
from translution_lib import cost
from translution_lib.models import GPT

PATHS = sorted((Path(__file__).resolve().parents[2] / "results" / "language-modelling").glob("*.jsonl"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_records_agree_with_themselves_and_with_the_library(path):
    assert not faults(check, [one.read() for one in parsed_lines(path, stamp(path))])


def check(record):
    config = LanguageModellingConfig.of(record.parameters)
    assert record.name == config.name and record.seed == config.seed
    assert len(record.curve) == config.epochs and not set(record.texts) & set(record.cannot)
    assert [name for name in config.tested if name not in record.cannot] == list(record.texts)
    for name, found in record.texts.items():
        assert found.length == config.lengths[name][0] and found.tokens == found.blocks * found.block
        assert found.perplexity == pytest.approx(math.exp(found.loss))
        assert found.interval[0] < found.perplexity < found.interval[1]
        assert sum(found.places) / len(found.places) == pytest.approx(found.loss)
    if config.mixer == "convolution":   # it sees a few tokens: no length changes what it loses behind cold beginnings
        assert all(found.warm_bits == pytest.approx(record.texts["1x"].warm_bits) for found in record.texts.values())
    options = dict(record.model)
    model = GPT(**{key: value for key, value in options.items() if key != "options"}, **options["options"])
    assert record.cost["parameters"] == cost.parameters(model)
    assert record.source is not None and record.source["dirty"] is False
    known = set(TEXTS["tinyshakespeare"].sha256.values()) | set(TEXTS["wikitext-2"].sha256.values())
    read = {digest for part in record.data.values() for name, digest in part.sha256.items() if name.endswith(".txt")}
    assert record.parameters["data"] == "openwebtext" or read and read <= known
