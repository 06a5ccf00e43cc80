"""Translution: attention whose query, key and value matrices depend on the relation of the two tokens.

Source: the Translution paper, eq. (1); the preprint, eq. (5) for relative values only; chapter "The operator".
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from translution_lib.backends.products import pair_scores, pair_values
from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_attention, check_heads, check_tokens, check_weight
from translution_lib.functional.masks import shielded
from translution_lib.functional.shared_maps import Weight, applied, is_shared, sizes
from translution_lib.relations import Relations


def translution_definition(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, w_v: Weight, relations: Relations,
                           heads: int = 1) -> Float[Tensor, "b n e"]:
    """Translution, literally: one vector–matrix product for every pair (i, j), query, key and value.

    It gathers the weights of every pair, n·n·c·e numbers, and is meant to be read and to check the fast form.

    Args:
        x: features f, one row per token.
        w_q: one matrix per relation, ``r c e``, read at ``relations.index[i, j]``; a weight ``c e`` is
            shared by all pairs, and so is a linear map, with its bias.
        w_k: likewise; what eq. (1) writes W^k[−δ] is stored under the relation of δ.
        w_v: likewise for the values; the number of its columns may differ.
        relations: which pairs share parameters, and which are masked.
        heads: number of heads; the channels of head h are the h-th slice.

    Raises:
        ValueError: shapes that do not fit the table or each other, or heads that do not divide the channels.

    Label: eq-welcome-one, eq-notation-pair, eq-notation-key, eq-rel-operator, eq-rel-small, eq-translution-definition.
    """
    check_attention(x, w_q, w_k, w_v, relations, heads)
    alpha = masked_softmax(scores_definition(x, w_q, w_k, relations, heads), relations.mask_on(x.device))
    return values_definition(alpha, x, w_v, relations)


def translution(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, w_v: Weight, relations: Relations,
                heads: int = 1) -> Float[Tensor, "b n e"]:
    """Translution by grouped products; equal to :func:`translution_definition`, same arguments.

    Label: eq-translution-grouped, thm-translution-permutation, thm-translution-shift, thm-contains-attention,
    thm-contains-strict.
    """
    check_attention(x, w_q, w_k, w_v, relations, heads)

    def attend(x: Tensor) -> Tensor:
        alpha = translution_scores(x, w_q, w_k, relations, heads).softmax(dim=-1)
        return translution_values(alpha, x, w_v, relations)

    return shielded(attend, x, relations.mask_needed(x.device))


def translution_scores(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, relations: Relations,
                       heads: int = 1, mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
    """Return the scores a_ij = q_ij·k_ji / √d, −∞ where a pair is masked, by the table or in its sample.

    Label: eq-translution-bilinear, eq-translution-causal, thm-contains-scores.
    """
    d = check_attention(x, w_q, w_k, None, relations, heads)
    return mask_scores(raw_scores(x, w_q, w_k, relations, heads) / math.sqrt(d), relations, mask)


def raw_scores(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, relations: Relations,
               heads: int) -> Float[Tensor, "b h n n"]:
    """Return q_ij·k_ji without scale and mask; a side with a shared weight is projected once per token."""
    (s, per_pair_q), (t, per_pair_k) = (projected(x, w) for w in (w_q, w_k))
    if per_pair_q is None and per_pair_k is None:
        q, k = (rearrange(side, "b n (h d) -> b h n d", h=heads) for side in (s, t))
        return q @ k.mT
    return pair_scores(s, t, per_pair_q, per_pair_k, relations, heads)


def projected(x: Tensor, w: Weight) -> tuple[Tensor, Tensor | None]:
    """Return the tokens times a shared weight, or the tokens and the matrices of the relations."""
    return (x, w) if isinstance(w, Tensor) and w.ndim == 3 else (applied(x, w), None)


def mask_scores(a: Float[Tensor, "b h i n"], relations: Relations,
                mask: Tensor | None = None) -> Float[Tensor, "b h i n"]:
    """Put −∞ where a pair is masked, by the table or by the mask of a sample, b n n or b 1 n."""
    if mask is not None:
        a = a.masked_fill(~mask[:, None], -math.inf)
    return a if relations.complete else a.masked_fill(~relations.mask_on(a.device), -math.inf)


def translution_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w_v: Weight,
                       relations: Relations) -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij f_j W^v[relation of ij]; head h weights the h-th slice of the channels.

    Label: eq-fit-value.
    """
    check_tokens(x, relations.n)
    check_weight("w_v", w_v, x.shape[2], relations.count)
    if alpha.ndim != 4 or alpha.shape != (x.shape[0], alpha.shape[1], relations.n, relations.n):
        raise ValueError(f"alpha must have the shape ({x.shape[0]}, heads, {relations.n}, {relations.n}), "
                         f"got {tuple(alpha.shape)}")
    check_heads(alpha.shape[1], sizes(w_v)[-1])
    v, per_pair = projected(x, w_v)
    if per_pair is not None:
        return pair_values(alpha, x, per_pair, relations)
    v = rearrange(v, "b n (h d) -> b h n d", h=alpha.shape[1])
    return rearrange(alpha.to(v.dtype) @ v, "b h n d -> b n (h d)")


