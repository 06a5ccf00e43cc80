"""Token mixers: layers b n c -> b n c that read a relation table, and the registry that names them."""

from collections.abc import Callable
from functools import partial

from torch import nn

from translution_lib.mixers import inclusions  # noqa: F401  (registers the rules of as_translution)
from translution_lib.mixers.absolute import AbsoluteTranslution
from translution_lib.mixers.attention import Attention, SelfAttention, definition
from translution_lib.mixers.bilinear import BilinearAttention
from translution_lib.mixers.convert import NoTranslution, as_translution
from translution_lib.mixers.convolution import Convolution
from translution_lib.mixers.gated import GatedPositionalAttention
from translution_lib.mixers.general import GeneralTranslution
from translution_lib.mixers.lor import LoRTranslution
from translution_lib.mixers.performer import Performer
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2
from translution_lib.mixers.riemann import Riemann
from translution_lib.mixers.rotary import Rotary
from translution_lib.mixers.rotary_translution import RotaryTranslution
from translution_lib.mixers.scalar import ScalarBias
from translution_lib.mixers.translution import Translution, ValueTranslution
from translution_lib.mixers.vector import RelativeKeyVector, RelativeValueVector, RelativeVectors

MIXERS: dict[str, Callable[..., nn.Module]] = {
    "self-attention": SelfAttention,
    "absolute": partial(SelfAttention, absolute=True),
    "translution": Translution,
    "value-translution": ValueTranslution,
    "lor-translution": LoRTranslution,
    "convolution": Convolution,
    "key-vector": RelativeKeyVector,
    "value-vector": RelativeValueVector,
    "key-value-vector": RelativeVectors,
    "scalar-bias": ScalarBias,
    "gated-bias": GatedPositionalAttention,
    "rotary": Rotary,
    "rotary-translution": RotaryTranslution,
    "general-translution": GeneralTranslution,
    "absolute-translution": AbsoluteTranslution,
    "performer": Performer,
    "performer-no-position": Performer,
    "performer-absolute": partial(Performer, absolute=True),
    "performer-s1": PerformerS1,
    "performer-s2": PerformerS2,
    "riemann": Riemann,
}
"""Every mixer by name: ``MIXERS[name](relations, dim=, heads=, **options)``."""


def mixer_named(name: str) -> Callable[..., nn.Module]:
    """Return a mixer of the registry, or say which names there are."""
    if name not in MIXERS:
        raise ValueError(f"mixer must be one of {sorted(MIXERS)}, got {name!r}")
    return MIXERS[name]


__all__ = ["MIXERS", "AbsoluteTranslution", "Attention", "BilinearAttention", "Convolution", "GatedPositionalAttention",
           "GeneralTranslution", "LoRTranslution", "NoTranslution", "Performer", "PerformerS1",
           "PerformerS2", "RelativeKeyVector", "RelativeValueVector", "RelativeVectors", "Riemann", "Rotary",
           "RotaryTranslution", "ScalarBias", "SelfAttention", "Translution", "ValueTranslution", "as_translution",
           "definition", "mixer_named"]
