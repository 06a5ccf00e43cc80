"""Self-attention on tokens, and the softmax that every attention of the book shares.

Source: the Translution paper, section 3.2; chapter "Self-attention".
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from translution_lib.functional.checks import check_heads, check_tokens, check_weight
from translution_lib.functional.masks import shielded
from translution_lib.functional.shared_maps import Weight, applied, sizes


def self_attention_definition(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, w_v: Weight,
                              heads: int = 1,
                              mask: Bool[Tensor, "n n"] | None = None) -> Float[Tensor, "b n e2"]:
    """Self-attention, literally: a_ij = q_i·k_j / √d, α = softmax_j a, f'_i = Σ_j α_ij v_j, per head.

    Args:
        x: features f, one row per token.
        w_q: shared projection to queries, a matrix ``c e`` or a linear map; the channels of head h are the h-th slice.
        w_k: shared projection to keys.
        w_v: shared projection to values.
        heads: number of heads, divides e and e2.
        mask: True where query i may attend to key j; None allows all pairs.

    Raises:
        ValueError: shapes that do not fit, or heads that do not divide the channels.

    Label: eq-attention-definition.
    """
    _check(x, w_q, w_k, w_v, heads)

    def attend(x: Tensor) -> Tensor:
        q, k, v = (rearrange(applied(x, w), "b n (h d) -> b h n d", h=heads) for w in (w_q, w_k, w_v))
        a = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        alpha = masked_softmax(a, mask)
        return rearrange(torch.einsum("bhij,bhjd->bhid", alpha, v), "b h n d -> b n (h d)")

    return shielded(attend, x, mask)


def self_attention(x: Float[Tensor, "b n c"], w_q: Weight, w_k: Weight, w_v: Weight,
                   heads: int = 1,
                   mask: Bool[Tensor, "n n"] | None = None) -> Float[Tensor, "b n e2"]:
    """Self-attention through torch's fused kernel; equal to :func:`self_attention_definition`, same arguments.

    Label: thm-attention-hull.
    """
    _check(x, w_q, w_k, w_v, heads)

    def attend(x: Tensor) -> Tensor:
        q, k, v = (rearrange(applied(x, w), "b n (h d) -> b h n d", h=heads) for w in (w_q, w_k, w_v))
        return rearrange(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), "b h n d -> b n (h d)")

    return shielded(attend, x, mask)


def masked_softmax(a: Float[Tensor, "b h n m"], mask: Bool[Tensor, "n m"] | None = None) -> Float[Tensor, "b h n m"]:
    """Softmax over the keys; where ``mask`` is False the weight is exactly zero.

    Label: eq-attention-causal, thm-attention-softmax.
    """
    if mask is not None:
        a = a.masked_fill(~mask, -math.inf)
    return a.softmax(dim=-1)


def _check(x: Tensor, w_q: Weight, w_k: Weight, w_v: Weight, heads: int) -> None:
    check_tokens(x)
    check_weight("w_q", w_q, x.shape[2], None)
    check_weight("w_k", w_k, x.shape[2], None, sizes(w_q)[-1])
    check_weight("w_v", w_v, x.shape[2], None)
    check_heads(heads, sizes(w_q)[-1])
    check_heads(heads, sizes(w_v)[-1])
