"""A forward pass in the configured precision, whatever the model reads."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from translution_lib import backend


def forward(config: Any, model: nn.Module, inputs: Shaped[Tensor, "b *_"]) -> Float[Tensor, "b *k"]:
    """Logits in float32; with precision "bfloat16" the model runs under autocast.

    On a processor the backend is torch's, so that a run repeated gives the same numbers; "auto" would choose by time.

    Args:
        config: of a run: its `device` and `precision` are read.
        model: a classifier of images, or a language model.
        inputs: a batch of what it reads.
    """
    kind = torch.device(config.device).type
    half = torch.autocast(kind, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")
    with half, backend("torch" if kind == "cpu" else "auto"):
        logits: Tensor = model(inputs)
    return logits.float()
