"""The memory of a run, counted exactly: every tensor that torch makes, from its birth to its end."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from translution_lib.cost.model import Config, config_of
from translution_lib.models import GPT, ViT, ViTConfig


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
        known = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in known:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._living:
            return

        def end(_: weakref.ref) -> None:
            del self._living[key]
            self.now -= size

        self._living[key] = weakref.ref(storage, end)
        self.now += size
        self.peak = max(self.peak, self.now)


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
    autocast does not work, self-attention is not the fused kernel, and the optimizer is that of a CPU.
    """
    return count_peak_bytes(training(model, batch, dtype, optimizer, checkpoint, autocast, device))


def training(model: Config | nn.Module, batch: int, dtype: str = "float32", optimizer: str = "adamw",
             checkpoint: bool | None = None, autocast: str | None = None, device: str = "cpu") -> Callable[[], None]:
    """Return a function that builds a model and its batch anew and makes two training steps."""
    config = config_of(model)
    config = config if checkpoint is None else replace(config, checkpoint=checkpoint)

    def run() -> None:
        with torch.device(device):
            made = build(config).to(getattr(torch, dtype))
        inputs, targets = _batch(config, batch, next(made.parameters()))
        step = _optimizer(optimizer, made.parameters())
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16) if autocast else nullcontext():
                loss = F.cross_entropy(made(inputs).flatten(0, -2), targets)
            loss.backward()
            if step is not None:
                step.step()
            made.zero_grad()

    return run


def _batch(config: Config, batch: int, like: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(config, ViTConfig):
        images = torch.randn(batch, config.channels, config.image_size, config.image_size)
        return images.to(like), torch.randint(config.classes, (batch,), device=like.device)
    tokens, following = torch.randint(config.vocabulary, (2, batch, config.context), device=like.device)
    return tokens.clone(), following.flatten()


def _optimizer(name: str, parameters) -> torch.optim.Optimizer | None:
    sgd = partial(torch.optim.SGD, lr=1e-3)
    makers: dict[str, Callable] = {"none": lambda p: None, "sgd": sgd, "momentum": partial(sgd, momentum=0.9),
                                   "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return makers[name](parameters)


def build(config: Config) -> nn.Module:
    """Return a fresh model of a configuration."""
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "options"}
    return (ViT if isinstance(config, ViTConfig) else GPT)(**values, **config.options)
