"""What a run's model costs: by formula where there is one, otherwise counted."""

import torch
from torch import nn

from translution_lib import cost
from translution_runs.baselines import Baseline
from translution_runs.building import Config, Model, arguments, build_model

STATES = 4
"""Numbers that a training step holds for each parameter: itself, its gradient and two of AdamW's."""

_COUNTED: dict[str, int] = {}  # multiply–adds of the baselines that were counted


def costs(config: Config, model: nn.Module) -> dict[str, int]:
    """Parameters, and multiply–adds of one image or window of text, as the papers count them and all of them.

    A baseline's multiply–adds are those of the matrix products and convolutions that a forward run makes, the same in
    both ways of counting.
    """
    if not isinstance(model, Baseline):
        return {"parameters": cost.parameters(model), "macs_as_printed": cost.macs_as_printed(model),
                "macs_true": cost.macs_true(model)}
    macs = baseline_macs(config)
    return {"parameters": cost.count_parameters(model), "macs_as_printed": macs, "macs_true": macs}


def baseline_macs(config: Config) -> int:
    """Multiply–adds of one picture in a baseline's matrix products and convolutions; the same model is counted once."""
    key = repr((config.model, arguments(config)))
    if key not in _COUNTED:
        _COUNTED[key] = cost.count_macs(*counted(config))
    return _COUNTED[key]


def baseline_memory(config: Config, batch: int) -> cost.Memory:
    """What a step of a baseline keeps, counted on one picture; the workspace of backward is left out."""
    model, picture = counted(config)
    parameters = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    saved = batch * cost.count_saved_bytes(model, picture)
    return cost.Memory(parameters, parameters, (STATES - 2) * parameters, saved, 0, "backward")


def counted(config: Config) -> tuple[Model, torch.Tensor]:
    """Another copy of a baseline and a picture of zeros; without numbers where no decision depends on them."""
    device = "cpu" if config.model == "routing-transformer" else "meta"  # its clusters are chosen by their numbers
    with torch.random.fork_rng(), torch.device(device):
        model = build_model(config).eval()
    return model, torch.zeros(1, config.channels, config.canvas, config.canvas, device=device)
