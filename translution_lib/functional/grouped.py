"""The grouped product: attention scores and values whose matrices depend on the relation of a pair.

Pairs are sorted by relation. All pairs of one relation multiply the same matrix, so each relation costs one matrix
product, and neither an N×N×C×C′ nor an N×N×C′ tensor exists at any time. A relation whose pairs are those of another
one with query and key exchanged, such as the offsets δ and −δ, shares its gathered rows with it, and the two run as one
batched product. Source: seed 000, eq. (1); chapters "The operator" and "What it costs".
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional import fused
from translution_lib.functional.checks import HALF_TYPES, autocast_together
from translution_lib.relations import Relations


@dataclass(frozen=True)
class Group:
    """One relation, or two whose pairs are each other's with query and key exchanged.

    The tokens are those of the queries, then of the keys, then (for two relations) of the queries again: the first g of
    the g + 1 stretches are the queries of the g relations, the last g their keys.
    """

    relations: slice
    size: int               # g
    tokens: Tensor          # (g + 1)·p

    def weight(self, w: Tensor) -> Tensor:
        """Return the matrices of the relations as a view, g c e."""
        return w[self.relations]


@dataclass(frozen=True)
class Pairs:
    """The unmasked pairs of a table on one device, group by group."""

    groups: list
    flat: Tensor            # place i·n + j of every pair
    sizes: list             # pairs in each group
    absent: list            # relations without a pair
    table: Relations        # whose pairs they are

    def gradient(self, w: Tensor) -> Tensor:
        """Return room for the gradient of w: each group writes its own matrices, the others are zero."""
        dw = torch.empty_like(w)
        dw[self.absent] = 0
        return dw


def pairs_on(relations: Relations, device: torch.device) -> Pairs:
    """Return the grouped pairs of a table on a device; the result is kept in the table."""
    return relations._remember(("pairs", str(device)), lambda: _make_pairs(relations, device))


def _make_pairs(relations: Relations, device: torch.device) -> Pairs:
    sizes, n = relations.sizes.tolist(), relations.n
    tokens = dict(enumerate(zip(*(t.split(sizes) for t in relations.sorted_pairs), strict=True)))
    groups, flat = [], []
    for r, (i, j) in tokens.items():
        partner = _partner(relations, r, i, j)
        if not len(i) or partner < r:
            continue                        # no pairs, or done with its partner
        two = partner > r
        ids = slice(r, partner + 1, partner - r) if two else slice(r, r + 1)
        groups.append(Group(ids, 1 + two, torch.cat([i, j, i] if two else [i, j]).to(device)))
        flat += [i * n + j, j * n + i] if two else [i * n + j]
    sizes_of_groups = [g.size * len(g.tokens) // (g.size + 1) for g in groups]
    absent = [r for r, size in enumerate(sizes) if not size]
    return Pairs(groups, torch.cat(flat).to(device), sizes_of_groups, absent, relations)


def _partner(relations: Relations, r: int, i: Tensor, j: Tensor) -> int:
    """Return the relation whose pairs are those of r with query and key exchanged; r itself if there is none."""
    ids = relations.index[j, i]
    other = int(ids[0]) if len(i) else r
    exchanged = other >= 0 and bool((ids == other).all()) and int(relations.sizes[other]) == len(i)
    return other if exchanged else r


def _rows(x: Tensor, group: Group) -> Tensor:
    """Gather the group's tokens of x (n b c) as rows of matrices, (g + 1) m c with m = p·b."""
    return x.index_select(0, group.tokens).view(group.size + 1, -1, x.shape[-1])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over relations accumulate."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def _dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Return the inner product of two rows per head, (g m e), (g m e) -> (g m h)."""
    return (a * b).unflatten(-1, (heads, -1)).sum(-1)


def _per_head(g: Tensor, rows: Tensor) -> Tensor:
    """Multiply the channels of every head of rows (g m e) by that head's factor (g m h)."""
    return (rows.unflatten(-1, (g.shape[-1], -1)) * g.unsqueeze(-1)).flatten(-2)


