"""Every bilinear relative head in one layer: form (★). Source: chapter "The taxonomy theorem"."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.init import linear_bound, uniform
from translution_lib.mixers.mixer import Mixer
from translution_lib.relations import Relations


class BilinearAttention(Mixer):
    """Attention with all the terms that a relative encoding of form (★) can have.

    a_ij = f_i A[δ] f_jᵀ + f_i b[δ]ᵀ + c[δ] f_jᵀ + d[δ] and v_ij = f_j B[δ] + r[δ] for every head. It stores C² numbers
    per relation and head and is meant for proofs, not for models.

    Args:
        relations: which pairs share the six tables.
        dim, heads: channels and heads, as for :class:`Mixer`.
        options: ``head_dim``, ``dropout``, ``output`` as for :class:`Mixer`.

    Raises:
        ValueError: what :class:`Mixer` refuses.

    Label: eq-taxonomy-star, thm-taxonomy-gauge, thm-taxonomy-universal.
    """

    by_relation = ("content", "query_bias", "key_bias", "bias", "value", "value_bias")

    def __init__(self, relations: Relations, dim: int, heads: int, **options) -> None:
        super().__init__(relations, dim, heads, **options)
        if self.qkv_bias:
            raise ValueError("qkv_bias must be False: every matrix of this layer depends on the relation")
        r, bound = relations.count, linear_bound(dim)
        self.content = nn.Parameter(uniform((r, heads, dim, dim), bound))                  # A
        self.query_bias = nn.Parameter(uniform((r, heads, dim), bound))                    # b
        self.key_bias = nn.Parameter(uniform((r, heads, dim), bound))                      # c
        self.bias = nn.Parameter(uniform((r, heads), 1.0))                                 # d
        self.value = nn.Parameter(uniform((r, heads, dim, self.head_dim), bound))          # B
        self.value_bias = nn.Parameter(uniform((r, heads, self.head_dim), bound))          # r

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = f_i A[δ] f_jᵀ + f_i b[δ]ᵀ + c[δ] f_jᵀ + d[δ]; nothing is scaled."""
        at = self.relations_for(x).index_on(x.device).clamp(min=0)                          # n n
        return (torch.einsum("bic,ijhce,bje->bhij", x, self.content[at], x)
                + torch.einsum("bic,ijhc->bhij", x, self.query_bias[at])
                + torch.einsum("ijhc,bjc->bhij", self.key_bias[at], x)
                + self.bias[at].movedim(-1, 0))

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij (f_j B[δ] + r[δ])."""
        at = self.relations_for(x).index_on(x.device).clamp(min=0)
        content = torch.einsum("bhij,bjc,ijhcd->bihd", alpha, x, self.value[at])
        return rearrange(content + torch.einsum("bhij,ijhd->bihd", alpha, self.value_bias[at]), "b i h d -> b i (h d)")
