"""LoR-Translution: offset-dependent matrices of low rank beside the shared ones of self-attention.

With several heads the relative dimension counts per head: R = heads · r. Head h uses its own slice of the R channels of
the relative queries, keys and values, and the last factor W2 maps the R channels of all heads to the output.
Source: the Translution paper, eq. (2) and appendices D and G; chapter "LoR-Translution".
"""

import math

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_choice, check_heads, check_tokens, check_weight
from translution_lib.functional.exported import pair_scores, pair_values
from translution_lib.functional.masks import shielded
from translution_lib.functional.shared_maps import Weight, applied, sizes
from translution_lib.functional.translution import (
    mask_scores,
    pair_by_pair,
    raw_scores,
    translution_values,
    values_definition,
)
from translution_lib.relations import Relations

VARIANTS = ("printed", "released")
Three = tuple[Weight, Weight, Weight]
Cores = tuple[Tensor, Tensor, Tensor]


def lor_translution_definition(x: Float[Tensor, "b n c"], low: Three, cores: Cores, up: Weight,
                               relations: Relations, heads: int = 1, shared: Three | None = None,
                               variant: str = "printed") -> Float[Tensor, "b n e"]:
    """LoR-Translution, literally: relative queries, keys and values for every pair, plus the shared ones.

    Args:
        x: features f, one row per token.
        low: W1 of query, key and value, each ``c r1``, matrices or linear maps, as ``up`` and ``shared`` are.
        cores: the matrix of every relation for query, key and value, each ``r r1 r2``.
        up: W2 of the value, ``r2 e``.
        relations: which pairs share parameters, and which are masked.
        heads: number of heads; divides r2 and e.
        shared: W of query, key and value, each ``c e``, or None (Table 11 without them).
        variant: "printed" is eq. (2); "released" halves the sum of the two scores and of the two values, as the
            authors' code does; without ``shared`` there is nothing to halve.

    Raises:
        ValueError: shapes that do not fit the table or each other, heads that do not divide, an unknown variant.

    Label: eq-lor-score, eq-lor-value.
    """
    check_lor(x, low, cores, up, relations, heads, shared, variant)
    a = lor_scores_definition(x, low, cores, up, relations, heads, shared, variant)
    alpha = masked_softmax(a, relations.mask_on(x.device))
    return lor_values_definition(alpha, x, low, cores, up, relations, shared, variant)


def lor_scores_definition(x: Float[Tensor, "b n c"], low: Three, cores: Cores, up: Weight,
                          relations: Relations, heads: int, shared: Three | None = None,
                          variant: str = "printed") -> Float[Tensor, "b h n n"]:
    """Return the scaled scores of all pairs by the literal equation, the masked ones included."""
    d = check_lor(x, low, cores, up, relations, heads, shared, variant)
    q = pair_by_pair(applied(x, low[0])[:, :, None], cores[0], relations)                  # f_i W1q Wq[δ]
    k = pair_by_pair(applied(x, low[1])[:, None], cores[1], relations)                     # f_j W1k Wk[−δ]
    q, k = (rearrange(y, "b i j (h r) -> b h i j r", h=heads) for y in (q, k))
    a = (q * k).sum(-1)
    if shared is not None:
        a = a + raw_scores(x, *shared[:2], relations, heads)
    return branch_weight(shared, variant) * a / math.sqrt(d)


def lor_values_definition(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], low: Three, cores: Cores,
                          up: Weight, relations: Relations, shared: Three | None = None,
                          variant: str = "printed") -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij f_j (W1 W[δ] W2 + W) by the literal equation, head by head on the channels of the core."""
    mixed = applied(values_definition(alpha, applied(x, low[2]), cores[2], relations), up)
    if shared is not None:
        mixed = mixed + values_definition(alpha, x, shared[2], relations)
    return branch_weight(shared, variant) * mixed


def branch_weight(shared: Three | None, variant: str) -> float:
    """Return ½ for the released variant, which averages the relative and the shared branch; 1 otherwise."""
    return 0.5 if variant == "released" and shared is not None else 1.0


def lor_translution(x: Float[Tensor, "b n c"], low: Three, cores: Cores, up: Weight,
                    relations: Relations, heads: int = 1, shared: Three | None = None,
                    variant: str = "printed") -> Float[Tensor, "b n e"]:
    """LoR-Translution by grouped products on the low dimension (appendix D); same arguments as the definition.

    Label: thm-lor-zero, thm-lor-contained, thm-lor-full, thm-lor-half.
    """
    check_lor(x, low, cores, up, relations, heads, shared, variant)

    def attend(x: Tensor) -> Tensor:
        alpha = lor_scores(x, low, cores, up, relations, heads, shared, variant).softmax(dim=-1)
        return lor_values(alpha, x, low, cores, up, relations, shared, variant)

    return shielded(attend, x, relations.mask_needed(x.device))


def lor_scores(x: Float[Tensor, "b n c"], low: Three, cores: Cores, up: Weight, relations: Relations,
               heads: int, shared: Three | None = None, variant: str = "printed",
               mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
    """Return the scaled scores of eq. (2), −∞ where a pair is masked; no tensor is larger than n·n·h or n·r."""
    d = check_lor(x, low, cores, up, relations, heads, shared, variant)
    a = None if shared is None else raw_scores(x, *shared[:2], relations, heads)
    if cores[0].shape[-1]:
        relative = pair_scores(applied(x, low[0]), applied(x, low[1]), cores[0], cores[1], relations, heads)
        a = relative if a is None else a + relative
    if a is None:
        a = x.new_zeros(x.shape[0], heads, relations.n, relations.n)
    return mask_scores(branch_weight(shared, variant) * a / math.sqrt(d), relations, mask)


def lor_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], low: Three, cores: Cores,
               up: Weight, relations: Relations, shared: Three | None = None,
               variant: str = "printed") -> Float[Tensor, "b n e"]:
    """Return (Σ_j α_ij f_j) Wv + (Σ_j α_ij (f_j W1v) Wv[δ]) W2v: appendix D, with f_j W1v computed once per token.

    Label: eq-lor-appendix.
    """
    out = None if shared is None else translution_values(alpha, x, shared[2], relations)
    if cores[2].shape[-1]:
        relative = applied(pair_values(alpha, applied(x, low[2]), cores[2], relations), up)
        out = relative if out is None else out + relative
    if out is None:
        return x.new_zeros(*x.shape[:2], sizes(up)[-1])
    return branch_weight(shared, variant) * out


def check_lor(x: Tensor, low: Three, cores: Cores, up: Weight, relations: Relations, heads: int,
              shared: Three | None, variant: str) -> int:
    """Check the arguments of LoR-Translution together; return the dimension of a head."""
    check_choice("variant", variant, VARIANTS)
    check_tokens(x, relations.n)
    r2, e = sizes(up)
    for name, first, core in zip(("query", "key", "value"), low, cores, strict=True):
        check_weight(f"low ({name})", first, x.shape[2], None)
        if core.ndim != 3:
            raise ValueError(f"cores ({name}) must have one matrix per relation (r r1 r2), got {tuple(core.shape)}")
        check_weight(f"cores ({name})", core, sizes(first)[1], relations.count, r2)
    for name, w in zip(("query", "key", "value"), shared or (), strict=False):
        check_weight(f"shared ({name})", w, x.shape[2], None, e)
    check_heads(heads, r2)
    return check_heads(heads, e)


__all__ = ["check_lor", "lor_scores", "lor_scores_definition", "lor_translution", "lor_translution_definition",
           "lor_values", "lor_values_definition"]
