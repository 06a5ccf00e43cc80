"""What all pairs share: a matrix, or the linear map of a layer that has one, with its bias.

A weight ``c e`` of an operator may be either. A layer hands its maps on as they are, so that whatever stands in their
place, quantised or with an adapter beside it, is what runs. Source: chapter "Notation and conventions".
"""

from typing import cast

from torch import Tensor, nn

Weight = Tensor | nn.Module
"""A matrix ``c e`` or a linear map that all pairs share, or one matrix for each relation, ``r c e``."""


def is_shared(w: Weight) -> bool:
    """Whether all pairs share a weight."""
    return isinstance(w, nn.Module) or w.ndim == 2


def applied(x: Tensor, w: Weight) -> Tensor:
    """Return f W of every row, with the bias of a map that has one."""
    return w(x) if isinstance(w, nn.Module) else x @ w


def sizes(w: Weight) -> tuple[int, ...]:
    """Return ``c e`` or ``r c e``."""
    if isinstance(w, nn.Module):
        return int(cast(int, w.in_features)), int(cast(int, w.out_features))
    return tuple(w.shape)


def matrix(w: Weight) -> Tensor:
    """Return a weight as the book writes it, to the right of a row: a map's is a view, which writes through."""
    return cast(Tensor, w.weight).mT if isinstance(w, nn.Module) else w
