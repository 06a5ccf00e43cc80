"""Which architecture of the Translution paper trains on which card; chapter "Making it fit".

Source: Tables 2, 3 and 7 name the architectures and say where Translution ran out of memory; sections 4.1 and 4.2 give
the batch, 256 images or 8 texts.
"""

from dataclasses import dataclass
from itertools import product

from translution_runs.printed import Cell, cells

from translution_book.facts.recount import config_of
from translution_lib import cost
from translution_lib.models import GPTConfig, ViTConfig

FITTED = (2, 3, 7)
"""The tables of the Translution paper whose architectures are planned."""
METHODS = ("self-attention", "lor-translution", "translution")
IMAGES, TEXTS = 256, 8
WAYS = {name: (autocast, checkpoint) for name, (autocast, checkpoint) in
        zip(("float32", "float32, checkpointed", "autocast", "autocast, checkpointed"),
            product((None, "bfloat16"), (False, True)), strict=True)}
"""The ways to train, by name: type of autocast, and whether blocks are computed again in backward."""


@dataclass(frozen=True)
class Fit:
    """A row of the table.

    Attributes:
        table: the paper's table.
        subject: the architecture, such as "ViT-A/12" or "GPT-A-160".
        method: "self-attention", "lor-translution" or "translution".
        batch: samples of a step, as in the paper.
        config: the model's configuration.
        out_of_memory: whether the paper reports that it ran out of memory.
        memory: the predicted peak of a step with AdamW on a GPU, per way of ``WAYS``.
    """

    table: int
    subject: str
    method: str
    batch: int
    config: ViTConfig | GPTConfig
    out_of_memory: bool
    memory: dict[str, cost.Memory]

    def card(self, way: str = "float32") -> int | None:
        """Return the smallest of 24, 40, 80 and 141 GB cards on which a step fits, or None."""
        return cost.smallest_card(self.memory[way])

    @property
    def smallest(self) -> tuple[int, str] | None:
        """The smallest card of all ways, and the first way that fits on it, or None."""
        found = [(card, k) for k, way in enumerate(WAYS) if (card := self.card(way)) is not None]
        return (min(found)[0], list(WAYS)[min(found)[1]]) if found else None


def fits(table: int | None = None) -> list[Fit]:
    """Return the rows of Tables 2, 3 and 7, or of one of them, in the papers' order.

    Raises:
        ValueError: another table.
    """
    if table is not None and table not in FITTED:
        raise ValueError(f"table must be one of {FITTED}, got {table!r}")
    wanted = [c for t in (FITTED if table is None else (table,)) for c in cells(table=t)]
    return [_fit(c) for c in wanted if c.metric in ("parameters", "status") and c.method in METHODS]


def _fit(cell: Cell) -> Fit:
    config = config_of(cell)
    batch = TEXTS if isinstance(config, GPTConfig) else IMAGES
    memory = {name: cost.memory(config, batch, autocast=autocast, checkpoint=again)
              for name, (autocast, again) in WAYS.items()}
    return Fit(cell.table, cell.subject, cell.method, batch, config, cell.metric == "status", memory)
