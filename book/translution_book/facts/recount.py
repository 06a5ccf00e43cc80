"""Compute the parameter and FLOPs cells of the Translution paper's tables anew, from the model that each row names.

Chapter "What it costs".
"""

import re
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from translution_runs.printed import Cell

from translution_book.facts.errata import ERRATA, Erratum
from translution_lib import cost
from translution_lib.models import GPTConfig, ViTConfig
from translution_lib.models.blocks import architecture

COUNTED = (2, 3, 4, 5, 6, 7, 8, 10, 11)
"""The tables of the Translution paper that print parameters and FLOPs."""
MNIST_TABLES = (2, 5, 10)
BASELINES = {
    "self-attention": ("absolute", True), "self-attention, absolute position": ("absolute", True),
    "self-attention, no position": ("self-attention", False),
    "relative key vector": ("key-vector", True), "relative value vector": ("value-vector", True),
    "relative scalar bias (Swin)": ("scalar-bias", False), "gated scalar bias (ConViT)": ("gated-bias", False),
    "rotary (RoFormer)": ("rotary", False),
}
"""Mixer of a row, and whether the model adds an absolute embedding.

The vectors stand beside one: no other reading gives the 22.4 M of Table 8. ConViT's parameters are too few to tell its
two forms apart, and the paper does not say which work its FLOPs contain.
"""
VOCABULARY = 50257


@dataclass(frozen=True)
class Recount:
    """A printed cell beside the computed number."""

    cell: Cell
    value: int
    erratum: Erratum | None

    @property
    def rounded(self) -> str:
        """The computed number in millions, rounded to the digits that the paper prints."""
        unit = Decimal(1).scaleb(-self.cell.digits)
        return str((Decimal(self.value) / 10 ** 6).quantize(unit, ROUND_HALF_UP))

    @property
    def agrees(self) -> bool:
        """Whether the printed number is the computed one, rounded; a wrong unit does not agree."""
        wrong_unit = self.erratum is not None and self.erratum.kind == "unit"
        return Decimal(self.rounded) == Decimal(self.cell.printed) and not wrong_unit


def recount(cell: Cell) -> Recount:
    """Compute the number of a parameter or FLOPs cell by the closed formula or the printed counting rule.

    Raises:
        ValueError: a cell of another kind, table or paper.
    """
    if cell.paper != "translution" or cell.table not in COUNTED or cell.metric not in ("parameters", "flops"):
        raise ValueError(f"cell must hold parameters or FLOPs of Translution's Tables 2–8, 10 or 11, got {cell}")
    config = config_of(cell)
    value = cost.macs_as_printed(config) if cell.metric == "flops" else cost.parameters(config) + future_offsets(cell)
    return Recount(cell, value, ERRATA.get(cell.key))


def config_of(cell: Cell) -> ViTConfig | GPTConfig:
    """Return the configuration of the model that a row names.

    Raises:
        ValueError: a row that names no architecture.
    """
    mixer, absolute, options = _method(cell)
    vit, gpt = re.fullmatch(r"ViT-([A-C])/(\d+)", cell.subject), re.fullmatch(r"GPT-([A-C])-(\d+)", cell.subject)
    match = vit or gpt
    if match is None:
        raise ValueError(f"cell must name an architecture such as ViT-A/56 or GPT-A-160, got {cell.subject!r}")
    size = architecture(match[1])
    sizes: dict[str, Any] = {**asdict(size), "mixer": (mixer,) * size.depth, "absolute": absolute, "options": options}
    if gpt:
        return GPTConfig(VOCABULARY, int(match[2]), **sizes)
    image = (84, int(match[2]), 1, 10) if cell.table in MNIST_TABLES else (224, int(match[2]), 3, 1000)
    encoding = "pairs" if cell.variant == "absolute" else "relative"
    return ViTConfig(*image, encoding=encoding, **sizes)


def _method(cell: Cell) -> tuple[str, bool, dict]:
    """Return the mixer of a row, whether the model adds an absolute embedding, and the mixer's options."""
    if cell.method == "translution":
        return "translution", False, {}
    if cell.method == "lor-translution":
        rank = re.match(r"r=(\d+)", cell.variant)
        return "lor-translution", False, {"relative_dim": int(rank[1]) if rank else 8,
                                          "shared": "without shared" not in cell.variant}
    return *BASELINES.get(cell.method, ("self-attention", False)), {}


def future_offsets(cell: Cell) -> int:
    """Return the parameters that a row of Table 8 counts and a causal model does not use: offsets of the future.

    The vectors and scalars of the baselines are printed for 2N − 1 offsets, of which a causal text has N.
    """
    config = config_of(cell)
    future = config.context - 1 if isinstance(config, GPTConfig) else 0
    per_offset = {"relative key vector": config.dim, "relative value vector": config.dim,
                  "relative scalar bias (Swin)": config.heads}
    return config.depth * future * per_offset.get(cell.method, 0)
