"""What a model costs, by running it: the oracles of the closed formulas."""

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from translution_lib.cost.model import config_of
from translution_lib.models import GPT, ViT, ViTConfig


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
    inputs = _sample(model) if inputs is None else inputs
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(inputs)
    return counter.get_total_flops() // 2


def _sample(model: nn.Module) -> Tensor:
    """Return zeros of the shape of one sample, on the model's device."""
    if not isinstance(model, (ViT, GPT)):
        raise ValueError(f"inputs must be given for a module that is neither a ViT nor a GPT: {type(model).__name__}")
    config, weight = config_of(model), next(model.parameters())
    if isinstance(config, ViTConfig):
        return weight.new_zeros(1, config.channels, config.image_size, config.image_size)
    return weight.new_zeros(1, config.context, dtype=torch.long)


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """What tells storages apart on every device; on "meta" all have the same address."""
    return StorageWeakRef(tensor.untyped_storage())


def count_saved_bytes(module: nn.Module, x: Tensor, *, tables: bool = False) -> int:
    """Return the bytes that a forward run keeps for backward: each storage once, parameters and buffers excepted.

    Args:
        module: any module.
        x: its input; a gradient for it is asked for as well, as in the middle of a model.
        tables: count tensors of integers and truth values too, such as a table of relation ids.
    """
    known = {storage_of(t) for t in (*module.parameters(), *module.buffers())}
    kept: dict[StorageWeakRef, Tensor] = {}  # held, so that no other takes the place of one that the graph lets go

    def pack(tensor: Tensor) -> Tensor:
        if storage_of(tensor) not in known and (tables or tensor.is_floating_point()):
            kept[storage_of(tensor)] = tensor.detach()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(x.detach().requires_grad_(x.is_floating_point()))
    del result
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
