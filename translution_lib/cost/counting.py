"""What a model costs, counted: its numbers, the matrix products of a run, and the bytes that a run keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel

from translution_lib.cost.on_meta import OnMeta
from translution_lib.models import GPT, GPTConfig, ViT, ViTConfig
from translution_lib.models.blocks import arguments, without_numbers

Config = ViTConfig | GPTConfig


def config_of(model: Config | nn.Module) -> Config:
    """Return the configuration of a model, or the configuration itself.

    Raises:
        ValueError: anything but a ViT, a GPT or one of their configurations.
    """
    config = model.config if isinstance(model, (ViT, GPT)) else model
    if not isinstance(config, (ViTConfig, GPTConfig)):
        raise ValueError(f"model must be a ViT, a GPT or the configuration of one, got {type(model).__name__}; "
                         "count_parameters and count_macs take any module")
    return config


def build(config: Config) -> nn.Module:
    """Return a fresh model of a configuration."""
    return (ViT if isinstance(config, ViTConfig) else GPT)(**arguments(config))


def model_without_numbers(config: Config, dtype: str) -> Any:
    """Return a model without numbers, but for counters, by which a layer may decide what it does: they are zero."""
    with without_numbers():
        model = build(config).to(getattr(torch, dtype))
    for module in model.modules():
        module._buffers.update({name: torch.zeros((), dtype=buffer.dtype) for name, buffer in module._buffers.items()
                                if buffer is not None and not buffer.ndim})
    return model


def sample_of(config: Config, like: Tensor, batch: int = 1) -> Tensor:
    """Return zeros of the shape of a batch of images or texts, on the device of a tensor."""
    if isinstance(config, ViTConfig):
        return like.new_zeros(batch, *config.image)
    return like.new_zeros(batch, config.context, dtype=torch.long)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable numbers of any module, each shared one once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def count_macs(model: nn.Module, inputs: Tensor | None = None) -> int:
    """Return the multiply–adds of the matrix products of one forward run, counted by torch's FlopCounterMode.

    torch counts two operations per multiply–add; this is half of its number. Fused attention runs as two matrix
    products meanwhile, since torch has no rule for its CPU kernel.

    Args:
        model: a ViT or a GPT, or any module if ``inputs`` is given; on the meta device nothing is computed.
        inputs: what to feed; by default one sample of the model's size.

    Raises:
        ValueError: no inputs for a module that is neither a ViT nor a GPT.
    """
    if inputs is None and not isinstance(model, (ViT, GPT)):
        raise ValueError(f"inputs must be given for a module that is neither a ViT nor a GPT: {type(model).__name__}")
    from torch.utils.flop_counter import FlopCounterMode  # brings Triton, for which `import translution_lib` would wait

    given = sample_of(config_of(model), next(model.parameters())) if inputs is None else inputs
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(given)
    return counter.get_total_flops() // 2


def count_saved_bytes(module: nn.Module, x: Tensor, *, tables: bool = False) -> int:
    """Return the bytes that a forward run keeps for backward: each storage once, parameters and buffers excepted.

    Args:
        module: any module; on the meta device nothing is computed, and attention is the fused kernel that would run.
        x: its input; a gradient for it is asked for as well, as in the middle of a model.
        tables: count tensors of integers and truth values too, such as a table of relation ids.
    """
    known = {storage_of(t) for t in (*module.parameters(), *module.buffers())}
    graph: WeakSet[Saved] = WeakSet()       # what it lets go is no longer in it

    def pack(tensor: Tensor) -> Saved:
        saved = Saved(tensor.detach())
        graph.add(saved)
        return saved

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda saved: saved.tensor), as_on_a_device(x):
        result = module(x.detach().requires_grad_(x.is_floating_point()))
    kept = {storage_of(saved.tensor): saved.tensor for saved in graph}
    del result
    known |= {storage_of(t) for t in module.buffers()}      # a table that is made for a device at its first use
    return sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items()
               if storage not in known and (tables or tensor.is_floating_point()))


class Saved:
    """A tensor that autograd saves."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def as_on_a_device(x: Tensor) -> Iterator[None]:
    """Let operations on "meta" be those of a processor, if x lies there."""
    if not x.is_meta:
        yield
        return
    with OnMeta("cpu"):
        yield


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """What tells storages apart on every device; on "meta" all have the same address."""
    return StorageWeakRef(tensor.untyped_storage())
