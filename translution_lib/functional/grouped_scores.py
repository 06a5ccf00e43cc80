"""Scores q_ij·k_ji by grouped products, and their gradients.

Two ways to the same number, chosen group by group: project both sides and multiply them channel by channel, or, with
one head and more rows than channels, go through the bilinear form M = Wq[r] Wk[r]ᵀ, one product instead of two.
Source: seed 000, eq. (1); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional import compiled, fused
from translution_lib.functional.rows import again, dot, looped, per_head, product, scatter, through_side, wide, write


class Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity.

    With ``keep``, the further outputs are what backward would otherwise compute again: q and k of all pairs.
    """

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads, keep):    # s, t: n b c -> b h n n
        if fused.available(s, t, w_q, w_k):
            return (fused.scores(s, t, w_q, w_k, pairs.table, heads),)
        if compiled.available(s, t, w_q, w_k):
            return compiled.scores(s, t, w_q, w_k, pairs, heads, keep)
        parts, kept = [], [pairs.room(x, w) if keep else None for x, w in ((s, w_q), (t, w_k))]
        columns = [*map(pairs.matrices, (w_q, w_k)), *map(pairs.by_group, kept)]
        for group, m_q, m_k, *room in zip(pairs.groups, *columns, strict=True):
            x_q, x_k = _both(group, s, t)
            if not keep and bilinear(x_q, m_q, m_k, heads):
                q, k = torch.bmm(x_q, torch.bmm(m_q, m_k.mT)), x_k
            else:
                q, k = product(x_q, m_q, room[0]), product(x_k, m_k, room[1])
            parts.append(dot(q, k, group.count, heads))
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
        if compiled.available(grad, s, t, w_q, w_k):
            return compiled.scores_backward(grad, s, t, w_q, w_k, pairs, heads, *kept)
        ds, dt = (torch.zeros_like(x, dtype=wide(x.dtype)) for x in (s, t))
        dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
        rest = iter(kept)
        made = [pairs.by_group(next(rest) if kept and w is not None else None) for w in (w_q, w_k)]
        columns = [*map(pairs.matrices, (w_q, w_k, dw_q, dw_k)), pairs.numbers(grad), *made]
        for group, m_q, m_k, dm_q, dm_k, g, q, k in zip(pairs.groups, *columns, strict=True):
            x_q, x_k = _both(group, s, t)
            if not kept and bilinear(x_q, m_q, m_k, heads):
                dx_q, dx_k = _through_matrix(g, x_q, x_k, (m_q, m_k), (dm_q, dm_k))
            else:
                q = product(x_q, m_q) if q is None else q
                k = product(x_k, m_k) if k is None else k
                dx_q = through_side(dm_q, m_q, x_q, per_head(g, k))
                dx_k = through_side(dm_k, m_k, x_k, per_head(g, q))
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


def bilinear(x_q: torch.Tensor, m_q: torch.Tensor | None, m_k: torch.Tensor | None, heads: int) -> bool:
    """Whether a group's scores go through M = Wq Wkᵀ; rows x_q (g m c), matrices g c e.

    It pays with one head, since every head has its own M; where q and k are at least as wide as the keys' tokens; and
    where a relation has more rows than these have channels, since M itself takes c² numbers a relation to make.
    """
    if heads != 1 or m_q is None or m_k is None:
        return False
    return x_q.shape[1] > m_k.shape[1] <= m_k.shape[2]


def _both(group, s, t):
    """Return the rows of the queries and of the keys; they are gathered once where both come from the same tokens."""
    if t is not s:
        return group.rows(s, group.queries), group.rows(t, group.keys)
    rows = group.rows(s, group.tokens)
    return rows[:group.size], rows[-group.size:]


def _through_matrix(g, x_q, x_k, matrices, gradients):
    """Write the gradients of the matrices and return those of the rows, by a = x_q M x_kᵀ."""
    (m_q, m_k), (dm_q, dm_k) = matrices, gradients
    m, g_k = torch.bmm(m_q, m_k.mT), per_head(g, x_k)
    dm = torch.bmm(x_q.mT, g_k)
    write(dm_q, dm, m_k)
    write(dm_k, dm.mT, m_q)
    return torch.bmm(g_k, m.mT), per_head(g, torch.bmm(x_q, m))


def _plain(s, t, w_q, w_k, pairs, heads):
    """The scores by operations that autograd can differentiate again and again."""
    parts = []
    for group, *matrices in zip(pairs.groups, pairs.matrices(w_q), pairs.matrices(w_k), strict=True):
        q, k = map(product, _both(group, s, t), matrices)
        parts.append(dot(q, k, group.count, heads))
    return pairs.place(torch.cat(parts))
