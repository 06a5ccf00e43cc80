"""Translution with an absolute embedding as well.

Source: the Translution paper, appendix F and Table 10; chapter "The taxonomy".
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.translution import Translution
from translution_lib.relations import Relations
from translution_lib.resizing import carried, nearest_tokens


class AbsoluteTranslution(Translution):
    """Translution of x + e: a learned vector for every token's place is added to the input of the layer.

    The models add theirs once, before the first layer, and their layers are plain :class:`Translution`.

    Args:
        relations, dim, heads, options: as for :class:`Translution`; the embedding has the shape (n, dim).
    """

    by_relation = Translution.by_relation

    def __init__(self, relations: Relations, dim: int, heads: int, **options) -> None:
        super().__init__(relations, dim, heads, **options)
        self.position = nn.Parameter(0.02 * torch.randn(relations.n, dim))

    def resized(self, relations: Relations) -> "AbsoluteTranslution":
        """Return a copy for another table; the embedding goes by places."""
        layer = cast(AbsoluteTranslution, super().resized(relations))
        layer.position = carried(self.position, nearest_tokens(self.relations, relations))
        return layer

    def placed(self, x: Tensor) -> Tensor:
        """Add the absolute embedding."""
        return x + self.position[: x.shape[1]]

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_ij·k_ji / √d of the placed features."""
        return super().scores(self.placed(x))

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij of the placed features."""
        return super().values(alpha, self.placed(x))

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Run the grouped products on the placed features."""
        return super().mix(self.placed(x), mask)
