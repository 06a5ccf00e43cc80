"""Positive features in the two products that attention needs, without ever holding the features of all tokens.

The keys write a state Σ_j φ(k_j)ᵀ v_j, the queries read it: φ(q_i) S. A chunk of tokens has its features for a moment,
and gets them again in backward; kept are queries, keys, values and the state, O(n d + m e) numbers instead of O(n m).
Source: chapter "Random features", eq-features-linear and eq-features-shift.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from translution_lib.backends.products import looped
from translution_lib.functional.linear_attention import ratio
from translution_lib.functional.random_features import log_positive

CHUNK = 2**18
"""How many features there are at a time for each thread of a CPU: what stays in its cache."""
CHUNK_ELSEWHERE = 2**24
"""The same for the whole of another device."""


def write_state(k: Float[Tensor, "*b n d"], omega: Float[Tensor, "m d"],
                v: Float[Tensor, "*b n e"]) -> tuple[Float[Tensor, "*b m e"], Float[Tensor, "*b 1 m"]]:
    """Return S = Σ_j φ⁺(k_j)ᵀ v_j and its scale c: row r of the state is divided by e^{c_r}.

    c_r is the largest log-feature ω_r k_j − ‖k_j‖²/2 of the keys. No gradient flows through it, nor into ω.
    """
    return _Write.apply(k, omega, v)


def read_state(q: Float[Tensor, "*b n d"], omega: Float[Tensor, "m d"], state: Tensor,
               scale: Tensor) -> Float[Tensor, "*b n e"]:
    """Return φ⁺(q_i) S up to a positive factor for each query, which cancels in a ratio of two channels.

    Args:
        q: queries.
        omega: the draws of the features.
        state: what :func:`write_state` returns, shape (…, m, e), or one state for all leading axes, shape (m, e).
        scale: its scale c, shape (…, 1, m) or (1, m).

    The factor makes the largest term of every query 1/√m. It counts as a constant: gradients are right for what does
    not depend on it, such as the ratio of two channels.
    """
    return _Read.apply(q, omega, state, scale)[0]


def positive_attention(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"],
                       omega: Float[Tensor, "m d"]) -> Float[Tensor, "b h n e"]:
    """Equal to ``linear_attention(*stabilised(q, k, omega), v)``, without a mask."""
    return ratio(read_state(q, omega, *write_state(k, omega, F.pad(v, (0, 1), value=1.0))))


def positive_kernel(q: Float[Tensor, "*b n d"], w: Float[Tensor, "*c r d"],
                    omega: Float[Tensor, "m d"]) -> Float[Tensor, "*b n r"]:
    """Return φ⁺(q_i) φ⁺(w_r)ᵀ for a few vectors w_r, up to a factor for each query as in :func:`read_state`."""
    logs = log_positive(w, omega)
    scale = logs.detach().amax(-2, keepdim=True)
    return read_state(q, omega, torch.exp(logs - scale).mT / math.sqrt(len(omega)), scale)


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(k: Tensor, omega: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        state = v.new_zeros(*v.shape[:-2], len(omega), v.shape[-1])
        scale = v.new_full((*v.shape[:-2], 1, len(omega)), -math.inf)
        for part in _parts(k, omega):
            logs = log_features(k[..., part, :], omega)
            larger = torch.maximum(scale, logs.amax(-2, keepdim=True))
            state.mul_((scale - larger).exp_().mT).add_(logs.sub_(larger).exp_().mT @ v[..., part, :])
            scale = larger
        return state.div_(math.sqrt(len(omega))), scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, g: Tensor, _: Tensor) -> tuple[Tensor, None, Tensor]:
        d_k, d_v = _WriteBackward.apply(g, *ctx.saved_tensors)
        return d_k, None, d_v

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_Write, info, in_dims, *args)


class FirstDerivatives(torch.autograd.Function):
    """A gradient as a function of its own, which torch.func can map; it has no gradient."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep nothing."""

    @staticmethod
    def backward(ctx, *_):
        """Refuse a second derivative."""
        raise NotImplementedError("features that are computed again have first derivatives only")


class _WriteBackward(FirstDerivatives):
    @staticmethod
    def forward(g: Tensor, k: Tensor, omega: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        g = g / math.sqrt(len(omega))
        d_k, d_v = torch.empty_like(k), torch.empty_like(v)
        for part in _parts(k, omega):
            here = k[..., part, :]
            f = log_features(here, omega).sub_(scale).exp_()
            d_v[..., part, :] = f @ g
            d_logs = f.mul_(v[..., part, :] @ g.mT)
            d_k[..., part, :] = d_logs @ omega - here * d_logs.sum(-1, keepdim=True)
        return d_k, d_v

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_WriteBackward, info, in_dims, *args)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, omega: Tensor, state: Tensor, scale: Tensor) -> tuple[Tensor]:
        out = q.new_empty(*q.shape[:-1], state.shape[-1])
        for part in _parts(q, omega):
            out[..., part, :] = scaled_features(q[..., part, :], omega, scale) @ state
        return (out,)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None, Tensor, None]:
        d_q, d_state = _ReadBackward.apply(g, *ctx.saved_tensors)
        return d_q, None, d_state, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_Read, info, in_dims, *args)


class _ReadBackward(FirstDerivatives):
    @staticmethod
    def forward(g: Tensor, q: Tensor, omega: Tensor, state: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        d_q, d_state = torch.empty_like(q), torch.zeros_like(state)
        for part in _parts(q, omega):
            f, here = scaled_features(q[..., part, :], omega, scale), g[..., part, :]
            d_state += (f.mT @ here).sum_to_size(state.shape)
            d_q[..., part, :] = f.mul_(here @ state.mT) @ omega
        return d_q, d_state

    @staticmethod
    def vmap(info, in_dims, *args):
        return looped(_ReadBackward, info, in_dims, *args)


def log_features(x: Tensor, omega: Tensor) -> Tensor:
    """Return ω_r x − ‖x‖²/2 in memory of its own."""
    return (x @ omega.mT).sub_(x.square().sum(-1, keepdim=True).div_(2))


def scaled_features(q: Tensor, omega: Tensor, scale: Tensor) -> Tensor:
    """e^{ω_r q + c_r} / √m over the largest of them; the norm of q would cancel against it."""
    logs = (q @ omega.mT).add_(scale)
    return logs.sub_(logs.amax(-1, keepdim=True)).exp_().div_(math.sqrt(len(omega)))


def _parts(x: Tensor, omega: Tensor) -> Iterator[slice]:
    """Cut the tokens so that a chunk of all leading axes has about as many features as allowed."""
    # A compiler cannot ask how many threads there are; it fuses what a chunk keeps in the cache.
    threads = 1 if torch.compiler.is_compiling() else torch.get_num_threads()
    allowed = CHUNK * threads if x.device.type == "cpu" else CHUNK_ELSEWHERE
    step = max(1, allowed // max(1, x.shape[:-2].numel() * len(omega)))
    return (slice(start, start + step) for start in range(0, x.shape[-2], step))
