"""Scores q_ij·k_ji by grouped products, and their gradients.

Two ways to the same number, chosen group by group: project both sides and multiply them channel by channel, or, with
one head and more rows than channels, go through the bilinear form M = Wq[r] Wk[r]ᵀ, one product instead of two.
Source: seed 000, eq. (1); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional import fused
from translution_lib.functional.rows import (
    again,
    dot,
    looped,
    per_head,
    product,
    room,
    scatter,
    slices,
    through_side,
    wide,
)


class Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity."""

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads, keep):    # s, t: n b c -> b h n n
        if fused.available(s, t, w_q, w_k):
            nothing = s.new_empty(0)
            return fused.scores(s, t, w_q, w_k, pairs.table, heads), nothing, nothing.clone()
        n, b = s.shape[:2]
        q_kept, k_kept = room(keep, w_q, pairs, s), room(keep, w_k, pairs, t)
        parts = []
        for group, q_out, k_out in zip(pairs.groups, slices(q_kept, pairs), slices(k_kept, pairs), strict=True):
            x_q = group.rows(s)
            x_k = x_q if t is s else group.rows(t)
            x_q, x_k = x_q[:-1], x_k[1:]
            if not keep and bilinear(x_q, w_q, w_k, heads):
                q, k = torch.bmm(x_q, _matrix(group, w_q, w_k)), x_k
            else:
                q, k = product(x_q, w_q, group, q_out), product(x_k, w_k, group, k_out)
            parts.append(dot(q, k, heads).view(-1, b, heads))
        return pairs.place(torch.cat(parts)), q_kept, k_kept

    @staticmethod
    def setup_context(ctx, inputs, output):
        s, t, w_q, w_k, ctx.pairs, ctx.heads, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)    # else backward would be handed zeros of the size of what is kept
        ctx.save_for_backward(s, t, w_q, w_k, *output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 7
        return *ScoresBackward.apply(grad, *ctx.saved_tensors, ctx.pairs, ctx.heads), None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(Scores, info, in_dims, *args)


class ScoresBackward(torch.autograd.Function):
    """The gradients of the scores."""

    @staticmethod
    def forward(grad, s, t, w_q, w_k, q_kept, k_kept, pairs, heads):
        if fused.available(grad, s, t, w_q, w_k):
            return fused.scores_backward(grad, s, t, w_q, w_k, pairs.table, heads)
        ds, dt = (torch.zeros_like(x, dtype=wide(x.dtype)) for x in (s, t))
        dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
        kept = zip(slices(q_kept, pairs), slices(k_kept, pairs), strict=True)
        parts = pairs.take(grad).split(pairs.sizes)
        for group, g, (q, k) in zip(pairs.groups, parts, kept, strict=True):
            x_q = group.rows(s)
            x_k = x_q if t is s else group.rows(t)
            x_q, x_k = x_q[:-1], x_k[1:]
            g = g.reshape(*x_q.shape[:2], heads)
            if q is None and k is None and bilinear(x_q, w_q, w_k, heads):
                dx_q, dx_k = _through_matrix(group, g, x_q, x_k, (w_q, w_k), (dw_q, dw_k))
            else:
                q = product(x_q, w_q, group, None) if q is None else q.view(*x_q.shape[:2], -1)
                k = product(x_k, w_k, group, None) if k is None else k.view(*x_k.shape[:2], -1)
                dx_q = through_side(dw_q, w_q, group, x_q, per_head(g, k))
                dx_k = through_side(dw_k, w_k, group, x_k, per_head(g, q))
            scatter(ds, group.queries, dx_q)
            scatter(dt, group.keys, dx_k)
        return ds.to(s.dtype), dt.to(t.dtype), dw_q, dw_k

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad, s, t, w_q, w_k, _, _, ctx.pairs, ctx.heads = inputs
        ctx.save_for_backward(grad, s, t, w_q, w_k)

    @staticmethod
    def backward(ctx, *grads):
        return *again(_plain, ctx, grads, ctx.pairs, ctx.heads), None, None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(ScoresBackward, info, in_dims, *args)


def bilinear(x_q: torch.Tensor, w_q: torch.Tensor | None, w_k: torch.Tensor | None, heads: int) -> bool:
    """Whether a group's scores go through M = Wq Wkᵀ; rows x_q (g m c).

    It pays with one head, since every head has its own M; where q and k are at least as wide as the keys' tokens; and
    where a relation has more rows than these have channels, since M itself takes c² numbers a relation to make.
    """
    if heads != 1 or w_q is None or w_k is None:
        return False
    return x_q.shape[1] > w_k.shape[1] <= w_k.shape[2]


def _matrix(group, w_q, w_k):
    return torch.bmm(group.weight(w_q), group.weight(w_k).mT)


def _through_matrix(group, g, x_q, x_k, weights, gradients):
    """Write the gradients of the matrices and return those of the rows, by a = x_q M x_kᵀ."""
    m, g_k = _matrix(group, *weights), g * x_k
    dm = torch.bmm(x_q.mT, g_k)
    (w_q, w_k), (dw_q, dw_k) = ([group.weight(w) for w in pair] for pair in (weights, gradients))
    dw_q.copy_(torch.bmm(dm, w_k))
    dw_k.copy_(torch.bmm(dm.mT, w_q))
    return torch.bmm(g_k, m.mT), torch.bmm(x_q, m).mul_(g)


def _plain(s, t, w_q, w_k, pairs, heads):
    """The scores by operations that autograd can differentiate again and again."""
    parts = []
    for group in pairs.groups:
        q, k = product(group.rows(s)[:-1], w_q, group, None), product(group.rows(t)[1:], w_k, group, None)
        parts.append(dot(q, k, heads).view(-1, s.shape[1], heads))
    return pairs.place(torch.cat(parts))
