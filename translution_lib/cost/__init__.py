"""What layers and models cost: formulas for what the book derives, counts on the meta device for everything else.

``parameters``, ``macs_as_printed``, ``macs_true`` and ``macs_products`` take a model or its configuration; ``layer``
has the same for one mixing layer. ``memory`` says what a training step needs at its peak, ``smallest_card`` names the
card for it, ``saved_bytes`` says what the mixing layers keep for backward. ``count_parameters``, ``count_macs`` and
``count_saved_bytes`` read or run any module, ``count_memory`` makes whole steps. Source: the Translution paper,
section 3.4 and Tables 2–8, 10, 11; chapters "What it costs" and "Making it fit".

    >>> from translution_lib import ViT, cost
    >>> model = ViT.named("A/56", mixer="lor-translution")
    >>> cost.parameters(model), cost.macs_as_printed(model)
    (5334760, 77917248)
"""

from translution_lib.cost import layer
from translution_lib.cost.counting import config_of, count_macs, count_parameters, count_saved_bytes
from translution_lib.cost.layer import Layer
from translution_lib.cost.memory import CARDS, FORMS, Memory, memory, saved_bytes, smallest_card
from translution_lib.cost.model import layers_of, macs_as_printed, macs_products, macs_true, parameters
from translution_lib.cost.tracking import count_memory, count_peak_bytes

__all__ = ["CARDS", "FORMS", "Layer", "Memory", "config_of", "count_macs", "count_memory", "count_parameters",
           "count_peak_bytes", "count_saved_bytes", "layer", "layers_of", "macs_as_printed", "macs_products",
           "macs_true", "memory", "parameters", "saved_bytes", "smallest_card"]
