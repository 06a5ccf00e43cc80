"""Scores q_ij·k_ji by grouped products as a function that autograd knows; the form computes it and its gradients.

Source: the Translution paper, eq. (1); chapters "The operator" and "Making it fit".
"""

import torch

from translution_lib.functional.forms import form
from translution_lib.functional.loop import both
from translution_lib.functional.rows import again, dot, looped, product


class Scores(torch.autograd.Function):
    """a_ij = q_ij · k_ji per head, for q_ij = s_i Wq[r], k_ji = t_j Wk[r]; a missing weight means the identity.

    With ``keep``, the further outputs are what backward would otherwise compute again: q and k of all pairs.
    """

    @staticmethod
    def forward(s, t, w_q, w_k, pairs, heads, keep):    # s, t: n b c -> b h n n
        chosen = form("scores", (s, t, w_q, w_k), pairs, heads)
        return chosen.scores(s, t, w_q, w_k, pairs, heads, keep)

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
        chosen = form("scores", (s, t, w_q, w_k), pairs, heads, grad)
        return chosen.scores_backward(grad, s, t, w_q, w_k, pairs, heads, *kept)

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


def _plain(s, t, w_q, w_k, pairs, heads):
    """The scores by operations that autograd can differentiate again and again."""
    parts = []
    for group, *matrices in zip(pairs.groups, pairs.matrices(w_q), pairs.matrices(w_k), strict=True):
        q, k = map(product, both(group, s, t), matrices)
        parts.append(dot(q, k, group.count, heads))
    return pairs.place(torch.cat(parts))