def _place(parts: Tensor, pairs: Pairs, n: int) -> Tensor:
    """Put numbers per pair (p b h) at their places, b h n n; zero elsewhere."""
    table = parts.new_zeros(n * n, *parts.shape[1:]).index_copy(0, pairs.flat, parts)
    return table.unflatten(0, (n, n)).permute(2, 3, 0, 1).contiguous()


def _take(table: Tensor, pairs: Pairs) -> Tensor:
    """Return the numbers of the pairs of a table b h n n, (p b h)."""
    return table.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, pairs.flat)


def _product(rows: Tensor, w: Tensor | None, group: Group, out: Tensor | None) -> Tensor:
    """Return rows times the group's matrices, g m e, written to ``out`` if given; no weight means the identity."""
    if w is None:
        return rows
    return torch.bmm(rows, group.weight(w), out=None if out is None else out.view(*rows.shape[:2], -1))


def _kept(keep: bool, w: Tensor | None, pairs: Pairs, x: Tensor) -> Tensor:
    """Return room for one projected side of every pair, p b e, or nothing."""
    return x.new_empty(len(pairs.flat) if keep and w is not None else 0, x.shape[1], 1 if w is None else w.shape[-1])


def _slices(kept: Tensor, pairs: Pairs) -> list:
    return list(kept.split(pairs.sizes)) if len(kept) else [None] * len(pairs.sizes)