def row_scores(s: Float[Tensor, "b i c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
               rows: Relations, heads: int) -> Float[Tensor, "b h i n"]:
    """Return q_ij · k_ji for some rows of a table, not scaled: a product for every pair of theirs, and for no other.

    Args:
        s: the tokens of the queries, those from ``rows.first`` on.
        t: all tokens.
        w_q: one matrix per relation, ``r c1 e``; None: the side is projected already.
        w_k: the same for the keys.
        rows: what :meth:`~translution_lib.Relations.rows` returns.
        heads: number of heads.
    """
    q = s[:, :, None] if w_q is None else torch.einsum("bic,ijce->bije", s, gather_weight(w_q, rows))
    k = t[:, None] if w_k is None else torch.einsum("bjc,ijce->bije", t, gather_weight(w_k, rows))
    return rearrange(q * k, "b i j (h d) -> b h i j d", h=heads).sum(-1)


def row_values(alpha: Float[Tensor, "b h i n"], v: Float[Tensor, "b n c"], w: Tensor | None,
               rows: Relations) -> Float[Tensor, "b i e"]:
    """Return Σ_j α_ij v_j W[relation of ij] for some rows; no weight: the values are projected already."""
    u = v[:, None] if w is None else torch.einsum("bjc,ijce->bije", v, gather_weight(w, rows))
    u = rearrange(u, "b i j (h d) -> b h i j d", h=alpha.shape[1])
    return rearrange((alpha[..., None] * u).sum(3), "b h i d -> b i (h d)")


def gather_weight(w: Tensor, relations: Relations) -> Tensor:
    """Return the matrix of every pair of the table, ``n n c e``; a shared weight ``c e`` comes back as it is.

    Label: eq-rel-gradient, eq-cost-gather.
    """
    return w if w.ndim == 2 else w[relations.index_on(w.device).clamp(min=0)]


def pair_by_pair(x: Float[Tensor, "b i j c"], w: Weight, relations: Relations) -> Float[Tensor, "b n m e"]:
    """Return f W of every pair: x holds the features of queries, ``b n 1 c``, or of keys, ``b 1 n c``."""
    if isinstance(w, Tensor) and not is_shared(w):
        return (x[..., None, :] @ gather_weight(w, relations)).squeeze(-2)
    return applied(x, w)


def scores_definition(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, relations: Relations,
                      heads: int = 1) -> Float[Tensor, "b h n n"]:
    """Return the scaled scores of all pairs by the literal equation, the masked ones included."""
    check_attention(x, w_q, w_k, None, relations, heads)
    q = pair_by_pair(x[:, :, None], w_q, relations)                             # q_ij = f_i W^q[δ]    b n n|1 e
    k = pair_by_pair(x[:, None], w_k, relations)                                # k_ji = f_j W^k[−δ]   b n|1 n e
    q, k = (rearrange(y, "b i j (h d) -> b h i j d", h=heads) for y in (q, k))
    a = (q * k).sum(-1) / math.sqrt(q.shape[-1])
    return a.expand(-1, -1, relations.n, relations.n)


def values_definition(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w_v: Weight,
                      relations: Relations) -> Float[Tensor, "b n e"]:
    """Return the weighted sum of values f'_i = Σ_j α_ij v_ij by the literal equation."""
    check_tokens(x, relations.n)
    v = pair_by_pair(x[:, None], w_v, relations)                                # v_ij = f_j W^v[δ]    b n|1 n e
    if not relations.complete:                  # 0 · NaN is NaN: a masked pair passes nothing on, whatever it holds
        v = v.masked_fill(~relations.mask_on(x.device)[..., None], 0)
    v = rearrange(v, "b i j (h d) -> b h i j d", h=alpha.shape[1])
    return rearrange((alpha[..., None] * v).sum(dim=3), "b h i d -> b i (h d)")
