"""Runs in several processes: order, deadline, failures, and what is left behind."""

import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from time import monotonic, sleep

import pytest
from translution_runs import ImageClassificationConfig, LanguageModellingConfig, Run, read_record, together
from translution_runs.records import Record
from translution_runs.together import Done, Plan, Task, run_together

TINY = {"canvas": 8, "patch_size": 4, "dim": 8, "depth": 1, "heads": 1, "ff": 8, "epochs": 1, "batch_size": 32,
        "train_samples": 64, "test_samples": 20, "test_placements": "static"}
TEXT = {"context": 8, "depth": 1, "dim": 8, "heads": 1, "ff": 8, "epochs": 1, "steps": 2, "batch_size": 8,
        "test_tokens": 2_049}
ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))
SOON = 60.0  # seconds until something must have happened, on a machine with much else to do

FAKE = """
    import os, signal, sys, time
    from pathlib import Path
    from translution_runs.records import read_record
    from translution_runs.together import serve

    def make(config):
        folder, (what, _, seconds) = Path(config.results_dir), config.run_name.partition("-")
        if what == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"begun-{config.run_name}").write_text(str(os.getpid()))
        print("this is printed")
        print(f"about to {what}", file=sys.stderr, flush=True)
        if what == "fail":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what in ("deaf", "hang"):
            time.sleep(600)
        return read_record(folder / "base.json").model_copy(update={"name": config.name, "sample": str(os.getpid())})

    serve(make)
"""


def config(folder, name="", **changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**TINY, "run_name": name, "results_dir": str(folder), **changes})


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Record:
    return Run.begin(config(tmp_path_factory.mktemp("base"), "base")).complete()


