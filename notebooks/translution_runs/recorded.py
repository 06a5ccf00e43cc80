"""Training steps that are recorded once and from then on launched as a whole, so that a GPU does not wait for Python.

A small model's step is some thousand small operations. Python needs longer to launch them than a large GPU to compute
them. A CUDA graph holds them all, and one call launches it. It does the same work on the same memory each time: what
changes from step to step lies in tensors that stay where they are. Those are the batch's rows, the learning rate, the
sums of the epoch, and all that the optimizer changes.
"""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from translution_runs.constants import Constants

Work = Callable[[], None]
Capture = Callable[[Work], Work]
"""From a function without arguments to one that repeats what it did on the device; it may call the function first."""
State = dict[str, list[Tensor]]

TOLERANCES = {"float32": 1e-2, "bfloat16": 5e-2}
"""How far a played step may be from a plain one, as a part of the way from before the step to after it.

Both run the same kernels. They differ where a kernel adds in the order in which its threads come. A step on another
batch, or none, is off by a part of one.
"""
WARM_UP = 3  # steps before a capture, in which libraries set themselves up


def recordable(config: Any, model: nn.Module, world: int) -> bool:
    """Whether each step of a training launches the same work, and no other process takes part in it."""
    return world == 1 and config.accumulate == 1 and not config.compile and all(map(steady, model.modules()))


def steady(layer: nn.Module) -> bool:
    """Whether a layer does the same in every step; one that draws, or counts steps in Python, says `steady = False`."""
    return getattr(layer, "steady", True) and not (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0)


class Recorded:
    """The steps of a training, recorded for each size of a batch when it first comes, and played after that.

    A recording is checked before it is used. From the same weights, moments and batch a plain step and a played one
    must end in the same state. Otherwise, or where nothing can be recorded, there is one warning and no further try.

    Args:
        capture: how a step is recorded.
        take: one plain step of the optimizer on a batch's inputs and labels; adds to `sums`.
        model: what is trained.
        optimizer: its optimizer, whose groups read their rate from the tensor `rate`.
        sums: of the epoch, changed in place.
        precision: of the run.
    """

    def __init__(self, capture: Capture, take: Callable[[Tensor, Tensor], None], model: nn.Module,
                 optimizer: Optimizer, sums: Tensor, precision: str) -> None:
        self.capture, self.take, self.model, self.optimizer, self.sums = capture, take, model, optimizer, sums
        self.tolerance, self.refused = TOLERANCES[precision], False
        # The kernels of CUDA read a rate in single precision; those of the CPU take it as Python's number.
        kind = torch.float32 if sums.is_cuda else torch.float64
        self.rate = torch.zeros((), dtype=kind, device=sums.device)
        self.played: dict[int, tuple[Tensor, Work]] = {}

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on."""
        self.rate.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate if self.refused else self.rate

    def step(self, batches: Any, step: int) -> bool:
        """Take a step of an epoch; False where the caller has to take it.

        So it is with the very first, which makes the optimizer's moments, with batches that are not made on the device,
        of rows that lie there, and with all once a recording was refused.
        """
        rows = batches.steps[step]
        made_there = hasattr(batches, "batch") and rows.device == self.sums.device
        if self.refused or not self.optimizer.state or not made_there:
            return False
        if len(rows) not in self.played:
            self._record(batches.batch, rows)
            return True
        buffer, play = self.played[len(rows)]
        buffer.copy_(rows)
        play()
        return True

    def _record(self, batch: Callable[[Tensor], Any], rows: Int64[Tensor, "b *_"]) -> None:
        """Record steps of this size, and compare; the step is taken, whatever comes of it."""
        before, rate, buffer = self._room_for_a_copy(), self.rate.clone(), rows.clone()
        self._work(batch, buffer)
        expected = self._room_for_a_copy() if before else {}
        if not (before and expected):
            self._refuse("out of memory for copies of weights and moments")
            return
        try:
            play = self._captured(batch, buffer, before)
            self._put_back(before)
            self.rate.copy_(rate)
            buffer.copy_(rows)
            play()
            problem = difference(before, expected, self._copy(), self.tolerance)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            self.played[len(rows)] = buffer, play
            return
        self._put_back(expected)
        self.rate.copy_(rate)
        self._refuse(problem)

    def _refuse(self, problem: str) -> None:
        """Go on with plain steps, which take the rate as a number, and say why."""
        self.refused = True
        self.played.clear()
        self.set_rate(float(self.rate))
        warnings.warn(f"training goes on step by step: a recorded step cannot be used ({problem})", RuntimeWarning,
                      stacklevel=2)

    def _captured(self, batch: Callable[[Tensor], Any], buffer: Int64[Tensor, "b *_"], before: State) -> Work:
        """A recording made on other rows and at another rate, so that one that keeps them shows in the comparison."""
        self._put_back(before)
        buffer.copy_(buffer[:1].expand_as(buffer).clone())
        self.rate.zero_()
        with capturable(self.optimizer, self.sums.is_cuda):
            return self.capture(lambda: self._work(batch, buffer))

    def _work(self, batch: Callable[[Tensor], Any], rows: Tensor) -> None:
        """A plain step on what the rows say; no cast of a weight outlives it, as one outside the recording would."""
        with torch.autocast(rows.device.type, enabled=False, cache_enabled=False):
            self.take(*batch(rows))

    def _live(self) -> State:
        """Every tensor that a step changes, by what it is."""
        state: State = {"sums": [self.sums], "weights": list(self.model.parameters()),
                        "buffers": list(self.model.buffers())}
        for own in self.optimizer.state.values():
            for name, value in own.items():
                state.setdefault(name, []).append(value)
        return state

    def _room_for_a_copy(self) -> State:
        """A copy of all that a step changes; empty where the device has no room for it."""
        try:
            return self._copy()
        except torch.OutOfMemoryError:
            return {}

    def _copy(self) -> State:
        return {name: [one.detach().clone() for one in some] for name, some in self._live().items()}

    @torch.no_grad()
    def _put_back(self, state: State) -> None:
        """In place: a recording knows its tensors by where they lie."""
        for name, some in self._live().items():
            for one, saved in zip(some, state[name], strict=True):
                one.copy_(saved)


@contextmanager
def capturable(optimizer: Optimizer, on: bool) -> Iterator[None]:
    """Inside, an optimizer's step may be part of a CUDA graph; its warning of steps that are none stays unsaid."""
    try:
        for group in optimizer.param_groups:
            group["capturable"] = on
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable")
            yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False


