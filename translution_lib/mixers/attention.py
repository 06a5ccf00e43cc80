"""Softmax attention as a layer: what every encoding shares, and self-attention itself.

A subclass says how the score and the value of a pair depend on its relation: ``scores`` and ``values`` are the
equations. ``forward`` may take a faster way to the same result, and a test holds the two equal.
Source: seed 000, section 3.2; chapters "Self-attention" and "Relations".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_heads, check_sizes, check_tokens
from translution_lib.functional.masks import apart
from translution_lib.functional.translution import scores_definition, values_definition
from translution_lib.mixers.init import linear_bound, uniform
from translution_lib.relations import Relations

_literal: ContextVar[bool] = ContextVar("literal", default=False)


@contextmanager
def definition() -> Iterator[None]:
    """Within this context every attention layer runs its equations literally instead of its fast form."""
    token = _literal.set(True)
    try:
        yield
    finally:
        _literal.reset(token)


class Attention(nn.Module):
    """Softmax attention over the pairs of a relation table, b n c -> b n c.

    Args:
        relations: which pairs share parameters, and which are masked. A causal table also serves shorter texts.
        dim: channels C of the tokens.
        heads: number of heads.
        head_dim: channels d of a head; by default dim / heads.
        dropout: probability of dropping an attention weight while training.
        output: whether a linear map with bias follows; without it heads · head_dim must equal dim.

    Raises:
        ValueError: heads that do not divide dim, sizes that are not positive integers, a dropout outside [0, 1).
    """

    def __init__(self, relations: Relations, dim: int, heads: int, *, head_dim: int | None = None,
                 dropout: float = 0.0, output: bool = True) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads, **({} if head_dim is None else {"head_dim": head_dim}))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be from 0 up to 1, got {dropout!r}")
        self.relations, self.dim, self.heads, self.dropout = relations, dim, heads, dropout
        self.head_dim = check_heads(heads, dim) if head_dim is None else head_dim
        self.inner = heads * self.head_dim
        if not output and self.inner != dim:
            raise ValueError(f"output must be True where heads · head_dim = {self.inner} differs from dim = {dim}")
        self.output = nn.Linear(self.inner, dim) if output else nn.Identity()

    def __init_subclass__(cls, **options) -> None:
        """Refuse a class that changes an equation and inherits a fast form that does not run it.

        Raises:
            TypeError: ``scores``, ``weights`` or ``values`` of its own below the class whose ``mix`` would run.
        """
        super().__init_subclass__(**options)
        fast = next(k for k, kind in enumerate(cls.__mro__) if "mix" in vars(kind))
        if cls.__mro__[fast] is not Attention:
            for kind in cls.__mro__[:fast]:
                for name in {"scores", "weights", "values"} & vars(kind).keys():
                    raise TypeError(f"{cls.__name__} changes {name}, which the mix of {cls.__mro__[fast].__name__} "
                                    "does not run: write a mix as well, or take mix = Attention.mix")

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the scaled scores a_ij of all pairs, before the mask, by the literal equation."""
        raise NotImplementedError

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij by the literal equation."""
        raise NotImplementedError

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return what ``values(dropped(weights(x)), x)`` returns, by the fast form."""
        return self.values(self.dropped(self.weights(x)), x)

    def weights(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the attention weights α_ij: rows sum to one, masked pairs are exactly zero."""
        relations = self.relations_for(x)
        return masked_softmax(self.scores(x), relations.mask_needed(x.device))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Mix the tokens: attention, then the output map."""
        self.check(x)
        relations = self.relations_for(x)
        return self._run(x) if relations.complete else apart(self._run, x, relations.mask_on(x.device))

    def _run(self, x: Tensor) -> Tensor:
        return self.output(self.values(self.dropped(self.weights(x)), x) if _literal.get() else self.mix(x))

    @property
    def steady(self) -> bool:
        """Whether every training step does the same: nothing is dropped, drawn or counted between two of them."""
        return not self.dropout

    def relations_for(self, x: Tensor) -> Relations:
        """Return the relation table for the tokens of x: a prefix of a causal table for a shorter text."""
        return self.relations.for_length(x.shape[1])

    def dropped(self, alpha: Float[Tensor, "b h n n"]) -> Float[Tensor, "b h n n"]:
        """Drop attention weights while training."""
        return F.dropout(alpha, self.dropout, self.training) if self.dropout else alpha

    def check(self, x: Tensor) -> None:
        """Refuse an x of another shape than the layer was built for."""
        check_tokens(x)
        if x.shape[2] != self.dim:
            raise ValueError(f"x has {x.shape[2]} channels, expected dim = {self.dim}")
        self.relations_for(x)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, relations={self.relations.count}"


class SelfAttention(Attention):
    """Self-attention: one query, one key and one value matrix for all pairs; seed 000, section 3.2.

    It reads only the mask of its relation table. With ``absolute`` it adds a learned embedding of every token's place,
    shape (n, dim), to its input; the models add theirs once, before the first layer.
    """

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter

    def __init__(self, relations: Relations, dim: int, heads: int, *, absolute: bool = False, **options) -> None:
        super().__init__(relations, dim, heads, **options)
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(uniform((dim, self.inner), linear_bound(dim))))
        self.position = nn.Parameter(0.02 * torch.randn(relations.n, dim)) if absolute else None

    def placed(self, x: Tensor) -> Tensor:
        """Add the absolute embedding, if there is one."""
        return x if self.position is None else x + self.position[: x.shape[1]]

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_i·k_j / √d."""
        return scores_definition(self.placed(x), self.query, self.key, self.relations_for(x), self.heads)

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_j."""
        return values_definition(alpha, self.placed(x), self.value, self.relations_for(x))

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Run torch's fused attention."""
        q, k, v = self.by_head(x, self.query, self.key, self.value)
        return rearrange(self.fused(q, k, v), "b h n d -> b n (h d)")

    def by_head(self, x: Float[Tensor, "b n c"], *weights: Float[Tensor, "c _"]) -> list[Tensor]:
        """Return the tokens times each weight, b h n d: as many heads as the weight has columns for."""
        x = self.placed(x)
        return [rearrange(x @ w, "b n (h d) -> b h n d", d=self.head_dim) for w in weights]

    def fused(self, q: Float[Tensor, "b h n d1"], k: Float[Tensor, "b h n d1"], v: Float[Tensor, "b h n d2"],
              bias: Tensor | None = None, scale: float | None = None) -> Float[Tensor, "b h n d2"]:
        """Run torch's fused attention under the mask of the table.

        A bias is added to the scaled scores, and holds −∞ itself where the table masks; the scale is 1/√d1 by default.
        """
        relations = self.relations.for_length(q.shape[2])
        causal = bias is None and relations.all_past
        if bias is None and not (relations.complete or causal):
            bias = relations.mask_on(q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale,
                                              dropout_p=self.dropout if self.training else 0.0)


__all__ = ["Attention", "SelfAttention", "check_sizes", "definition"]
