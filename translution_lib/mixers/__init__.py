"""Token mixers: layers b n c -> b n c that read a relation table, and the registry that names them."""

from collections.abc import Callable
from functools import partial

from torch import nn

from translution_lib.mixers.attention import Attention, SelfAttention, definition
from translution_lib.mixers.convolution import Convolution
from translution_lib.mixers.lor import LoRTranslution
from translution_lib.mixers.translution import Translution, ValueTranslution

MIXERS: dict[str, Callable[..., nn.Module]] = {
    "self-attention": SelfAttention,
    "absolute": partial(SelfAttention, absolute=True),
    "translution": Translution,
    "value-translution": ValueTranslution,
    "lor-translution": LoRTranslution,
    "convolution": Convolution,
}
"""Every mixer by name: ``MIXERS[name](relations, dim=, heads=, **options)``."""


def mixer_named(name: str) -> Callable[..., nn.Module]:
    """Return a mixer of the registry, or say which names there are."""
    if name not in MIXERS:
        raise ValueError(f"mixer must be one of {sorted(MIXERS)}, got {name!r}")
    return MIXERS[name]


__all__ = ["MIXERS", "Attention", "Convolution", "LoRTranslution", "SelfAttention", "Translution",
           "ValueTranslution", "definition", "mixer_named"]
