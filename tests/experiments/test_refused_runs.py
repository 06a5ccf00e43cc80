"""Runs that would fail, and files of runs that claim what cannot be: refused before any work, with one message."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from translution_runs import Run, command, read_records
from translution_runs.checkpoint import finished
from translution_runs.grids import execute, read_grid
from translution_runs.reading import places
from translution_runs.records import MOST, Record

from tests.experiments.small_grid import GRID
from tests.experiments.test_checkpoint import sign
from tests.experiments.test_command import SOURCES, call


@pytest.mark.parametrize("content", ["profiles: 3", "profiles: {cpu: 3}", "profiles: {cpu: {common: 3}}", "common: 3",
                                     "profiles: [1]", "common: [a]", "- 1", "3"])
@pytest.mark.parametrize("how", ["itself", "the one that it is like"])
def test_a_grid_of_another_form_is_refused(quick, content, how):
    if how == "itself":
        (quick / "bad.yaml").write_text(content)
    else:
        (quick / "base.yaml").write_text(content)
        (quick / "bad.yaml").write_text(GRID.replace("name: quick", "name: bad\nlike: base"))
    for verb in ("run", "status", "table"):
        code, text = call(verb, "bad.yaml", "--profile", "smoke")
        assert code == 2 and ("bad.yaml" in text or "base.yaml" in text) and "Traceback" not in text


@pytest.mark.parametrize("change", ["dim=100000000000000", "dim=1000000000", "epochs=" + "[" * 100_000,
                                    "canvas=100000000", "mixer_options=" + '{"a":' * 50_000, "depth=1000000000",
                                    "batch_size=1" + "0" * 30])
def test_what_no_machine_computes_is_refused_in_one_line(quick, change, monkeypatch):
    monkeypatch.setattr(command, "execute", lambda *_, **__: pytest.fail("work was done"))
    code, text = call("run", "quick.yaml", "--profile", "smoke", "--set", change)
    assert code == 2 and any(name in text for name in (change.split("=")[0], "tokens")) and len(text) < 2_000


@cache
def a_run() -> Record:
    """What the first run of the grid puts on record."""
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "quick.yaml").write_text(GRID)
        return Run.begin(execute.placed(read_grid(path, "smoke").runs[0], Path(folder))).complete()


def a_record(quick):
    """That record as a file of its own."""
    store = quick / "runs" / "image-classification"
    store.mkdir(parents=True)
    return a_run().write(store)


def test_a_record_that_is_not_text_is_named(quick):
    path = a_record(quick)
    path.write_bytes(b"\x00\xff" * 100)
    code, text = call("record", path)
    assert code == 2 and path.name in text
    with pytest.raises(ValueError, match=path.name):
        read_records(path.parent)


@pytest.mark.parametrize("claim", [{"accuracy": 7.5}, {"correct": 10**9}, {"n": 0}, {"correct": -1}, {"loss": -1.0},
                                   {"interval": [0.9, 0.1]}, {"interval": [0.0, 0.0]}, {"n": 1e400}])
def test_a_record_that_claims_the_impossible_fills_no_table(quick, claim):
    path = a_record(quick)
    content = json.loads(path.read_text())
    for one in content["evaluations"].values():
        one.update(claim)
    path.write_text(json.dumps(content))
    code, text = call("status", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "1 invalid" in text and path.name in text
    code, text = call("table", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "750" not in text and "1 of 2" not in text


@pytest.mark.parametrize("name", ["name", "n"])
def test_a_record_that_says_a_thing_twice_is_none(quick, name):
    """Of two values Python takes the last, other readers the first."""
    path = a_record(quick)
    text = path.read_text()
    said = next(line.strip().rstrip(",") for line in text.splitlines() if line.strip().startswith(f'"{name}":'))
    path.write_text(text.replace(said, f"{said}, {said}", 1))
    with pytest.raises(ValueError, match=f"not a run record of schema 2; '{name}' stands there twice"):
        read_records(path.parent)


def test_a_record_under_another_name_is_none(quick):
    path = a_record(quick)
    other = path.with_name("other.json")
    path.rename(other)
    with pytest.raises(ValueError, match="other.json: name: got 'digits-.*', expected 'other'"):
        read_records(path.parent)
    content = json.loads(other.read_text())
    content["name"] = "../../other"
    other.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="other.json: not a run record of schema 2; name"):
        read_records(path.parent)


def test_a_record_too_large_or_too_deep_is_not_read(quick):
    path = a_record(quick)
    path.write_text('{"a":' * 200_000)
    code, text = call("record", path)
    assert code == 2 and path.name in text and len(text) < 1_000
    with open(path, "wb") as file:
        file.truncate(MOST + 1)
    code, text = call("record", path)
    assert code == 2 and f"more than a run record can have, {MOST:,}" in text


def test_a_smoke_run_is_found_without_its_folder(quick):
    name = a_record(quick).stem
    code, text = call("record", name)
    assert code == 0 and name in text and "runs" in text


def test_data_are_read_before_the_first_run(quick, monkeypatch):
    """Two data sets, the second damaged: not one run begins, and the message says which file."""
    monkeypatch.setattr(command, "execute", lambda *_, **__: pytest.fail("work was done"))
    (quick / "data").mkdir()
    code, text = call("run", "quick.yaml", "--data-root", "data")
    assert code == 2 and "mnist: " in text and "is missing" in text
    (quick / "data" / "train-images-idx3-ubyte").write_bytes(b"damaged")
    code, text = call("run", "quick.yaml", "--data-root", "data")
    assert code == 2 and "mnist" in text


@pytest.mark.parametrize("how", ["shape", "missing", "surplus", "progress", "kind"])
def test_a_checkpoint_that_does_not_fit_is_passed_over_for_the_one_before(quick, how):
    """Its checksum and its run are right, and what it holds is not of this model."""
    (config, *_) = read_grid(quick / "quick.yaml", "smoke", {"epochs": 4, "checkpoint_steps": 1}).runs
    config = execute.placed(config, quick / "runs")
    whole = Run.begin(config).complete()
    (quick / "runs" / f"{config.name}.json").unlink()
    run = Run.begin(config)
    run.load()
    run.build()
    run.train()
    folder = quick / "runs" / f"{config.name}.checkpoints"
    steps = finished(folder)
    assert len(steps) == 2
    path = folder / f"step-{steps[-1]:08d}.pt"
    content = torch.load(path, weights_only=True)
    spoil(content["state"], how)
    torch.save(content, path)
    sign(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        resumed = Run.begin(config).complete()
    assert any(f"{path.name}: does not fit" in str(one.message) for one in said)
    assert resumed.evaluations == whole.evaluations and resumed.resumed == 1


def spoil(state, how):
    model = next(part for part in state.values() if isinstance(part, dict) and any(
        isinstance(value, torch.Tensor) and value.ndim == 2 for value in part.values()))
    name = next(name for name, value in model.items() if isinstance(value, torch.Tensor) and value.ndim == 2)
    if how == "shape":
        model[name] = torch.zeros(3, 5)
    elif how == "missing":
        del model[name]
    elif how == "surplus":
        model["surplus"] = torch.zeros(2)
    elif how == "kind":
        model[name] = "text"
    else:
        state.clear()


@pytest.mark.parametrize("name", ["x.json", "quick.jsonl"])
def test_a_pipe_among_the_records_holds_nobody_up(quick, name):
    """Nobody writes to it, so that whoever opened it would wait for ever."""
    store = quick / "runs" / "image-classification"
    store.mkdir(parents=True)
    os.mkfifo(store / name)
    found = []
    reader = threading.Thread(target=lambda: found.append(places(store)), daemon=True)
    reader.start()
    reader.join(60)
    assert not reader.is_alive() and [one.fault for one in found[0]] == [f"{store / name}: cannot be read (not a file)"]


def test_modules_that_lie_beside_the_data_are_not_run(tmp_path):
    """A folder of somebody else's files: what the command and its kernels import has namesakes there."""
    (tmp_path / "quick.yaml").write_text(GRID)
    for name in ("sklearn", "yaml", "papermill", "PIL", "einops", "lightning", "tqdm", "nbformat", "pyarrow", "mine"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'a').write({name!r})")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    command = [str(Path(sys.executable).with_name("translution")), "run", "quick.yaml", "--profile", "smoke",
               "--row", "plain", "--seed", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_other_data(quick):
    """The checksums of what it was trained on stand in its checkpoint."""
    (config, *_) = read_grid(quick / "quick.yaml", "smoke", {"epochs": 4, "checkpoint_steps": 1}).runs
    run = Run.begin(execute.placed(config, quick / "runs"))
    run.load()
    run.build()
    run.train()
    again = Run.begin(run.config)
    again.load()
    again.sets["train"] = replace(again.sets["train"], sha256={"digits": "0" * 64})
    again.build()
    with pytest.warns(RuntimeWarning, match="does not fit: ValueError: it was trained on other data"), \
            pytest.raises(ValueError, match="no checkpoint can be used .* remove the folder to start anew"):
        again.train()


