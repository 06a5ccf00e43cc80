"""Weighted sums of values Σ_j α_ij f_j W[r] as a function that autograd knows; the form computes it and its gradients.

Source: the Translution paper, eq. (1); the preprint, eq. (5); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional.forms import form
from translution_lib.functional.rows import again, looped, per_head, product


class Values(torch.autograd.Function):
    """f'_i = Σ_j α_ij (x_j W[r]), the weights α per head; with ``keep``, a further output may hold the values."""

    @staticmethod
    def forward(alpha, x, w, pairs, keep):              # b h n n, n b c, r c e -> n b e
        chosen = form("values", (alpha, x, w), pairs, alpha.shape[1])
        return chosen.values(alpha, x, w, pairs, keep)

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
        chosen = form("values", (alpha, x, w), pairs, alpha.shape[1], grad)
        return chosen.values_backward(grad, alpha, x, w, pairs, *kept)

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
