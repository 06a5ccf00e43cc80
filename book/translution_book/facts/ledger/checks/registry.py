"""The named checks: each says in its first line what it looks for, and whether that is so."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Check = Callable[[], bool]
Three = tuple[Tensor, Tensor, Tensor]
CHECKS: dict[str, Check] = {}
"""By name. A claim that names a check holds if the check returns True."""


def check(function: Check) -> Check:
    """Register a function under its own name; it runs once, and its answer is kept."""
    CHECKS[function.__name__] = kept = cache(function)
    return kept


def looks_for(name: str) -> str:
    """Return what a check looks for: the first line of its docstring."""
    return (CHECKS[name].__doc__ or name).strip().splitlines()[0]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in float64 that depend on the arguments alone."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(*shape: int) -> Three:
    """Return three different tensors of normal numbers: for queries, keys and values."""
    return normal(*shape, seed=1), normal(*shape, seed=2), normal(*shape, seed=3)


def equal(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors agree up to rounding in float64."""
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-10 * max(1.0, float(b.abs().max()))


__all__ = ["CHECKS", "check", "equal", "looks_for", "normal", "weights"]
