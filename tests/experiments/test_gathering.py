"""Gathering: every record is found before, during and after it, wherever it is killed; what is damaged is said."""

import json
import time

import pytest
from translution_runs import ImageClassificationConfig, Record, lock, read_records
from translution_runs.files import lock_file
from translution_runs.grids import gather, gathering, plan, status
from translution_runs.reading import find, places
from translution_runs.run import refuse_other

import translution_lib
from tests.experiments.forge import wait_until

TABLE = """
name: {name}
title: A table
paper: translution
experiment: image-classification
common: {{canvas: 16, patch_size: 8, depth: 1, dim: 8}}
seeds: [0, 1, 2]
rows: {{{rows}}}
columns: {{static: {{run: {{train_placement: static}}, evaluation: static}}}}
profiles: {{{profiles}}}
"""
PLAIN, TURNED, FAR = "plain: {mixer: self-attention}", "turned: {mixer: rotary}", "far: {mixer: translution}"


@pytest.fixture
def grids(tmp_path):
    """Four grids: "b" and "c" share the turned runs in profile cpu, "a" and "d" list the far ones in smoke and cpu."""
    folder = tmp_path / "grids"
    folder.mkdir()
    for name, rows, profiles in [("a", FAR, "smoke"), ("b", f"{PLAIN}, {TURNED}", "cpu"),
                                 ("c", TURNED, "cpu"), ("d", FAR, "cpu")]:
        text = TABLE.format(name=name, rows=rows, profiles=f"{profiles}: {{differs: nothing}}")
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "image-classification").mkdir()
    return tmp_path / "image-classification"


def record(mixer="self-attention", seed=0, loss=1.0, name="", **changes):
    """A record of a run that never was."""
    config = configured(mixer, seed, **changes)
    curve = [{"number": 1, "learning_rate": 0.1, "loss": loss, "accuracy": 0.5, "seconds": 2.0}]
    return Record.model_validate({
        "experiment": "image-classification", "name": name or config.name, "parameters": config.parameters(),
        "seed": seed, "model": {}, "cost": {}, "evaluations": {}, "curve": curve, "sample": "ζ\u2028next",
        "data": {"train": {"name": "mnist", "split": "train", "samples": 10, "sha256": {}}},
        "versions": {"translution_lib": translution_lib.__version__, "torch": "2"}, "source": None,
        "device": {"model": "none", "threads": 1},
        "seconds": {"train": 2.0, "total": 3.0}, "resumed": 0, "peak_memory": {}, "date": "2026-01-01"})


def configured(mixer="self-attention", seed=0, **changes):
    return ImageClassificationConfig.of({"canvas": 16, "patch_size": 8, "depth": 1, "dim": 8, "mixer": mixer,
                                         "seed": seed, "train_placement": "static", **changes})


SIX = [record(mixer, seed) for mixer in ("self-attention", "rotary") for seed in (2, 0, 1)]


def loose(folder, records=SIX):
    for one in records:
        one.write(folder)
    return [one.name for one in records]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".jsonl")}


def all_there(folder, records):
    return all(find(folder, one.name).read() == one for one in records)


