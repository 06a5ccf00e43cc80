"""Encodings: parts that tell attention where its tokens are, and that combine freely; one file each."""

from translution_lib.mixers.encodings.absolute import Absolute
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.mixers.encodings.gate import PositionalGate
from translution_lib.mixers.encodings.rotary import Rotary
from translution_lib.mixers.encodings.scalar import ScalarBias
from translution_lib.mixers.encodings.transport import Transport
from translution_lib.mixers.encodings.vectors import Vectors

__all__ = ["Absolute", "Encoding", "PositionalGate", "Rotary", "ScalarBias", "Transport", "Vectors"]
