"""Weighted sums of values Σ_j α_ij f_j W[r] by grouped products, and their gradients.

Source: seed 000, eq. (1); seed 001, eq. (5); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional import compiled, fused
from translution_lib.functional.rows import again, dot, looped, per_head, product, scatter, through_side, wide


class Values(torch.autograd.Function):
    """f'_i = Σ_j α_ij (x_j W[r]), the weights α per head; with ``keep``, a further output holds the values.

    With one head backward needs no values: the gradient of α_ij is x_j · (W[r] · gradient of f'_i).
    """

    @staticmethod
    def forward(alpha, x, w, pairs, keep):              # b h n n, n b c, r c e -> n b e
        if fused.available(alpha, x, w):
            return (fused.values(alpha, x, w, pairs.table),)
        if compiled.available(alpha, x, w):
            return compiled.values(alpha, x, w, pairs, keep)
        out = x.new_zeros((*x.shape[:2], w.shape[-1]), dtype=wide(x.dtype))
        kept = pairs.room(x, w) if keep and alpha.shape[1] > 1 else None
        columns = pairs.matrices(w), pairs.numbers(alpha), pairs.by_group(kept)
        for group, matrix, a, room in zip(pairs.groups, *columns, strict=True):
            v = product(group.rows(x, group.keys), matrix, room)
            scatter(out, group.queries, per_head(a, v))
        return out.to(x.dtype), *([] if kept is None else [kept])

    @staticmethod
    def setup_context(ctx, inputs, output):
        alpha, x, w, ctx.pairs, _ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)    # else backward would be handed zeros of the size of what is kept
        ctx.save_for_backward(alpha, x, w, *output[1:])

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 5
        alpha, x, w, *kept = ctx.saved_tensors
        return *ValuesBackward.apply(grad, alpha, x, w, ctx.pairs, *kept), None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(Values, info, in_dims, *args)


class ValuesBackward(torch.autograd.Function):
    """The gradients of the values."""

    @staticmethod
    def forward(grad, alpha, x, w, pairs, *kept):
        if fused.available(grad, alpha, x, w):
            return fused.values_backward(grad, alpha, x, w, pairs.table)
        if compiled.available(grad, alpha, x, w):
            return compiled.values_backward(grad, alpha, x, w, pairs, *kept)
        heads = alpha.shape[1]
        dx, dw, scores = torch.zeros_like(x, dtype=wide(x.dtype)), pairs.gradient(w), []
        columns = pairs.matrices(w), pairs.matrices(dw), pairs.numbers(alpha), pairs.by_group(kept[0] if kept else None)
        for group, matrix, dm, a, v in zip(pairs.groups, *columns, strict=True):
            rows, g = group.rows(x, group.keys), group.rows(grad, group.queries)
            if heads == 1:
                d_rows = through_side(dm, matrix, per_head(a, rows), g)
                scores.append(dot(d_rows, rows, group.count, 1))
                d_rows = per_head(a, d_rows)
            else:
                v = product(rows, matrix) if v is None else v
                scores.append(dot(g, v, group.count, heads))
                d_rows = through_side(dm, matrix, rows, per_head(a, g))
            scatter(dx, group.keys, d_rows)
        return pairs.place(torch.cat(scores)), dx.to(x.dtype), dw

    @staticmethod
    def setup_context(ctx, inputs, output):
        grad, alpha, x, w, ctx.pairs, *kept = inputs
        ctx.kept = len(kept)
        ctx.save_for_backward(grad, alpha, x, w)

    @staticmethod
    def backward(ctx, *grads):
        return *again(_plain, ctx, grads, ctx.pairs), None, *[None] * ctx.kept

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(ValuesBackward, info, in_dims, *args)


def _plain(alpha, x, w, pairs):
    """The values by operations that autograd can differentiate again and again."""
    out = x.new_zeros(*x.shape[:2], w.shape[-1])
    for group, matrix, a in zip(pairs.groups, pairs.matrices(w), pairs.numbers(alpha), strict=True):
        v = per_head(a, product(group.rows(x, group.keys), matrix))
        out = out.index_add(0, group.queries, v.view(group.count, *out.shape[1:]))
    return out
