"""Half an hour on a card, rehearsed on the processor: the plan, the folder, kills, time that runs out, coming home."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from translution_runs import environment, read_records
from translution_runs.card import predict, wheels
from translution_runs.card.folder import BENCHMARKS, LOG, MOST, SESSION, Folder, lines
from translution_runs.card.home import bring_home, digest_of
from translution_runs.card.plan import read_plan, rehearsal, runs_of
from translution_runs.card.session import Session
from translution_runs.command import app
from typer.testing import CliRunner

from tests.experiments.forge import wait_until

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))
RECORDS = "image-classification.jsonl"
PLAN = """
profile: smoke
check_minutes: 0.1
measure_minutes: 1
benchmarks: []
runs:
  - {grid: GRID, together: 2, why: It is small.}
"""
GRID = """
name: few
title: Few
paper: translution
experiment: image-classification
common: {train_samples: 64, test_samples: 16, batch_size: 8, threads: 1, canvas: 16, patch_size: 8, depth: 1, dim: 8,
         ff: 16, epochs: 2, train_placement: static}
seeds: [0, 1, 2]
rows: {plain: {mixer: absolute}, turned: {mixer: rotary}}
columns: {static: {evaluation: static}}
profiles: {smoke: {differs: Small.}}
"""


@pytest.fixture
def plan(tmp_path) -> Path:
    """A plan of six runs."""
    (tmp_path / "few.yaml").write_text(GRID)
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("GRID", str(tmp_path / "few.yaml")))
    return path


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "translution_runs.command", "card", *map(str, arguments)]


def call(*arguments, folder) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), cwd=folder, env=surroundings(), capture_output=True, text=True)


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


def names(out: Path) -> list[str]:
    return [json.loads(line)["name"] for _, line in lines(out, RECORDS)]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory) -> Path:
    """The command as a reader would call it: every kind of benchmark and of run once."""
    folder = tmp_path_factory.mktemp("rehearsal")
    done = call("--rehearse", "--minutes", 10, "--out", "found", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "translution card --import" in done.stdout
    return folder / "found"


def test_the_plan_names_grids_that_there_are_and_fits_a_card():
    plan = read_plan()
    assert len({bench.name for bench in plan.benchmarks}) == len(plan.benchmarks)
    for bench in plan.benchmarks:
        assert (ROOT / "benchmarks" / f"{bench.command}.py").exists() and bench.name.endswith("-cuda")
    for entry in plan.runs:
        found = runs_of(entry, plan.profile)
        assert found and all(config.device == "cuda" for config in found)


@pytest.mark.parametrize("change, message", [
    ({"together": 0}, "runs.0.together"), ({"grid": 3}, "runs.0.grid"), ({"why": ""}, "runs.0.why"),
    ({"rows": "all"}, "runs.0.rows"), ({"often": 1}, "runs.0.often")])
def test_a_wrong_plan_is_refused_by_its_place(tmp_path, change, message):
    entry = {"grid": "table-2", "together": 1, "why": "Because.", **change}
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({"check_minutes": 1, "measure_minutes": 1, "benchmarks": [], "runs": [entry]}))
    with pytest.raises(ValueError, match=f"(?s)plan.yaml: not a plan.*{message}"):
        read_plan(path)


def test_a_plan_that_is_no_file_or_no_yaml_is_refused(tmp_path):
    with pytest.raises(ValueError, match="which is no file"):
        read_plan(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match="which is no file"):
        read_plan(tmp_path)
    for content in (b"runs: [", b"\xff", b"runs: 2020-13-45", b"runs: 1\nruns: 2"):
        (tmp_path / "bad.yaml").write_bytes(content)
        with pytest.raises(ValueError, match="bad.yaml: not a plan; it cannot be read as YAML"):
            read_plan(tmp_path / "bad.yaml")
    (tmp_path / "bad.yaml").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_plan(tmp_path / "bad.yaml")


@pytest.mark.parametrize("grids", [[], 3, {"a": 3}, {"a": "z/z"}, {"a": "x" * 300}, {"a": ".."}])
def test_a_session_with_other_names_of_grids_leaves_no_trace(tmp_path, grids):
    Folder(tmp_path / "in").note(form=1, rehearsal=True, grids=grids)
    with pytest.raises(ValueError, match="card.json: grids: expected the name of a grid for each run"):
        bring_home(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_has_every_kind_of_benchmark_and_of_run():
    plan, short = read_plan(), rehearsal(read_plan())
    assert {bench.command for bench in short.benchmarks} == {bench.command for bench in plan.benchmarks}
    kinds = {type(config).__name__ for entry in short.runs for config in runs_of(entry, short.profile)}
    assert kinds == {"ImageClassificationConfig", "LanguageModellingConfig"} and short.profile == "smoke"


def test_the_rehearsal_leaves_everything_that_a_session_has(rehearsed):
    session = json.loads((rehearsed / SESSION).read_text())
    assert session["state"] == "whole" and session["rehearsal"] and session["failed"] == []
    assert session["ceilings"]["bfloat16_operations_per_second"] > 0 and session["forms"] is not None
    assert not any(session["waiting"].values()) and session["times"].keys() == session["grids"].keys()
    files = sorted(path.name for path in rehearsed.iterdir())
    assert len(files) <= 8 and set(files) == {SESSION, BENCHMARKS, LOG, RECORDS, "language-modelling.jsonl"}
    assert all(path.stat().st_size <= MOST for path in rehearsed.iterdir())
    found = [json.loads(line) for _, line in lines(rehearsed, BENCHMARKS)]
    assert {one["record"]["status"] for one in found} == {"measured"} and len(found) == 2
    text = "".join(path.read_text() for path in rehearsed.iterdir())
    assert str(ROOT) not in text and str(rehearsed.parent) not in text


def test_what_comes_home_is_what_was_found(rehearsed, tmp_path):
    brought = bring_home(rehearsed, tmp_path)
    there = sorted(names(rehearsed))
    assert there == sorted(record.name for record in read_records(tmp_path / "image-classification"))
    assert set(brought.benchmarks) == {path.stem for path in (tmp_path / "benchmarks").iterdir()} - {"card"}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    bring_home(rehearsed, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_rehearsal_does_not_come_into_the_books_results(rehearsed):
    with pytest.raises(ValueError, match="numbers mean nothing"):
        bring_home(rehearsed, ROOT / "results")


def test_a_rehearsal_stays_apart_wherever_it_is_imported_from(rehearsed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "elsewhere"
    (results / "benchmarks").mkdir(parents=True)
    (results / "benchmarks" / "a.json").write_text("{}")
    for said in ("{}", '{"rehearsal": false}', "[1]", "{"):
        (results / "benchmarks" / SESSION).write_text(said)
        with pytest.raises(ValueError, match="numbers mean nothing, and .*elsewhere has other records"):
            bring_home(rehearsed, results)
    assert sorted(path.name for path in results.rglob("*")) == ["a.json", "benchmarks", SESSION]


def test_a_damaged_folder_is_refused_or_brings_the_same(rehearsed, tmp_path):
    """Bytes flipped, cut and repeated at random places: success with equal content, or a refusal without a trace."""
    whole = tmp_path / "whole"
    bring_home(rehearsed, whole)
    expected = {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    rng, refused = random.Random(0), 0
    for trial in range(12):
        folder, results = tmp_path / f"in-{trial}", tmp_path / f"out-{trial}"
        shutil.copytree(rehearsed, folder)
        path = rng.choice([path for path in sorted(folder.iterdir()) if path.name != LOG])
        path.write_bytes(damaged(path.read_bytes(), rng))
        try:
            bring_home(folder, results)
        except ValueError as error:
            refused += 1
            assert str(error) and not results.exists()
            continue
        for path in (path for path in results.rglob("*") if path.is_file()):  # a file may have been cut after a line
            assert set(path.read_bytes().split(b"\n")) <= set(expected[path.relative_to(results)].split(b"\n"))
    assert refused > 6


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The data with one thing done to them."""
    at, kind = rng.randrange(len(data)), rng.randrange(4)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at // 2:]
    return data[:at] + rng.randbytes(20) + data[at:]


