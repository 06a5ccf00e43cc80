"""Weights and optimizer as one state, whole and on the CPU, whatever the processes hold between them."""

from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from translution_runs.fabric import Fabric


def state_of(wrapped: nn.Module, optimizer: Optimizer, fabric: Fabric) -> dict[str, Any]:
    """The whole state, by the names of the parameters; empty in all processes but the first where there are several.

    The names are those of the model itself, so that any number of processes can go on from it.
    """
    model, optimizer_state = get_state_dict(inner(wrapped), optimizer, options=options(fabric))
    return {"model": model, "optimizer": optimizer_state}


def restore_state(wrapped: nn.Module, optimizer: Optimizer, fabric: Fabric, state: dict[str, Any]) -> None:
    """Put a state of `state_of` into model and optimizer; every process has read it.

    Raises:
        ValueError: a state with other weights; torch would leave one that is missing as it is, and say nothing.
    """
    expected, found = get_model_state_dict(inner(wrapped)).keys(), state["model"].keys()
    if expected != found:
        raise ValueError(f"model: got the weights {sorted(found - expected)} too many and {sorted(expected - found)} "
                         f"too few of {len(expected)}")
    set_state_dict(inner(wrapped), optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"], options=StateDictOptions(full_state_dict=True))


def options(fabric: Fabric) -> StateDictOptions:
    """Whole tensors; on the CPU where a process may hold a part only."""
    return StateDictOptions(full_state_dict=True, cpu_offload=fabric.world_size > 1)


def inner(wrapped: nn.Module) -> nn.Module:
    """What Fabric wraps: the model, or the module that spreads it over processes."""
    return getattr(wrapped, "_forward_module", wrapped)
