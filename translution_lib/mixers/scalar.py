"""Scalar biases as a layer: one number per head and offset is added to the score.

Swin's table, T5's buckets and ALiBi's slopes are three makers of the same table b (heads × offsets).
Source: seed 000, appendix E.5; chapter "Scalars and gates".
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice
from translution_lib.functional.transport import log_attenuation
from translution_lib.mixers.attention import SelfAttention, check_sizes
from translution_lib.mixers.positional import offset_count, per_pair
from translution_lib.relations import Relations
from translution_lib.sharing import t5_buckets

BIASES = ("table", "t5", "alibi")
STARTS = ("small", "window")


class ScalarBias(SelfAttention):
    """Self-attention with a bias per head and offset: a_ij = q_i·k_j / √d + b[δ]. Pairs with CLS get no bias.

    Args:
        relations: a table of offsets.
        dim, heads: channels and heads, as for :class:`Attention`.
        bias: who makes b (h × offsets). "table" learns every entry (Swin, CoAtNet); "t5" learns one entry per bucket
            of a signed distance (one dimension only); "alibi" is −slope·‖δ‖ with fixed slopes and no parameter.
        start: where the table of "table" starts: "small" (normal, deviation 0.02), or "window", log λ = −‖δ‖²/2σ² with
            σ half the longest side: RiemannFormer's locality focusing before it learns.
        num_buckets: rows of the table of "t5".
        max_distance: distance from which "t5" puts all offsets into the last bucket.
        options: ``absolute``, ``head_dim``, ``dropout``, ``output`` as for :class:`SelfAttention`.

    Raises:
        ValueError: a table without offsets, "t5" in several dimensions, an unknown bias, or buckets that do not fit, a
            window for another bias than "table".
    """

    query: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, relations: Relations, dim: int, heads: int, *, bias: str = "table", start: str = "small",
                 num_buckets: int = 32, max_distance: int = 128, **options) -> None:
        super().__init__(relations, dim, heads, **options)
        check_choice("bias", bias, BIASES)
        check_choice("start", start, STARTS)
        if start == "window" and bias != "table":
            raise ValueError(f"start must be 'small' for bias={bias!r}, got 'window'")
        self.maker, rows = bias, offset_count(relations)
        # Plain tensors on the CPU, neither parameters nor buffers: the relation table determines them.
        delta = torch.tensor(relations.labels[:rows], device="cpu")  # m dimensions
        self.distance = delta.double().norm(dim=1)
        if bias == "t5":
            if delta.shape[1] != 1:
                raise ValueError(f'relations must have one dimension for bias="t5", got shape {relations.shape}')
            self.bucket, rows = t5_buckets(delta[:, 0], num_buckets, max_distance, relations.causal), num_buckets
        self.bias = None if bias == "alibi" else nn.Parameter(0.02 * torch.randn(heads, rows))
        if start == "window":
            self._start_as_window()

    def _start_as_window(self) -> None:
        """Put log λ into the table; the numbers drawn for it are drawn all the same, so that those after stay."""
        sigma = self.distance.new_tensor(max(self.relations.shape or (1,)) / 2)  # on the CPU, as the distances are
        with torch.no_grad():
            self.offset_bias().copy_(log_attenuation(self.distance[:, None], sigma).expand(self.heads, -1))

    def offset_bias(self) -> Float[Tensor, "h m"]:
        """Return b: one number per head and offset, in the order of the ids."""
        if self.bias is None:
            return -torch.outer(alibi_slopes(self.heads), self.distance).to(self.query)
        return self.bias[:, self.bucket.to(self.bias.device)] if self.maker == "t5" else self.bias

    def learnt(self) -> dict[str, Tensor]:
        """Return the learned bias by distance: per head the mean over the offsets of each length, shortest first."""
        if self.bias is None:
            return {}
        lengths, which = self.distance.round(decimals=9).unique(return_inverse=True)
        sums = torch.zeros(self.heads, len(lengths), device=self.bias.device, dtype=torch.float64)
        which = which.to(self.bias.device)
        return {"bias by distance": sums.index_add(1, which, self.offset_bias().double()) / which.bincount()}

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_i·k_j / √d + b[δ]."""
        return super().scores(x) + per_pair(self.offset_bias(), self.relations_for(x))

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Run torch's fused attention with the bias as an additive mask."""
        relations = self.relations_for(x)
        q, k, v = self.by_head(x, self.query, self.key, self.value)
        mask = per_pair(self.offset_bias(), relations).to(q.dtype)
        if not relations.complete:
            mask = mask.masked_fill(~relations.mask_on(x.device), -math.inf)
        return rearrange(self.fused(q, k, v, mask), "b h n d -> b n (h d)")

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, bias={self.maker!r}"


def alibi_slopes(heads: int) -> Float[Tensor, "h"]:
    """Return ALiBi's slopes: 2^(−8k/h) for k = 1 … h where h is a power of two.

    For another h: the slopes of the power of two below, then every other slope of the power above.
    """
    check_sizes(heads=heads)
    power = 2 ** (heads.bit_length() - 1)
    exponents = [k / power for k in range(1, power + 1)] + [(k - 0.5) / power for k in range(1, heads - power + 1)]
    return torch.tensor([2.0 ** (-8 * e) for e in exponents], dtype=torch.float64, device="cpu")


__all__ = ["BIASES", "ScalarBias", "alibi_slopes", "t5_buckets"]
