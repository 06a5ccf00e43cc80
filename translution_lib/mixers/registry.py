"""Mixers by name: what makes a layer from a table, a width, heads, and options. Chapter "Add your own encoding"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

from torch import nn

from translution_lib.mixers.absolute import AbsoluteTranslution
from translution_lib.mixers.attention import Attention
from translution_lib.mixers.convolution import Convolution
from translution_lib.mixers.encodings import Absolute, Encoding, PositionalGate, Rotary, ScalarBias, Transport, Vectors
from translution_lib.mixers.general import GeneralTranslution
from translution_lib.mixers.lor import LoRTranslution
from translution_lib.mixers.mixer import Mixer
from translution_lib.mixers.performer import Performer
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2
from translution_lib.mixers.rotary_translution import RotaryTranslution
from translution_lib.mixers.translution import Translution, ValueTranslution


@dataclass(frozen=True)
class Encoded:
    """Attention with one part: ``Encoded(Rotary)(relations, dim=192, heads=3, angles="learned", dropout=0.1)``.

    Attributes:
        part: the class of the part; None is self-attention.
        fixed: options that this name sets; ``absolute`` puts an embedding of places before the part.
    """

    part: type[Encoding] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, relations, dim: int, heads: int, **options) -> Attention:
        """Return a layer; an option is the attention's, the part's, or ``absolute``."""
        options = {**options, **self.fixed}
        parts: list[Encoding] = [Absolute()] if options.pop("absolute", False) else []
        own = {name: options.pop(name) for name in options.keys() & keywords(Mixer)}
        if self.part is not None:
            parts.append(self.part(**options))
        elif options:
            raise ValueError(f"{next(iter(options))} is not an option of self-attention, which knows "
                             f"{sorted(keywords(Mixer))}")
        return Attention(relations, dim, heads, parts, **own)

    def options(self) -> dict[str, type]:
        """Return the options that a user may set, and the class that takes each."""
        known: dict[str, type] = dict.fromkeys(keywords(Mixer), Mixer)
        if self.part is not None:
            known |= dict.fromkeys(keywords(self.part), self.part)
        return {name: owner for name, owner in known.items() if name not in self.fixed}


def keywords(kind: type) -> set[str]:
    """Return the keyword-only arguments of a class's own constructor."""
    if "__init__" not in vars(kind) or not issubclass(kind, nn.Module):
        return set()
    return {p.name for p in signature(kind.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY}


def options_and_owners(name: str) -> dict[str, type]:
    """Return the options of a mixer and the class that takes each, read from constructors.

    A class names in ``fixed_options`` those that it sets itself.
    """
    made: Any = mixer_named(name)
    if isinstance(made, Encoded):
        return made.options()
    fixed = {"absolute", *getattr(made, "keywords", ()), *getattr(made, "fixed_options", ())}
    kinds = reversed(getattr(made, "func", made).__mro__)
    return {option: kind for kind in kinds for option in keywords(kind) if option not in fixed}


MIXERS: dict[str, Callable[..., nn.Module]] = {
    "self-attention": Encoded(),
    "absolute": Encoded(fixed={"absolute": True}),
    "translution": Translution,
    "value-translution": ValueTranslution,
    "lor-translution": LoRTranslution,
    "convolution": Convolution,
    "key-vector": Encoded(Vectors, {"sides": "k"}),
    "value-vector": Encoded(Vectors, {"sides": "v"}),
    "key-value-vector": Encoded(Vectors),
    "scalar-bias": Encoded(ScalarBias),
    "gated-bias": Encoded(PositionalGate),
    "rotary": Encoded(Rotary),
    "rotary-translution": RotaryTranslution,
    "general-translution": GeneralTranslution,
    "absolute-translution": AbsoluteTranslution,
    "performer": Performer,
    "performer-no-position": Performer,
    "performer-absolute": partial(Performer, absolute=True),
    "performer-s1": PerformerS1,
    "performer-s2": PerformerS2,
    "riemann": Encoded(Transport),
}
"""Every mixer by name: ``MIXERS[name](relations, dim=, heads=, **options)``. A new part needs one line more:
``MIXERS["mine"] = Encoded(Mine)``."""


def mixer_named(name: str) -> Callable[..., nn.Module]:
    """Return a mixer of the registry, or say which names there are."""
    if name not in MIXERS:
        raise ValueError(f"mixer must be one of {sorted(MIXERS)}, got {name!r}")
    return MIXERS[name]