def _looped(cls, info, in_dims, *args):
    """Run a function once per element of the mapped dimension; a custom function sees no batched tensor."""
    def element(k: int):
        return [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
    results = [cls.apply(*element(k)) for k in range(info.batch_size)]
    columns = list(zip(*results, strict=True))
    outputs = tuple(None if c[0] is None else torch.stack(c) for c in columns)
    return outputs, tuple(None if o is None else 0 for o in outputs)


class _Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity."""

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads, keep):    # s, t: n b c -> b h n n
        if fused.available(s, t, w_q, w_k):
            nothing = s.new_empty(0)
            return fused.scores(s, t, w_q, w_k, pairs.table, heads), nothing, nothing.clone()
        n, b = s.shape[:2]
        q_kept, k_kept = _kept(keep, w_q, pairs, s), _kept(keep, w_k, pairs, t)
        parts = []
        for group, q_out, k_out in zip(pairs.groups, _slices(q_kept, pairs), _slices(k_kept, pairs), strict=True):
            x_q = _rows(s, group)
            x_k = x_q if t is s else _rows(t, group)
            q, k = _product(x_q[:-1], w_q, group, q_out), _product(x_k[1:], w_k, group, k_out)
            parts.append(_dot(q, k, heads).view(-1, b, heads))
        return _place(torch.cat(parts), pairs, n), q_kept, k_kept

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
        return *_ScoresBackward.apply(grad, *ctx.saved_tensors, ctx.pairs, ctx.heads), None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _looped(_Scores, info, in_dims, *args)


def _plain_scores(s, t, w_q, w_k, pairs, heads):
    """The scores by operations that autograd can differentiate again and again."""
    parts = []
    for group in pairs.groups:
        q, k = _product(_rows(s, group)[:-1], w_q, group, None), _product(_rows(t, group)[1:], w_k, group, None)
        parts.append(_dot(q, k, heads).view(-1, s.shape[1], heads))
    return _place(torch.cat(parts), pairs, s.shape[0])


class _ScoresBackward(torch.autograd.Function):
    """The gradients of the scores."""

    @staticmethod
    def forward(grad, s, t, w_q, w_k, q_kept, k_kept, pairs, heads):
        if fused.available(grad, s, t, w_q, w_k):
            return fused.scores_backward(grad, s, t, w_q, w_k, pairs.table, heads)
        ds, dt = (torch.zeros_like(x, dtype=_wide(x.dtype)) for x in (s, t))
        dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
        kept = zip(_slices(q_kept, pairs), _slices(k_kept, pairs), strict=True)
        parts = _take(grad, pairs).split(pairs.sizes)
        for group, g, (q, k) in zip(pairs.groups, parts, kept, strict=True):
            x_q = _rows(s, group)
            x_k = x_q if t is s else _rows(t, group)
            x_q, x_k = x_q[:-1], x_k[1:]
            q = _product(x_q, w_q, group, None) if q is None else q.view(*x_q.shape[:2], -1)
            k = _product(x_k, w_k, group, None) if k is None else k.view(*x_k.shape[:2], -1)
            g = g.reshape(*x_q.shape[:2], heads)
            p = len(group.tokens) // (group.size + 1)
            _backward_side(ds, dw_q, w_q, group, group.tokens[:-p], x_q, _per_head(g, k))
            _backward_side(dt, dw_k, w_k, group, group.tokens[p:], x_k, _per_head(g, q))
        return ds.to(s.dtype), dt.to(t.dtype), dw_q, dw_k

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad, s, t, w_q, w_k, _, _, ctx.pairs, ctx.heads = inputs
        ctx.save_for_backward(grad, s, t, w_q, w_k)

    @staticmethod
    def backward(ctx, *grads):
        return *_again(_plain_scores, ctx, grads, ctx.pairs, ctx.heads), None, None, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _looped(_ScoresBackward, info, in_dims, *args)


def _again(plain, ctx, grads, *fixed) -> list:
    """Differentiate the gradients of a plain form: second derivatives, from which higher ones follow."""
    grad, *inputs = ctx.saved_tensors
    present = [k for k, x in enumerate(inputs) if x is not None]

    def gradients(grad, *given):
        def of(*given):
            full = list(inputs)
            for k, x in zip(present, given, strict=True):
                full[k] = x
            return plain(*full, *fixed)
        return torch.func.vjp(of, *given)[1](grad)

    values = [inputs[k] for k in present]
    found = torch.func.vjp(gradients, grad, *values)[1](tuple(grads[k] for k in present))
    out = [None] * len(inputs)
    for k, g in zip(present, found[1:], strict=True):
        out[k] = g
    return [found[0], *out]


def _backward_side(dx, dw, w, group, tokens, rows, dy) -> None:
    """Add the gradients of y = rows @ w[r], whose rows are the given tokens of x, into dx and dw."""
    if dw is not None:
        group.weight(dw).copy_(torch.bmm(rows.mT, dy))
        dy = torch.bmm(dy, group.weight(w).mT)
    dx.index_add_(0, tokens, dy.view(-1, *dx.shape[1:]).to(dx.dtype))


class _Values(torch.autograd.Function):
    """f'_i = Σ_j α_ij (x_j W[r]), the weights α per head."""

    @staticmethod
    def forward(alpha, x, w, pairs, keep):              # b h n n, n b c, r c e -> n b e
        if fused.available(alpha, x, w):
            return fused.values(alpha, x, w, pairs.table), x.new_empty(0)
        n, b = x.shape[:2]
        kept = _kept(keep, w, pairs, x)
        out = x.new_zeros((n, b, w.shape[-1]), dtype=_wide(x.dtype))
        parts = _take(alpha, pairs).split(pairs.sizes)
        for group, a, v_out in zip(pairs.groups, parts, _slices(kept, pairs), strict=True):
            rows = _rows(x, group)[1:]
            v = _per_head(a.reshape(*rows.shape[:2], -1), _product(rows, w, group, v_out))
            p = len(group.tokens) // (group.size + 1)
            out.index_add_(0, group.tokens[:-p], v.view(-1, b, w.shape[-1]).to(out.dtype))
        return out.to(x.dtype), kept

    @staticmethod
    def setup_context(ctx, inputs, output):
        alpha, x, w, ctx.pairs, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)    # else backward would be handed zeros of the size of what is kept
        ctx.save_for_backward(alpha, x, w, output[1])

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 5
        return *_ValuesBackward.apply(grad, *ctx.saved_tensors, ctx.pairs), None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _looped(_Values, info, in_dims, *args)