def grid_of(quick, name, text):
    (quick / f"{name}.yaml").write_text(text)
    return call("status", f"{name}.yaml", "--profile", "smoke")


@pytest.mark.parametrize(("change", "message"), [
    (("seeds: [0, 1]", "seeds: [0, 0]"), "seeds: Value error, got [0, 0], expected each seed once"),
    (("seeds: [0, 1]", "seeds: [0, false]"), "seeds.1: Input should be a valid integer"),
    (("seeds: [0, 1]", 'seeds: [0, "1"]'), "seeds.1: Input should be a valid integer"),
    (("  turned: {mixer", "  plain: {mixer"), "'plain' stands twice"),
    (("epochs: 1,", "epochs: 1, epochs: 2,"), "'epochs' stands twice")])
def test_what_stands_twice_in_a_grid_is_refused(quick, change, message):
    code, text = grid_of(quick, "quick", GRID.replace(*change))
    assert code == 2 and "quick.yaml" in text and message in " ".join(text.split())


@pytest.mark.parametrize("value", ["2020-13-45", "!!int abc", "!!timestamp foo", "1" * 5_000])
def test_a_value_that_yaml_cannot_make_is_refused_with_its_file(quick, value):
    code, text = grid_of(quick, "quick", GRID.replace("epochs: 1,", f"epochs: {value},"))
    assert code == 2 and "quick.yaml" in text and "Traceback" not in text and len(text) < 8_000


