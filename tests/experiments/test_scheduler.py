"""Runs on a real cluster of two worker processes, one of which is killed in the middle of a run."""

import multiprocessing
import os
import signal
from collections import defaultdict
from contextlib import nullcontext
from threading import Thread
from types import SimpleNamespace

import dask
import pytest
import torch
from dask.distributed import Client, Reschedule, WorkerPlugin
from distributed import utils
from translution_runs import ImageClassificationConfig, Run, read_record, scheduler
from translution_runs.grids import execute
from translution_runs.lock import hold
from translution_runs.signals import Interrupted

import translution_lib

TINY = {"canvas": 16, "patch_size": 8, "dim": 8, "depth": 1, "heads": 1, "ff": 8, "epochs": 2, "batch_size": 32,
        "train_samples": 80, "test_samples": 40, "train_placement": "dynamic", "checkpoint_steps": 1}
STEPS = 2 * 3
KILLED_AFTER = 4
METHOD = "distributed.worker.multiprocessing-method"
VERSION = translution_lib.__version__


def config(seed: int = 0, **changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**TINY, "seed": seed, **changes})


def spy(log: str, victim: str) -> WorkerPlugin:
    """Writes a line for every start and every step of a worker, and kills the worker of `victim` once."""

    class Spy(WorkerPlugin):  # in a function, so that it travels by value
        def setup(self, worker):
            from translution_runs import Run
            from translution_runs.checkpoint import Keeper

            begin, due, save = Run.begin, Keeper.due, Keeper.save

            def note(*what):
                with open(log, "a") as file:
                    file.write(" ".join(map(str, [os.getpid(), *what])) + "\n")

            def noted_begin(config):
                note(config.name, "start")
                return begin(config)

            def noted_due(keeper, step):  # asked once after each step
                note(keeper.folder.name.removesuffix(".checkpoints"), step)
                return due(keeper, step)

            def deadly_save(keeper, step, state):
                path = save(keeper, step, state)
                if keeper.folder.name == f"{victim}.checkpoints" and step == KILLED_AFTER:
                    os.kill(os.getpid(), signal.SIGKILL)
                return path

            Run.begin, Keeper.due, Keeper.save = noted_begin, noted_due, deadly_save

    return Spy()


