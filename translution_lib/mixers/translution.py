"""Translution as a layer. Source: the Translution paper, eq. (1); the preprint, eq. (5); chapter "The operator"."""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.shared_maps import Weight
from translution_lib.functional.translution import (
    mask_scores,
    projected,
    row_scores,
    row_values,
    scores_definition,
    translution_scores,
    translution_values,
    values_definition,
)
from translution_lib.mixers.init import linear, relation_bound, uniform
from translution_lib.mixers.mixer import Mixer, longer
from translution_lib.relations import Relations


class Translution(Mixer):
    """Attention whose query, key and value matrices depend on the relation of the two tokens.

    Args:
        relations: which pairs share a matrix; :func:`translution_lib.offsets` gives the paper's operator.
        dim, heads: channels and heads, as for :class:`Mixer`.
        relative: which of q, k and v have one matrix per relation: any subset of the letters of "qkv". "qkv" is the
            paper, "v" its preprint, "" is self-attention.
        init: "fan_in" (every matrix U(±1/√C)) or "released" (the authors' code, U(±1/√(C·C′))).
        options: ``head_dim``, ``dropout``, ``output``, ``qkv_bias`` as for :class:`Mixer`.

    Raises:
        ValueError: letters outside "qkv", an unknown init, a qkv_bias where no map is shared, or what
            :class:`Mixer` refuses.

    Label: thm-taxonomy-parity, thm-taxonomy-response.
    """

    query: nn.Linear | nn.Parameter
    key: nn.Linear | nn.Parameter
    value: nn.Linear | nn.Parameter

    @property
    def by_relation(self) -> tuple[str, ...]:       # type: ignore[override]
        """The weights with a matrix for every relation."""
        return tuple(name for name in ("query", "key", "value") if name[0] in self.relative)

    def __init__(self, relations: Relations, dim: int, heads: int, *, relative: str = "qkv", init: str = "fan_in",
                 **options) -> None:
        super().__init__(relations, dim, heads, **options)
        if not isinstance(relative, str) or set(relative) - set("qkv") or len(set(relative)) < len(relative):
            raise ValueError(f'relative must hold letters of "qkv", each at most once, got {relative!r}')
        if self.qkv_bias and len(relative) == 3:
            raise ValueError("qkv_bias must be False with relative='qkv': no map is shared by all pairs")
        self.relative = relative
        bound = relation_bound(dim, self.inner, init)
        for name in ("query", "key", "value"):
            if name[0] in relative:
                setattr(self, name, nn.Parameter(uniform((relations.count, dim, self.inner), bound)))
            else:
                setattr(self, name, linear(dim, self.inner, self.qkv_bias))

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_ij·k_ji / √d with q_ij = f_i W^q[δ], k_ji = f_j W^k[−δ]."""
        return scores_definition(x, self.query, self.key, self.relations_for(x), self.heads)

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij with v_ij = f_j W^v[δ]."""
        return values_definition(alpha, x, self.value, self.relations_for(x))

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Run the grouped products."""
        relations = self.relations_for(x)
        alpha = translution_scores(x, self.query, self.key, relations, self.heads, mask).softmax(dim=-1)
        return translution_values(self.dropped(alpha), x, self.value, relations)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the tokens, which every query projects by matrices of its own.

        A new row costs a product for each of its pairs; shared keys and values are remembered projected.
        """
        return stepped(self, x, (self.query, self.key, self.value), memory)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, relative={self.relative!r}"


def stepped(layer: Mixer, x: Float[Tensor, "b m c"], weights: tuple[Weight, Weight, Weight],
            memory: Any) -> tuple[Float[Tensor, "b m c"], Any]:
    """Return the next rows of Translution with these weights, r c e or shared c e, and what it remembers."""
    before = (None, None) if memory is None else memory
    (q, w_q), *sides = (projected(x, w) for w in weights)
    kept = tuple(longer(old, new) for old, (new, _) in zip(before, sides, strict=True))
    if memory is None:
        return layer(x), kept
    rows = layer.relations.rows(memory[0].shape[1], kept[0].shape[1])
    a = row_scores(q, kept[0], w_q, sides[0][1], rows, layer.heads) / math.sqrt(layer.head_dim)
    alpha = mask_scores(a, rows).softmax(dim=-1)
    return layer.output(row_values(alpha, kept[1], sides[1][1], rows)), kept


class ValueTranslution(Translution):
    """Translution with relative values only, the operator of the preprint.

    Label: eq-translution-value.
    """

    fixed_options = ("relative",)
    by_relation = ("value",)

    def __init__(self, relations: Relations, dim: int, heads: int, **options) -> None:
        super().__init__(relations, dim, heads, relative="v", **options)
