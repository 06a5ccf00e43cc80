"""How attention knows where things are: the operators of the Translution book, exact and fast.

    >>> from translution_lib import ViT, offsets
    >>> offsets((7, 7), cls=True).count
    172
    >>> model = ViT.named("A/12", mixer="lor-translution", image_size=84, channels=1, classes=10)

Every operator treats an ordered pair of tokens through the parameters of its relation (``relations``); ``functional``
holds the equations and their fast forms, ``backends`` how these run, ``mixers`` the layers, ``models`` a ViT and a GPT,
``cost`` what they cost.
"""

from translution_lib import cost, functional
from translution_lib.backends import backend
from translution_lib.functional import translution
from translution_lib.mixers import (
    MIXERS,
    Absolute,
    AbsoluteTranslution,
    Attention,
    BilinearAttention,
    Convolution,
    Encoded,
    Encoding,
    GeneralTranslution,
    LoRTranslution,
    Mixer,
    NoTranslution,
    Performer,
    PerformerS1,
    PerformerS2,
    PositionalGate,
    Rotary,
    RotaryTranslution,
    ScalarBias,
    SelfAttention,
    Translution,
    Transport,
    ValueTranslution,
    Vectors,
    as_translution,
)
from translution_lib.models import GPT, ViT
from translution_lib.relations import Relations, offsets, pairs, place_cls, shared
from translution_lib.sharing import bucketed, merge

__version__ = "0.1.0"

__all__ = ["GPT", "MIXERS", "Absolute", "AbsoluteTranslution", "Attention", "BilinearAttention", "Convolution",
           "Encoded", "Encoding", "GeneralTranslution", "LoRTranslution", "Mixer", "NoTranslution",
           "Performer", "PerformerS1", "PerformerS2", "PositionalGate", "Relations", "Rotary",
           "RotaryTranslution", "ScalarBias", "SelfAttention", "Translution", "Transport", "ValueTranslution",
           "Vectors", "ViT", "as_translution", "backend", "bucketed", "cost", "functional", "merge", "offsets",
           "pairs", "place_cls", "shared", "translution"]
