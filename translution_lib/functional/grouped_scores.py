"""Scores q_ij·k_ji by grouped products, and their gradients.

Two ways to the same number, chosen group by group: project both sides and multiply them channel by channel, or, with
one head and more rows than channels, go through the bilinear form M = Wq[r] Wk[r]ᵀ, one product instead of two.
Source: seed 000, eq. (1); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional import fused
from translution_lib.functional.rows import again, dot, looped, per_head, product, scatter, through_side, wide


class Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity.

    With ``keep``, the further outputs are what backward would otherwise compute again: q and k of all pairs.
    """

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads, keep):    # s, t: n b c -> b h n n
        if fused.available(s, t, w_q, w_k):
            return (fused.scores(s, t, w_q, w_k, pairs.table, heads),)
        parts, kept = [], [pairs.room(x, w) if keep else None for x, w in ((s, w_q), (t, w_k))]
        for group, *room in zip(pairs.groups, *map(pairs.by_group, kept), strict=True):
            x_q, x_k = _both(group, s, t)
            if not keep and bilinear(x_q, w_q, w_k, heads):
                q, k = torch.bmm(x_q, _matrix(group, w_q, w_k)), x_k
            else:
                q, k = product(x_q, w_q, group, room[0]), product(x_k, w_k, group, room[1])
            parts.append(dot(q, k, heads).view(-1, s.shape[1], heads))
        return pairs.place(torch.cat(parts)), *(x for x in kept if x is not None)

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
        s, t, w_q, w_k, *kept = ctx.saved_tensors
        return *ScoresBackward.apply(grad, s, t, w_q, w_k, ctx.pairs, ctx.heads, *kept), None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(Scores, info, in_dims, *args)


class ScoresBackward(torch.autograd.Function):
    """The gradients of the scores."""

    @staticmethod
    def forward(grad, s, t, w_q, w_k, pairs, heads, *kept):
        if fused.available(grad, s, t, w_q, w_k):
            return fused.scores_backward(grad, s, t, w_q, w_k, pairs.table, heads)
        ds, dt = (torch.zeros_like(x, dtype=wide(x.dtype)) for x in (s, t))
        dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
        rest = iter(kept)
        made = [pairs.by_group(next(rest) if kept and w is not None else None) for w in (w_q, w_k)]
        for group, g, q, k in zip(pairs.groups, pairs.take(grad).split(pairs.sizes), *made, strict=True):
            x_q, x_k = _both(group, s, t)
            g = g.reshape(*x_q.shape[:2], heads)
            if not kept and bilinear(x_q, w_q, w_k, heads):
                dx_q, dx_k = _through_matrix(group, g, x_q, x_k, (w_q, w_k), (dw_q, dw_k))
            else:
                q = product(x_q, w_q, group) if q is None else q
                k = product(x_k, w_k, group) if k is None else k
                dx_q = through_side(dw_q, w_q, group, x_q, per_head(g, k))
                dx_k = through_side(dw_k, w_k, group, x_k, per_head(g, q))
            scatter(ds, group.queries, dx_q)
            scatter(dt, group.keys, dx_k)
        return ds.to(s.dtype), dt.to(t.dtype), dw_q, dw_k

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad, s, t, w_q, w_k, ctx.pairs, ctx.heads, *kept = inputs
        ctx.kept = len(kept)
        ctx.save_for_backward(grad, s, t, w_q, w_k)

    @staticmethod
    def backward(ctx, *grads):
        return *again(_plain, ctx, grads, ctx.pairs, ctx.heads), None, None, *[None] * ctx.kept

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


def _both(group, s, t):
    """Return the rows of the queries and of the keys; they are gathered once where both come from the same tokens."""
    x_q = group.rows(s)
    return x_q[:group.size], (x_q if t is s else group.rows(t))[-group.size:]


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
        q, k = (product(x, w, group) for x, w in zip(_both(group, s, t), (w_q, w_k), strict=True))
        parts.append(dot(q, k, heads).view(-1, s.shape[1], heads))
    return pairs.place(torch.cat(parts))