def difference(before: State, expected: State, found: State, tolerance: float) -> str:
    """What keeps two states after a step from being the same; empty where nothing does."""
    for name in before:
        then, goal, here = (state[name] for state in (before, expected, found))
        apart, moved = norm(apart_by(here, goal)), norm(apart_by(goal, then))
        rounding = torch.finfo(torch.float32).eps * norm(goal)
        if not apart <= tolerance * moved + rounding:  # also where one is no number
            return f"its {name} are {apart:.2g} away from those of a plain step, which moves them by {moved:.2g}"
    return ""


def apart_by(some: list[Tensor], others: list[Tensor]) -> Iterator[Tensor]:
    """The differences, in double precision, one at a time: of a large model all at once may find no room."""
    return (one.double() - other for one, other in zip(some, others, strict=True))


def norm(tensors: Iterable[Tensor]) -> float:
    """Of all numbers together, in double precision."""
    norms = [one.double().norm() for one in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0


class CudaCapture:
    """Records steps as CUDA graphs, which share their memory: they are played one after the other.

    Before the capture the step is run on the stream of the capture, as torch asks for. The last of these runs refuses
    operations that wait for the device: in a capture they would harm the process, here they raise an error.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """What launches again the work that the function `work` launches."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                return self._captured(work)
        finally:
            here.wait_stream(self.stream)

    def _captured(self, work: Work) -> Work:
        graph, constants = torch.cuda.CUDAGraph(), Constants(self.device)
        for _ in range(WARM_UP):
            work()
        with constants.noted():
            work()
        with refusing_to_wait(), constants.handed_out():
            work()
        gc.collect()  # what would be freed within a capture may spoil it
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream), constants.handed_out():
            work()
        return Played(graph, constants)


@contextmanager
def refusing_to_wait() -> Iterator[None]:
    """Inside, an operation that waits for a GPU raises an error."""
    former = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(former)


class Played:
    """A CUDA graph with the constants that it reads."""

    def __init__(self, graph: Any, constants: Constants) -> None:
        self.graph, self.constants = graph, constants

    def __call__(self) -> None:
        """Launch it."""
        self.graph.replay()
