"""The few numbers that say what a trained model's layers have become: scales, widths, biases by distance."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

DIGITS = 6
"""Significant digits that a record keeps of a number."""


def learnt(model: nn.Module) -> dict[str, list[list[float]]]:
    """What the layers of a model give by `learnt()`, as "layer 1: sigma" and the like, a line for each head.

    Empty for layers, and for networks without mixing layers, that have none.
    """
    found = {}
    blocks: Iterable[Any] = getattr(model, "blocks", ())
    for number, block in enumerate(blocks, 1):
        for name, values in getattr(getattr(block, "mixer", None), "learnt", dict)().items():
            found[f"layer {number}: {name}"] = rounded(values)
    return found


def rounded(values: Tensor) -> list[list[float]]:
    """The numbers of each head with `DIGITS` significant digits."""
    lines = values.detach().double().cpu().flatten(1) if values.ndim > 1 else values.detach().double().cpu()[:, None]
    return [[float(f"{value:.{DIGITS}g}") for value in line] for line in lines.tolist()]