def test_records_become_lines_sorted_by_name_and_are_found_by_file_and_line(folder, grids):
    (folder / "other.ipynb").write_text("stays")
    assert gather(folder, "c", loose(folder), grids) == [folder / "b.jsonl"]
    assert sorted(path.name for path in folder.iterdir()) == ["b.jsonl", "other.ipynb"]
    lines = (folder / "b.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b"" and [json.loads(line)["name"] for line in lines] == sorted(one.name for one in SIX)
    assert all(line.startswith(b'{"schema_version":2,"experiment":"image-classification","name":') for line in lines)
    for number, one in enumerate(sorted(SIX, key=lambda one: one.name), 1):
        found = find(folder, one.name)
        assert (found.record, found.where) == (one, f"{folder / 'b.jsonl'}, line {number}")
        assert status(configured(one.parameters["mixer"], one.seed), folder).record == one
    assert read_records(folder.parent) == sorted(SIX, key=lambda one: one.name)
    assert list(plan.recorded_rates(folder).values())[0].seconds == pytest.approx(2.0 / 10 / configured().epochs)


def test_a_record_goes_to_the_first_grid_that_lists_it_in_profile_cpu(folder, grids):
    far, stray = record("translution"), record(dim=16)
    assert gather(folder, "c", [*SIX, far, stray], grids) == [folder / f"{name}.jsonl" for name in "bcd"]
    assert find(folder, far.name).path.stem == "d" and find(folder, stray.name).path.stem == "c"
    (grids / "d.yaml").unlink()
    assert gather(folder / "else", "c", [far], grids) == [folder / "else" / "a.jsonl"]  # in another profile
    assert gather(folder / "own", "mine", [far, stray], grids) == [folder / "own" / "mine.jsonl"]  # no stored grid
    assert gather(folder, "b", [record("translution", loss=2.0)], grids) == [folder / "d.jsonl"]  # where its line is


def test_gathering_twice_changes_nothing(folder, grids):
    names = loose(folder)
    gather(folder, "b", names, grids)
    before = content(folder), (folder / "b.jsonl").stat().st_mtime_ns
    assert gather(folder, "b", names, grids) == gather(folder, "b", SIX, grids) == gather(folder, "b", [], grids) == []
    loose(folder)
    assert gather(folder, "b", names, grids) == []
    assert (content(folder), (folder / "b.jsonl").stat().st_mtime_ns) == before


def test_a_record_that_was_made_again_replaces_its_line_and_no_other_byte(folder, grids):
    gather(folder, "b", loose(folder), grids)
    lines = (folder / "b.jsonl").read_bytes().split(b"\n")
    lines[0] = lines[0].replace(b'"seed":', b'"seed": ')  # another hand's form is kept
    (folder / "b.jsonl").write_bytes(b"\n".join(lines))
    old = find(folder, SIX[0].name)
    again = record(seed=2, loss=0.5)
    again.write(folder)
    assert find(folder, again.name).read() == again  # the loose file comes first
    assert gather(folder, "b", [again.name], grids) == [folder / "b.jsonl"]
    now = (folder / "b.jsonl").read_bytes().split(b"\n")
    assert [k for k, line in enumerate(now) if line != lines[k]] == [old.line - 1] and len(now) == len(lines)
    assert find(folder, again.name).read() == again and not list(folder.glob("*.json"))


@pytest.mark.parametrize(("records", "message"), [
    (["nothing"], "records: got 'nothing', which has no record"),
    ([record(name="mine", run_name="mine", depth=2)], "mine has other parameters; depth: 1 in the record, 2 here"),
    ([record(name="other")], "records: name: got 'other', expected '"),
    ([record(seed=0, loss=9.0)], "a loose record of the same run; gather it first, or remove it"),
])
def test_what_does_not_fit_is_refused_and_nothing_is_written(folder, grids, records, message):
    gather(folder, "b", [record("rotary"), record(name="mine", run_name="mine")], grids)
    record(seed=0).write(folder)
    before = content(folder)
    with pytest.raises(ValueError, match=message):
        gather(folder, "b", [record("rotary", loss=3.0), *records], grids)
    assert content(folder) == before


@pytest.mark.parametrize("grid", ["", "../b", "a/b"])
def test_a_grid_is_a_name(folder, grid):
    with pytest.raises(ValueError, match="grid: got"):
        gather(folder, grid, SIX)


def test_a_loose_record_of_other_parameters_is_refused(folder, grids):
    mine = record(name="mine", run_name="mine")
    gather(folder, "b", [mine], grids)
    record(name="mine", run_name="mine", depth=2).write(folder)
    with pytest.raises(ValueError, match=r"b.jsonl, line 1: mine has other parameters; depth: 1 in the record, 2 here"):
        gather(folder, "b", ["mine"], grids)
    with pytest.raises(ValueError, match="run_name: mine.json records a run with other parameters"):
        refuse_other(configured(run_name="mine"), folder)


def test_a_run_at_work_keeps_its_loose_file(folder, grids):
    names = loose(folder)
    with lock.hold(lock_file(folder, names[0])):
        gather(folder, "b", names, grids)
        assert [path.stem for path in folder.glob("*.json")] == names[:1]
    gather(folder, "b", names, grids)
    assert not list(folder.glob("*.json")) and all_there(folder, SIX)


@pytest.mark.parametrize("moment", ["sound_lines", "agreeing", "write", "remove"])
def test_a_record_that_is_made_again_while_it_is_gathered_stays_loose(folder, grids, monkeypatch, moment):
    again, call = record(seed=2, loss=5.0), getattr(gathering, moment)

    def meanwhile(*arguments):
        again.write(folder)
        return call(*arguments)

    names = loose(folder)
    monkeypatch.setattr(gathering, moment, meanwhile)
    gather(folder, "b", names, grids)
    assert list(folder.glob("*.json")) == [folder / f"{again.name}.json"]
    assert find(folder, again.name).read() == again
    monkeypatch.undo()
    gather(folder, "b", names, grids)
    assert all_there(folder, [again, *SIX[1:]]) and not list(folder.glob("*.json"))


def test_killed_at_any_step_nothing_is_lost_and_gathering_again_completes_it(folder, grids, forge):
    """Three lines are there, one of them is replaced, and three are new."""
    old, again = record(seed=2, loss=7.0), [record(seed=2), *SIX[1:]]
    step, codes = 0, [9]
    while codes == [9]:
        step += 1
        for path in folder.iterdir():
            path.unlink()
        gather(folder, "b", [old, *SIX[1:3]], grids)
        names = loose(folder, [SIX[0], *SIX[3:]])
        codes = forge.run("gather until", folder=str(folder), names=names, grids=str(grids), step=step)
        assert all_there(folder, again), step
        assert {one.name for one in places(folder)} == {one.name for one in again}
        gather(folder, "b", names, grids)
        assert list(content(folder)) == ["b.jsonl"] and all_there(folder, again), step
    assert codes == [0] and step > 10


def test_several_processes_gather_and_make_a_record_at_once(folder, grids, forge):
    """Whoever reads meanwhile finds every record."""
    many = [record(mixer, seed) for mixer in ("self-attention", "rotary", "translution") for seed in range(8)]
    names = loose(folder, many)
    task = {"folder": str(folder), "names": names, "grids": str(grids), "config": {"processes": 4}}

    def gathered():
        assert all(find(folder, name).record is not None for name in names)
        return (folder / "d.jsonl").exists() and len(list(folder.glob("*.json"))) <= 1

    with forge.begun("gather often", **task) as (pids, ended):
        wait_until(gathered, seconds=60.0)
        assert len(pids) == 4 and ended() == [0] * 4
    gather(folder, "b", names, grids)
    assert all_there(folder, [many[0].model_copy(update={"date": "time 19"}), *many[1:]])
    assert len(places(folder)) == len(many) == sum(file.count(b"\n") for file in content(folder).values())


def test_another_process_is_waited_for_and_named(folder, grids, monkeypatch):
    monkeypatch.setattr(gathering, "PATIENCE", 0.05)
    with lock.hold(folder / ".gathering.lock"), pytest.raises(ValueError, match="gathering: is being run by process"):
        gather(folder, "b", SIX, grids)
    assert content(folder) == {}


def damaged(folder, grids, change):
    """A file of six lines, of which the second is changed; and the name of its run."""
    gather(folder, "b", SIX, grids)
    lines = (folder / "b.jsonl").read_bytes().split(b"\n")
    lines[1] = change(lines[1])
    (folder / "b.jsonl").write_bytes(b"\n".join(lines))
    return sorted(one.name for one in SIX)[1]


@pytest.mark.parametrize(("change", "message"), [
    (lambda line: line[: len(line) // 2], "not a run record of schema 2; the whole: Invalid JSON"),
    (lambda line: line[:70], "not a run record of schema 2"),
    (lambda line: b"", "not a run record of schema 2"),
    (lambda line: b"x" + line, "not a run record of schema 2"),
    (lambda line: line.replace(b'"name":"digits-', b'"name":"d\xffgits-'), "not a run record of schema 2"),
    (lambda line: line.replace(b'"schema_version":2', b'"schema_version":3'), "schema_version: Input should be 2"),
    (lambda line: line.replace(b'"seed":', b'"sead":'), "seed: Field required"),
    (lambda line: line.replace(b'"name":"digits-', b'"name":"lost-'), "name: got 'lost-"),
    (lambda line: line + b"\n" + line.replace(b'"loss":1.0', b'"loss":2.0'), "is also in .*b.jsonl, line 3; expected"),
])
def test_damage_is_named_by_file_and_line_and_never_taken_for_a_missing_run(folder, grids, change, message):
    name = damaged(folder, grids, change)
    mixer, seed = next((one.parameters["mixer"], one.seed) for one in SIX if one.name == name)
    config = configured(mixer, seed)
    found = status(config, folder)
    assert found.state == "invalid" and found.detail.startswith(f"{folder / 'b.jsonl'}, line 2: ")
    for reading in (lambda: read_records(folder), lambda: refuse_other(config, folder),
                    lambda: gather(folder, "b", [record("translution")], grids)):
        with pytest.raises(ValueError, match=f"b.jsonl, line 2: .*{message}"):
            reading()
    others = [one for one in SIX if one.name != name]
    assert all_there(folder, others) and plan.recorded_rates(folder)


def test_a_file_that_is_cut_makes_no_run_missing(folder, grids):
    gather(folder, "b", SIX, grids)
    text = (folder / "b.jsonl").read_bytes()
    (folder / "b.jsonl").write_bytes(text[: len(text) // 2])
    states = {status(configured(one.parameters["mixer"], one.seed), folder).state for one in SIX}
    assert states == {"done", "invalid"}
    with pytest.raises(ValueError, match="b.jsonl, line [34]: the file ends within this line"):
        read_records(folder)


def test_a_file_that_cannot_be_read_makes_no_run_missing(folder):
    (folder / "b.jsonl").mkdir()  # as good as a file without the right to read it, also for the superuser
    assert status(configured(), folder).detail == f"{folder / 'b.jsonl'}: cannot be read (Is a directory)"


def test_a_line_twice_is_one_record_and_in_two_files_it_is_damage(folder, grids):
    damaged(folder, grids, lambda line: line + b"\n" + line)
    assert read_records(folder) == sorted(SIX, key=lambda one: one.name)
    gather(folder, "b", [record(seed=1, loss=3.0)], grids)
    assert (folder / "b.jsonl").read_bytes().count(b"\n") == 6
    (folder / "c.jsonl").write_bytes(SIX[0].line())
    with pytest.raises(ValueError, match=f"b.jsonl, line .*: {SIX[0].name} is also in .*c.jsonl, line 1; expected one"):
        find(folder, SIX[0].name).read()


def test_a_record_of_another_version_keeps_its_name(folder):
    """What a later version would call it is no damage."""
    old = record().model_copy(update={"name": "as-it-was", "versions": {"translution_lib": "0.0.1", "torch": "2"}})
    (folder / "b.jsonl").write_bytes(old.line())
    assert read_records(folder) == [old] and status(configured(), folder).state == "missing"


def test_a_file_is_read_again_when_it_has_changed_and_only_then(folder, grids, monkeypatch):
    gather(folder, "b", SIX, grids)
    first = find(folder, SIX[0].name).record
    monkeypatch.setattr("translution_runs.reading.parse", lambda *_: pytest.fail("read again"))
    assert find(folder, SIX[0].name).record is first
    monkeypatch.undo()
    time.sleep(0.01)
    gather(folder, "b", [record(seed=2, loss=4.0)], grids)
    assert find(folder, SIX[0].name).read().curve[0].loss == 4.0
