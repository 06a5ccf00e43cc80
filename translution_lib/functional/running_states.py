"""Causal attention with positive features, in chunks of tokens in their order, with a state that runs along.

A chunk reads the state of all chunks before it and the pairs within itself, then adds its own keys to the state. Its
features exist for that moment and again in backward. The scale of the state runs along too: it is the largest
log-feature of the keys so far, so that no key of a later chunk decides how well an earlier query is resolved.
A later key of the same chunk still does: where it exceeds all earlier keys by a factor beyond the range of the type
in the features that a query weighs, that query's sum is lost, and its output is near zero.
Source: chapter "Random features", eq-features-chunks.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from translution_lib.backends.products import looped
from translution_lib.functional.feature_states import FirstDerivatives, log_features, scaled_features
from translution_lib.functional.linear_attention import chunk_length, ratio
from translution_lib.functional.random_features import trigonometric


def causal_attention(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"],
                     omega: Float[Tensor, "m d"]) -> Float[Tensor, "b h n e"]:
    """Equal to ``linear_attention(*stabilised(q, k, omega), v, causal=True)``, in O(n (d + √(m e))) memory."""
    return ratio(_Running.apply(q, k, omega, F.pad(v, (0, 1), value=1.0))[0])


Memory = tuple[Tensor, Tensor]


def continued(q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h i d"], v: Float[Tensor, "b h i e"],
              omega: Float[Tensor, "m d"], features: str,
              memory: Memory | None = None) -> tuple[Float[Tensor, "b h i e"], Memory]:
    """Return the next rows of causal attention with features, and the state with its scale after them.

    Args:
        q: queries of the next tokens.
        k: their keys.
        v: their values.
        omega: the draws of the features.
        features: "positive", whose scale is the largest log-feature of the keys so far, one number per feature; or
            "trigonometric", whose scale is half the square of the longest key so far.
        memory: the state Σ_j φ(k_j)ᵀ [v_j, 1] of all tokens before, and its scale; None at the start of a text.
    """
    rows, v = [], F.pad(v, (0, 1), value=1.0)
    for part in _chunks(omega, v):
        fq, fk, scale = _next_features(q[..., part, :], k[..., part, :], omega, features, memory)
        before = None if memory is None else memory[0] * (memory[1] - scale).exp().mT
        sums = (fq @ fk.mT).tril() @ v[..., part, :]
        rows.append(sums if before is None else sums + fq @ before)
        state = fk.mT @ v[..., part, :]
        memory = state if before is None else before + state, scale
    assert memory is not None
    return ratio(torch.cat(rows, -2)), memory


def _next_features(q: Tensor, k: Tensor, omega: Tensor, features: str,
                   memory: Memory | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the features of queries and keys, and the scale that these keys leave."""
    positive = features == "positive"
    logs = log_features(k, omega) if positive else k.square().sum(-1, keepdim=True) / 2
    scale = logs.amax(-2, keepdim=True)
    scale = scale if memory is None else torch.maximum(scale, memory[1])
    if positive:
        return scaled_features(q, omega, scale), (logs - scale).exp(), scale
    return trigonometric(q, omega, q.square().sum(-1, keepdim=True) / 2), trigonometric(k, omega, scale), scale


class _Running(torch.autograd.Function):
    """Sums over past keys up to a factor for each query, and for every chunk the state it reads, with its scale."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, omega: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, parts = torch.empty_like(v), _chunks(omega, v)
        states = v.new_zeros(len(parts), *v.shape[:-2], len(omega), v.shape[-1])
        scales = v.new_empty(len(parts), *v.shape[:-2], 1, len(omega))
        state, scale = states[0], v.new_full(scales.shape[1:], -math.inf)
        for number, part in enumerate(parts):
            logs, values = log_features(k[..., part, :], omega), v[..., part, :]
            larger = torch.maximum(scale, logs.amax(-2, keepdim=True), out=scales[number])
            state = torch.mul(state, (scale - larger).exp_().mT, out=states[number])
            fk, fq, scale = logs.sub_(larger).exp_(), scaled_features(q[..., part, :], omega, larger), larger
            out[..., part, :] = (fq @ fk.mT).tril_() @ values + fq @ state
            state = state + fk.mT @ values
        return out, states, scales

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx, g: Tensor, *_) -> tuple[Tensor, Tensor, None, Tensor]:
        d_q, d_k, d_v = _RunningBackward.apply(g, *ctx.saved_tensors)
        return d_q, d_k, None, d_v

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_Running, info, in_dims, *args)


class _RunningBackward(FirstDerivatives):
    """The chunks from the last to the first, with the state of what later queries send back to earlier keys."""

    @staticmethod
    def forward(g: Tensor, q: Tensor, k: Tensor, omega: Tensor, v: Tensor, states: Tensor,
                scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_q, d_k, d_v, back = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.zeros_like(states[0])
        for number, part in reversed(list(enumerate(_chunks(omega, v)))):
            scale, values, here, keys = scales[number], v[..., part, :], g[..., part, :], k[..., part, :]
            fk = log_features(keys, omega).sub_(scale).exp_()
            fq = scaled_features(q[..., part, :], omega, scale)
            pairs = (here @ values.mT).tril_()
            d_v[..., part, :] = (fq @ fk.mT).tril_().mT @ here + fk @ back
            d_fq = pairs @ fk + here @ states[number].mT
            d_fk = (pairs.mT @ fq + values @ back.mT).mul_(fk)
            d_k[..., part, :] = d_fk @ omega - keys * d_fk.sum(-1, keepdim=True)
            back.add_(fq.mT @ here)
            d_q[..., part, :] = d_fq.mul_(fq) @ omega
            if number:
                back.mul_((scales[number - 1] - scale).exp_().mT)
        return d_q, d_k, d_v

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_RunningBackward, info, in_dims, *args)


def _chunks(omega: Tensor, v: Tensor) -> list[slice]:
    step = chunk_length(len(omega), v.shape[-1])
    return [slice(start, start + step) for start in range(0, v.shape[-2], step)]
