"""Convolution on tokens as a layer. Source: the Translution paper, section 3.1; chapter "Convolution"."""

import copy
from collections.abc import Sequence
from math import prod
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_mask, check_sizes, check_tokens
from translution_lib.functional.convolution import convolution
from translution_lib.mixers.init import linear_bound, uniform
from translution_lib.mixers.mixer import longer
from translution_lib.relations import Relations


class Convolution(nn.Module):
    """A sum over kernel taps on the grid of a relation table, b n c -> b n c, then the output map.

    Args:
        relations: a table with all cells of a grid and without a CLS token; only its grid and its
            causality are read. A causal table gives the causal convolution, whose taps reach back only.
        dim: channels C of the tokens.
        heads: only 1, since a convolution has no heads; it is there so that all mixers are built alike.
        kernel_size: side of the kernel, or one side per dimension.
        output: whether a linear map with bias follows.

    Raises:
        ValueError: a table without a grid or with CLS, heads other than 1, sizes that are not positive integers.

    Label: eq-conv-causal.
    """

    def __init__(self, relations: Relations, dim: int, heads: int = 1, *, kernel_size: int | Sequence[int] = 3,
                 output: bool = True) -> None:
        super().__init__()
        axes = len(_grid(relations))
        sides = [kernel_size] * axes if isinstance(kernel_size, int) else list(kernel_size)
        check_sizes(dim=dim, **{f"kernel_size[{a}]": k for a, k in enumerate(sides)})
        if len(sides) != axes:
            raise ValueError(f"kernel_size must have {axes} sides, got {kernel_size!r}")
        if heads != 1:
            raise ValueError(f"heads must be 1: a convolution has no heads, got {heads!r}")
        self.relations, self.dim = relations, dim
        fan_in = dim * prod(sides)
        self.kernel = nn.Parameter(uniform((*sides, dim, dim), linear_bound(fan_in)))
        self.output = nn.Linear(dim, dim) if output else nn.Identity()

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides of the grid."""
        return _grid(self.relations)

    def resized(self, relations: Relations) -> "Convolution":
        """Return a copy for another table, which has the same kernel.

        Raises:
            ValueError: a table that a convolution cannot serve, or of other axes or another order.
        """
        if len(_grid(relations)) != len(self.shape) or relations.causal != self.relations.causal:
            raise ValueError(f"relations must have the axes and the order of the layer's, {self.relations!r}, "
                             f"got {relations!r}")
        return copy.deepcopy(self, {id(self.relations): relations})

    def forward(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Sum over the taps: f'_p = Σ_κ f_{p+κ} K[κ]; causal: κ = −(k−1) … 0.

        ``mask`` is True where a token exists: the others count as zero, as those outside the grid, and become zero.
        """
        check_tokens(x)
        if x.shape[2] != self.dim:
            raise ValueError(f"x has {x.shape[2]} channels, expected dim = {self.dim}")
        check_mask(mask, x, ": a kernel asks no pairs")
        if mask is not None:
            return self._taps(x.masked_fill(~mask[..., None], 0)).masked_fill(~mask[..., None], 0)
        return self._taps(x)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the tokens that the kernel reaches from the next one."""
        seen = longer(memory, x)
        return self._taps(seen)[:, -x.shape[1]:], seen[:, max(0, seen.shape[1] - self.kernel.shape[0] + 1):]

    def _taps(self, x: Tensor) -> Tensor:
        if self.relations.for_length(x.shape[1]).causal:
            past = F.pad(x.mT, (self.kernel.shape[0] - 1, 0))
            return self.output(F.conv1d(past, self.kernel.movedim((-1, -2), (0, 1))).mT)
        return self.output(convolution(x, self.kernel, self.shape))

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"dim={self.dim}, kernel_size={tuple(self.kernel.shape[:-2])}, causal={self.relations.causal}"


def _grid(relations: Relations) -> tuple[int, ...]:
    """Return the sides of the grid, or refuse a table with other tokens than its cells."""
    if relations.shape is None or not relations.whole or relations.cls:
        raise ValueError("relations must have all cells of a grid and no CLS token: a convolution has no rule for "
                         f"a token without a position (a ViT with pool=\"mean\" has none), got {relations!r}")
    return relations.shape
