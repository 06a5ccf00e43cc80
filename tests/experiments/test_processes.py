"""Several processes that train one run, on the CPU by gloo."""

import os
import signal
import sys
import time
from threading import Thread

import pytest
import torch
from translution_runs import ImageClassificationConfig, Run, processes
from translution_runs.checkpoint import Keeper, finished
from translution_runs.processes import check_devices, started, train_in_processes
from translution_runs.signals import Interrupted

from tests.experiments.forge import TINY, wait_until

# 17 images in steps of 8: of the last step's one image a process or a part has none. No dropout, which each draws.
SHORT = {"epochs": 2, "train_samples": 17, "mixer_options": "{}"}
TWO = {**SHORT, "processes": 2}


def checked(folder, **changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**TINY, **SHORT, "results_dir": str(folder), **changes})


def keeper(folder, **changes) -> Keeper:
    return Keeper(folder / "tiny.checkpoints", checked(folder, **changes).fingerprint())


def trained(forge, folder, **changes) -> dict:
    """The last checkpoint's state after one run."""
    options = {**SHORT, **changes}
    codes = forge.run("train", config={**options, "results_dir": str(folder)})
    assert set(codes) == {0}, forge.log.read_text()[-3000:]
    step, state = keeper(folder, **options).load()
    assert step == options["epochs"] * 3
    return state


@pytest.fixture(scope="module")
def alone(forge, tmp_path_factory):
    return trained(forge, tmp_path_factory.mktemp("alone"))


def curve(state: dict) -> torch.Tensor:
    return torch.tensor([[epoch["loss"], epoch["accuracy"]] for epoch in state["progress"]["epochs"]])


@pytest.mark.parametrize("options", [{"processes": 2}, {"processes": 2, "accumulate": 2},
                                     {"processes": 2, "strategy": "fsdp"}, {"accumulate": 3}])
