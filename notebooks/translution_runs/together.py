"""Many small runs at once on one machine, before a deadline: worker processes that take one run after another.

A small run leaves most of a large GPU idle, and an import takes longer than some runs. So several processes share the
card, and each of them imports the library once. The longest runs come first, among those that can still end in time.

    python -m translution_runs.together

is a worker. It reads a run a line from standard input, and writes what became of it, a line each, to standard output.
Chapter "From laptop to cluster".
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any

from translution_runs.kinds import AnyConfig, kind_named, kind_of
from translution_runs.records import Record
from translution_runs.signals import Interrupted, Stop, stop_on_signals

COMMAND = [sys.executable, "-P", "-m", "translution_runs.together"]
LINES = 20  # of a worker's standard error, kept for a failure
PATIENCE = 10.0  # seconds from TERM to KILL
GLANCE = 0.2  # seconds between two looks at the clock, and at signals
READY = {"ready": True}  # a worker's first line, after its imports
ABANDONED = 1  # a worker's exit code


@dataclass(frozen=True)
class Task:
    """A run to make.

    Attributes:
        config: the run; its record, lock and checkpoints are in the folder `results_dir`.
        seconds: how long it is expected to take.
    """

    config: AnyConfig
    seconds: float | int


@dataclass(frozen=True)
class Done:
    """What became of a run that was begun.

    Attributes:
        task: the run.
        record: None where it failed or was stopped.
        error: why, with the last lines that the worker wrote; empty where there is a record.
        seconds: how long it took.
        text: the record as JSON in one line; empty where there is none.
    """

    task: Task
    record: Record | None
    error: str
    seconds: float
    text: str = ""


def run_together(tasks: Sequence[Task], workers: int, deadline: float | int | None, on_done: Callable[[Done], None],
                 grace: float | int = 20.0) -> list[Task]:
    """Make runs in worker processes of this machine until all are made or the deadline is there.

    This process needs no GPU and does not touch one. Workers have its environment variables.

    Args:
        tasks: the runs, each a process of its own (`processes` 1).
        workers: number of processes.
        deadline: on the clock `time.monotonic`; nothing begins whose expected end is later. None waits for all.
        on_done: called in this thread with each run that ends, at once.
        grace: seconds after the deadline; what still runs then is sent TERM, writes a checkpoint and ends, and is
            killed where it has not ended `PATIENCE` seconds later.

    Returns:
        The runs that were not begun, in their order.

    Raises:
        ValueError: no worker, an expected time that is not above 0, or two runs of one name in one folder.
        Stopped: INT or TERM came. The workers have ended, and all runs that ended were handed to `on_done`.
    """
    check(tasks, workers, grace)
    plan, done = Plan(tasks, deadline), SimpleQueue[Done | None]()
    crew = [Driver(plan, done) for _ in range(min(workers, len(tasks)))]
    with stop_on_signals() as stop, dismissed(plan, crew):
        for driver in crew:
            driver.start()
        watch(crew, done, Ending(plan, crew, None if deadline is None else deadline + grace, stop), on_done)
    if stop.requested:
        raise Stopped(stop.requested, plan.finished)
    return plan.left


class Stopped(Interrupted):
    """Runs that ended because a signal asked for it; `step` is the number of those that were finished."""

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal).name} after {self.step} finished run(s)"


def check(tasks: Sequence[Task], workers: int, grace: float | int) -> None:
    """Raise a ValueError that names the argument that is wrong."""
    if workers < 1 or grace < 0:
        raise ValueError(f"workers, grace: got {workers} and {grace}, expected at least 1 and 0")
    names = [(task.config.results_dir, task.config.name) for task in tasks]
    for task, name in zip(tasks, names, strict=True):
        if not 0 < task.seconds < float("inf"):
            raise ValueError(f"tasks: {name[1]}: got {task.seconds} seconds, expected a number above 0")
        if task.config.processes != 1:
            raise ValueError(f"tasks: {name[1]}: got processes {task.config.processes}, expected 1")
        if names.count(name) > 1:
            raise ValueError(f"tasks: got {name[1]!r} more than once in {name[0]!r}, expected each run once")


def watch(crew: Sequence["Driver"], done: "SimpleQueue[Done | None]", ending: "Ending",
          on_done: Callable[[Done], None]) -> None:
    """Hand on what ends until no driver works any more; each leaves a None."""
    working = len(crew)
    while working:
        ending.look()
        with suppress(Empty):
            one = done.get(timeout=GLANCE)
            if one is None:
                working -= 1
            else:
                on_done(one)


class Plan:
    """Which run is next: the longest that can still end in time, by expectations that follow what was measured."""

    def __init__(self, tasks: Sequence[Task], deadline: float | None) -> None:
        self.left, self.deadline, self.finished = list(tasks), deadline, 0
        self._running = 0
        self._measured: dict[tuple[str, ...], list[float]] = {}
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        """Whether a run may still begin."""
        return bool(self.left) and not self._late()

    def take(self) -> Task | None:
        """The next run; None where nothing more can begin. Waits while a running one may change the expectations."""
        with self._changed:
            while True:
                if fitting := [task for task in self.left if self._fits(task)]:
                    chosen = max(fitting, key=self.expected)
                    self.left = [task for task in self.left if task is not chosen]
                    self._running += 1
                    return chosen
                if not self.open or not self._running:
                    return None
                self._changed.wait(GLANCE)

    def end(self, one: Done) -> None:
        """Note what became of a run."""
        with self._changed:
            self._running -= 1
            if one.record is not None:
                self.finished += 1
                for key in (kind_of_model(one.task.config), ()):
                    sums = self._measured.setdefault(key, [0.0, 0.0])
                    sums[0] += one.seconds
                    sums[1] += one.task.seconds
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nothing more begin."""
        with self._changed:
            self.deadline = float("-inf")
            self._changed.notify_all()

    def expected(self, task: Task) -> float:
        """Seconds, corrected by the runs of the same kind of model that have finished, or else by all."""
        key = kind_of_model(task.config)
        measured, predicted = self._measured.get(key) or self._measured.get(()) or (1.0, 1.0)
        return task.seconds * measured / predicted

    def _fits(self, task: Task) -> bool:
        return self.deadline is None or monotonic() + self.expected(task) <= self.deadline

    def _late(self) -> bool:
        return self.deadline is not None and monotonic() >= self.deadline


