"""The grouped product: attention scores and values whose matrices depend on the relation of a pair.

Pairs are sorted by relation. All pairs of one relation multiply the same matrix, so each relation costs one matrix
product, and neither an N×N×C×C′ nor an N×N×C′ tensor exists at any time. Backward keeps only the inputs and recomputes
the products. Source: seed 000, eq. (1); chapters "The operator" and "What it costs".
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.checks import HALF_TYPES, autocast_together
from translution_lib.relations import Relations


class Pairs(NamedTuple):
    """The unmasked pairs of a table, sorted by relation, on one device."""

    groups: list            # one (relation, queries, keys) for every relation that occurs
    flat: Tensor            # place i·n + j of every pair
    sizes: list             # pairs in each group


def pairs_on(relations: Relations, device: torch.device) -> Pairs:
    """Return the sorted pairs of a table on a device; the result is kept in the table."""
    return relations._remember(("pairs", str(device)), lambda: _make_pairs(relations, device))


def _make_pairs(relations: Relations, device: torch.device) -> Pairs:
    i, j = relations.sorted_pairs
    sizes = relations.sizes.tolist()
    parts = zip(range(relations.count), i.split(sizes), j.split(sizes), strict=True)
    groups = [(r, a.to(device), b.to(device)) for r, a, b in parts if len(a)]
    return Pairs(groups, (i * relations.n + j).to(device), [size for size in sizes if size])


def _rows(x: Tensor, tokens: Tensor) -> Tensor:
    """Gather tokens of x (n b c) and lay them out as the rows of one matrix, (p·b c)."""
    return x.index_select(0, tokens).flatten(0, 1)


def _project(rows: Tensor, w: Tensor | None, relation: int) -> Tensor:
    return rows if w is None else rows @ w[relation]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over relations accumulate."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def _zeros(shape: tuple, dtype: torch.dtype, *sources: Tensor | None) -> Tensor:
    """Return a buffer of zeros for in-place sums.

    Under ``torch.func.vmap`` the buffer must carry the mapped dimension as soon as anything added to it does, so it is
    made from an empty slice of everything that will be added.
    """
    empty = torch.stack([x[..., :0].sum() for x in sources if x is not None])
    return empty.sum().new_zeros(shape, dtype=dtype)


class _Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads):          # s, t: n b c -> b h n n
        n, b = s.shape[:2]
        parts = []
        for r, i, j in pairs.groups:
            q, k = _project(_rows(s, i), w_q, r), _project(_rows(t, j), w_k, r)
            parts.append((q * k).unflatten(-1, (heads, -1)).sum(-1).unflatten(0, (-1, b)))
        a = torch.cat(parts)
        a = a.new_zeros(n * n, b, heads).index_copy(0, pairs.flat, a)
        return a.view(n, n, b, heads).permute(2, 3, 0, 1).contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        s, t, w_q, w_k, ctx.pairs, ctx.heads = inputs
        ctx.save_for_backward(s, t, w_q, w_k)

    @staticmethod
    def backward(ctx, grad):
        s, t, w_q, w_k = ctx.saved_tensors
        everything = (s, t, w_q, w_k, grad)
        ds, dt = (_zeros(x.shape, _wide(x.dtype), *everything) for x in (s, t))
        dw_q, dw_k = (None if w is None else _zeros(w.shape, w.dtype, *everything) for w in (w_q, w_k))
        grad = grad.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, ctx.pairs.flat)     # p b h
        for (r, i, j), g in zip(ctx.pairs.groups, grad.split(ctx.pairs.sizes), strict=True):
            x_i, x_j = _rows(s, i), _rows(t, j)
            q, k = _project(x_i, w_q, r), _project(x_j, w_k, r)
            g = g.flatten(0, 1).unsqueeze(-1)                                             # p·b h 1
            _backward_side(ds, dw_q, w_q, r, i, x_i, _per_head(g, k))
            _backward_side(dt, dw_k, w_k, r, j, x_j, _per_head(g, q))
        return ds.to(s.dtype), dt.to(t.dtype), dw_q, dw_k, None, None


def _per_head(g: Tensor, rows: Tensor) -> Tensor:
    """Multiply the channels of every head of rows (p·b e) by that head's factor g (p·b h 1)."""
    return (g * rows.unflatten(-1, (g.shape[-2], -1))).flatten(-2)


