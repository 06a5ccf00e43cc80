"""Interrupts and requests to end, answered after the step that is running.

Chapter "From laptop to cluster".
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl+C; what a scheduler sends before it takes a machine away


@dataclass
class Stop:
    """Whether somebody has asked for an end: `requested` is the signal's number, 0 while nobody has."""

    requested: int = 0


class Interrupted(RuntimeError):
    """A training that ended after a step because a signal asked for it; its checkpoint is written.

    Attributes:
        signal: number of the signal.
        step: last finished step.
    """

    def __init__(self, signal: int, step: int) -> None:
        super().__init__(f"stopped by {name(signal)} after step {step}; started again, the run goes on from there")
        self.signal, self.step = signal, step

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int, int]]:
        return type(self), (self.signal, self.step)  # it crosses the borders of processes

    @property
    def exit_code(self) -> int:
        """What a shell expects: 130 after an interrupt, 143 after a termination."""
        return 128 + self.signal


def name(number: int) -> str:
    """A signal's name, such as SIGTERM."""
    return signal.Signals(number).name


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Within the block the first INT or TERM is only noted; a second of either kind does what it did before the block.

        with stop_on_signals() as stop:
            for step in range(steps):
                ...
                if stop.requested:
                    break

    What a block around this one has noted and not answered counts here too. A signal that was ignored before stays
    ignored. Handlers belong to the main thread: elsewhere nothing is noted, and signals do what they always did. At the
    end of the block the old handlers are back.
    """
    stop, old = Stop(), {}
    if threading.current_thread() is threading.main_thread():
        old = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) not in KEPT}
    note = Noting(stop, old)
    for number in old:
        signal.signal(number, note)
    stop.requested = stop.requested or max((h.stop.requested for h in old.values() if isinstance(h, Noting)), default=0)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


KEPT = (signal.SIG_IGN, None)  # ignored on purpose (nohup), or set by a program that Python does not know


class Noting:
    """The handler that notes a first signal in `stop` and passes a second one to its old handler."""

    def __init__(self, stop: Stop, old: Mapping[signal.Signals, Any]) -> None:
        self.stop, self.old = stop, old

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """As the system calls it."""
        if not self.stop.requested:
            self.stop.requested = int(number)
            return
        former = self.old[signal.Signals(number)]
        if callable(former):
            former(number, frame)
        else:  # the system's own: ends the process
            signal.signal(number, former)
            signal.raise_signal(number)
