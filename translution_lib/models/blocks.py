"""What the vision and the language model share: named sizes, the pre-norm block, the stack of mixers.

Source: seed 000, Table 1; chapter "What it costs".
"""

from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from translution_lib.mixers import mixer_named
from translution_lib.mixers.attention import check_sizes
from translution_lib.relations import Relations


@dataclass(frozen=True)
class Architecture:
    """A row of Table 1: depth (layers), dim (channels), heads, ff (hidden channels of the feed-forward part)."""

    depth: int
    dim: int
    heads: int
    ff: int


ARCHITECTURES = {
    "A": Architecture(depth=6, dim=192, heads=3, ff=768),
    "B": Architecture(depth=12, dim=192, heads=3, ff=768),
    "C": Architecture(depth=12, dim=384, heads=6, ff=1536),
}


ABSOLUTE = {"absolute": "self-attention", "absolute-translution": "translution", "performer-absolute": "performer"}
"""The mixers that a model gives an embedding of every token's place, and what their layers are then."""


def plain_names(names: Sequence[str]) -> list[str]:
    """Return the names of the layers: an absolute embedding is the model's, not theirs."""
    return [ABSOLUTE.get(name, name) for name in names]


def architecture(name: str) -> Architecture:
    """Return a row of Table 1 by its letter."""
    if name not in ARCHITECTURES:
        raise ValueError(f"name must start with one of {sorted(ARCHITECTURES)}, got {name!r}")
    return ARCHITECTURES[name]


class Block(nn.Module):
    """Pre-norm block: x + mixer(LN x), then x + feed-forward(LN x)."""

    def __init__(self, mixer: nn.Module, dim: int, ff: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(dim), mixer
        self.feed_forward = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Mix the tokens, then transform each of them."""
        x = x + self.mixer(self.norm(x))
        return x + self.feed_forward(x)


def run_blocks(blocks: nn.Sequential, x: Float[Tensor, "b n c"], recompute: bool) -> Float[Tensor, "b n c"]:
    """Run the blocks one after the other.

    With ``recompute``, while training with gradients, a block keeps its input alone and backward runs it a second time,
    with the same dropout and the same form of every layer (``definition()``), before it needs what lies inside.
    """
    if not (recompute and blocks.training and torch.is_grad_enabled()):
        return blocks(x)
    for block in blocks:
        # A context runs what it is given in the context variables of this moment, in backward too.
        x = checkpoint(copy_context().run, block, x, use_reentrant=False)
    return x


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def mixer_names(mixer: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """Return one mixer name per layer: a single name is repeated, a sequence must have ``depth`` of them."""
    names = (mixer,) * depth if isinstance(mixer, str) else tuple(mixer)
    if len(names) != depth:
        raise ValueError(f"mixer must be one name or one per layer ({depth}), got {len(names)}")
    for name in names:
        mixer_named(name)
    return names


def make_blocks(names: Sequence[str], relations: Relations, dim: int, heads: int, ff: int,
                options: dict) -> nn.Sequential:
    """Return a stack of blocks, one per mixer name.

    The absolute embedding of the mixers of ``ABSOLUTE`` belongs to the model, which adds it once; its layers are the
    plain ones. In a hybrid stack every option goes to the layers that know it.
    """
    check_sizes(dim=dim, heads=heads, ff=ff)
    plain = plain_names(names)
    return nn.Sequential(*(Block(_make(name, relations, dim, heads, options, plain), dim, ff) for name in plain))


def _make(name: str, relations: Relations, dim: int, heads: int, options: dict, names: Sequence[str]) -> nn.Module:
    known = options_of(name)
    strangers = [key for key in options if not any(key in options_of(other) for other in names)]
    if strangers:
        raise ValueError(f"{strangers[0]} is not an option of {', '.join(sorted(set(names)))}; "
                         f"{name} knows {sorted(known)}")
    return mixer_named(name)(relations, dim=dim, heads=heads, **{k: v for k, v in options.items() if k in known})


def options_of(name: str) -> set[str]:
    """Return the names of the options that a mixer takes, read from its class and the classes it extends.

    A class names in ``fixed_options`` those that it sets itself.
    """
    made: Any = mixer_named(name)
    fixed = {"absolute", *getattr(made, "keywords", ()), *getattr(made, "fixed_options", ())}
    classes = [c for c in getattr(made, "func", made).__mro__ if "__init__" in vars(c) and issubclass(c, nn.Module)]
    keywords = {p.name for c in classes for p in signature(c.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY}
    return keywords - fixed