def _backward_side(dx, dw, w, r, tokens, rows, dy) -> None:
    """Add the gradients of y = rows @ w[r], whose rows are the given tokens of x, into dx and dw."""
    if dw is not None:
        dw[r] = rows.mT @ dy
        dy = dy @ w[r].mT
    dx.index_add_(0, tokens, dy.unflatten(0, (-1, dx.shape[1])).to(dx.dtype))


class _Values(torch.autograd.Function):
    """f'_i = Σ_j α_ij (x_j W[r]), the weights α per head."""

    generate_vmap_rule = True

    @staticmethod
    def forward(alpha, x, w, pairs):                    # b h n n, n b c, r c e -> n b e
        n, b = x.shape[:2]
        rows = alpha.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, pairs.flat)        # p b h
        out = _zeros((n, b, w.shape[-1]), _wide(x.dtype), alpha, x, w)
        for (r, i, j), a in zip(pairs.groups, rows.split(pairs.sizes), strict=True):
            v = _per_head(a.flatten(0, 1).unsqueeze(-1), _rows(x, j) @ w[r])
            out.index_add_(0, i, v.unflatten(0, (-1, b)).to(out.dtype))
        return out.to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        alpha, x, w, ctx.pairs = inputs
        ctx.save_for_backward(alpha, x, w)

    @staticmethod
    def backward(ctx, grad):
        alpha, x, w = ctx.saved_tensors
        b, heads, n = alpha.shape[:3]
        dx, dw = (_zeros(y.shape, d, alpha, x, w, grad) for y, d in ((x, _wide(x.dtype)), (w, w.dtype)))
        parts = []
        rows = alpha.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, ctx.pairs.flat)
        for (r, i, j), a in zip(ctx.pairs.groups, rows.split(ctx.pairs.sizes), strict=True):
            g, x_j = _rows(grad, i), _rows(x, j)
            parts.append((g * (x_j @ w[r])).unflatten(-1, (heads, -1)).sum(-1).unflatten(0, (-1, b)))
            _backward_side(dx, dw, w, r, j, x_j, _per_head(a.flatten(0, 1).unsqueeze(-1), g))
        dalpha = torch.cat(parts)
        dalpha = dalpha.new_zeros(n * n, b, heads).index_copy(0, ctx.pairs.flat, dalpha)
        return dalpha.view(n, n, b, heads).permute(2, 3, 0, 1), dx.to(x.dtype), dw, None


def _without_autocast(device: str) -> AbstractContextManager:
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


@torch.compiler.disable
def pair_scores(s: Float[Tensor, "b n c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
                relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return q_ij · k_ji for every unmasked pair and head, zero elsewhere; not scaled.

    A weight ``r c e`` projects its side per relation; None means that the side is projected already.
    """
    s, t, w_q, w_k = autocast_together(s, t, w_q, w_k)
    s, t = s.transpose(0, 1).contiguous(), t.transpose(0, 1).contiguous()
    with _without_autocast(s.device.type):
        return _Scores.apply(s, t, w_q, w_k, pairs_on(relations, s.device), heads)


@torch.compiler.disable
def pair_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"],
                relations: Relations) -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij x_j W[relation of ij], each head weighting its own slice of the channels of W."""
    alpha, x, w = autocast_together(alpha, x, w)
    alpha, x = alpha.to(x.dtype), x.transpose(0, 1).contiguous()
    with _without_autocast(x.device.type):
        return _Values.apply(alpha, x, w, pairs_on(relations, x.device)).transpose(0, 1)
