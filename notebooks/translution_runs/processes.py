"""Training in several processes of one machine, seen from the process that records the run."""

import io
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO

import torch
from torch import nn

from translution_runs.checkpoint import Keeper
from translution_runs.kinds import AnyConfig, kind_of
from translution_runs.records import Epoch
from translution_runs.signals import Interrupted, stop_on_signals
from translution_runs.training import Progress

LINES = 200  # of the output that are kept for an error
PATIENCE = 10.0  # seconds for processes that nobody needs any more


def train_in_processes(
    config: AnyConfig,
    model: nn.Module,
    keeper: Keeper,
    after_epoch: Callable[[Epoch], None] | None = None,
) -> Progress:
    """Train in `config.processes` processes started by torchrun, then put the weights into `model`.

    A signal that reaches this process ends the training after its step, as in one process. The processes end when this
    one does, however it ends.

    Args:
        config: the run's parameters; of `strategy` "ddp" or "fsdp", by gloo on the CPU and by nccl on GPUs.
        model: built from them.
        keeper: of the run's checkpoints, through which the processes hand over the weights.
        after_epoch: called at the end with each epoch.

    Raises:
        Interrupted: INT or TERM came; a checkpoint of the last step is written.
        ValueError: there are fewer GPUs than processes.
        RuntimeError: a process failed; the message holds the last lines of what it wrote.
    """
    check_devices(config)
    with TemporaryDirectory() as folder, stop_on_signals() as stop:
        path = Path(folder) / "config.json"
        path.write_text(config.model_dump_json(), encoding="utf-8")
        with started(command(config, path)) as group:
            group.follow(lambda: stop.requested)
        answer = Path(f"{path}.stopped")
        if answer.exists():
            raise Interrupted(*map(int, answer.read_text(encoding="ascii").split()))
        if group.process.returncode:
            raise RuntimeError(f"the training in {config.processes} processes failed:\n{group.cause()}")
    return finished(model, keeper, after_epoch)


def check_devices(config: AnyConfig) -> None:
    """Raise a ValueError where there are fewer GPUs than processes."""
    if config.device.startswith("cuda") and torch.cuda.device_count() < config.processes:
        raise ValueError(f"processes: got {config.processes}, but torch finds {torch.cuda.device_count()} GPU(s)")


def command(config: AnyConfig, path: Path) -> list[str]:
    """What starts the processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(config.processes),
            "-m", "translution_runs.worker", str(path), kind_of(config).name]


def finished(model: nn.Module, keeper: Keeper, after_epoch: Callable[[Epoch], None] | None = None) -> Progress:
    """Put the last checkpoint's weights into `model`; its progress."""
    found = keeper.load(use=lambda state: model.load_state_dict(state["model"]))
    if found is None:
        raise RuntimeError(f"{keeper.folder}: the processes have left no checkpoint")
    saved = found[1]["progress"]
    progress = Progress.of(saved, len(saved["epochs"]))
    progress.resumed -= 1  # it has only been read
    if after_epoch is not None:
        for epoch in progress.epochs:
            after_epoch(epoch)
    return progress


class Group:
    """Processes started by one command, which end when this one closes their standard input."""

    def __init__(self, arguments: list[str]) -> None:
        # In a session of their own: what is typed at a terminal reaches this process alone, which passes it on once.
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.lines: deque[str] = deque(maxlen=LINES)
        self.reader = Thread(target=self._relay, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def follow(self, requested: Callable[[], int]) -> None:
        """Wait for the end; pass on the first signal that `requested` names."""
        sent = False
        while self.process.poll() is None:
            if not sent and (number := requested()):
                self._send(number)
                sent = True
            try:
                self.process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        self.reader.join(PATIENCE)

    def end(self) -> None:
        """Let them end at once where they still run, and wait for them."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # a number that nobody has read
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cause(self) -> str:
        """What torchrun reports as the first failure, or the last lines of all."""
        lines = list(self.lines)
        roots = [k for k, line in enumerate(lines) if line.startswith("Root Cause")]
        return "".join(lines[roots[-1] + 1:] if roots else lines).strip("\n=")

    def _send(self, number: int) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # they have just ended
            self.process.stdin.write(bytes([number]))  # one of them reads it; they agree on it after their step
            self.process.stdin.flush()

    def _relay(self, output: IO[bytes]) -> None:
        """Show what they write, a progress bar as such, and keep the last lines."""
        for line in io.TextIOWrapper(output, encoding="utf-8", errors="replace", newline=""):
            self.lines.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()


@contextmanager
def started(arguments: list[str]) -> Iterator[Group]:
    """A group that does not outlive the block."""
    group = Group(arguments)
    try:
        yield group
    finally:
        group.end()
