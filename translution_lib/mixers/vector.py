"""Relative key and value vectors: attention whose keys or values gain a vector that depends on the offset.

Source: Shaw, Uszkoreit and Vaswani (2018); seed 000, appendix E, items 3 and 4; chapter "Vectors".
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice
from translution_lib.mixers.attention import SelfAttention
from translution_lib.mixers.positional import along_keys, clipped, offset_count, per_offset, per_pair
from translution_lib.relations import Relations

SIDES = ("k", "v", "kv")


class RelativeVectors(SelfAttention):
    """Self-attention with a key k_j + r_δ, a value v_j + r'_δ, or both, for the pair of offset δ.

    A pair with the CLS token has no offset and gets no vector.

    Args:
        relations: a table of offsets.
        dim, heads: channels and heads, as for :class:`Attention`.
        sides: which of keys and values gain a vector: "k", "v" or "kv".
        clip: clamp every component of δ to [−clip, clip], as Shaw et al. do; by default each offset has its own vector.
        per_head: whether each head has vectors of its own (m C′ numbers, as in seed 000) or all heads share them (m d).
        options: ``absolute``, ``head_dim``, ``dropout``, ``output`` as for :class:`SelfAttention`.

    Raises:
        ValueError: a table without offsets, unknown sides, a clip that is not an integer ≥ 0, or what
            :class:`SelfAttention` refuses.
    """

    def __init__(self, relations: Relations, dim: int, heads: int, *, sides: str = "kv", clip: int | None = None,
                 per_head: bool = True, **options) -> None:
        near = clipped(relations, clip)
        super().__init__(relations, dim, heads, **options)
        check_choice("sides", sides, SIDES)
        self.sides, self.clip, self.per_head, self.near = sides, clip, per_head, near
        size = (offset_count(near), self.inner if per_head else self.head_dim)
        # Small, as the absolute embedding is: a fresh layer is close to self-attention.
        self.key_vector = nn.Parameter(0.02 * torch.randn(size)) if "k" in sides else None
        self.value_vector = nn.Parameter(0.02 * torch.randn(size)) if "v" in sides else None

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_i·(k_j + r_δ) / √d."""
        q, k, _ = self.projected(x)
        k_ji = k[:, :, None] + self._gathered(self.key_vector, x)
        return torch.einsum("bhid,bhijd->bhij", q, k_ji) / math.sqrt(self.head_dim)

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij (v_j + r'_δ)."""
        v_ij = self.projected(x)[2][:, :, None] + self._gathered(self.value_vector, x)
        return rearrange(torch.einsum("bhij,bhijd->bhid", alpha, v_ij), "b h n d -> b n (h d)")

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Score each query with all vectors once and gather; sum the weights per offset, then multiply by the table."""
        q, k, v = self.projected(x)
        bias = self._bias(q, x)
        if self.value_vector is None:
            return _joined(self.fused(q, k, v, bias))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        alpha = self.dropped((scores if bias is None else scores + bias).softmax(-1))
        return _joined(alpha @ v + per_offset(alpha, self._near(x)) @ self._by_head(self.value_vector))

    def projected(self, x: Float[Tensor, "b n c"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before any offset, each b h n d."""
        q, k, v = self.by_head(x, self.query, self.key, self.value)
        return q, k, v

    def _bias(self, q: Tensor, x: Tensor) -> Tensor | None:
        """Return what is added to the scores: q_i·r_δ / √d, and −∞ at masked pairs; None where there is neither."""
        near, bias = self._near(x), None
        if self.key_vector is not None:
            bias = along_keys(q @ self._by_head(self.key_vector).mT / math.sqrt(self.head_dim), near)
        if near.complete:
            return bias
        zeros = q.new_zeros(near.n, near.n) if bias is None else bias
        return zeros.masked_fill(~near.mask_on(x.device), -math.inf)

    def _near(self, x: Tensor) -> Relations:
        """Return the clipped table for the tokens of x."""
        return self.near.for_length(x.shape[1])

    def _by_head(self, table: Tensor) -> Tensor:
        """Return the vectors of every head, h m d (1 m d where the heads share them)."""
        return rearrange(table, "m (h d) -> h m d", d=self.head_dim)

    def _gathered(self, table: Tensor | None, x: Tensor) -> Tensor:
        """Return the vector of every pair, h n n d, zero where there is none."""
        if table is None:
            return x.new_zeros(1, x.shape[1], x.shape[1], self.head_dim)
        return per_pair(self._by_head(table), self._near(x), dim=1)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, sides={self.sides!r}, clip={self.clip}"


class RelativeKeyVector(RelativeVectors):
    """Keys k_j + r_δ, shared values: item 3 of seed 000's appendix E."""

    fixed_options = ("sides",)

    def __init__(self, relations: Relations, dim: int, heads: int, **options) -> None:
        super().__init__(relations, dim, heads, sides="k", **options)


class RelativeValueVector(RelativeVectors):
    """Values v_j + r'_δ, shared keys: item 4 of seed 000's appendix E."""

    fixed_options = ("sides",)

    def __init__(self, relations: Relations, dim: int, heads: int, **options) -> None:
        super().__init__(relations, dim, heads, sides="v", **options)


def _joined(mixed: Tensor) -> Tensor:
    return rearrange(mixed, "b h n d -> b n (h d)")