@pytest.fixture
def fake(tmp_path, base, monkeypatch):
    """A folder in which workers only do what a run's name says."""
    base.write(tmp_path)
    (tmp_path / "fake.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setattr(together, "COMMAND", [sys.executable, str(tmp_path / "fake.py")])
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    return tmp_path


def until(condition):
    end = monotonic() + SOON
    while not condition():
        assert monotonic() < end
        sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(folder) -> list[int]:
    return [int(text) for path in folder.glob("begun-*") if (text := path.read_text())]


def timeless(record) -> dict:
    shown = record.model_dump(exclude={"seconds", "date", "peak_memory", "source"})
    return {**shown, "curve": [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in shown["curve"]]}


def test_runs_of_workers_are_the_runs(tmp_path, monkeypatch):
    """Two workers, more runs than that, of both kinds; records in the folder and as text."""
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    kinds = [(ImageClassificationConfig, {**TINY, "seed": seed, "threads": threads})
             for seed, threads in ((0, 1), (1, 0), (2, 0))] + [(LanguageModellingConfig, TEXT)]
    there, here = ([kind.of({**values, "results_dir": str(tmp_path / name)}) for kind, values in kinds]
                   for name in ("there", "here"))
    done: list[Done] = []
    assert run_together([Task(one, 1.0) for one in there], 2, None, done.append) == []
    assert {one.task.config.name: one.error for one in done} == {one.name: "" for one in there}
    for one in done:
        assert one.record == read_record(tmp_path / "there" / f"{one.task.config.name}.json")
        assert Record.model_validate_json(one.text) == one.record and "\n" not in one.text and one.seconds > 0
    found = {one.record.name: one.record for one in done}
    for own in here:
        expected = Run.begin(own).complete()
        device = {"type": "cpu", **expected.device, "threads": found[own.name].device["threads"]}
        assert timeless(found[own.name]) == timeless(expected.model_copy(update={"device": device}))


def test_a_run_that_fails_is_lost_alone_and_its_worker_replaced(fake):
    names = {"ok-a": 5, "fail": 4, "ok-b": 3, "kill": 2, "ok-c": 1.5, "ok-d": 1}
    tasks = [Task(config(fake, name), seconds) for name, seconds in sorted(names.items())]
    done: list[Done] = []
    assert run_together(tasks, 1, None, done.append) == []
    assert [one.task.config.name for one in done] == list(names)  # the longest first
    by_name = {one.task.config.name: one for one in done}
    failed, killed = by_name["fail"], by_name["kill"]
    assert failed.record is None and failed.error.startswith("RuntimeError: CUDA error: an illegal memory access")
    assert "about to fail" in failed.error and "Traceback" in failed.error
    assert killed.record is None and killed.error.startswith("the worker ended with signal 9\n")
    assert killed.error.endswith("about to kill")
    workers = [by_name[f"ok-{letter}"].record.sample for letter in "abcd"]
    assert len(set(workers[:3])) == 3 and workers[2] == workers[3] and not any(map(alive, pids(fake)))


def test_what_runs_at_the_deadline_is_ended_and_what_cannot_end_is_not_begun(fake, monkeypatch):
    """The deadline comes as soon as two runs are at work."""
    monkeypatch.setattr(together, "PATIENCE", 0.5)
    monkeypatch.setattr(together, "monotonic", lambda: monotonic() + 1_000 * (len(pids(fake)) == 2))
    tasks = [Task(config(fake, name), seconds) for name, seconds in
             (("ok-long", 1e6), ("hang", 0.002), ("deaf", 0.001), ("ok-late", 900.0))]
    done: list[Done] = []
    left = run_together(tasks, 2, monotonic() + 800, done.append, grace=100)
    assert [one.config.name for one in left] == ["ok-long", "ok-late"]
    assert {one.task.config.name: one.error.splitlines()[0] for one in done} == {
        "hang": "the worker ended with signal 15", "deaf": "the worker ended with signal 9"}
    assert not any(map(alive, pids(fake)))


PARENT = """
    import shlex
    import sys
    from tests.experiments.test_together import config
    from translution_runs import together
    from translution_runs.together import Task, run_together

    folder, command, *names = sys.argv[1:]
    together.COMMAND = shlex.split(command) if command else together.COMMAND
    values = {} if command else {"epochs": 100_000, "checkpoint_steps": 5}
    run_together([Task(config(folder, name, **values), 1.0) for name in names], 2, None, print)
"""


def parent(folder, command: str, *names: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(PARENT), str(folder), command, *names],
                            stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_parent(fake, number):
    process = parent(fake, shlex.join([sys.executable, f"{fake}/fake.py"]), "hang-1", "hang-2")
    until(lambda: len(pids(fake)) == 2)
    workers = pids(fake)
    assert all(map(alive, workers))
    process.send_signal(number)
    error = process.communicate(timeout=SOON)[1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 1)
    assert number == signal.SIGKILL or "Stopped: stopped by SIGINT after 0 finished run(s)" in error
    until(lambda: not any(map(alive, workers)))


def test_a_run_that_is_ended_leaves_its_checkpoint_and_goes_on(tmp_path):
    process = parent(tmp_path, "", "one")
    checkpoints = tmp_path / "one.checkpoints"
    until(lambda: list(checkpoints.glob("*.sha256")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SOON)
    assert process.returncode == 1 and list(checkpoints.glob("*.sha256"))
    again = Run.begin(config(tmp_path, "one", epochs=100_000, checkpoint_steps=5))  # the lock is free
    assert again.keeper.load()[0] > 0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(together, "monotonic", clock)
    return clock


def taken(plan: Plan) -> str | None:
    task = plan.take()
    return task and task.config.name


def test_expectations_follow_what_was_measured(clock, base):
    def task(name, seconds, mixer):
        return Task(config(".", name, mixer=mixer), seconds)

    tasks = [task("a", 10.0, "rotary"), task("b", 8.0, "rotary"), task("c", 9.0, "translution"),
             task("d", 30.0, "translution"), task("e", 5.0, "translution")]
    plan = Plan(tasks, clock.now + 20)
    assert taken(plan) == "a"  # d cannot end in time
    plan.end(Done(tasks[0], base, "", 5.0))
    assert [plan.expected(one) for one in tasks] == [5.0, 4.0, 4.5, 15.0, 2.5]
    assert taken(plan) == "d"
    plan.end(Done(tasks[3], base, "", 60.0))
    assert [plan.expected(one) for one in tasks] == [5.0, 4.0, 18.0, 60.0, 10.0]
    plan.end(Done(task("x", 1.0, "rotary"), None, "failed", 900.0))
    assert plan.expected(tasks[1]) == 4.0  # a failure says nothing
    clock.now += 7
    assert taken(plan) == "e"  # c would need 18 of 13 seconds
    clock.now += 13
    assert taken(plan) is None and [one.config.name for one in plan.left] == ["b", "c"] and plan.finished == 2


def test_nothing_is_begun_after_a_stop(clock):
    plan = Plan([Task(config(".", "a"), 1.0)], None)
    plan.stop()
    assert taken(plan) is None and len(plan.left) == 1 and not plan.open


def test_an_error_of_the_caller_ends_the_workers(fake):
    def refuse(done):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_together([Task(config(fake, name), 1.0) for name in ("ok", "hang")], 2, None, refuse)
    assert not any(map(alive, pids(fake)))


def test_a_worker_that_cannot_start_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(together, "COMMAND", [sys.executable, "-c", "import no_such_module"])
    done: list[Done] = []
    assert run_together([Task(config(tmp_path, name), 1.0) for name in "ab"], 1, None, done.append) == []
    assert len(done) == 2 and all("No module named 'no_such_module'" in one.error for one in done)


@pytest.mark.parametrize(("change", "message"), [
    ({"workers": 0}, "workers, grace: got 0"), ({"grace": -1.0}, "workers, grace: got 1 and -1.0"),
    ({"tasks": [0.0]}, "got 0.0 seconds, expected a number above 0"), ({"tasks": [float("nan")]}, "got nan seconds"),
    ({"tasks": [1.0, 1.0]}, "got 'a' more than once"), ({"processes": 2}, "a: got processes 2, expected 1"),
])
def test_wrong_arguments_are_named(tmp_path, change, message):
    one = config(tmp_path, "a", processes=change.get("processes", 1))
    tasks = [Task(one, seconds) for seconds in change.get("tasks", [1.0])]
    with pytest.raises(ValueError, match=message):
        run_together(tasks, change.get("workers", 1), None, print, change.get("grace", 1.0))
    assert not list(tmp_path.iterdir())
