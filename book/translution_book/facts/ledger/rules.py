"""When a computed number is the printed one, and when runs of a few seeds speak for or against a printed number.

Source: chapter "The ledger", which derives both rules and the rate of false alarms of the second.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from statistics import mean, stdev

from translution_runs.intervals import student_cdf, student_quantile

LEVEL = 0.95
"""How often a number that a further seed would give lies within the interval."""
LEAST_SEEDS = 3
"""With fewer runs nothing is decided."""


def rounds_to(value: float | int | Decimal, printed: str) -> bool:
    """Say whether a number rounds to the printed one: p − u/2 ≤ x < p + u/2, u the unit of its last digit.

    Halves round up, as in the tables.

    Label: eq-ledger-rounding.
    """
    unit = Decimal(1).scaleb(int(Decimal(printed).as_tuple().exponent))
    return Decimal(printed) - unit / 2 <= Decimal(str(value)) < Decimal(printed) + unit / 2


def reach(seeds: int, level: float = LEVEL) -> float:
    """Return the half-width of the interval in standard deviations, t √(1 + 1/n).

    Label: eq-ledger-reach.
    """
    return student_quantile((1 + level) / 2, seeds - 1) * math.sqrt(1 + 1 / seeds)


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Return where one further run would lie with probability ``level``: mean ± t s √(1 + 1/n).

    The prediction interval of normal runs, with n − 1 degrees of freedom.

    Raises:
        ValueError: fewer than two values, which have no spread.

    Label: eq-ledger-interval, thm-ledger-coverage.
    """
    if len(values) < 2:
        raise ValueError(f"values must be at least two, got {len(values)}")
    half = reach(len(values), level) * stdev(values)
    return mean(values) - half, mean(values) + half


def compatible(printed: str, values: Sequence[float], level: float = LEVEL) -> bool:
    """Say whether some number that rounds to the printed one lies within the interval of the values."""
    low, high = interval(values, level)
    half = float(Decimal(1).scaleb(int(Decimal(printed).as_tuple().exponent))) / 2
    return low - half <= float(printed) <= high + half


__all__ = ["LEAST_SEEDS", "LEVEL", "compatible", "interval", "reach", "rounds_to", "student_cdf",
           "student_quantile"]