@pytest.mark.parametrize("field", ["depth.foo", "mixer[foo]", "depth:1000000000000", "0", "nothing"])
def test_a_text_of_differences_asks_for_parameters_alone(quick, field):
    text = GRID.replace("differs: Small.", f"differs: 'with {{{field}}}'")
    assert text != GRID
    (quick / "quick.yaml").write_text(text)
    code, said = call("table", "quick.yaml", "--profile", "smoke")
    assert code == 2 and "differs: no parameter" in said


@pytest.mark.parametrize(("words", "message"), [
    (["repeat", "--results", "nowhere"], "results: 'nowhere' is not a folder"),
    (["card", "--rehearse", "--minutes", "nan", "--out", "c"], "minutes: got nan"),
    (["card", "--rehearse", "--minutes", "-1", "--out", "c"], "minutes: got -1.0"),
    (["--import", "", "status", "quick.yaml"], "import: got ''"),
    (["--import", "raises", "status", "quick.yaml"], "cannot be imported (ZeroDivisionError")])
def test_wrong_words_are_refused_in_one_line(quick, words, message, monkeypatch):
    (quick / "raises.py").write_text("1 / 0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, text = call(*words)
    assert code == 2 and message in " ".join(text.split()) and "Traceback" not in text and not (quick / "c").exists()


def test_a_record_steers_no_terminal(quick):
    path = a_record(quick)
    content = json.loads(path.read_text())
    content["sample"] = "a\x1b]0;title\x07b\u202ec\x9bd"
    path.write_text(json.dumps(content))
    code, text = call("record", path)
    assert code == 0 and r"a\x1b]0;title\x07b\u202ec\x9bd" in text
    assert all(one.isprintable() or one == "\n" for one in text)


def test_records_behind_a_linked_folder_are_found_once(quick):
    path = a_record(quick)
    top = quick / "linked"
    top.mkdir()
    (top / "image-classification").symlink_to(path.parent)
    (top / "again").symlink_to(top)
    assert [record.name for record in read_records(top)] == [path.stem]


def test_a_grid_is_like_one_that_is_like_no_other(quick):
    (quick / "base.yaml").write_text(GRID.replace("name: quick", "name: base\nlike: quick"))
    code, text = grid_of(quick, "top", GRID.replace("name: quick", "name: top\nlike: base"))
    assert code == 2 and "top.yaml: like: base is like quick itself" in text
    code, text = grid_of(quick, "self", GRID.replace("name: quick", "name: self\nlike: self"))
    assert code == 2 and "self.yaml: like: self is like self itself" in text


@pytest.mark.parametrize(("change", "message"), [
    ({"device": {}}, "device: has no model, threads"), ({"seconds": {}}, "seconds: has no total"),
    ({"versions": {}}, "versions: has no torch"), ({"resumed": -1}, "resumed"),
    ({"seed": 99}, "seed: got 99, and 0 among the parameters")])
def test_a_record_that_lacks_what_tables_read_or_contradicts_itself_is_refused(quick, change, message):
    path = a_record(quick)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=f"{path.name}: not a run record of schema 2; .*{message}"):
        read_records(path.parent)


@pytest.mark.parametrize("outcomes", ["////", "%%%", "AA=="])
def test_outcomes_that_are_not_what_was_right_are_refused(quick, outcomes):
    path = a_record(quick)
    content = json.loads(path.read_text())
    for one in content["evaluations"].values():
        one["outcomes"] = outcomes
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{path.name}: not a run record of schema 2; evaluations"):
        read_records(path.parent)


def test_checkpoints_that_a_kill_left_beside_a_record_go(quick):
    path = a_record(quick)
    left = path.with_suffix(".checkpoints")
    left.mkdir()
    (left / "step-00000001.pt").touch()
    call("run", "quick.yaml", "--profile", "smoke", "--seed", 0, "--row", "plain")
    assert not left.exists()
