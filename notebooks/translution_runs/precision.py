"""A forward pass in the configured precision, whatever the model reads."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn


def forward(config: Any, model: nn.Module, inputs: Shaped[Tensor, "b *_"]) -> Float[Tensor, "b *k"]:
    """Logits in float32; with precision "bfloat16" the model runs under autocast.

    Args:
        config: of a run: its `device` and `precision` are read.
        model: a classifier of images, or a language model.
        inputs: a batch of what it reads.
    """
    kind = torch.device(config.device).type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=config.precision == "bfloat16"):
        logits: Tensor = model(inputs)
    return logits.float()
