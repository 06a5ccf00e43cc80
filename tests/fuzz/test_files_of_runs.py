"""Damaged records, checkpoints, grids and values of parameters: used as they were, or refused in one message.

`make nightly` looks at many more examples.
"""

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs import ImageClassificationConfig, LanguageModellingConfig, command, read_record
from translution_runs.checkpoint import Keeper
from translution_runs.grids import read_grid
from translution_runs.reading import all_places
from typer.testing import CliRunner

from tests.experiments.small_grid import GRID
from tests.experiments.test_checkpoint import sign
from tests.experiments.test_records import record
from tests.fuzz.damage import damaged, damaged_text

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
                    max_leaves=6)


@given(st.data())
def test_a_damaged_record_is_equal_or_refused_by_its_path(data):
    with tempfile.TemporaryDirectory() as folder:
        path = record().write(folder)
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        try:
            read_record(path)
        except ValueError as error:
            assert str(path) in str(error) and len(str(error)) < 1_000


@given(st.data())
def test_damaged_lines_of_records_cost_no_other_line(data):
    """A line is found under its name with its content, or it is reported with file and number."""
    lines = [record(name).line() for name in ("one", "two", "three")]
    victim = data.draw(st.integers(0, 2))
    lines[victim] = data.draw(damaged(lines[victim]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.jsonl"
        path.write_bytes(b"".join(lines))
        found = all_places(folder)
        for name in {"one", "two", "three"} - {("one", "two", "three")[victim]}:
            own = [one for one in found if one.name == name]
            assert not own or own[0].fault or own[0].record.name == name
        for one in found:
            assert one.record is not None or (str(path) in one.fault and f"line {one.line}" in one.fault)


@given(st.data())
def test_a_record_with_other_values_is_possible_or_refused(data):
    """JSON whose fields were replaced: an accuracy is a share, and it is that of the images that were right."""
    content = json.loads(record().line())
    place = data.draw(st.sampled_from([(), ("evaluations", "static"), ("curve", 0), ("data", "test"), ("seconds",)]))
    inner = content
    for key in place:
        inner = inner[key]
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.json"
        path.write_text(json.dumps(content))
        try:
            found = read_record(path)
        except ValueError as error:
            assert str(path) in str(error)
            return
    for one in found.evaluations.values():
        assert 0 <= one.correct <= one.n and abs(one.accuracy - one.correct / one.n) < 1e-6


@cache
def saved() -> bytes:
    """A checkpoint of six numbers, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        return Keeper(folder, "abc").save(2, {"weights": torch.arange(6.0), "progress": {"step": 2}}).read_bytes()


@pytest.mark.parametrize("signed", [False, True])
@given(st.data())
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(signed, data):
    """With a checksum that fits the damage, too: torch then refuses it, or the run's own check of what it holds."""
    def fits(state):
        if state["weights"].shape != (6,) or not torch.isfinite(state["weights"]).all():
            raise ValueError("other weights")

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keeper = Keeper(folder, "abc")
        keeper.save(1, {"weights": torch.ones(6), "progress": {"step": 1}})
        path = keeper.save(2, {"weights": torch.arange(6.0), "progress": {"step": 2}})
        path.write_bytes(hurt := data.draw(damaged(saved())))
        if signed:
            sign(path)
        step, state = keeper.load(use=fits)
        assert step == 1 or signed or hurt == saved()
        assert state["weights"].shape == (6,)


@given(damaged_text(GRID))
def test_a_damaged_grid_is_read_or_refused_by_its_name(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quick.yaml"
        path.write_text(text, encoding="utf-8")
        for profile in ("smoke", "cpu"):
            try:
                assert read_grid(path, profile).runs
            except ValueError as error:
                assert "quick" in str(error) or "profile" in str(error), str(error)


@given(damaged_text(GRID), st.sampled_from(["status", "table", "run"]))
def test_the_command_answers_a_damaged_grid_with_a_message(text, verb):
    """Exit code 0, or 2 and a line; never a traceback. Nothing is run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quick.yaml"
        path.write_text(text, encoding="utf-8")
        more = ["--dry-run"] if verb == "run" else []
        done = CliRunner().invoke(command.app, [verb, str(path), "--profile", "smoke", "--results", folder, *more])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == 0 or (done.exit_code == 2 and "Error" in done.output)


@pytest.mark.parametrize("kind", [ImageClassificationConfig, LanguageModellingConfig])
@given(st.data())
def test_other_values_of_parameters_are_taken_or_refused_by_name(kind, data):
    name = data.draw(st.sampled_from(sorted(kind().parameters())))
    value = data.draw(JSON)
    try:
        found = kind.of({name: value})
    except ValueError as error:
        assert name in str(error), str(error)
        return
    assert kind.of(found.model_dump()) == found


@given(st.text(max_size=20), st.text(max_size=20))
def test_changes_on_the_command_line_are_taken_or_refused(name, value):
    done = CliRunner().invoke(command.app, ["run", "table-2", "--profile", "smoke", "--dry-run", "--set",
                                            f"{name}={value}"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 2) and done.output
