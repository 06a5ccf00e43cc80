"""A text of any length from a trained model, which reads as many of its last tokens as its context has."""

import torch
from jaxtyping import Int64
from torch import Tensor

from translution_lib.models import GPT


def generate(
    model: GPT, start: Int64[Tensor, " n"], count: int, temperature: float | int = 1.0,
    generator: torch.Generator | None = None,
) -> Int64[Tensor, " m"]:
    """Append `count` tokens to `start` as `GPT.generate` draws them, and go on from the last ones where it ends.

    Args:
        model: of any context.
        start: at least one token, on the model's device.
        count: tokens to draw.
        temperature: 0 takes the most probable token.
        generator: on any device; torch's own by default.

    Raises:
        ValueError: as `GPT.generate`.
    """
    written, wanted = start, len(start) + count
    while len(written) < wanted or written is start:
        read = written[-model.config.context:]
        more = min(wanted - len(written), model.config.context + 1 - len(read))
        new = model.generate(read[None], more, temperature=temperature, generator=generator)[0, len(read):]
        written = torch.cat([written, new])
    return written
