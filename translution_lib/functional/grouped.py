"""The grouped product: attention scores and values whose matrices depend on the relation of a pair.

Pairs are sorted by relation (``groups``), and each relation costs one matrix product. Neither an N×N×C×C′ nor, by
default, an N×N×C′ tensor exists at any time: backward computes projected pairs again instead of keeping them.
Source: the Translution paper, eq. (1); chapters "The operator", "What it costs" and "Making it fit".
"""

from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.checks import autocast_together
from translution_lib.functional.grouped_scores import Scores, ScoresBackward
from translution_lib.functional.grouped_values import Values, ValuesBackward
from translution_lib.functional.groups import Pairs, pairs_on
from translution_lib.functional.opaque import operator
from translution_lib.relations import Relations

# Projected pairs up to this size are kept for backward instead of being computed again: a trade of memory, N²·C′
# numbers a sample and side, against three of twelve products. By default nothing of that size is ever built.
KEEP_BYTES = 0


def _keep(pairs: Pairs, x: Tensor, width: int, sides: int) -> bool:
    """Whether the projected sides of all pairs are kept for backward, rather than computed again."""
    return sides * len(pairs.flat) * x.shape[1] * width * x.element_size() <= KEEP_BYTES


def _without_autocast(device: str) -> AbstractContextManager:
    return torch.autocast("cpu" if device == "meta" else device, enabled=False)


def pair_scores(s: Float[Tensor, "b n c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
                relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return q_ij · k_ji for every unmasked pair and head, zero elsewhere; not scaled.

    A weight ``r c e`` projects its side per relation; None means that the side is projected already.
    """
    same = s is t
    s, t, w_q, w_k = autocast_together(s, t, w_q, w_k)
    product = _opaque_scores if torch.compiler.is_compiling() else _scores
    return product(s, s if same else t, w_q, w_k, relations, heads)


def _scores(s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, relations: Relations,
            heads: int) -> Tensor:
    same = s is t
    s = s.transpose(0, 1).contiguous()
    t = s if same else t.transpose(0, 1).contiguous()
    pairs = pairs_on(relations, s.device)
    with _without_autocast(s.device.type):
        keep = _keep(pairs, s, s.shape[-1] if w_q is None else w_q.shape[-1], 2)
        return Scores.apply(s, t, w_q, w_k, pairs, heads, keep)[0]


def pair_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"],
                relations: Relations) -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij x_j W[relation of ij], each head weighting its own slice of the channels of W."""
    alpha, x, w = autocast_together(alpha, x, w)
    if torch.compiler.is_compiling():
        return _opaque_values(alpha.to(x.dtype), x, w, None, relations, 0)
    return _values(alpha, x, w, None, relations, 0)


def _values(alpha: Tensor, x: Tensor, w: Tensor, none: None, relations: Relations, heads: int) -> Tensor:
    alpha, x = alpha.to(x.dtype), x.transpose(0, 1).contiguous()
    pairs = pairs_on(relations, x.device)
    with _without_autocast(x.device.type):
        return Values.apply(alpha, x, w, pairs, _keep(pairs, x, w.shape[-1], 1))[0].transpose(0, 1)


def _score_slopes(g: Tensor, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, relations: Relations,
                  heads: int) -> tuple:
    s, t = (x.transpose(0, 1).contiguous() for x in (s, t))
    with _without_autocast(s.device.type):
        *tokens, v, w = ScoresBackward.apply(g, s, t, w_q, w_k, pairs_on(relations, s.device), heads)[:4]
    return *(x.transpose(0, 1) for x in tokens), v, w


def _value_slopes(g: Tensor, alpha: Tensor, x: Tensor, w: Tensor, none: None, relations: Relations,
                  heads: int) -> tuple:
    x, g = x.transpose(0, 1).contiguous(), g.transpose(0, 1).contiguous()
    with _without_autocast(x.device.type):
        weights, tokens, matrices = ValuesBackward.apply(g, alpha, x, w, pairs_on(relations, x.device))[:3]
    return weights, tokens.transpose(0, 1), matrices


_opaque_scores = operator("pair_scores", _scores, _score_slopes, lambda s, t, w_q, w_k, relations, heads: (
    s.shape[0], heads, relations.n, relations.n))
_opaque_values = operator("pair_values", _values, _value_slopes, lambda alpha, x, w, none, relations, heads: (
    x.shape[0], x.shape[1], w.shape[-1]))
