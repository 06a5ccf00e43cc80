"""What the texts of Horn et al. (2021) and of RiemannFormer say about differences in their tables, beside the
differences themselves.

The texts speak in whole points of accuracy, so a difference is rounded to a whole point before it is compared. Source:
Horn et al. (2021), section 3 and Table 1; the RiemannFormer paper, section 4 and Table 1; page "Errata of the sources".

Chapter "RiemannFormer on CIFAR".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from translution_runs.printed import cells

CNNS = ("AlexNet", "VGG-16", "ResNet-18")
EFFICIENT = ("Linformer", "Routing Transformer")
SMALL = ("MNIST", "Fashion-MNIST")
NO_POSITION, ABSOLUTE, FIRST = (f"Performer, {kind}" for kind in ("no position", "absolute", "strategy 1"))


@dataclass(frozen=True)
class Claim:
    """A statement that some rows of a table lie so many points above others.

    Attributes:
        paper: whose they are.
        statement: what is said, in short.
        low: smallest difference that the statement allows, in whole points.
        high: largest, in whole points.
        pairs: (data set, row, other row) for each difference "row − other row".
    """

    paper: str
    statement: str
    low: int
    high: int
    pairs: tuple[tuple[str, str, str], ...]

    @property
    def differences(self) -> dict[tuple[str, str, str], float]:
        """What the table gives, in points, for each of the pairs."""
        top = {(c.subject, c.method): c.value for c in cells(self.paper, 1, "top1")}
        return {(data, row, other): round(top[data, row] - top[data, other], 2) for data, row, other in self.pairs}

    @property
    def outside(self) -> dict[tuple[str, str, str], float]:
        """The differences that the statement does not cover."""
        return {pair: d for pair, d in self.differences.items() if not self.low <= round(d) <= self.high}

    @property
    def holds(self) -> bool:
        """Whether the statement covers every difference."""
        return not self.outside


def _pairs(data: Iterable[str], rows: Iterable[str], others: Iterable[str]) -> tuple[tuple[str, str, str], ...]:
    return tuple(product(data, rows, others))


CLAIMS = (
    Claim("performers", "MNIST and Fashion-MNIST: within 1 of the CNNs and of Absolute", -1, 1,
          _pairs(SMALL, [FIRST], [*CNNS, ABSOLUTE])),
    Claim("performers", "MNIST and Fashion-MNIST: 1 to 2 above Linformer and Routing", 1, 2,
          _pairs(SMALL, [FIRST], EFFICIENT)),
    Claim("performers", "MNIST and Fashion-MNIST: 30 to 50 above No Pos", 30, 50,
          _pairs(SMALL, [FIRST], [NO_POSITION])),
    Claim("performers", "CIFAR-10: CNNs 3 to 8 above strategy 1", 3, 8, _pairs(["CIFAR-10"], CNNS, [FIRST])),
    Claim("performers", "CIFAR-10: CNNs 1 to 6 above Absolute", 1, 6, _pairs(["CIFAR-10"], CNNS, [ABSOLUTE])),
    Claim("performers", "CIFAR-10: 15 to 20 above Linformer, Routing and No Pos", 15, 20,
          _pairs(["CIFAR-10"], [FIRST], [*EFFICIENT, NO_POSITION])),
)
"""The statements of Horn et al. (2021) about its Table 1, each with the differences that it is about."""