def _plain_values(alpha, x, w, pairs):
    """The values by operations that autograd can differentiate again and again."""
    out, b = x.new_zeros(*x.shape[:2], w.shape[-1]), x.shape[1]
    for group, a in zip(pairs.groups, _take(alpha, pairs).split(pairs.sizes), strict=True):
        rows = _rows(x, group)[1:]
        v = _per_head(a.reshape(*rows.shape[:2], -1), _product(rows, w, group, None))
        p = len(group.tokens) // (group.size + 1)
        out = out.index_add(0, group.tokens[:-p], v.view(-1, b, w.shape[-1]))
    return out


class _ValuesBackward(torch.autograd.Function):
    """The gradients of the values."""

    @staticmethod
    def forward(grad, alpha, x, w, kept, pairs):
        if fused.available(grad, alpha, x, w):
            return fused.values_backward(grad, alpha, x, w, pairs.table)
        (n, b), heads = x.shape[:2], alpha.shape[1]
        dx, dw, scores = torch.zeros_like(x, dtype=_wide(x.dtype)), pairs.gradient(w), []
        parts = _take(alpha, pairs).split(pairs.sizes)
        for group, a, v in zip(pairs.groups, parts, _slices(kept, pairs), strict=True):
            rows = _rows(x, group)[1:]
            p = len(group.tokens) // (group.size + 1)
            g = grad.index_select(0, group.tokens[:-p]).view(*rows.shape[:2], -1)
            v = _product(rows, w, group, None) if v is None else v.view_as(g)
            scores.append(_dot(g, v, heads).view(-1, b, heads))
            _backward_side(dx, dw, w, group, group.tokens[p:], rows, _per_head(a.reshape(*rows.shape[:2], heads), g))
        return _place(torch.cat(scores), pairs, n), dx.to(x.dtype), dw

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad, alpha, x, w, _, ctx.pairs = inputs
        ctx.save_for_backward(grad, alpha, x, w)

    @staticmethod
    def backward(ctx, *grads):
        return *_again(_plain_values, ctx, grads, ctx.pairs), None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _looped(_ValuesBackward, info, in_dims, *args)


# Projected pairs up to this size are kept for backward instead of being computed again: a trade of memory, N²·C′
# numbers a sample and side, against three of twelve products. By default nothing of that size is ever built.
KEEP_BYTES = 0


def _keep(pairs: Pairs, x: Tensor, width: int, sides: int) -> bool:
    """Whether the projected sides of all pairs are kept for backward, rather than computed again."""
    return sides * len(pairs.flat) * x.shape[1] * width * x.element_size() <= KEEP_BYTES


def _without_autocast(device: str) -> AbstractContextManager:
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


@torch.compiler.disable
def pair_scores(s: Float[Tensor, "b n c1"], t: Float[Tensor, "b n c2"], w_q: Tensor | None, w_k: Tensor | None,
                relations: Relations, heads: int) -> Float[Tensor, "b h n n"]:
    """Return q_ij · k_ji for every unmasked pair and head, zero elsewhere; not scaled.

    A weight ``r c e`` projects its side per relation; None means that the side is projected already.
    """
    same = s is t
    s, t, w_q, w_k = autocast_together(s, t, w_q, w_k)
    s = s.transpose(0, 1).contiguous()
    t = s if same else t.transpose(0, 1).contiguous()
    pairs = pairs_on(relations, s.device)
    with _without_autocast(s.device.type):
        keep = _keep(pairs, s, s.shape[-1] if w_q is None else w_q.shape[-1], 2)
        return _Scores.apply(s, t, w_q, w_k, pairs, heads, keep)[0]


@torch.compiler.disable
def pair_values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"], w: Float[Tensor, "r c e"],
                relations: Relations) -> Float[Tensor, "b n e"]:
    """Return Σ_j α_ij x_j W[relation of ij], each head weighting its own slice of the channels of W."""
    alpha, x, w = autocast_together(alpha, x, w)
    alpha, x = alpha.to(x.dtype), x.transpose(0, 1).contiguous()
    pairs = pairs_on(relations, x.device)
    with _without_autocast(x.device.type):
        return _Values.apply(alpha, x, w, pairs, _keep(pairs, x, w.shape[-1], 1))[0].transpose(0, 1)
