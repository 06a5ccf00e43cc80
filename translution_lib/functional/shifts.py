"""Moving the content of a grid of tokens, and how far an operator is from moving its output along.

Source: chapter "Equivariance"; Horn et al. (2021), section 2.2 defines equivariance for sets of tokens, not for grids.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from translution_lib.functional.checks import check_tokens


def moved_tokens(shape: Sequence[int], tau: Sequence[int], *,
                 cyclic: bool = False) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"]]:
    """Return the tokens p for which p + τ is on the grid, and the tokens p + τ, both as row-major indices.

    Args:
        shape: sides of the grid, any number of dimensions.
        tau: the shift τ in tokens, one number per side.
        cyclic: what leaves at one border enters at the opposite one, so that every token has a partner.

    Raises:
        ValueError: a shift with another number of components than the grid has sides.
    """
    if len(shape) != len(tau):
        raise ValueError(f"tau must have {len(shape)} components, one per side of {tuple(shape)}, got {tuple(tau)}")
    sides = torch.tensor(tuple(shape))
    p = torch.cartesian_prod(*(torch.arange(side) for side in shape)).view(-1, len(shape))
    goal = p + torch.tensor(tuple(tau))
    goal = goal % sides if cyclic else goal
    inside = ((goal >= 0) & (goal < sides)).all(dim=1)
    strides = torch.tensor([prod(shape[a + 1:]) for a in range(len(shape))])
    return inside.nonzero()[:, 0], (goal[inside] * strides).sum(dim=1)


def shifted(x: Float[Tensor, "b n c"], shape: Sequence[int], tau: Sequence[int], *,
            fill: float | Tensor = 0.0, cyclic: bool = False) -> Float[Tensor, "b n c"]:
    """Return the features moved by τ: row p + τ of the result is row p of x.

    Args:
        x: features on the grid in row-major order, without a CLS token.
        shape: sides of the grid.
        tau: the shift τ in tokens, one number per side.
        fill: the background that enters where nothing came from: a number, or one number per channel (c).
        cyclic: what leaves at one border enters at the opposite one.

    Raises:
        ValueError: features or a shift that do not fit the grid.
    """
    check_tokens(x, prod(shape))
    still, moved = moved_tokens(shape, tau, cyclic=cyclic)
    out = torch.as_tensor(fill, dtype=x.dtype, device=x.device).expand_as(x).clone()
    out[:, moved.to(x.device)] = x[:, still.to(x.device)]
    return out


def shift_error(operator: Callable[[Tensor], Tensor], x: Float[Tensor, "b n c"], shape: Sequence[int],
                tau: Sequence[int], *, fill: float | Tensor = 0.0, cyclic: bool = False) -> float:
    """Return the largest difference of F(x^τ) at p + τ and F(x) at p, all on the grid, over the largest F(x).

    Zero means that the output moves with the content. Where F(x) is zero everywhere the difference is not divided.

    Args:
        operator: a layer or a network F, b n c -> b n e.
        x: features on the grid in row-major order, without a CLS token.
        shape: sides of the grid.
        tau: the shift τ in tokens, one number per side.
        fill: the background that enters where nothing came from.
        cyclic: what leaves at one border enters at the opposite one.

    Label: thm-equivariance-zero, thm-equivariance-constant, thm-equivariance-window, thm-equivariance-cyclic.
    """
    still, moved = moved_tokens(shape, tau, cyclic=cyclic)
    with torch.no_grad():
        before, after = operator(x), operator(shifted(x, shape, tau, fill=fill, cyclic=cyclic))
    if not len(still):
        return 0.0
    size = float(before.abs().max())
    return float((after[:, moved] - before[:, still]).abs().max()) / (size or 1.0)
