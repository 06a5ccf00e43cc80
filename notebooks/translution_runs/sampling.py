"""Text from a trained model: one token after the other, each drawn from what the model expects."""

import torch
from jaxtyping import Int64
from torch import Tensor

from translution_lib.models import GPT


@torch.no_grad()
def generate(
    model: GPT, start: Int64[Tensor, " n"], count: int, temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Int64[Tensor, " m"]:
    """Append `count` tokens to `start`, each drawn from softmax(logits / temperature).

    Args:
        model: reads the last tokens only, as many as its context has.
        start: at least one token, on the model's device.
        count: tokens to draw.
        temperature: above 0; towards 0 the most probable token is taken.
        generator: on the CPU; torch's own by default.

    Raises:
        ValueError: no token to begin with, a negative count, a temperature that is not above 0.

    Label: thm-language-temperature.
    """
    if not len(start) or count < 0 or not temperature > 0:
        raise ValueError(f"start, count, temperature: got {len(start)} tokens, {count} and {temperature}, expected at "
                         "least one token, a count from 0 and a temperature above 0")
    model.eval()
    written = start
    for _ in range(count):
        logits = model(written[None, -model.config.context:])[0, -1].double().cpu() / temperature
        drawn = torch.multinomial(logits.softmax(0), 1, generator=generator)
        written = torch.cat([written, drawn.to(written.device)])
    return written