def test_a_session_that_is_killed_goes_on_and_repeats_nothing(plan, tmp_path):
    # No look at the card, one worker.
    plan.write_text(plan.read_text().replace("together: 2", "together: 1").replace("0.1", "0.001"))
    arguments = ["--plan", plan, "--minutes", 3, "--out", tmp_path / "found", "--device", "cpu"]
    process = subprocess.Popen(command(*arguments), cwd=tmp_path, env=surroundings(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: process.poll() is not None or len(names(tmp_path / "found")) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = names(tmp_path / "found")
    assert 2 <= len(before) < 6, "killed too late"
    again = CliRunner().invoke(app, ["card", *map(str, arguments)])
    assert again.exit_code == 2 and "holds a session already" in again.output
    done = call(*arguments, "--continue", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    after = names(tmp_path / "found")
    assert after[:len(before)] == before and len(after) == len(set(after)) == 6


def test_without_a_card_the_look_fails_and_without_time_nothing_is_begun(plan, tmp_path):
    done = call("--plan", plan, "--minutes", 0.3, "--out", "found", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    session = json.loads((tmp_path / "found" / SESSION).read_text())
    assert session["state"] == "whole" and names(tmp_path / "found") == [] and list(session["waiting"].values()) == [6]
    assert [one["what"] for one in session["failed"]] == ["the look at the card"]
    assert "not begun: 6 of" in done.stdout


def test_what_failed_is_kept_without_a_path_of_the_machine(plan, tmp_path):
    session = Session(read_plan(plan), Folder(tmp_path / "found"), 1.0, "cpu", results=tmp_path / "results")
    inside = Path(predict.__file__).resolve()
    session.fail("a run", f'File "{inside}", line 7\nOSError: no room')
    (kept,) = session.folder.session["failed"]
    assert kept["error"] == 'File "notebooks/translution_runs/card/predict.py", line 7\nOSError: no room'
    assert str(ROOT) not in (tmp_path / "found" / SESSION).read_text()


def entries(plan: Path, **more) -> str:
    """The plan's only entry with fields of its own; its grid with a column more."""
    grid = plan.parent / "few.yaml"
    columns = "columns: {static: {evaluation: static}, moved: {run: {train_placement: dynamic}, evaluation: dynamic}}"
    grid.write_text(GRID.replace("columns: {static: {evaluation: static}}", columns))
    entry = {"grid": str(grid), "together": 2, "why": "It is small.", **more}
    found = {"profile": "smoke", "check_minutes": 0.1, "measure_minutes": 1, "benchmarks": [], "runs": [entry]}
    plan.write_text(json.dumps(found))
    return str(grid)


def test_an_entry_that_names_columns_runs_these_alone(plan):
    entries(plan)
    every = runs_of(read_plan(plan).runs[0], "smoke")
    entries(plan, columns=["moved"], seeds=[0, 2])
    few = runs_of(read_plan(plan).runs[0], "smoke")
    assert len(every) == 12 and {(c.train_placement, c.seed) for c in few} == {("dynamic", 0), ("dynamic", 2)}
    assert {c.name for c in few} < {c.name for c in every} and len(few) == 4
    entries(plan, columns=["left"])
    with pytest.raises(ValueError, match="column: got 'left', expected one of static, moved"):
        runs_of(read_plan(plan).runs[0], "smoke")


@pytest.mark.parametrize("seconds", [0, 30])
def test_with_seconds_in_the_plan_nothing_is_timed_first(plan, tmp_path, monkeypatch, seconds):
    grid = entries(plan, columns=["moved"], seconds=seconds)
    session = Session(read_plan(plan), Folder(tmp_path / "found"), 5.0, "cpu", results=tmp_path / "results")
    probed, asked = [], []
    monkeypatch.setattr("translution_runs.card.session.predict.measured",
                        lambda configs, _: probed.extend(configs) or {predict.key(c): 1e9 for c in configs})
    monkeypatch.setattr("translution_runs.card.session.run_together", lambda tasks, *_: asked.extend(tasks) or tasks)
    session.train()
    assert len(asked) == 6 and {task.config.train_placement for task in asked} == {"dynamic"}
    assert bool(probed) == (seconds == 0)
    assert not seconds or {task.seconds for task in asked} == {seconds}
    assert session.folder.session["waiting"] == {grid: 6}


def test_what_waits_of_a_grid_in_two_entries_is_added(plan, tmp_path, monkeypatch):
    grid = entries(plan, columns=["moved"], seconds=30)
    found = json.loads(plan.read_text())
    found["runs"].append({**found["runs"][0], "columns": ["static"]})
    plan.write_text(json.dumps(found))
    session = Session(read_plan(plan), Folder(tmp_path / "found"), 5.0, "cpu", results=tmp_path / "results")
    monkeypatch.setattr("translution_runs.card.session.run_together", lambda tasks, *_: tasks)
    session.train()
    assert session.folder.session["waiting"] == {grid: 12}


def test_a_line_that_a_kill_cut_off_counts_for_nothing(tmp_path):
    folder = Folder(tmp_path / "found")
    folder.note(form=1)
    folder.add(RECORDS, '{"name": "a"}')
    with open(tmp_path / "found" / RECORDS, "a") as file:
        file.write('{"name": "half')
    assert [line for _, line in lines(tmp_path / "found", RECORDS)] == ['{"name": "a"}']
    Folder(tmp_path / "found", again=True).add(RECORDS, '{"name": "b"}')
    assert [line for _, line in lines(tmp_path / "found", RECORDS)] == ['{"name": "a"}', '{"name": "b"}']


def test_a_folder_refuses_what_it_cannot_carry(tmp_path):
    folder = Folder(tmp_path)
    with pytest.raises(OSError, match="would grow to"):
        folder.add(RECORDS, "x" * MOST)
    with pytest.raises(ValueError, match="2 lines"):
        folder.add(RECORDS, "a\nb")
    folder.say("y" * MOST)
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


def test_the_digest_of_a_commit_is_that_of_its_files(tmp_path):
    head = environment.git(ROOT, "rev-parse", "HEAD")
    if head is None:
        pytest.skip("no git repository here")
    tree = tmp_path / "tree"
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), head], check=True)
    packages = tree / "translution_lib", tree / "notebooks" / "translution_runs"
    try:
        assert digest_of(head) == environment.digest(packages)
        (tree / "translution_lib" / "new.py").write_text("")
        assert digest_of(head) != environment.digest(packages)
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    with pytest.raises(ValueError, match="not known here"):
        digest_of("0" * 40)


def test_the_packages_that_travel_are_all_that_a_run_lacks():
    found = wheels.closure()
    assert {"pydantic", "pydantic-core", "jaxtyping", "kornia", "kornia-rs"} <= set(found)
    assert not {"torch", "numpy", "triton", "lightning"} & set(found)
    with pytest.raises(ValueError, match="nothing-of-this-name: not installed here"):
        wheels.closure(("nothing-of-this-name",))


def test_an_interrupt_is_noted_and_what_was_found_stays(plan, tmp_path):
    folder = Folder(tmp_path / "found")
    session = Session(read_plan(plan), folder, 1.0, "cpu", results=tmp_path / "results")

    def stop():
        from translution_runs.signals import Interrupted

        raise Interrupted(signal.SIGINT, 0)

    session.know_the_card = session.measure = lambda: None
    session.train = stop
    with pytest.raises(RuntimeError):
        session.run()
    assert json.loads((tmp_path / "found" / SESSION).read_text())["state"] == "stopped by SIGINT"


@pytest.mark.parametrize("commit", ["--output=victim", "-o", "HEAD", 7, ["a"], {"a": 1}, "", "\0"])
def test_a_commit_that_is_no_commit_never_reaches_git(tmp_path, monkeypatch, commit):
    """git takes what begins with a dash for an option, and some of its options write files."""
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path / "found")
    folder.note(form=1, source={"commit": commit}, library="0", grids={})
    with pytest.raises(ValueError, match="source: got the commit .* expected 7 to 64 hexadecimal digits"):
        bring_home(tmp_path / "found", tmp_path / "results")
    assert [path.name for path in tmp_path.iterdir()] == ["found"]
