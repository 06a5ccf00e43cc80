"""LoR-Translution as a layer. Source: the Translution paper, eq. (2), appendices D and G; chapter "LoR-Translution"."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_heads
from translution_lib.functional.diagonal import diagonal_lor
from translution_lib.functional.lor import (
    VARIANTS,
    Three,
    branch_weight,
    lor_scores,
    lor_scores_definition,
    lor_values,
    lor_values_definition,
)
from translution_lib.functional.shared_maps import applied, matrix
from translution_lib.functional.translution import mask_scores, row_scores, row_values
from translution_lib.mixers.init import linear, relation_bound, uniform
from translution_lib.mixers.mixer import Matrices, Mixer, longer
from translution_lib.relations import Relations

CORES = ("dense", "diagonal")


class LoRTranslution(Mixer):
    """Self-attention plus offset-dependent queries, keys and values of low dimension.

    Args:
        relations: which pairs share a core matrix.
        dim, heads: channels and heads, as for :class:`Mixer`.
        relative_dim: r = C¹ = C² **per head**, or the pair (C¹, C²); the cores are (h·C¹) × (h·C²). With 0 the layer
            is self-attention without position.
        shared: whether the shared W^q, W^k, W^v stand beside the cores (Table 11).
        core: "dense" (matrices, as in eq. (2)) or "diagonal" (one number per low channel, the same one for query and
            key): then W[δ] = W + W1 diag(a[δ]) W2, a CP decomposition.
        variant: "printed" is eq. (2); "released" halves scores and values, as the authors' code does.
        init: rule for dense cores, as for :class:`Translution`.
        options: ``head_dim``, ``dropout``, ``output``, ``qkv_bias`` as for :class:`Mixer`.

    Raises:
        ValueError: a relative_dim that is not one or two integers ≥ 0, or not one with diagonal cores, an unknown core,
            variant or init, an init for diagonal cores, relative_dim = 0 or qkv_bias without shared weights, or what
            :class:`Mixer` refuses.

    Label: thm-taxonomy-rotations.
    """

    by_relation = ("query_core", "key_core", "value_core")
    query: nn.Linear | None
    key: nn.Linear | None
    value: nn.Linear | None
    query_low: nn.Linear
    key_low: nn.Linear
    value_low: nn.Linear
    query_core: nn.Parameter
    key_core: nn.Parameter | None
    value_core: nn.Parameter

    def __init__(self, relations: Relations, dim: int, heads: int, *, relative_dim: int | tuple[int, int] = 8,
                 shared: bool = True, core: str = "dense", variant: str = "printed", init: str = "fan_in",
                 **options) -> None:
        super().__init__(relations, dim, heads, **options)
        r1, r2 = (heads * r for r in _two(relative_dim))
        check_choice("variant", variant, VARIANTS)
        check_choice("core", core, CORES)
        if core == "diagonal" and r1 != r2:
            raise ValueError(f"relative_dim must be one integer where cores are diagonal, got {relative_dim!r}")
        if not (shared or (r1 and r2)):
            raise ValueError("relative_dim must be at least 1 where shared is False: no weights would be left")
        if core == "diagonal" and init != "fan_in":
            raise ValueError(f"init must be 'fan_in' where cores are diagonal, got {init!r}")
        if self.qkv_bias and not shared:
            raise ValueError("qkv_bias must be False where shared is False: the cores are matrices alone")
        self.relative_dim, self.core, self.variant = (r1 // heads, r2 // heads), core, variant
        bound = relation_bound(r1, r2, init) if core == "dense" else 1.0    # a diagonal's fan-in is one channel
        size = (r1, r2) if core == "dense" else (r1,)
        for name in ("query", "key", "value"):
            setattr(self, name, linear(dim, self.inner, self.qkv_bias) if shared else None)
            setattr(self, f"{name}_low", linear(dim, r1))
            redundant = core == "diagonal" and name == "key"
            weight = None if redundant else nn.Parameter(uniform((relations.count, *size), bound))
            setattr(self, f"{name}_core", weight)
        self.value_up = linear(r2, self.inner)
        check_heads(heads, r2)

    @property
    def shared(self) -> Matrices | None:
        """The shared query, key and value matrices, each (C, C′), or None."""
        return None if self.query is None else self.matrices

    @property
    def low(self) -> Matrices:
        """W1 of query, key and value, each (C, h·C¹)."""
        return Matrices(matrix(self.query_low), matrix(self.key_low), matrix(self.value_low))

    @property
    def up(self) -> Tensor:
        """W2 of the values, (h·C², C′)."""
        return matrix(self.value_up)

    @property
    def cores(self) -> tuple[Tensor, Tensor, Tensor]:
        """The matrices of every relation, each (r, h·C¹, h·C²); a diagonal one of the key is the identity."""
        if self.key_core is not None:
            return self.query_core, self.key_core, self.value_core
        ones = torch.ones_like(self.query_core)
        query, key, value = map(torch.diag_embed, (self.query_core, ones, self.value_core))
        return query, key, value

    def _maps(self) -> tuple[Three | None, Three]:
        """Return the shared maps and W1 as what runs, with the biases."""
        low = self.query_low, self.key_low, self.value_low
        if self.query is None or self.key is None or self.value is None:
            return None, low
        return (self.query, self.key, self.value), low

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = (q_ij·k_ji + q_i·k_j) / √d with q_ij = f_i W1 W[δ]; d is the dimension of a full head."""
        shared, low = self._maps()
        return lor_scores_definition(x, low, self.cores, self.value_up, self.relations_for(x), self.heads, shared,
                                     self.variant)

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij f_j (W1 W[δ] W2 + W), head by head on the r channels of the core."""
        shared, low = self._maps()
        return lor_values_definition(alpha, x, low, self.cores, self.value_up, self.relations_for(x), shared,
                                     self.variant)

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Run the grouped products on the low dimension (appendix D), or channel by channel with diagonal cores."""
        rel, (shared, low) = self.relations_for(x), self._maps()
        if self.core == "diagonal":
            return diagonal_lor(x, low, (self.query_core, self.value_core), self.value_up, rel, self.heads, shared,
                                self.variant, self.dropped, mask)
        rest = (low, self.cores, self.value_up)
        alpha = lor_scores(x, *rest, rel, self.heads, shared, self.variant, mask).softmax(dim=-1)
        return lor_values(self.dropped(alpha), x, *rest, rel, shared, self.variant)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds keys and values, of low dimension and shared.

        A new row costs a product with a core for each of its pairs.
        """
        shared, low = self._maps()
        maps = zip((None,) * 4 if memory is None else memory, (*low[1:], *(shared or ())[1:]), strict=False)
        kept = tuple(longer(old, applied(x, w)) for old, w in maps)
        if memory is None:
            return self(x), kept
        rows, (query, key, value) = self.relations.rows(memory[0].shape[1], kept[0].shape[1]), self.cores
        a = row_scores(applied(x, self.query_low), kept[0], query, key, rows, self.heads)
        if shared:
            a = a + row_scores(applied(x, shared[0]), kept[2], None, None, rows, self.heads)
        half = branch_weight(shared, self.variant)
        alpha = mask_scores(half * a / math.sqrt(self.head_dim), rows).softmax(dim=-1)
        y = applied(row_values(alpha, kept[1], value, rows), self.value_up)
        if shared:
            y = y + row_values(alpha, kept[3], None, rows)
        return self.output(half * y), kept

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, relative_dim={self.relative_dim}, core={self.core!r}, variant={self.variant!r}"


def _two(relative_dim: object) -> tuple[int, int]:
    both = tuple(relative_dim) if isinstance(relative_dim, (tuple, list)) else (relative_dim, relative_dim)
    if len(both) != 2 or any(isinstance(r, bool) or not isinstance(r, int) or r < 0 for r in both):
        raise ValueError(f"relative_dim must be an integer ≥ 0 or two of them, got {relative_dim!r}")
    if (both[0] == 0) != (both[1] == 0):
        raise ValueError(f"relative_dim must be zero twice or not at all, got {relative_dim!r}")
    return both
