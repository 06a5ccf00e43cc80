"""The grouped product in torch, relation by relation: the form that is always there, for any device and type.

Two ways to the scores, chosen group by group: project both sides and multiply them channel by channel, or, with one
head and more rows than channels, go through the bilinear form M = Wq[r] Wk[r]ᵀ, one product instead of two. On CUDA
the sums over pairs are atomic, so that equal inputs may differ in their last bits; other forms are repeatable there.
Source: the Translution paper, eq. (1); the preprint, eq. (5); chapters "The operator" and "Making it fit".
"""

import torch
from torch import Tensor

from translution_lib.functional.groups import Pairs
from translution_lib.functional.rows import dot, per_head, product, scatter, through_side, wide, write


def takes(*tensors: Tensor | None) -> bool:
    """Whether the loop can serve these operands: always."""
    return True


def scores(s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs, heads: int,
           keep: bool) -> tuple:
    """Return q_ij · k_ji per head, b h n n, and with ``keep`` the projected rows of each side that has a weight."""
    parts, kept = [], [pairs.room(x, w) if keep else None for x, w in ((s, w_q), (t, w_k))]
    columns = [*map(pairs.matrices, (w_q, w_k)), *map(pairs.by_group, kept)]
    for group, m_q, m_k, *room in zip(pairs.groups, *columns, strict=True):
        x_q, x_k = both(group, s, t)
        if not keep and bilinear(x_q, m_q, m_k, heads):
            q, k = torch.bmm(x_q, torch.bmm(m_q, m_k.mT)), x_k
        else:
            q, k = product(x_q, m_q, room[0]), product(x_k, m_k, room[1])
        parts.append(dot(q, k, group.count, heads))
    return pairs.place(torch.cat(parts)), *(x for x in kept if x is not None)


def scores_backward(grad: Tensor, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs,
                    heads: int, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`scores` by s, t, w_q and w_k."""
    ds, dt = (torch.zeros_like(x, dtype=wide(x.dtype)) for x in (s, t))
    dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
    rest = iter(kept)
    made = [pairs.by_group(next(rest) if kept and w is not None else None) for w in (w_q, w_k)]
    columns = [*map(pairs.matrices, (w_q, w_k, dw_q, dw_k)), pairs.numbers(grad), *made]
    for group, m_q, m_k, dm_q, dm_k, g, q, k in zip(pairs.groups, *columns, strict=True):
        x_q, x_k = both(group, s, t)
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


def values(alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, keep: bool) -> tuple:
    """Return Σ_j α_ij x_j W[r], n b e, and with ``keep`` the projected rows of all pairs.

    With one head backward needs no values: the gradient of α_ij is x_j · (W[r] · gradient of f'_i).
    """
    out = x.new_zeros((*x.shape[:2], w.shape[-1]), dtype=wide(x.dtype))
    kept = pairs.room(x, w) if keep and alpha.shape[1] > 1 else None
    columns = pairs.matrices(w), pairs.numbers(alpha), pairs.by_group(kept)
    for group, matrix, a, room in zip(pairs.groups, *columns, strict=True):
        v = product(group.rows(x, group.keys), matrix, room)
        scatter(out, group.queries, per_head(a, v))
    return out.to(x.dtype), *([] if kept is None else [kept])


def values_backward(grad: Tensor, alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`values` by α, x and w."""
    heads = alpha.shape[1]
    dx, dw, numbers = torch.zeros_like(x, dtype=wide(x.dtype)), pairs.gradient(w), []
    columns = pairs.matrices(w), pairs.matrices(dw), pairs.numbers(alpha), pairs.by_group(kept[0] if kept else None)
    for group, matrix, dm, a, v in zip(pairs.groups, *columns, strict=True):
        rows, g = group.rows(x, group.keys), group.rows(grad, group.queries)
        if heads == 1:
            d_rows = through_side(dm, matrix, per_head(a, rows), g)
            numbers.append(dot(d_rows, rows, group.count, 1))
            d_rows = per_head(a, d_rows)
        else:
            v = product(rows, matrix) if v is None else v
            numbers.append(dot(g, v, group.count, heads))
            d_rows = through_side(dm, matrix, rows, per_head(a, g))
        scatter(dx, group.keys, d_rows)
    return pairs.place(torch.cat(numbers)), dx.to(x.dtype), dw


def bilinear(x_q: Tensor, m_q: Tensor | None, m_k: Tensor | None, heads: int) -> bool:
    """Whether a group's scores go through M = Wq Wkᵀ; rows x_q (g m c), matrices g c e.

    It pays with one head, since every head has its own M; where q and k are at least as wide as the keys' tokens; and
    where a relation has more rows than these have channels, since M itself takes c² numbers a relation to make.
    """
    if heads != 1 or m_q is None or m_k is None:
        return False
    return x_q.shape[1] > m_k.shape[1] <= m_k.shape[2]


def both(group, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
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