def kind_of_model(config: AnyConfig) -> tuple[str, ...]:
    """What runs share whose times are wrong by the same factor, by and large."""
    return kind_of(config).name, getattr(config, "model", ""), config.mixer


class Driver(threading.Thread):
    """A thread that has a worker make one run after another, and takes a new one after a failure."""

    def __init__(self, plan: Plan, done: "SimpleQueue[Done | None]") -> None:
        super().__init__(daemon=True)
        self.plan, self.done = plan, done
        self.worker: Worker | None = None
        self._lock = threading.Lock()
        self._dismissed = False

    def run(self) -> None:
        """As the thread does. A worker is ready before its run is chosen, so that no import delays the run's end."""
        try:
            while self.plan.open:
                problem = self._prepare()
                if (task := self.plan.take()) is None:
                    return
                one = Done(task, None, problem, 0.0) if problem else self._made(task)
                self.plan.end(one)
                self.done.put(one)
        finally:
            self.close()
            self.done.put(None)

    def send(self, number: int) -> None:
        """Send a signal to the worker, where there is one; no other is started any more."""
        with self._lock:
            self._dismissed = True
            if self.worker is not None:
                self.worker.send(number)

    def close(self) -> None:
        """End the worker, where there is one."""
        with self._lock:
            worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def _prepare(self) -> str:
        """Have a worker that is ready; what is wrong where there is none."""
        try:
            with self._lock:
                if self._dismissed:
                    raise Failed("the runs were stopped")
                worker = self.worker = self.worker or Worker()
            worker.wait_until_ready()
            return ""
        except (Failed, OSError) as error:
            self.close()
            return str(error)

    def _made(self, task: Task) -> Done:
        started, worker = monotonic(), self.worker
        assert worker is not None
        try:
            text = worker.make(task.config)
            return Done(task, Record.model_validate_json(text), "", monotonic() - started, text)
        except (Failed, OSError, ValueError) as error:
            seconds = monotonic() - started
            self.close()  # whatever it was: after an error of CUDA a process is of no more use
            return Done(task, None, str(error), seconds)


class Failed(Exception):
    """A run that a worker did not finish."""


