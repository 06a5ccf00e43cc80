"""What numbers with a spread over seeds say about a claim: a rule stated once, and applied by code.

The rule: a difference is *decided* when it is larger than twice the standard deviation, over seeds, of the difference
between two single runs. Otherwise the runs leave it open. Source: chapter "Static and dynamic MNIST".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, inf
from statistics import mean, stdev

DEVIATIONS = 2.0
"""A difference of so many standard deviations is decided."""

HOLDS, CONTRADICTED, OPEN, MISSING = "holds", "contradicted", "not decided", "not yet measured"


@dataclass(frozen=True)
class Estimate:
    """A number that runs measured.

    Attributes:
        mean: over the runs.
        deviation: standard deviation of a single run; infinite for one run, which says nothing of its spread.
        runs: how many.
    """

    mean: float
    deviation: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """The estimate from the values of single runs; None without any."""
        if not values:
            return None
        return cls(mean(values), stdev(values) if len(values) > 1 else inf, len(values))

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The difference of two estimates from different runs."""
        return Estimate(self.mean - other.mean, hypot(self.deviation, other.deviation), min(self.runs, other.runs))

    def above(self, bound: float = 0.0) -> bool | None:
        """Whether the number lies above `bound`; None where the spread leaves it open."""
        if abs(self.mean - bound) <= DEVIATIONS * self.deviation:
            return None
        return self.mean > bound

    def below(self, bound: float = 0.0) -> bool | None:
        """Whether the number lies below `bound`; None where the spread leaves it open."""
        return None if self.above(bound) is None else self.mean < bound

    def __str__(self) -> str:
        """The mean and, where there are several runs, the standard deviation, with two decimals."""
        text = f"{self.mean:.2f}" + (f" ± {self.deviation:.2f}" if self.runs > 1 else "")
        return text.replace("-", "−")


def difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """Subtract; None where one of them is not measured."""
    return None if one is None or other is None else one - other


def verdict(answers: Iterable[bool | None]) -> str:
    """Whether a claim holds that says all of these: one false answer contradicts it, an open one leaves it open.

    Raises:
        ValueError: no answers.
    """
    found = list(answers)
    if not found:
        raise ValueError("answers: got none, expected at least one")
    if any(answer is False for answer in found):
        return CONTRADICTED
    return OPEN if any(answer is None for answer in found) else HOLDS


def decide(numbers: Iterable[Estimate | None], bound: float = 0.0) -> str:
    """The verdict on a claim that says that all these numbers lie above `bound`, where some may not be measured yet.

    One number that is decided the other way contradicts the claim, whatever is missing.

    Raises:
        ValueError: no numbers.
    """
    found = list(numbers)
    answers = [number.above(bound) for number in found if number is not None]
    if len(answers) < len(found) and False not in answers:
        return MISSING
    return verdict(answers)
