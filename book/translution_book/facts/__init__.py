"""The numbers that the papers print, cell by cell, and what the library computes for them.

``cells`` reads the tables of the Translution paper, Horn et al. (2021) and RiemannFormer; ``recount`` computes a
parameter or FLOPs cell of the Translution paper anew; ``fits`` plans the memory of every architecture; ``ERRATA`` lists
the cells that do not follow the formulas, ``CLAIMS`` what a text says about its table.
"""

from translution_runs.printed import Cell, cells

from translution_book.facts.claims import CLAIMS, Claim
from translution_book.facts.errata import ERRATA, Erratum
from translution_book.facts.fitting import FITTED, METHODS, WAYS, Fit, fits
from translution_book.facts.recount import COUNTED, Recount, config_of, recount

__all__ = ["CLAIMS", "COUNTED", "ERRATA", "FITTED", "METHODS", "WAYS", "Cell", "Claim", "Erratum", "Fit", "Recount",
           "cells", "config_of", "fits", "recount"]