class Worker:
    """A process that makes runs, seen from the one that started it."""

    def __init__(self) -> None:
        # In a session of its own: what is typed at a terminal reaches the parent alone.
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env={"TQDM_DISABLE": "1", **os.environ}, start_new_session=True,
                                        encoding="utf-8", errors="replace")
        self.lines: deque[str] = deque(maxlen=LINES)
        self._reader = threading.Thread(target=self._relay, daemon=True)
        self._reader.start()
        self._ready = False

    def wait_until_ready(self) -> None:
        """Wait for the imports."""
        if not self._ready:
            self._ready = self._answer() == READY

    def make(self, config: AnyConfig) -> str:
        """Have it make a run; the record as JSON.

        Raises:
            Failed: the run raised an error, or the process ended.
        """
        assert self.process.stdin is not None
        self.lines.clear()  # those of another run
        with suppress(BrokenPipeError):  # it has ended, as its answer says
            self.process.stdin.write(json.dumps({"kind": kind_of(config).name, **config.model_dump()}) + "\n")
            self.process.stdin.flush()
        answer = self._answer()
        if "record" not in answer:
            self._code()
            raise Failed(self._with_lines(answer["error"]))
        return answer["record"]

    def send(self, number: int) -> None:
        """Send a signal; KILL goes to what the worker has started as well."""
        if number != signal.SIGKILL:
            self.process.send_signal(number)
        elif self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Let it end, and wait for it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self._code()
        self._reader.join(PATIENCE)
        self.process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.endswith("\n"):
            return json.loads(line)
        code = self._code()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Failed(self._with_lines(f"the worker ended with {how}"))

    def _code(self) -> int:
        """The exit code of a process that is about to end; one that is not is killed."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self.process.wait()

    def _with_lines(self, error: str) -> str:
        self._reader.join(PATIENCE)
        return "\n".join([error, *(line.rstrip("\n") for line in self.lines)])

    def _relay(self) -> None:
        """Show what it writes, and keep the last lines."""
        assert self.process.stderr is not None
        with self.process.stderr as written:
            for line in written:
                self.lines.append(line)
                sys.stderr.write(line)


@dataclass
class Ending:
    """Sends TERM once, when a signal has come or the time is up, and KILL to what is left after that."""

    plan: Plan
    crew: Sequence[Driver]
    at: float | None
    stop: Stop
    told: float | None = field(default=None)

    def look(self) -> None:
        """What is to be done now."""
        late = self.at is not None and monotonic() >= self.at
        if self.told is None and (late or self.stop.requested):
            self.told = monotonic()
            self._send(signal.SIGTERM)
        elif self.told is not None and monotonic() >= self.told + PATIENCE:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        self.plan.stop()
        for driver in self.crew:
            driver.send(number)


@contextmanager
def dismissed(plan: Plan, crew: Sequence[Driver]) -> Iterator[None]:
    """No worker outlives the block, whatever ends it."""
    try:
        yield
    finally:
        plan.stop()
        for driver in crew:
            driver.send(signal.SIGKILL)  # those that ended by themselves have no worker any more
        for driver in crew:
            if driver.ident is not None:
                driver.join()


def serve(make: Callable[[AnyConfig], Record]) -> None:
    """What a worker does: a run for each line that comes, and an end after the first error.

    Where standard input ends, nobody waits for the run any more: it stops as after TERM, and leaves a checkpoint.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a run prints is no answer
    tasks = SimpleQueue[str]()
    threading.Thread(target=listen, args=(sys.stdin, tasks), daemon=True).start()
    say(answers, READY)
    while line := tasks.get():
        try:
            given = json.loads(line)
            config = kind_named(given.pop("kind")).config.of(given)
            say(answers, {"record": make(config).model_dump_json()})
        except Exception as error:
            say(answers, {"error": f"{type(error).__name__}: {error}"})
            raise


def listen(lines: IO[str], tasks: "SimpleQueue[str]") -> None:
    """Pass the lines on; at their end, end this process."""
    for line in lines:
        tasks.put(line)
    tasks.put("")
    os.kill(os.getpid(), signal.SIGTERM)  # answered after a step of the training; otherwise it ends the process
    threading.Event().wait(PATIENCE)
    os._exit(ABANDONED)


def say(answers: IO[str], answer: dict[str, Any]) -> None:
    """Write an answer."""
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def make_run(threads: int) -> Callable[[AnyConfig], Record]:
    """What makes a run as if it were the first of its process."""
    import torch

    from translution_runs.run import Run

    def make(config: AnyConfig) -> Record:
        torch.set_num_threads(threads)
        if config.device.startswith("cuda") and torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()  # the card is shared
            torch.cuda.reset_peak_memory_stats(config.device)
        return Run.begin(config).complete()

    return make


def main() -> None:
    """A worker."""
    import torch

    serve(make_run(torch.get_num_threads()))


if __name__ == "__main__":
    main()
