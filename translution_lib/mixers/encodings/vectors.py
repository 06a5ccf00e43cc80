"""Relative key and value vectors: keys or values gain a vector that depends on the offset.

Source: Shaw, Uszkoreit and Vaswani (2018); the Translution paper, appendix E, items 3 and 4; chapter "Vectors".
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.mixers.positional import along_keys, clipped, offset_count, per_offset, per_pair
from translution_lib.relations import Relations
from translution_lib.resizing import nearest_relations

SIDES = ("k", "v", "kv")


class Vectors(Encoding):
    """A key k_j + r_δ, a value v_j + r'_δ, or both, for the pair of offset δ; a pair with CLS gets no vector.

    Args: sides: which of keys and values gain a vector: "k", "v" or "kv". clip: clamp every component of δ to [−clip,
        clip], as Shaw et al. do; by default each offset has its own vector. per_head: whether each head has vectors of
        its own (m C′ numbers, as in the Translution paper) or all heads share them (m d).

    Raises:
        ValueError: unknown sides; for a layer, a table without offsets, a clip that is not an integer ≥ 0.

    Label: eq-vectors-definition, eq-vectors-split, eq-vectors-fast, eq-vectors-form, thm-vectors-parity,
    thm-vectors-contained, thm-vectors-content, thm-vectors-convolution, eq-vectors-cost, eq-vectors-parameters.
    """

    by_rows = True
    key_vector: nn.Parameter | None
    value_vector: nn.Parameter | None

    def __init__(self, *, sides: str = "kv", clip: int | None = None, per_head: bool = True) -> None:
        super().__init__()
        check_choice("sides", sides, SIDES)
        self.sides, self.clip, self.per_head = sides, clip, per_head

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Draw the vectors."""
        self.near, self.head_dim = clipped(relations, self.clip), head_dim
        size = (offset_count(self.near), heads * head_dim if self.per_head else head_dim)
        # Small, as the absolute embedding is: a fresh layer is close to self-attention.
        self.key_vector = nn.Parameter(0.02 * torch.randn(size)) if "k" in self.sides else None
        self.value_vector = nn.Parameter(0.02 * torch.randn(size)) if "v" in self.sides else None

    def entries(self, old: Relations, new: Relations) -> dict[str, tuple[int, Tensor]]:
        """A vector for every offset, as far as they are not clipped."""
        near = clipped(new, self.clip)
        ids = nearest_relations(self.near, near)[: offset_count(near)]
        return {name: (0, ids) for name, table in self._parameters.items() if table is not None}

    def changes(self, method: str) -> bool:
        """Without vectors for the values there is nothing to add to them."""
        return super().changes(method) and ("v" in self.sides or not method.startswith("values"))

    def bias(self, q: Float[Tensor, "b h n d"], where: Relations) -> Tensor | None:
        """q_i·r_δ / √d: score each query with all vectors once, then gather."""
        if self.key_vector is None:
            return None
        scores = q @ self.by_head(self.key_vector).mT / math.sqrt(self.head_dim)
        return along_keys(scores, self.near.rows(where.first, where.n))

    def bias_definition(self, q: Float[Tensor, "b h n d"], where: Relations) -> Tensor | None:
        """q_i·r_δ / √d, a vector gathered for every pair."""
        if self.key_vector is None:
            return None
        return torch.einsum("bhid,hijd->bhij", q, self._gathered(self.key_vector, where, q)) / math.sqrt(self.head_dim)

    def values(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Tensor | None:
        """Σ_j α_ij r'_δ: sum the weights per offset, then multiply by the table."""
        if self.value_vector is None:
            return None
        return per_offset(alpha, self.near.rows(where.first, where.n)) @ self.by_head(self.value_vector)

    def values_definition(self, alpha: Float[Tensor, "b h n n"], where: Relations) -> Tensor | None:
        """Σ_j α_ij r'_δ, a vector gathered for every pair."""
        if self.value_vector is None:
            return None
        return torch.einsum("bhij,hijd->bhid", alpha, self._gathered(self.value_vector, where, alpha))

    def by_head(self, table: Tensor) -> Tensor:
        """Return the vectors of every head, h m d (1 m d where the heads share them)."""
        return rearrange(table, "m (h d) -> h m d", d=self.head_dim)

    def _gathered(self, table: Tensor, where: Relations, like: Tensor) -> Tensor:
        """Return the vector of every pair, h n n d, zero where there is none."""
        return per_pair(self.by_head(table), self.near.for_length(where.n), dim=1).expand(like.shape[1], -1, -1, -1)

    def extra_repr(self) -> str:
        """Name the sides."""
        return f"sides={self.sides!r}, clip={self.clip}"
