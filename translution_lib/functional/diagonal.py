"""LoR-Translution whose cores are diagonal: the scores and values of a CP decomposition.

A dense core mixes the low channels of a pair, a diagonal one only weighs them: W[δ] = W + W1 diag(a[δ]) W2. Queries and
keys meet channel by channel, so one diagonal serves both: a_ij = Σ_k u_ik a[δ]_k w_jk. Source: the Translution paper,
eq. (2) with diagonal matrices; chapter "Sharing far offsets".
"""

import math
from collections.abc import Callable

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.lor import Three, branch_weight
from translution_lib.functional.shared_maps import Weight, applied, sizes
from translution_lib.functional.translution import gather_weight, mask_scores, raw_scores, translution_values
from translution_lib.relations import Relations


def diagonal_scores(u: Float[Tensor, "b n k"], w: Float[Tensor, "b n k"], table: Float[Tensor, "r k"],
                    relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return Σ_k u_ik a[δ]_k w_jk over the channels k of each head, without scale and mask.

    Args:
        u: low queries.
        w: low keys.
        table: the diagonal of every relation.
        relations: which pairs share a diagonal.
        heads: divides the channels.
    """
    weighed = u[:, :, None] * per_pair(table, relations)                                       # b i j k
    return rearrange(weighed * w[:, None], "b i j (h k) -> b h i j k", h=heads).sum(-1)


def diagonal_values(alpha: Float[Tensor, "b h n n"], v: Float[Tensor, "b n k"], table: Float[Tensor, "r k"],
                    relations: Relations) -> Float[Tensor, "b n k"]:
    """Return Σ_j α_ij a[δ]_k v_jk, head by head on its channels k."""
    weighed = rearrange(v[:, None] * per_pair(table, relations), "b i j (h k) -> b h i j k", h=alpha.shape[1])
    return rearrange((alpha[..., None] * weighed).sum(3), "b h i k -> b i (h k)")


def per_pair(table: Float[Tensor, "r k"], relations: Relations) -> Float[Tensor, "n n k"]:
    """Gather the diagonal of every pair."""
    return gather_weight(table[:, None], relations)[:, :, 0]


def diagonal_lor(x: Float[Tensor, "b n c"], low: Three, tables: tuple[Tensor, Tensor], up: Weight,
                 relations: Relations, heads: int, shared: Three | None, variant: str = "printed",
                 dropped: Callable[[Tensor], Tensor] = lambda alpha: alpha,
                 mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
    """Run LoR-Translution with diagonal cores: the diagonals of scores and of values, each ``r k``.

    Other arguments as for :func:`~translution_lib.functional.lor.lor_translution`; ``dropped`` drops weights,
    ``mask`` is True where a query of a sample may read a key.

    Label: eq-sharing-diagonal, thm-sharing-diagonal.
    """
    u, w, v = (applied(x, first) for first in low)
    a = diagonal_scores(u, w, tables[0], relations, heads)
    if shared is not None:
        a = a + raw_scores(x, *shared[:2], relations, heads)
    scale = branch_weight(shared, variant)
    alpha = dropped(mask_scores(scale * a / math.sqrt(sizes(up)[1] // heads), relations, mask).softmax(dim=-1))
    out = applied(diagonal_values(alpha, v, tables[1], relations), up)
    return scale * (out if shared is None else out + translution_values(alpha, x, shared[2], relations))


__all__ = ["diagonal_lor", "diagonal_scores", "diagonal_values"]
