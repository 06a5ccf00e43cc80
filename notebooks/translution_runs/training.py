"""Training with Lightning Fabric, for any kind of experiment: it can be stopped after any step, and goes on there."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import cos, isfinite, pi
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from translution_runs.checkpoint import Keeper
from translution_runs.fabric import Fabric
from translution_runs.kinds import AnyConfig, kind_of
from translution_runs.recorded import Capture, CudaCapture, Recorded, recordable
from translution_runs.records import Epoch
from translution_runs.seeds import derive
from translution_runs.signals import Interrupted, stop_on_signals
from translution_runs.states import restore_state, state_of

PRECISIONS: dict[str, Any] = {"float32": "32-true", "bfloat16": "bf16-mixed"}


def learning_rate(config: AnyConfig, epoch: int) -> float:
    """A cosine from the configured rate at epoch 0 towards 0 after the last, constant within an epoch."""
    return config.learning_rate * (1 + cos(pi * epoch / config.epochs)) / 2


def make_fabric(config: AnyConfig, **options: Any) -> Fabric:
    """Fabric on the configured device with the configured precision; `options` for several processes."""
    kind, _, number = config.device.partition(":")
    devices: Any = [int(number or 0)] if kind == "cuda" else 1
    return Fabric(accelerator=kind, precision=PRECISIONS[config.precision], **{"devices": devices, **options})


@dataclass
class Progress:
    """How far a training is, and the sums of its running epoch: what a checkpoint holds beside the weights."""

    epochs: list[Epoch] = field(default_factory=list)
    step: int = 0  # of the running epoch
    loss: float = 0.0  # summed over its examples
    correct: float = 0.0
    seconds: float = 0.0
    resumed: int = 0

    def state(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "epochs": [epoch.model_dump() for epoch in self.epochs]}

    @classmethod
    def of(cls, state: dict[str, Any], epochs: int) -> "Progress":
        """What `state` was made of, resumed once more.

        Raises:
            ValueError, TypeError, KeyError: what no training of so many epochs has written.
        """
        found = cls(**{**state, "epochs": [Epoch(**epoch) for epoch in state["epochs"]],
                       "resumed": state["resumed"] + 1})
        if len(found.epochs) > epochs or found.step < 0 or [one.number for one in found.epochs] != [
                *range(1, len(found.epochs) + 1)]:
            raise ValueError(f"progress: {len(found.epochs)} of {epochs} epochs and {found.step} steps")
        return found


def train(
    config: AnyConfig,
    model: nn.Module,
    data: Any,
    keeper: Keeper | None = None,
    after_epoch: Callable[[Epoch], None] | None = None,
    fabric: Fabric | None = None,
    capture: Capture | None = None,
) -> Progress:
    """Train `model` in place.

    All that is random in a step follows from the seed and the numbers of epoch and step. A run that goes on from a
    checkpoint therefore ends in the same weights, bit for bit, as one that was never stopped (same device and threads).

    Args:
        config: the run's parameters.
        model: from a batch of examples to their logits, on the configured device.
        data: what to train on: images to place on canvases, or a text to cut into windows.
        keeper: of the checkpoints; None keeps none.
        after_epoch: called with each finished epoch.
        fabric: for several processes, in each of which this function is called; by default one on `config.device`.
        capture: how steps are recorded where the model allows it; by default as CUDA graphs on a GPU, else not at all.

    Returns:
        The finished epochs, and how often the training was resumed.

    Raises:
        Interrupted: INT or TERM came; a checkpoint of the last step is written.
        ValueError: no checkpoint of these parameters is readable where there are some.
        FloatingPointError: the loss is no longer finite.
    """
    with stop_on_signals() as stop:
        return Trainer(config, model, data, keeper, fabric or make_fabric(config), stop, capture).run(after_epoch)


class Trainer:
    """The state of a training; `run` is the loop."""

    def __init__(self, config: AnyConfig, model: nn.Module, data: Any, keeper: Keeper | None, fabric: Fabric,
                 stop: Any, capture: Capture | None = None) -> None:
        self.config, self.model, self.data, self.keeper = config, model, data.on(fabric.device), keeper
        self.fabric, self.stop, self.kind = fabric, stop, kind_of(config)
        compiled: Any = torch.compile(model) if config.compile else model
        self.wrapped = fabric.setup_module(compiled)
        plain = torch.optim.AdamW(self.wrapped.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay,
                                  fused=True)  # one pass over the weights; they are many where relations are
        self.optimizer: Any = fabric.setup_optimizers(plain)
        self.plain = plain
        self.progress = self._restored()
        self.examples = self.kind.examples(config, data)
        self.steps = -(-self.examples // config.batch_size)
        self.sums = torch.zeros(2, dtype=torch.float64, device=fabric.device)  # loss and number right, of the epoch
        self.recorded = self._recorded(capture)

    @property
    def checksums(self) -> dict[str, str]:
        """Of what is trained on."""
        return dict(self.data.sha256)

    @property
    def step(self) -> int:
        """Steps taken since the very start."""
        return len(self.progress.epochs) * self.steps + self.progress.step

    def run(self, after_epoch: Callable[[Epoch], None] | None = None) -> Progress:
        """The epochs that are left."""
        first, total = self.step, self.steps * self.config.epochs
        hidden = {"disable": True} if self.fabric.global_rank else {}  # otherwise TQDM_DISABLE decides
        with tqdm(total=total, initial=first, unit="step", mininterval=0.5, **hidden) as bar:
            while len(self.progress.epochs) < self.config.epochs:
                self._epoch(bar)
                if after_epoch is not None:
                    after_epoch(self.progress.epochs[-1])
        if self.keeper is not None and self.step > first:
            self._save()
        self.optimizer.zero_grad()  # what the last step left
        return self.progress

    def _epoch(self, bar: Any) -> None:
        """The steps that are left of the running epoch."""
        number, progress = len(self.progress.epochs), self.progress
        rate = learning_rate(self.config, number)
        self._set_rate(rate)
        self.model.train()
        batches, started = self.kind.epoch(self.config, self.data, number), perf_counter()
        sums = torch.tensor([progress.loss, progress.correct], dtype=torch.float64) * (self.fabric.global_rank == 0)
        self.sums.copy_(sums)
        while progress.step < len(batches):
            if self.recorded is None or not self.recorded.step(batches, progress.step):
                self._step(batches, number, progress.step)
            progress.step += 1
            bar.update()
            self._pause(started)
        self._count(started)
        progress.epochs.append(summary(number, rate, progress, self.examples, bar))
        progress.step, progress.loss, progress.correct, progress.seconds = 0, 0.0, 0.0, 0.0

    def _set_rate(self, rate: float) -> None:
        if self.recorded is not None:
            self.recorded.set_rate(rate)
            return
        for group in self.plain.param_groups:
            group["lr"] = rate

    def _step(self, batches: Any, epoch: int, step: int) -> None:
        """One step of an epoch: this process's part of it."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        torch.manual_seed(derive(self.config.seed, "step", epoch, step, rank))  # dropout, where a mixer has it
        self._take(list(batches.parts(step, rank, world)), len(batches.steps[step]))

    def _take(self, parts: list[tuple[Tensor, Tensor]], count: int) -> None:
        """One step of the optimizer; adds summed loss and number right of the parts to the epoch's sums.

        Nothing here waits for the device, and but for the parts nothing depends on the step.
        """
        world, sums = self.fabric.world_size, torch.zeros_like(self.sums)
        self.optimizer.zero_grad()
        for k, (inputs, labels) in enumerate(parts):
            with self.fabric.no_backward_sync(self.wrapped, enabled=world > 1 and k + 1 < len(parts)):
                loss, correct = summed_loss(self.wrapped, inputs, labels, self.kind.sums)
                self.fabric.backward(loss * (world / count))  # processes average their gradients
            sums += torch.stack([loss.detach().double(), correct.double()])
        self.optimizer.step()
        self.sums += sums

    def _recorded(self, capture: Capture | None) -> Recorded | None:
        """What records and plays the steps, where that is wanted and the training allows it."""
        if capture is None and self.fabric.device.type == "cuda":
            capture = CudaCapture(self.fabric.device)
        if capture is None or not recordable(self.config, self.model, self.fabric.world_size):
            return None

        def take(inputs: Tensor, labels: Tensor) -> None:
            self._take([(inputs, labels)], len(labels))

        return Recorded(capture, take, self.model, self.plain, self.sums, self.config.precision)

    def _pause(self, started: float) -> None:
        """A checkpoint where one is due; an exception after a signal."""
        first = self.fabric.global_rank == 0  # it saves, so its clock counts
        due = first and self.keeper is not None and self.keeper.due(self.step)
        due, signal = self._agreed(due, self.stop.requested or 0)
        if not (due or signal):
            return
        before = self.progress.seconds
        self._count(started)
        if self.keeper is not None:
            self._save()
        self.progress.seconds = before  # counted again at the epoch's end, from its start here
        if signal:
            raise Interrupted(signal, self.step)

    def _agreed(self, due: bool, signal: int) -> tuple[bool, int]:
        """What any of the processes says, so that all do the same."""
        if self.fabric.world_size == 1:
            return due, signal
        both: Any = self.fabric.all_reduce(torch.tensor([int(due), signal], device=self.fabric.device), reduce_op="max")
        return bool(both[0]), int(both[1])

    def _count(self, started: float) -> None:
        """Bring the sums of all processes, and the seconds since `started`, into the progress."""
        total: Any = self.sums
        if self.fabric.world_size > 1:
            total = self.fabric.all_reduce(total.clone(), reduce_op="sum")
        self.progress.loss, self.progress.correct = total.tolist()
        self.progress.seconds += perf_counter() - started

    def _save(self) -> None:
        state = {**state_of(self.wrapped, self.plain, self.fabric), "progress": self.progress.state(),
                 "data": self.checksums}
        if self.fabric.global_rank == 0 and self.keeper is not None:
            self.keeper.save(self.step, state)
        self.fabric.barrier()

    def _restored(self) -> Progress:
        progress = Progress()

        def use(state: dict[str, Any]) -> None:
            nonlocal progress
            if state.get("data", self.checksums) != self.checksums:  # older ones do not say
                raise ValueError("it was trained on other data, by their checksums")
            found = Progress.of(state["progress"], self.config.epochs)
            restore_state(self.wrapped, self.plain, self.fabric, state)
            progress = found

        if self.keeper is not None:
            self.keeper.load(use=use)
        return progress


def summed_loss(model: nn.Module, inputs: Tensor, labels: Tensor, sums: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Loss summed over the examples, and how many are right, as the experiment's `sums` counts them.

    A part of a step may be without examples; its process still takes part, with an empty one that counts for nothing.
    """
    if not len(labels):
        nothing = model(inputs.new_zeros(1, *inputs.shape[1:])).float().sum() * 0
        return nothing, nothing.detach()
    loss, correct = sums(model(inputs).float(), labels)
    return loss, correct


def summary(number: int, rate: float, progress: Progress, n: int, bar: Any) -> Epoch:
    """The epoch's figures, shown on the progress bar; numbers count from 1."""
    loss, accuracy = progress.loss / n, progress.correct / n
    if not isfinite(loss):
        raise FloatingPointError(f"the training loss is {loss} in epoch {number + 1}; try a smaller learning_rate")
    bar.set_postfix(epoch=number + 1, loss=f"{loss:.3f}", accuracy=f"{accuracy:.3f}")
    return Epoch(number=number + 1, learning_rate=rate, loss=loss, accuracy=accuracy, seconds=progress.seconds)
