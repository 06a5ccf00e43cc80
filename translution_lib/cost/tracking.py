"""The memory of a run, counted: every tensor that torch makes, from its birth to its end."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from translution_lib.cost.counting import (
    Config,
    as_on_a_device,
    build,
    config_of,
    model_without_numbers,
    sample_of,
)
from translution_lib.models import ViTConfig


class TensorBytes(TorchDispatchMode):
    """Within this context the bytes of living tensors are counted, each storage once.

    Attributes:
        now: bytes of the storages that were made inside and still live.
        peak: the largest value of ``now`` so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._living: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operation and count the storages of its results, unless they are those of its arguments."""
        result = func(*args, **(kwargs or {}))
        if not aliases(func):
            for tensor in tree_iter(result):
                if isinstance(tensor, Tensor):
                    self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._living:
            return
        self._living[key] = weakref.ref(storage, partial(self._end, key, size))
        self.now += size
        self.peak = max(self.peak, self.now)

    def _end(self, key: int, size: int, _: weakref.ref) -> None:
        del self._living[key]
        self.now -= size


@cache
def aliases(operation: torch._ops.OpOverload) -> bool:
    """Whether the results of an operation share the storage of its arguments."""
    return any(result.alias_info is not None for result in operation._schema.returns)


def count_peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that the tensors made during ``run()`` hold at one moment.

    What an operation makes and frees inside one kernel is not seen, nor is what the allocator rounds up.

    Args:
        run: a function without arguments, on any device; on the meta device nothing is computed.
    """
    with TensorBytes() as tracker:
        result = run()
    del result
    return tracker.peak


def count_memory(model: Config | nn.Module, batch: int, dtype: str = "float32", optimizer: str = "adamw",
                 checkpoint: bool | None = None, autocast: str | None = None, device: str = "cpu") -> int:
    """Return the peak of real training steps, in bytes: what :func:`cost.memory` predicts, counted by running them.

    Arguments as there; ``device`` is where to run. On "meta" nothing is computed, so that sizes hardly matter; there
    autocast does not work.
    """
    return count_peak_bytes(training(model, batch, dtype, optimizer, checkpoint, autocast, device))


def training(model: Config | nn.Module, batch: int, dtype: str = "float32", optimizer: str = "adamw",
             checkpoint: bool | None = None, autocast: str | None = None, device: str = "cpu") -> Callable[[], None]:
    """Return a function that builds a model and its batch anew and makes two training steps."""
    config = config_of(model)
    config = config if checkpoint is None else replace(config, checkpoint=checkpoint)

    def run() -> None:
        with torch.device(device):
            made = model_without_numbers(config, dtype) if device == "meta" else build(config).to(getattr(torch, dtype))
        inputs, targets = batch_of(config, batch, next(made.parameters()))
        step = OPTIMIZERS[optimizer](made.parameters())
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16) if autocast else nullcontext(), as_on_a_device(inputs):
                loss = loss_of(made, inputs, targets)
            loss.backward()
            if step is not None:
                step.step()
            made.zero_grad()

    return run


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    return F.cross_entropy(model(inputs).flatten(0, -2), targets)


def batch_of(config: Config, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return zeros for a batch: images and classes, or texts and what follows each token."""
    if isinstance(config, ViTConfig):
        return sample_of(config, like, batch), like.new_zeros(batch, dtype=torch.long)
    return sample_of(config, like, batch), like.new_zeros(batch * config.context, dtype=torch.long)


OPTIMIZERS: dict[str, Callable] = {
    "none": lambda parameters, foreach=None: None, "sgd": partial(torch.optim.SGD, lr=1e-3),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9), "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
