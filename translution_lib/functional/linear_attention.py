"""Attention whose weights are inner products of features: a sum over the keys that all queries share, computed once.

The definition forms the n × n kernel; the fast form never does, and its time and memory grow with n alone.
Source: Choromanski et al. (2021); Horn et al. (2021), section 2.1; chapter "Random features".
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from translution_lib.functional.checks import check_sizes


def linear_attention_definition(fq: Float[Tensor, "b h n m"], fk: Float[Tensor, "b h n m"],
                                v: Float[Tensor, "b h n e"],
                                mask: Bool[Tensor, "n n"] | None = None) -> Float[Tensor, "b h n e"]:
    """f'_i = Σ_j K̂_ij v_j / Σ_j K̂_ij with K̂_ij = φ(q_i) φ(k_j)ᵀ, literally.

    Args:
        fq: features φ(q_i), one row per query.
        fk: features φ(k_j), one row per key.
        v: values.
        mask: True where query i may attend to key j; None allows all pairs.

    Label: eq-features-attention.
    """
    return kernel_weights(fq @ fk.mT, mask) @ v


def kernel_weights(kernel: Float[Tensor, "b h n m"],
                   mask: Bool[Tensor, "n m"] | None = None) -> Float[Tensor, "b h n m"]:
    """Divide a kernel by its row sums; where ``mask`` is False the weight is exactly zero."""
    if mask is not None:
        kernel = kernel.masked_fill(~mask, 0)
    return kernel / denominators(kernel.sum(-1, keepdim=True))


def denominators(sums: Tensor) -> Tensor:
    """Return the row sums as they are divided by.

    Sums of positive features are above zero. Sums of trigonometric features can have any sign, and stay as they are:
    the estimate then has a wrong sign or a wrong size, which no change of the denominator mends. Only a sum that is
    lost, below tiny / eps of its type (1e-31 in float32), is replaced by that number with its sign: so an output of
    finite sums is never 0/0, and the gradient through such a row, which the division multiplies by the inverse of the
    denominator, does not overflow.
    """
    kind = torch.finfo(sums.dtype)
    least = torch.full_like(sums, kind.tiny / kind.eps)
    # ONNX has no operator for the sign of a zero.
    signed = torch.where(sums < 0, -least, least) if torch.compiler.is_exporting() else least.copysign(sums)
    return torch.where(sums.abs() < least, signed, sums)


def linear_attention(fq: Float[Tensor, "b h n m"], fk: Float[Tensor, "b h n m"], v: Float[Tensor, "b h n e"],
                     causal: bool = False) -> Float[Tensor, "b h n e"]:
    """Equal to :func:`linear_attention_definition` without a mask, or with j ≤ i if ``causal``; never n × n.

    A channel of ones beside the values carries the denominator.

    Label: thm-features-cost.
    """
    return ratio(kernel_sums(fq, fk, F.pad(v, (0, 1), value=1.0), causal))


def ratio(sums: Float[Tensor, "b h n e1"]) -> Tensor:
    """Divide the channels by the last one, which holds the denominators: b h n (e + 1) → b h n e."""
    return sums[..., :-1] / denominators(sums[..., -1:])


def kernel_sums(fq: Float[Tensor, "b h n m"], fk: Float[Tensor, "b h k m"], v: Float[Tensor, "b h k e"],
                causal: bool = False) -> Float[Tensor, "b h n e"]:
    """Return Σ_j φ(q_i) φ(k_j)ᵀ v_j without the kernel: φ(q_i) (Σ_j φ(k_j)ᵀ v_j).

    Label: eq-features-linear.
    """
    if causal:
        return causal_sums(fq, fk, v)
    return fq @ (fk.mT @ v)


def causal_sums(fq: Float[Tensor, "b h n m"], fk: Float[Tensor, "b h n m"], v: Float[Tensor, "b h n e"],
                chunk: int | None = None) -> Float[Tensor, "b h n e"]:
    """Return Σ_{j ≤ i} φ(q_i) φ(k_j)ᵀ v_j in chunks.

    What lies before a chunk enters through one state φ(K)ᵀV (m × e) per chunk, what lies inside it through a triangle
    of pairs. With chunks of c tokens both take n (c + m e / c) numbers, least at c = √(m e), where it is at most
    n (m + e): the default.

    Label: eq-features-chunks.
    """
    n, c = fq.shape[2], chunk_length(fq.shape[-1], v.shape[-1]) if chunk is None else chunk
    check_sizes(chunk=c)
    q, k, v = (_chunks(t, min(c, n)) for t in (fq, fk, v))                 # b h n/c c ·
    states = k.mT @ v                                                      # of each chunk          b h n/c m e
    before = F.pad(states[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))        # of all chunks before
    mixed = (q @ k.mT).tril() @ v + q @ before
    return mixed.flatten(2, 3)[:, :, :n]


def chunk_length(m: int, e: int) -> int:
    """Return the length of the chunks that keeps the fewest numbers, √(m e), rounded."""
    return max(1, round(math.sqrt(m * e)))


def _chunks(t: Tensor, c: int) -> Tensor:
    """Cut the tokens into chunks of c, with zeros after the last: b h n d → b h n/c c d."""
    return F.pad(t, (0, 0, 0, -t.shape[2] % c)).unflatten(2, (-1, c))