def test_a_divided_step_is_the_same_step(forge, alone, tmp_path, options):
    state = trained(forge, tmp_path, **options)
    torch.testing.assert_close(state["model"], alone["model"], rtol=1e-5, atol=1e-6)  # float32, other orders of sums
    torch.testing.assert_close(curve(state), curve(alone), rtol=1e-5, atol=1e-6)
    moments = [{name: entry["exp_avg"] for name, entry in s["optimizer"]["state"].items()} for s in (state, alone)]
    torch.testing.assert_close(*moments, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_go_on_after_the_death_of_one(forge, tmp_path, strategy):
    run = {**TWO, "epochs": 6, "strategy": strategy}
    whole = trained(forge, tmp_path / "whole", **run)
    killed = {**run, "results_dir": str(tmp_path / "killed"), "checkpoint_steps": 1}
    with forge.begun("train", config=killed) as (pids, ended):
        wait_until(lambda: finished(tmp_path / "killed" / "tiny.checkpoints"))
        os.kill(pids[1], signal.SIGKILL)
        first, second = ended()
    assert first > 0 and second == -signal.SIGKILL  # the first does not wait for ever
    again = trained(forge, tmp_path / "killed", **run)
    assert again["progress"]["resumed"] == 1
    torch.testing.assert_close(again["model"], whole["model"], rtol=0, atol=0)
    assert torch.equal(curve(again), curve(whole))


def test_a_signal_to_one_process_ends_all_after_the_same_step(forge, tmp_path):
    run = {**TWO, "epochs": 40, "results_dir": str(tmp_path), "checkpoint_steps": 4}
    with forge.begun("train", config=run) as (pids, ended):
        wait_until(lambda: finished(tmp_path / "tiny.checkpoints"))
        os.kill(pids[1], signal.SIGTERM)
        assert ended() == [143, 143]
    last = finished(tmp_path / "tiny.checkpoints")[-1]
    assert forge.log.read_text().count(f"stopped by SIGTERM after step {last};") == 2


@pytest.fixture
def worker(forge, tmp_path):
    """A worker's program with a pipe for its standard input, which the test has open for writing."""
    path, pipe = tmp_path / "config.json", tmp_path / "pipe"
    path.write_text(checked(tmp_path, epochs=60, checkpoint_steps=1).model_dump_json())
    os.mkfifo(pipe)
    with forge.begun("worker", path=str(path), pipe=str(pipe)) as (_, ended), open(pipe, "wb", buffering=0) as line:
        wait_until(lambda: finished(tmp_path / "tiny.checkpoints"))
        yield line, ended


def test_a_worker_hears_of_a_signal(worker, tmp_path):
    line, ended = worker
    line.write(bytes([signal.SIGINT]))
    assert ended() == [0]
    last = finished(tmp_path / "tiny.checkpoints")[-1]
    assert (tmp_path / "config.json.stopped").read_text() == f"2 {last}"


def test_a_worker_ends_when_nobody_waits_for_it(worker, tmp_path):
    line, ended = worker
    line.close()
    assert ended() == [1]
    assert not (tmp_path / "config.json.stopped").exists()


def test_torchrun_starts_the_workers_and_the_weights_come_back(forge, alone, tmp_path, capfd):
    config, seen = checked(tmp_path), []
    run = Run.begin(config)
    progress = train_in_processes(config, run.build(), run.keeper, seen.append)
    assert [epoch.number for epoch in progress.epochs] == [1, 2] and progress.epochs == seen
    assert (progress.step, progress.resumed) == (0, 0)
    torch.testing.assert_close(dict(run.model.state_dict()), alone["model"], rtol=0, atol=0)
    assert "6/6" in capfd.readouterr().err  # the progress bar


def test_a_record_of_several_processes(forge, alone, tmp_path, monkeypatch):
    """What `Run` does with them; the forge in place of torchrun."""

    def started_and_read(config, model, keeper, after_epoch):
        assert set(forge.run("train", config={**TWO, "results_dir": config.results_dir})) == {0}
        return processes.finished(model, keeper, after_epoch)

    monkeypatch.setattr("translution_runs.run.train_in_processes", started_and_read)
    record = Run.begin(checked(tmp_path, **TWO)).complete()
    assert record.parameters["processes"] == 2 and record.resumed == 0
    found = torch.tensor([[epoch.loss, epoch.accuracy] for epoch in record.curve])
    torch.testing.assert_close(found, curve(alone), rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


FAILS = """
import sys
print("a line before", flush=True)
print("Root Cause (first observed failure):\\n[0]:\\n  rank : 1", flush=True)
print("  FloatingPointError: the loss is nan\\n=====", file=sys.stderr)
sys.exit(1)
"""
KILLED = "import os; print('the last words', flush=True); os.kill(os.getpid(), 9)"
STOPS = """
import os, select, sys
number = os.read(0, 1)[0]
assert not select.select([0], [], [], 0.5)[0]  # once
open(sys.argv[1] + ".stopped", "w").write(f"{number} 12")
"""
OBEYS = "import os; assert os.read(0, 1) == b''"
STUBBORN = "import time; time.sleep(60)"


def in_place_of_torchrun(monkeypatch, program: str):
    monkeypatch.setattr(processes, "command", lambda config, path: [sys.executable, "-c", program, str(path)])


@pytest.mark.parametrize(("program", "text"), [(FAILS, "FloatingPointError: the loss is nan$"),
                                               (KILLED, "failed:\nthe last words$")])
def test_an_error_of_a_process_is_reported(tmp_path, monkeypatch, program, text):
    in_place_of_torchrun(monkeypatch, program)
    with pytest.raises(RuntimeError, match="the training in 2 processes failed:") as caught:
        train_in_processes(checked(tmp_path, **TWO), torch.nn.Linear(1, 1), keeper(tmp_path, **TWO))
    assert caught.match(text)


def test_processes_without_a_result_are_an_error(tmp_path, monkeypatch):
    in_place_of_torchrun(monkeypatch, "")
    with pytest.raises(RuntimeError, match="have left no checkpoint"):
        train_in_processes(checked(tmp_path, **TWO), torch.nn.Linear(1, 1), keeper(tmp_path, **TWO))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_answered(tmp_path, monkeypatch, number):
    in_place_of_torchrun(monkeypatch, STOPS)

    def send_when_started(arguments):
        group = started(arguments)
        Thread(target=lambda: (time.sleep(0.1), os.kill(os.getpid(), number))).start()
        return group

    monkeypatch.setattr(processes, "started", send_when_started)
    with pytest.raises(Interrupted) as caught:
        train_in_processes(checked(tmp_path, **TWO), torch.nn.Linear(1, 1), keeper(tmp_path, **TWO))
    assert (caught.value.signal, caught.value.step) == (number, 12)


@pytest.mark.parametrize(("program", "code"), [(OBEYS, 0), (STUBBORN, -9)])
def test_no_process_outlives_an_error_here(monkeypatch, program, code):
    monkeypatch.setattr(processes, "PATIENCE", 0.5 if program == STUBBORN else 60)
    with pytest.raises(KeyboardInterrupt), started([sys.executable, "-c", program]) as group:
        raise KeyboardInterrupt
    assert group.process.returncode == code


def test_a_terminal_reaches_the_starter_alone():
    with started([sys.executable, "-c", OBEYS]) as group:
        assert os.getsid(group.process.pid) == group.process.pid != os.getsid(0)


def test_more_processes_than_gpus_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_devices(checked(tmp_path, **TWO))
    with pytest.raises(ValueError, match=r"processes: got 2, but torch finds 1 GPU\(s\)"):
        check_devices(checked(tmp_path, **TWO, device="cuda"))
