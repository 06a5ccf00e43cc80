"""The cells of the papers' tables. Source: the Translution paper, Tables 2–8, 10, 11; Horn et al. (2021), Table 1; the
RiemannFormer paper, Table 1.

Chapter "The ledger".
"""

import csv
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Cell:
    """One printed number.

    Attributes:
        paper: whose table it is, "translution", "performers" or "riemannformer".
        table: its table's number.
        subject: the architecture, such as "ViT-A/56" or "GPT-A-160", or the data set.
        method: the row's method.
        variant: what else tells the row apart, such as "r=8".
        metric: "parameters", "flops", "top1 …", "top5", "perplexity" or "status".
        printed: the text of the number as printed, in ``unit``.
        unit: "M" (10⁶), "%" or "".
        note: a remark on reading the cell.
    """

    paper: str
    table: int
    subject: str
    method: str
    variant: str
    metric: str
    printed: str
    unit: str
    note: str

    @property
    def value(self) -> float:
        """The printed number, in its unit."""
        return float(self.printed)

    @property
    def digits(self) -> int:
        """Decimals that the paper prints, in the cell's unit; a count from 1 G up is printed in G with three."""
        if self.metric == "flops" and self.value >= 1000:
            return 0
        if self.metric == "parameters":
            return 2 if self.table in (4, 11) else 1
        return max(0, -int(Decimal(self.printed).as_tuple().exponent))

    @property
    def key(self) -> tuple[int, str, str, str, str]:
        """What tells the cell from all others of its paper."""
        return self.table, self.subject, self.method, self.variant, self.metric


def cells(paper: str = "translution", table: int | None = None, metric: str | None = None) -> list[Cell]:
    """Return the printed cells of a paper in the order of its tables, of one table and one metric if these are given.

    Raises:
        ValueError: a paper, table or metric that is not there.
    """
    found = [c for c in _all() if c.paper == paper and table in (None, c.table) and metric in (None, c.metric)]
    if not found:
        raise ValueError(f"no cells of paper={paper!r}, table={table!r}, metric={metric!r}")
    return found


@cache
def _all() -> tuple[Cell, ...]:
    with files("translution_runs").joinpath("paper_tables.csv").open(encoding="utf-8") as file:
        return tuple(Cell(row["paper"], int(row["table"]), row["architecture_or_dataset"], row["method"],
                          row["variant"], row["metric"], row["printed"], row["unit"], row["note"])
                     for row in csv.DictReader(file))