@pytest.fixture(scope="module")
def cluster():
    """Two workers; all processes, the one in place of a dead worker too, split from one that has the library ready."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([scheduler.__name__])
    with pytest.MonkeyPatch.context() as patch, dask.config.set({METHOD: "forkserver"}):
        patch.setattr(utils, "_forkserver_preload_set", True)  # Dask's own list would take its place
        with scheduler.local_cluster(2) as made:
            yield made


def entries(log) -> dict[str, list[tuple[int, str]]]:
    """Process and event, by run, in the order in which they were written."""
    found = defaultdict(list)
    for line in log.read_text().splitlines():
        process, name, event = line.split()
        found[name].append((int(process), event))
    return found


def result(record) -> dict:
    shown = record.model_dump(include={"parameters", "evaluations", "cost", "data"})
    return {**shown, "curve": [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in
                               record.model_dump()["curve"]]}


def test_a_killed_worker_loses_nothing_and_nothing_is_done_twice(tmp_path, cluster, monkeypatch):
    runs, broken = [config(seed) for seed in range(4)], config(data="mnist", canvas=32, data_root=str(tmp_path))
    victim, store, log = runs[0], tmp_path / "store", tmp_path / "log"
    with Client(cluster, set_as_default=False) as client:
        client.register_plugin(spy(str(log), victim.name))
    outcomes = scheduler.run_all([*runs, broken, runs[1]], store, address=cluster.scheduler_address,
                                 progress=False, notebooks=False)

    assert [outcome.state for outcome in outcomes] == [*["done"] * 4, "failed", "done"]
    assert [outcome.name for outcome in outcomes] == [run.name for run in [*runs, broken, runs[1]]]
    assert "is missing" in outcomes[4].error and str(tmp_path) in outcomes[4].error
    assert sorted(path.name for path in store.iterdir()) == sorted(f"{run.name}.json" for run in runs)

    seen = entries(log)
    assert set(seen) == {run.name for run in [*runs, broken]}
    for run in runs:
        starts = [process for process, event in seen[run.name] if event == "start"]
        assert len(set(starts)) == len(starts) == (2 if run is victim else 1)
        assert [int(event) for _, event in seen[run.name] if event != "start"] == list(range(1, STEPS + 1))
        assert read_record(store / f"{run.name}.json").resumed == (run is victim)
    workers = [process for process, event in seen[victim.name] if event != "start"]
    assert len(set(workers[:KILLED_AFTER])) == len(set(workers[KILLED_AFTER:])) == 1 < len(set(workers))

    whole = Run.begin(config(0, results_dir=str(tmp_path / "whole"))).complete()
    assert result(read_record(store / f"{victim.name}.json")) == result(whole)

    monkeypatch.setattr(scheduler, "local_cluster", lambda *_: nullcontext(cluster))
    again = scheduler.run_all([*runs, config(9)], store, progress=False, notebooks=False)
    assert [outcome.state for outcome in again] == [*["found"] * 4, "done"]
    nowhere = scheduler.run_all(runs, store, address="tcp://127.0.0.1:9", progress=False)  # nobody is asked
    assert [outcome.state for outcome in nowhere] == ["found"] * 4


def test_what_is_wrong_is_said_before_a_cluster_is_asked(tmp_path):
    with pytest.raises(ValueError, match="two different runs are called 'same'"):
        scheduler.run_all([config(0, run_name="same"), config(1, run_name="same")], tmp_path)
    with pytest.raises(ValueError, match="workers: got 0"):
        scheduler.run_all([config()], tmp_path, workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write into"):
        scheduler.run_all([config()], tmp_path / "file")
    assert scheduler.run_all([], tmp_path) == []


def test_an_error_of_a_run_is_an_answer_of_its_worker(tmp_path):
    state, error, worker = scheduler.perform(config(results_dir=str(tmp_path)).model_dump(), "0.0")
    assert (state, worker) == ("failed", scheduler.perform({"seed": -1}, VERSION)[2])
    assert VERSION in error and "expected 0.0" in error
    assert "seed" in scheduler.perform({"seed": -1}, VERSION)[1]


def test_a_wrong_run_fails_once_and_at_once(tmp_path, monkeypatch):
    begun, begin = [], Run.begin
    monkeypatch.setattr(Run, "begin", lambda run: begun.append(run.name) or begin(run))
    run = config(data="mnist", canvas=32, results_dir=str(tmp_path))
    state, error, _ = scheduler.perform(run.model_dump(), VERSION, notebooks=False)
    assert state == "failed" and "root: got ''" in error and begun == [run.name]
    assert not list(tmp_path.iterdir())


def test_a_run_that_a_signal_stopped_is_handed_back(tmp_path, monkeypatch):
    def stop(run):
        raise Interrupted(signal.SIGTERM, 3)

    monkeypatch.setattr(Run, "complete", stop)
    with pytest.raises(Reschedule):
        scheduler.perform(config(results_dir=str(tmp_path)).model_dump(), VERSION, notebooks=False)
    with hold(tmp_path / f"{config().name}.lock"):  # free for the next worker
        pass


def test_a_kernel_that_alone_heard_the_signal_counts_as_stopped():
    with pytest.raises(Interrupted) as stopped:
        execute.raise_for(config(), "Interrupted", "stopped by SIGTERM after step 3", 0)
    assert stopped.value.exit_code == 143


def test_a_worker_runs_the_notebook(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(execute, "run", lambda run, progress: asked.append((run.name, progress)))
    parameters = config(results_dir=str(tmp_path)).model_dump()
    assert scheduler.perform(parameters, VERSION)[:2] == ("done", "")
    assert asked == [(config().name, False)]


def test_a_run_that_another_process_holds_is_waited_for(tmp_path):
    run, answers = config(results_dir=str(tmp_path)), []

    def work(patience):
        answers.append(scheduler.perform(run.model_dump(), VERSION, False, patience))

    with hold(tmp_path / f"{run.name}.lock"):
        work(0.0)
        assert answers[0][0] == "failed" and "is being run by process" in answers[0][1]
        waiting = Thread(target=work, args=(30.0,))
        waiting.start()
    waiting.join()
    work(0.0)
    assert [answer[0] for answer in answers] == ["failed", "done", "found"]


def test_a_record_that_is_not_there_is_no_success(tmp_path, plain_types):
    here = config(results_dir=str(tmp_path))
    future = SimpleNamespace(status="finished", result=lambda: ("done", "", "process 1 on far"))
    outcome = scheduler.outcome(future, here)
    assert outcome.state == "failed" and "process 1 on far wrote no record" in outcome.error
    lost = scheduler.outcome(SimpleNamespace(status="cancelled"), here)
    assert lost.state == "failed" and "scheduler is gone" in lost.error
    dead = SimpleNamespace(status="error", exception=lambda: RuntimeError("four workers died"))
    assert scheduler.outcome(dead, here).error == "RuntimeError: four workers died"


def test_a_worker_takes_one_run_at_a_time(plain_types):
    def client(*threads):
        known = {str(k): {"name": k, "nthreads": n} for k, n in enumerate(threads)}
        return SimpleNamespace(scheduler_info=lambda n_workers: {"workers": known})

    scheduler.refuse_threads(client())
    scheduler.refuse_threads(client(1, 1))
    with pytest.raises(ValueError, match="worker 1 has several threads"):
        scheduler.refuse_threads(client(1, 2))


@pytest.mark.parametrize(("cards", "workers", "processes", "named", "expected"), [
    (0, 2, 1, None, [None, None]), (2, 2, 1, None, ["0", "1"]), (4, 2, 2, None, ["0,1", "2,3"]),
    (2, 3, 1, None, ["0", "1", "0"]), (1, 1, 2, None, ["0"]), (2, 2, 1, "5,7", ["5", "7"]),
])
def test_workers_share_out_the_gpus(monkeypatch, cards, workers, processes, named, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    found = scheduler.environments(workers, processes)
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in found] == expected
