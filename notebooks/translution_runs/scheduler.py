"""Runs spread over a Dask cluster: each is run once, and goes on elsewhere when its worker dies.

Dask hands out runs and hands them out again; everything else is in the folder of results that all workers share. A
record ends a run, a lock lets one process at a time work on it, and a checkpoint lets the next one go on.
Chapter "From laptop to cluster".
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, Literal

import dask
import torch
from dask.distributed import Client, Future, Nanny, Reschedule, Scheduler, SpecCluster, as_completed
from tqdm.auto import tqdm

import translution_lib
from translution_runs import lock
from translution_runs.files import lock_file, require_writable
from translution_runs.grids import execute
from translution_runs.kinds import IMAGES, AnyConfig, kind_named, kind_of
from translution_runs.run import Run, free
from translution_runs.signals import Interrupted

PATIENCE = 60.0
"""Seconds that a worker waits for a run which another process holds: one that lost its scheduler takes time to end."""
TASK = "translution-run"
"""What Dask calls a run; its configuration may give this name a typical duration."""

State = Literal["done", "found", "failed"]
_one_at_a_time = Lock()  # torch's random stream, and a GPU's memory, are those of the process


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        config: the run, with the folder of its record.
        state: "done" now, "found" (its record was there already), or "failed".
        error: why it failed, otherwise empty.
        worker: process and machine that finished it; empty where none had to.
    """

    config: AnyConfig
    state: State
    error: str = ""
    worker: str = ""

    @property
    def name(self) -> str:
        """The run's."""
        return self.config.name


def run_all(
    configs: Sequence[AnyConfig], store: str | Path, *, address: str | None = None, workers: int = 2,
    progress: bool = True, notebooks: bool = True,
) -> list[Outcome]:
    """Run what has no record yet on a Dask cluster; one that fails stops no other.

    A run listed twice, as one that belongs to two tables is, is run once.

    Args:
        configs: the runs.
        store: folder of the records, the same for this process and all workers.
        address: of a running scheduler, such as "tcp://login-node:8786"; None starts a cluster on this machine.
        workers: how many processes that cluster has; they share out its GPUs.
        progress: show a bar.
        notebooks: run each in its notebook, and keep the executed copy; otherwise by the library alone.

    Returns:
        An outcome for each entry of ``configs``, in their order.

    Raises:
        ValueError: two different runs of one name, no worker asked for, a worker with several threads, a folder that
            cannot be written.
        OSError: no scheduler at the address.
    """
    if workers < 1:
        raise ValueError(f"workers: got {workers}, expected at least 1")
    runs = by_name(configs, store)
    require_writable(Path(store))
    outcomes = {name: Outcome(config, "found") for name, config in runs.items() if recorded(config)}
    waiting = [config for name, config in runs.items() if name not in outcomes]
    with tqdm(total=len(runs), initial=len(outcomes), unit="run", disable=not progress) as bar:
        for outcome in spread(waiting, address, workers, notebooks) if waiting else ():
            outcomes[outcome.name] = outcome
            bar.set_postfix(failed=sum(one.state == "failed" for one in outcomes.values()))
            bar.update()
    return [outcomes[config.name] for config in configs]


def by_name(configs: Sequence[AnyConfig], store: str | Path) -> dict[str, AnyConfig]:
    """The runs by name, each once, with whole paths: a worker may have another working folder."""
    runs: dict[str, AnyConfig] = {}
    for config in configs:
        placed = execute.placed(config, store)
        if runs.setdefault(config.name, placed).fingerprint() != placed.fingerprint():
            raise ValueError(f"configs: two different runs are called {config.name!r}; expected one")
    return runs


def recorded(config: AnyConfig) -> bool:
    """Whether the store has the run's record, and it is valid."""
    return execute.valid_record(config, Path(config.results_dir)) is not None


def spread(
    configs: Sequence[AnyConfig], address: str | None, workers: int, notebooks: bool,
) -> Iterator[Outcome]:
    """Hand the runs out; their outcomes, in the order in which they end.

    What is left of it when the caller stops listening: no further run begins; on a cluster of its own the workers end,
    on another one those at work finish the runs that they hold.
    """
    processes = max(config.processes for config in configs)
    with reached(address, workers, processes) as client:
        refuse_threads(client)
        version = translution_lib.__version__
        sent = {client.submit(perform, config.model_dump(), version, notebooks, experiment=kind_of(config).name,
                              key=key(config)): config for config in configs}
        try:
            for future in as_completed(list(sent), loop=client.loop):
                yield outcome(future, sent.pop(future))
                future.release()  # Dask keeps, and would compute again, what somebody still asks for
        finally:
            client.cancel(list(sent))


