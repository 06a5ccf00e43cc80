"""Token mixers: layers b n c -> b n c that read a relation table, and the registry that names them."""

from translution_lib.mixers import inclusions  # noqa: F401  (registers the rules of as_translution)
from translution_lib.mixers.absolute import AbsoluteTranslution
from translution_lib.mixers.attention import Attention
from translution_lib.mixers.bilinear import BilinearAttention
from translution_lib.mixers.convert import NoTranslution, as_translution
from translution_lib.mixers.convolution import Convolution
from translution_lib.mixers.encodings import Absolute, Encoding, PositionalGate, Rotary, ScalarBias, Transport, Vectors
from translution_lib.mixers.general import GeneralTranslution
from translution_lib.mixers.lor import LoRTranslution
from translution_lib.mixers.mixer import Mixer
from translution_lib.mixers.performer import Performer
from translution_lib.mixers.registry import MIXERS, Encoded, mixer_named
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2
from translution_lib.mixers.rotary_translution import RotaryTranslution
from translution_lib.mixers.self_attn import SelfAttention
from translution_lib.mixers.translution import Translution, ValueTranslution

__all__ = ["MIXERS", "Absolute", "AbsoluteTranslution", "Attention", "BilinearAttention", "Convolution", "Encoded",
           "Encoding", "GeneralTranslution", "LoRTranslution", "Mixer", "NoTranslution", "Performer", "PerformerS1",
           "PerformerS2", "PositionalGate", "Rotary", "RotaryTranslution", "ScalarBias", "SelfAttention", "Translution",
           "Transport", "ValueTranslution", "Vectors", "as_translution", "mixer_named"]
