"""Initialisation of relation weights.

Source: chapter "The operator"; the two rules differ by √C′, a factor of 13.9 at C = 192.
"""

import math

import torch
from torch import Tensor

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