def key(config: AnyConfig) -> tuple[str, str, str]:
    """What Dask knows a run by: two callers who ask for the same run into the same folder share it."""
    return (TASK, config.name, f"{config.fingerprint()} in {config.results_dir}")


def outcome(future: Future, config: AnyConfig) -> Outcome:
    """What a finished future says, and whether its record has arrived here."""
    if future.status != "finished":
        return Outcome(config, "failed", describe(future.exception() if future.status == "error" else None))
    state, error, worker = future.result()
    if state != "failed" and not recorded(config):
        error = f"{worker} wrote no record into {config.results_dir!r}; expected a folder that all machines share"
        state = "failed"
    return Outcome(config, state, error, worker)


def describe(error: BaseException | None) -> str:
    """One line about an error; None stands for a scheduler that is gone."""
    if error is None:
        return "the scheduler is gone; started again, the run goes on from its last checkpoint"
    return f"{type(error).__name__}: {error}"


@contextmanager
def reached(address: str | None, workers: int, processes: int = 1) -> Iterator[Client]:
    """A client of the scheduler at the address, or of a cluster that lasts as long as the block."""
    if address is not None:
        with Client(address, set_as_default=False) as client:
            yield client
        return
    with local_cluster(workers, processes) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def local_cluster(workers: int, processes: int = 1) -> SpecCluster:
    """A scheduler here and worker processes, each of them replaced when it dies; close it, or use ``with``.

    Only this machine can reach it. A worker has one thread, the memory that it needs, and its own share of the GPUs.

    Args:
        workers: number of worker processes.
        processes: GPUs that one run needs.
    """
    here = {"host": "127.0.0.1", "dashboard": False}
    alike = {**here, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.ERROR}
    envs = environments(workers, processes)
    spec = {k: {"cls": Nanny, "options": {**alike, "env": env}} for k, env in enumerate(envs)}
    with dask.config.set({"distributed.nanny.pre-spawn-environ.TQDM_DISABLE": "1"}):  # one bar, that of all runs
        return SpecCluster(spec, scheduler={"cls": Scheduler, "options": here}, silence_logs=logging.ERROR)


def environments(workers: int, processes: int = 1) -> list[dict[str, str]]:
    """What differs between the workers of this machine: which GPUs each sees, in turn."""
    named, present = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    cards = named.split(",") if named else [str(k) for k in range(present)]
    if not present:
        return [{}] * workers
    shares = [[cards[(k * processes + p) % len(cards)] for p in range(processes)] for k in range(workers)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(share))} for share in shares]


def refuse_threads(client: Client) -> None:
    """Raise a ValueError for a worker that would take two runs at once."""
    several = [worker["name"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()
               if worker["nthreads"] > 1]
    if several:
        raise ValueError(f"address: worker {several[0]} has several threads; expected --nthreads 1, one run at a time")


def perform(
    parameters: Mapping[str, Any], version: str, notebooks: bool = True, patience: float = PATIENCE,
    experiment: str = IMAGES.name,
) -> tuple[State, str, str]:
    """What a worker does: one run. An error is an answer, so that Dask does not take it for one of its own.

    Raises:
        Reschedule: a signal stopped the run after a step; it goes on where Dask puts it.
    """
    worker = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        if version != translution_lib.__version__:
            raise ValueError(f"translution_lib is {translution_lib.__version__} there, expected {version}")
        with _one_at_a_time:
            return run_free(kind_named(experiment).config.of(parameters), notebooks, patience), "", worker
    except Interrupted as stopped:
        raise Reschedule from stopped
    except Exception as error:
        return "failed", describe(error), worker


def run_free(config: AnyConfig, notebooks: bool, patience: float) -> State:
    """Run as soon as no other process holds the run; found, where that one finished it."""
    held, end = lock_file(Path(config.results_dir), config.name), monotonic() + patience
    while True:
        while lock.holder(held) and monotonic() < end:
            sleep(min(1.0, patience))
        if recorded(config):
            return "found"
        try:
            execute.run(config, progress=False) if notebooks else Run.begin(config).complete()
            return "done"
        except BaseException as error:
            free(held)  # this process lives on, and would keep it
            taken = isinstance(error, ValueError) and lock.holder(held) is not None
            if not taken or monotonic() >= end:
                raise
