"""A process that has imported everything and forks runs, so that the tests can kill them by the dozen.

Importing takes seconds, a fork none. `Forge` is the tests' side; started as a program the module is the other side.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))
TINY = {"canvas": 16, "patch_size": 8, "dim": 8, "depth": 1, "heads": 1, "ff": 8, "train_samples": 66,
        "test_samples": 20, "batch_size": 8, "mixer_options": '{"dropout": 0.2}', "train_placement": "dynamic",
        "checkpoint_minutes": 0.0, "run_name": "tiny"}  # nine steps an epoch, two images in the last
PATIENCE = 300.0  # seconds until something is taken to hang


class Forge:
    """Starts the program; `run` forks the processes of one task, one task at a time."""

    def __init__(self, log: Path):
        self.log, environment = log, {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
        with open(log, "w") as file:
            self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=file, bufsize=0, env=environment)

    @contextmanager
    def begun(self, task: str, **arguments):
        """The pids of the task's processes, and a function that waits for their exit codes; none outlives the block."""
        self.process.stdin.write(json.dumps({"task": task, **arguments}).encode() + b"\n")
        pids, codes = json.loads(self.process.stdout.readline()), []

        def ended(seconds: float = PATIENCE) -> list[int]:
            if not codes:
                assert select([self.process.stdout], [], [], seconds)[0], f"processes {pids} do not end"
                codes.extend(json.loads(self.process.stdout.readline()))
            return codes

        try:
            yield pids, ended
        finally:
            for pid in () if codes else pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            ended()

    def run(self, task: str, **arguments) -> list[int]:
        """The exit codes of the task's processes."""
        with self.begun(task, **arguments) as (_, ended):
            return ended()

    def close(self):
        self.process.kill()  # nothing is left to be tidied, and tidying takes time
        self.process.communicate()


def wait_until(true, seconds: float = PATIENCE):
    """Look every millisecond."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing has happened"
        time.sleep(0.001)


def main():
    import torch

    torch.set_num_threads(1)
    import sklearn.datasets
    import torch._dynamo
    from translution_runs import worker  # noqa: F401

    sklearn.datasets.load_digits()
    for line in sys.stdin:
        request = json.loads(line)
        task, world = TASKS[request.pop("task")], request.get("config", {}).get("processes", 1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pids = [fork(task, request, rank, world, port) for rank in range(world)]
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)


def fork(task, request: dict, rank: int, world: int, port: int) -> int:
    """A child that finds around it what torchrun would have put there."""
    if pid := os.fork():
        return pid
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
                          GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if world > 1 or task is work:
            os.environ["TORCHELASTIC_RUN_ID"] = "forge"
        code = task(**request) or 0
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "exit_code", 1)
    sys.stderr.flush()
    os._exit(code)


def train(config: dict):
    """One run up to its last checkpoint; with several processes one of their parts."""
    from translution_runs import ImageClassificationConfig, Run, worker

    checked = ImageClassificationConfig.of({**TINY, **config})
    if checked.processes > 1:
        return worker.work(checked, worker.together(checked))
    run = Run.begin(checked)
    run.load()
    run.build()
    run.train()


def keep(folder: str):
    """Checkpoints without end, one after the other."""
    from translution_runs.checkpoint import Keeper

    keeper = Keeper(folder, "abc")
    found = keeper.load()
    step = found[0] if found else 0
    while True:
        step += 1
        keeper.save(step, stamped(step))


def stamped(step: int) -> dict:
    import torch

    return {"weights": torch.full((random.Random(step).randrange(1, 60_000),), float(step))}


def work(path: str, pipe: str):
    """A worker's program, the pipe for its standard input."""
    from translution_runs import worker

    os.dup2(os.open(pipe, os.O_RDONLY), 0)
    worker.main(path)


def gather_until(folder: str, names: list[str], grids: str, step: int):
    """Gather, and die before one of the calls that change a folder; they are counted from 1."""
    from translution_runs.grids import gather

    left = iter(range(step - 1, -1, -1))
    for name in ("open", "fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name), left))
    gather(folder, "b", names, grids)


def counted(call, left):
    """A function that ends the process when none is left."""

    def counting(*arguments, **options):
        if next(left) == 0:
            os._exit(9)
        return call(*arguments, **options)

    return counting


def gather_often(folder: str, names: list[str], grids: str, config: dict):
    """Several processes gather a few records at a time; the first makes one of them again and again."""
    from translution_runs.files import lock_file
    from translution_runs.grids import gather
    from translution_runs.lock import hold
    from translution_runs.reading import find

    rank = int(os.environ["RANK"])
    own = random.Random(rank)
    for k in range(20):
        if rank:
            gather(folder, own.choice("bcd"), own.sample(names, 5), grids)
        else:
            with hold(lock_file(Path(folder), names[0]), patience=30.0):
                find(folder, names[0]).read().model_copy(update={"date": f"time {k}"}).write(folder)


TASKS = {"train": train, "keep": keep, "worker": work, "gather until": gather_until, "gather often": gather_often}

if __name__ == "__main__":
    main()
