"""Initialisation of relation weights and of the maps that all pairs share.

Source: chapter "The operator"; the two rules differ by √C′, a factor of 13.9 at C = 192.
"""

import math

import torch
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice

INITS = ("fan_in", "released")


def linear_bound(fan_in: int) -> float:
    """Return 1/√fan_in, the bound of torch's default initialisation of a linear map."""
    return 1 / math.sqrt(max(1, fan_in))


def relation_bound(rows: int, columns: int, init: str) -> float:
    """Return the bound of one relation's matrix (rows columns).

    "fan_in" treats every matrix as the linear map that it is: 1/√rows. "released" is what the authors' code does by
    calling ``kaiming_uniform_`` on a 3-D tensor, which takes rows·columns as the fan-in: 1/√(rows·columns).

    Label: eq-notation-init, eq-static-released, thm-translution-start.
    """
    check_choice("init", init, INITS)
    return linear_bound(rows if init == "fan_in" else rows * columns)


def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
    """Return a tensor drawn uniformly from [−bound, bound]."""
    return torch.empty(shape).uniform_(-bound, bound)


def linear(rows: int, columns: int, bias: bool = False) -> nn.Linear:
    """Return the linear map f W + b whose W (rows columns) :func:`uniform` draws; b starts at zero.

    Its weight is the transpose, and nothing but W is drawn.
    """
    made = nn.Linear(1, 1, bias, device="meta")     # an empty map would warn of its own initialisation
    made.in_features, made.out_features = rows, columns
    drawn = uniform((rows, columns), linear_bound(rows))
    made.weight = nn.Parameter(drawn.T.contiguous())
    if bias:
        made.bias = nn.Parameter(drawn.new_zeros(columns))
    return made
