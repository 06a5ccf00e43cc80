"""A learned embedding of every token's place. Source: the Translution paper, section 3.2; chapter "Self-attention"."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.relations import Relations
from translution_lib.resizing import nearest_tokens


class Absolute(Encoding):
    """x + e: a learned vector for every token, shape (n, dim), is added to the input of the layer.

    The models add theirs once, before the first layer.

    Label: eq-attention-absolute.
    """

    by_rows = True
    position: nn.Parameter

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Draw the embedding."""
        self.position = nn.Parameter(0.02 * torch.randn(relations.n, dim))

    def entries(self, old: Relations, new: Relations) -> dict[str, tuple[int, Tensor]]:
        """A row for every place."""
        return {"position": (0, nearest_tokens(old, new))}

    def placed(self, x: Float[Tensor, "b n c"], where: Relations) -> Float[Tensor, "b n c"]:
        """Add it."""
        return x + self.position[where.first: where.n]
