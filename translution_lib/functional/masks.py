"""Who hears of whom: a token reaches only those that may attend to it, whatever numbers it holds.

A weight of zero does not keep a value out: 0 · ∞ and 0 · NaN are NaN. So tokens that are not finite are set to zero
before a layer runs, and those that may attend to one become NaN after it, as they would have. Chapter "Self-attention".
"""

import math
from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor


def apart(run: Callable[[Tensor], Tensor], x: Float[Tensor, "b n c"],
          allowed: Bool[Tensor, "*b n n"]) -> Float[Tensor, "b n e"]:
    """Run a layer so that a token that is not finite spoils those alone that may attend to it.

    Args:
        run: the layer, b n c -> b n e.
        x: its tokens.
        allowed: True where query i may attend to key j.
    """
    spoilt = ~x.isfinite().all(-1)
    y = run(x.masked_fill(spoilt[..., None], 0))
    return y.masked_fill((spoilt[:, None] & allowed).any(-1)[..., None], math.nan)
