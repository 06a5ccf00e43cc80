"""Rotations for the scores, one matrix per offset for the values.

Source: the RoPE variants of the released code of the Translution paper; chapter "Rotations", section "Rotations inside
a Translution layer". What the released files do is told in the errata.
"""

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.translution import mask_scores, row_values, translution_values, values_definition
from translution_lib.mixers.attention import Attention, known
from translution_lib.mixers.encodings import Absolute, Rotary
from translution_lib.mixers.init import relation_bound, uniform
from translution_lib.mixers.mixer import longer
from translution_lib.relations import Relations


class RotaryTranslution(Attention):
    """Rotary scores, Translution's values: f'_i = Σ_j α_ij f_j W^v[δ] with α from q_i R(δ) k_jᵀ / √d.

    Queries and keys are shared by all pairs: a rotation of relative ones would be absorbed by their
    matrices. The authors' file of that idea builds the rotation and leaves it out of the forward pass;
    that is ``ValueTranslution``. This class does apply it, as their low-rank variant does.

    Args:
        relations: a table with a grid; its relations choose the value matrices, its positions the rotations.
        dim, heads: channels and heads, as for :class:`Attention`.
        init: rule for the value matrices, as for :class:`Translution`.
        base, angles, layout, cls_token: those of :class:`~translution_lib.Rotary`.
        absolute: whether an embedding of places is added to the input.
        options: those of :class:`Attention`.

    Raises:
        ValueError: an unknown init, or what :class:`~translution_lib.Rotary` refuses.

    Label: thm-rotations-absorbed.
    """

    by_relation = ("value",)

    def __init__(self, relations: Relations, dim: int, heads: int, *, init: str = "fan_in", base: float = 10000.0,
                 angles: str = "fixed", layout: str = "interleaved", cls_token: str = "free", absolute: bool = False,
                 **options) -> None:
        turn = Rotary(base=base, angles=angles, layout=layout, cls_token=cls_token)
        super().__init__(relations, dim, heads, [*[Absolute()] * absolute, turn], **options)
        bound = relation_bound(dim, self.inner, init)
        self.value = nn.Parameter(uniform((relations.count, dim, self.inner), bound))

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij with v_ij = f_j W^v[δ]."""
        return values_definition(alpha, self.placed(x), self.value, self.relations_for(x))

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Turn queries and keys once per token; group the values by relation."""
        relations, (q, k) = self.relations_for(x), self.projected(x)
        for part in self.parts:
            q, k = part.queries_keys(q, k, relations)
        alpha = mask_scores(q @ k.mT / self.head_dim ** 0.5, relations, mask).softmax(dim=-1)
        return translution_values(self.dropped(alpha), self.placed(x), self.value, relations)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the turned keys, and the tokens, whose values each query makes anew."""
        keys, tokens = (None, None) if memory is None else memory
        where = self.relations.rows(known(keys), known(keys) + x.shape[1])
        q, k = self.projected(x, where)
        for part in self.parts:
            q, k = part.queries_keys(q, k, where)
        kept = longer(keys, k), longer(tokens, self.placed(x, where))
        if memory is None:
            return self(x), kept
        alpha = mask_scores(q @ kept[0].mT / math.sqrt(self.head_dim), where).softmax(dim=-1)
        return self.output(row_values(alpha, kept[1], self.matrices.value, where)), kept
