"""A causal language model with any mixer. Source: seed 000, section 4.2 and appendix C; chapter "What it costs"."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from translution_lib.mixers.attention import check_sizes
from translution_lib.models.blocks import (
    ABSOLUTE,
    architecture,
    check_flag,
    make_blocks,
    mixer_names,
    run_blocks,
)
from translution_lib.relations import Relations, offsets


@dataclass(frozen=True)
class GPTConfig:
    """Everything that determines a GPT; the fields are the arguments of :class:`GPT`."""

    vocabulary: int
    context: int
    dim: int
    depth: int
    heads: int
    ff: int
    mixer: tuple[str, ...]
    absolute: bool = False
    options: dict = field(default_factory=dict)
    checkpoint: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens at full length."""
        return self.context

    def relations(self) -> Relations:
        """Return the causal relation table that all layers share."""
        return offsets(self.context, causal=True)


class GPT(nn.Module):
    """Causal language model: token embedding, a stack of blocks, two final norms, an untied linear read-out.

    Args:
        vocabulary: number of different tokens.
        context: longest text, in tokens; shorter texts use the same weights.
        dim, depth, heads, ff: see :class:`Architecture`.
        mixer: a name of ``MIXERS``, or one name per layer for a hybrid stack.
        absolute: whether a learned embedding of every place is added; by default only where a mixer is "absolute",
            "absolute-translution" or "performer-absolute".
        checkpoint: keep the input of every block alone while training, and compute the block again in backward: the
            same outputs and gradients, less memory, one more forward pass.
        options: further options of the mixer.

    Raises:
        ValueError: sizes that are not positive integers, an unknown mixer, options that no layer knows.
    """

    def __init__(self, vocabulary: int, context: int, dim: int, depth: int, heads: int, ff: int,
                 mixer: str | Sequence[str] = "translution", absolute: bool | None = None, checkpoint: bool = False,
                 **options) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, context=context, dim=dim, depth=depth)
        check_flag("checkpoint", checkpoint)
        names = mixer_names(mixer, depth)
        absolute = bool(ABSOLUTE.keys() & set(names)) if absolute is None else absolute
        self.config = GPTConfig(vocabulary, context, dim, depth, heads, ff, names, absolute, dict(options), checkpoint)
        self.relations = self.config.relations()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.randn(context, dim)) if absolute else None
        self.blocks = make_blocks(names, self.relations, dim, heads, ff, options)
        # The released model normalises twice before its read-out; the printed parameter counts include both.
        self.norm = nn.Sequential(nn.LayerNorm(dim), nn.LayerNorm(dim))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    @classmethod
    def named(cls, name: str, *, mixer: str | Sequence[str] = "translution", context: int = 160,
              vocabulary: int = 50257, **options) -> "GPT":
        """Return an architecture of Table 1: "A", "B" or "C"."""
        size = architecture(name)
        return cls(vocabulary, context, size.dim, size.depth, size.heads, size.ff, mixer, **options)

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n vocabulary"]:
        """Return the logits of the next token at every place."""
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.config.context:
            raise ValueError(f"tokens must have the shape (batch, 1 to {self.config.context}), "
                             f"got {tuple(tokens.shape)}")
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position[: tokens.shape[1]]
        return self.head(self.norm(run_blocks(self.blocks, x, self.config.checkpoint)))
