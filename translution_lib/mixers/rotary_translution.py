"""Rotations for the scores, one matrix per offset for the values.

Source: the RoPE variants of the released code of seed 000; chapter "Rotations", section on the released code.
"""

from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.translution import mask_scores, translution_values
from translution_lib.mixers.init import relation_bound, uniform
from translution_lib.mixers.rotary import Rotary
from translution_lib.relations import Relations


class RotaryTranslution(Rotary):
    """Rotary scores, Translution's values: f'_i = Σ_j α_ij f_j W^v[δ] with α from q_i R(δ) k_jᵀ / √d.

    Queries and keys are shared by all pairs: a rotation of relative ones would be absorbed by their matrices
    (thm-rotations-absorbed). The authors' file of that idea builds the rotation and leaves it out of the forward pass;
    that is ``ValueTranslution``. This class does apply it, as their low-rank variant does.

    Args:
        relations: a table with a grid; its relations choose the value matrices, its positions the rotations.
        dim, heads: channels and heads, as for :class:`Rotary`.
        init: rule for the value matrices, as for :class:`Translution`.
        options: ``base``, ``angles``, ``layout``, ``cls_token`` and the options of :class:`Rotary`.

    Raises:
        ValueError: an unknown init, or what :class:`Rotary` refuses.
    """

    def __init__(self, relations: Relations, dim: int, heads: int, *, init: str = "fan_in", **options) -> None:
        super().__init__(relations, dim, heads, **options)
        bound = relation_bound(dim, self.inner, init)
        self.value = nn.Parameter(uniform((relations.count, dim, self.inner), bound))

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Turn queries and keys once per token; group the values by relation."""
        relations = self.relations_for(x)
        q, k = self.turned(*self.projected(x))
        alpha = mask_scores(q @ k.mT / self.head_dim ** 0.5, relations).softmax(dim=-1)
        return translution_values(self.dropped(alpha), self.placed(x), self.value, relations)
