"""What layers and models cost: closed formulas beside counts of a run.

``parameters``, ``macs_as_printed``, ``macs_true``, ``macs_products`` and ``saved_bytes`` are formulas and take a model
or its configuration; ``count_parameters``, ``count_macs`` and ``count_saved_bytes`` run or read a model. ``layer`` has
the same for one mixing layer. ``memory`` predicts the peak of a training step, ``smallest_card`` names the card that it
needs, and ``count_memory`` counts a real step's. Source: seed 000, section 3.4 and Tables 2–8, 10, 11; chapters
"What it costs" and "Making it fit".

    >>> from translution_lib import ViT, cost
    >>> model = ViT.named("A/56", mixer="lor-translution")
    >>> cost.parameters(model), cost.macs_as_printed(model)
    (5334760, 77917248)
"""

from translution_lib.cost import layer
from translution_lib.cost.base import FORMS, Layer
from translution_lib.cost.counting import count_macs, count_parameters, count_saved_bytes
from translution_lib.cost.memory import CARDS, Memory, memory, smallest_card
from translution_lib.cost.model import (
    config_of,
    layers_of,
    macs_as_printed,
    macs_products,
    macs_true,
    parameters,
    saved_bytes,
)
from translution_lib.cost.tracking import count_memory, count_peak_bytes

__all__ = ["CARDS", "FORMS", "Layer", "Memory", "config_of", "count_macs", "count_memory", "count_parameters",
           "count_peak_bytes", "count_saved_bytes", "layer", "layers_of", "macs_as_printed", "macs_products",
           "macs_true", "memory", "parameters", "saved_bytes", "smallest_card"]
