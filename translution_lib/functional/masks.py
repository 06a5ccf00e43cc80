"""Who hears of whom: a token reaches only those that may attend to it, whatever numbers it holds.

A weight of zero does not keep a value out: 0 · ∞ and 0 · NaN are NaN. So tokens that do not exist or are not finite are
set to zero before a layer runs, and those that may attend to one that is not finite become NaN after it, as they would
have. A token that may attend to nothing gets zeros. Chapter "Self-attention".
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Run = Callable[[Tensor, Tensor | None], Tensor]


def apart(run: Run, x: Float[Tensor, "b n c"], table: Bool[Tensor, "n n"] | None,
          mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
    """Run a layer so that a token reaches those alone that may attend to it.

    Args:
        run: the layer: from the tokens and from which keys each query may read, b n n, b 1 n or None, to b n e. Every
            query may read a key.
        x: its tokens.
        table: True where query i may attend to key j in every sample; None: all may.
        mask: the same for the samples: True where a token exists (b n), or where a pair may attend (b n n).
    """
    if mask is None:
        return finite_or_nan(lambda x: run(x, None), x, x.new_ones((), dtype=torch.bool) if table is None else table)
    if mask.ndim == 2:
        x, pairs = x.masked_fill(~mask[..., None], 0), mask[:, None]                # b 1 n
    else:
        pairs = mask                                                                # b n n
    allowed = pairs if table is None else pairs & table
    silent = ~allowed.any(-1)                                                       # b n, or b 1
    readable = pairs | silent[..., None]
    y = finite_or_nan(lambda x: run(x, readable), x, allowed)
    return y.masked_fill((silent if mask.ndim == 3 else silent | ~mask)[..., None], 0)


def shielded(operator: Callable[[Tensor], Tensor], x: Float[Tensor, "b n c"],
             table: Bool[Tensor, "n n"] | None) -> Float[Tensor, "b n e"]:
    """Run an operator so that a token reaches those alone whom the table lets attend to it; None: all may."""
    return operator(x) if table is None else finite_or_nan(operator, x, table)


def finite_or_nan(run: Callable[[Tensor], Tensor], x: Float[Tensor, "b n c"],
                  allowed: Bool[Tensor, "*b _ n"]) -> Float[Tensor, "b n e"]:
    """Run a layer on the finite tokens; what may attend to another one becomes NaN."""
    spoilt = ~x.isfinite().all(-1)
    y = run(x.masked_fill(spoilt[..., None], 0))
    return y.masked_fill((spoilt[:, None] & allowed).any(-1)[..., None], math.nan)
