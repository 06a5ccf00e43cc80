"""The two products as plain operations of torch, for a program that leaves this library (``torch.export``, ONNX).

Every token is multiplied by every matrix, b n r e numbers, and each pair takes its row: more work than the grouped
products do, in few operations that any runtime knows, for any size of the batch. Chapter "Making it fit".
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from translution_lib.relations import Relations


def pair_scores(s: Float[Tensor, "b n c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
                relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return what the grouped product of the same name returns: q_ij · k_ji, zero where a pair is masked."""
    q = s[:, :, None] if w_q is None else _rows(s, w_q, relations, queries=True)
    k = t[:, None] if w_k is None else _rows(t, w_k, relations, queries=False)
    a = rearrange(q * k, "b i j (h d) -> b h i j d", h=heads).sum(-1)
    return a if relations.complete else a.masked_fill(~relations.mask_on(a.device), 0)


def pair_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"],
                relations: Relations) -> Float[Tensor, "b n e"]:
    """Return what the grouped product of the same name returns: Σ_j α_ij x_j W[relation of ij], head by head."""
    v = rearrange(_rows(x, w, relations, queries=False), "b i j (h d) -> b h i j d", h=alpha.shape[1])
    return rearrange((alpha[..., None] * v).sum(3), "b h i d -> b i (h d)")


def _rows(x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"], relations: Relations,
          queries: bool) -> Float[Tensor, "b n n e"]:
    """Return x_i W[relation of ij] of every pair, or x_j W[relation of ij]."""
    every = torch.einsum("bnc,rce->bnre", x, w).flatten(1, 2)
    token = torch.arange(relations.n, device=x.device)
    place = relations.index_on(x.device).clamp(min=0) + relations.count * (token[:, None] if queries else token)
    return every.index_select(1, place.flatten()).unflatten(1, (relations.n, relations.n))
