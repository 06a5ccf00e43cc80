"""What runs say about a claim: one rule, stated once, that every chapter, the ledger and the verdict page apply.

* A claim names differences that lie above a bound, and asks for all of them. Each is put to Welch's test, which lets
  the two sides spread unequally over their seeds. To the seeds' variance comes that of the test images: by the
  bootstrap over stored outcomes, whose variance is known in closed form, or the binomial one where a record keeps no
  outcomes; for a text that of its blocks with their neighbours' covariances, block by block where both sides keep them.
* Holm's correction runs over all claims of a page, those that still wait for runs included.
* A difference with no bound of its own has to reach `SMALLEST`, which was fixed after most of the runs that it judges.
* What is undecided counts for nobody. A claim with a number missing, or with fewer than `LEAST` seeds, waits. One that
  speaks of runs that did not train is left open.
* Only results of the same runs are taken run by run: they share weights, images and their order. Different methods are
  never paired.

Source: chapter "How runs are judged", which simulates how often the rule errs.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot, inf, isfinite, sqrt
from statistics import fmean, mean, stdev
from typing import Any, TypeVar

import numpy as np

from translution_runs.intervals import student_cdf, student_quantile

LEVEL = 0.05
"""A claim is decided if its p, corrected for the claims of its page, lies below this."""

LEAST = 3
"""With fewer seeds nothing is decided."""

SMALLEST = {"points": 1.0, "bits": 0.02}
"""The smallest effect of interest, by what a table measures.

Points of accuracy: one, since the test images of these tables alone make an error of about half a point, and since the
sources print differences of about a point and more as gains. Bits a token of text: 0.02, which is 1.4 % of the
perplexity and about the error of one model on one test text.
"""

TRAINED = 2.0
"""A run that is right on fewer of its training images than so many guesses would be has not trained."""

AGREE, DISAGREE, UNDECIDED = "small runs agree", "small runs disagree", "small runs do not decide"
HOLDS, CONTRADICTED, OPEN_AT_SIZE, WAITING = "holds", "contradicted", "runs do not decide", "not yet run"
WORDS = {"small": (AGREE, DISAGREE, UNDECIDED), "source": (HOLDS, CONTRADICTED, OPEN_AT_SIZE)}
"""By the size of the runs, this book's own or the source's: what is said for, against and of neither.

The source's size is that of its networks and of the images or texts that they train on.
"""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Sample:
    """What runs of one kind measured.

    Attributes:
        values: one a run.
        unit: a key of `SMALLEST`.
        runs: their names; samples of the same runs are combined run by run. Without names no other has these runs.
        test_error: standard error of the mean for the choice of the test images or text.
        shares: for each test image, or block of text, the mean over the runs, in the unit of the values; None where no
            record keeps them.
        test: which images or blocks these are; shares of the same ones are compared one by one.
        trained: whether all runs did better on their training images than `TRAINED` guesses.

    Raises:
        ValueError: no values, an unknown unit, another number of names, an error below zero.
    """

    values: tuple[float | int, ...]
    unit: str = "points"
    runs: tuple[str, ...] = ()
    test_error: float | int = 0.0
    shares: Any = None
    test: str = ""
    trained: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be judged."""
        if not self.values or not all(map(isfinite, self.values)):
            raise ValueError(f"values: got {list(self.values)}, expected finite numbers, at least one")
        if self.unit not in SMALLEST:
            raise ValueError(f"unit: got {self.unit!r}, expected one of {', '.join(SMALLEST)}")
        if self.runs and len(self.runs) != len(self.values):
            raise ValueError(f"runs: got {len(self.runs)} names, expected {len(self.values)}")
        if not 0 <= self.test_error < inf:
            raise ValueError(f"test_error: got {self.test_error}, expected a number that is not below 0")


@dataclass(frozen=True, eq=False)
class Effect:
    """A sum of samples times numbers, such as a difference, with the error of its mean.

    Attributes:
        terms: factor and sample.

    Raises:
        ValueError: no terms, or terms of different units.
    """

    terms: tuple[tuple[float | int, Sample], ...]

    def __post_init__(self) -> None:
        """Refuse sums that mean nothing."""
        units = sorted({sample.unit for _, sample in self.terms})
        if len(units) != 1:
            raise ValueError(f"terms: got the units {', '.join(units) or 'of nothing'}, expected one")

    @classmethod
    def of(cls, *values: float | int, unit: str = "points", test_error: float | int = 0.0) -> "Effect":
        """A sample of values on its own."""
        return cls(((1.0, Sample(tuple(values), unit, test_error=test_error)),))

    def __add__(self, other: "Effect") -> "Effect":
        """The sum of two effects."""
        return Effect(self.terms + other.terms)

    def __mul__(self, factor: float | int) -> "Effect":
        """A multiple."""
        return Effect(tuple((factor * own, sample) for own, sample in self.terms))

    __rmul__ = __mul__

    def __neg__(self) -> "Effect":
        """The opposite."""
        return -1.0 * self

    def __sub__(self, other: "Effect") -> "Effect":
        """The difference of two effects."""
        return self + -other

    @property
    def unit(self) -> str:
        """That of all terms."""
        return self.terms[0][1].unit

    @cached_property
    def factors(self) -> list[tuple[float, Sample]]:
        """The terms, each sample once."""
        found: dict[Any, tuple[float, Sample]] = {}
        for factor, sample in self.terms:
            key = (sample.runs, sample.values) if sample.runs else id(sample)
            found[key] = found.get(key, (0.0, sample))[0] + factor, sample
        return [one for one in found.values() if one[0]]

    @cached_property
    def by_runs(self) -> list[list[float]]:
        """For every group of runs, what each of them contributes.

        Raises:
            ValueError: terms that share some of their runs and not all.
        """
        groups: dict[Any, list[float]] = {}
        for factor, sample in self.factors:
            key = sample.runs or id(sample)
            before = groups.get(key, [0.0] * len(sample.values))
            groups[key] = [whole + factor * value for whole, value in zip(before, sample.values, strict=True)]
        names = [name for key in groups if isinstance(key, tuple) for name in key]
        if len(names) != len(set(names)):
            raise ValueError("terms: got results that share some of their runs, expected all or none of them")
        return list(groups.values())

    @cached_property
    def mean(self) -> float:
        """Over the runs."""
        return sum(fmean(values) for values in self.by_runs)

    @property
    def trained(self) -> bool:
        """Whether all runs have trained."""
        return all(sample.trained for _, sample in self.terms)

    @property
    def seeds(self) -> int:
        """The fewest runs of any kind."""
        return min(map(len, self.by_runs))

    @property
    def counts(self) -> str:
        """How many runs of each kind, such as "3 + 3"."""
        return " + ".join(str(len(values)) for values in self.by_runs)

    @cached_property
    def test_variance(self) -> float:
        """Of the mean, for the choice of the test images: image by image where that is possible."""
        together: dict[str, Any] = {}
        variance = 0.0
        for factor, sample in self.factors:
            if sample.shares is None:
                variance += (factor * sample.test_error) ** 2
            else:
                together[sample.test] = together.get(sample.test, 0.0) + factor * np.asarray(sample.shares, float)
        return variance + sum(mean_variance(found, self.unit) for found in together.values())

    @cached_property
    def variances(self) -> list[tuple[float, int]]:
        """Variance of the mean over the seeds and its degrees of freedom, for each group of runs."""
        return [(stdev(values) ** 2 / len(values) if len(values) > 1 else inf, len(values) - 1)
                for values in self.by_runs]

    @cached_property
    def error(self) -> float:
        """Standard error of the mean, for seeds and test images."""
        return sqrt(sum(variance for variance, _ in self.variances) + self.test_variance)

    @cached_property
    def degrees(self) -> float:
        """Welch's and Satterthwaite's degrees of freedom of the seeds' variances alone.

        The variance of the test images counts as known, and is left out here. With it in the numerator it would vouch
        for that of the seeds: where three of these lie close by chance, one page in ten would err and more.
        """
        over = sum(variance for variance, _ in self.variances)
        known = sum(variance ** 2 / degrees for variance, degrees in self.variances if degrees)
        most = float(sum(degrees for _, degrees in self.variances))
        return over ** 2 / known if 0 < over < inf and known > 0 else most

    def p(self, bound: float | int = 0.0) -> float:
        """Two-sided p of the hypothesis that the true number is `bound`.

        Label: eq-static-welch.
        """
        if self.error == inf:
            return 1.0
        if self.error == 0:
            return float(self.mean == bound)
        return 2 * student_cdf(-abs(self.mean - bound) / self.error, self.degrees)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Where the true number lies with probability 1 − level; not corrected for other claims."""
        if self.error == inf:
            return -inf, inf
        margin = student_quantile(1 - level / 2, self.degrees) * self.error
        return self.mean - margin, self.mean + margin

    def __str__(self) -> str:
        """The mean and its interval of 95 %, in points with two decimals and in bits with three."""
        digits = 2 if self.unit == "points" else 3
        low, high = (f"{end:+.{digits}f}" if isfinite(end) else "?" for end in self.interval())
        return f"{self.mean:+.{digits}f} [{low}, {high}]".replace("-", "−")


def mean_variance(shares: Any, unit: str) -> float:
    """Variance of the mean of test images, drawn one by one, or of blocks of a text, whose neighbours are alike.

    Blocks stand in the order of the text. Newey and West's sum takes the covariances of those up to 4 (n/100)^(2/9)
    apart, with weights that fall to zero, which keeps it from being negative.
    """
    n, centred = len(shares), np.asarray(shares, float) - np.mean(shares)
    last = min(int(4 * (n / 100) ** (2 / 9)), n - 1) if unit == "bits" else 0
    covariances = [float(centred[k:] @ centred[:n - k]) / n for k in range(last + 1)]
    weights = [1.0, *(2 * (1 - k / (last + 1)) for k in range(1, last + 1))]
    return sum(w * c for w, c in zip(weights, covariances, strict=True)) / n


@dataclass(frozen=True, eq=False)
class Part:
    """What a claim says of one number: that it lies above a bound, or below it.

    Attributes:
        effect: the number; None where a result is missing.
        over: the bound; None asks for the smallest effect of interest on the right side of zero.
        below: whether the number is to lie below.
    """

    effect: Effect | None
    over: float | int | None = None
    below: bool = False

    @property
    def turned(self) -> Effect | None:
        """The number, turned so that the claim asks for "above"."""
        return -self.effect if self.effect is not None and self.below else self.effect

    @property
    def bound(self) -> float:
        """That of the turned number."""
        return 0.0 if self.over is None else float(-self.over if self.below else self.over)

    @property
    def missing(self) -> bool:
        """Whether there is nothing to judge."""
        return self.effect is None or self.effect.seeds < LEAST

    @property
    def lead(self) -> float:
        """How far the number lies on the claim's side of its bound; negative on the other."""
        assert self.turned is not None
        return self.turned.mean - self.bound

    @property
    def p(self) -> float:
        """Of the number against its bound."""
        assert self.turned is not None
        return self.turned.p(self.bound)

    @property
    def matters(self) -> bool:
        """Whether the number is as far from its bound as it has to be."""
        assert self.effect is not None
        return abs(self.lead) >= (SMALLEST[self.effect.unit] if self.over is None else 0.0)


def above(effect: Effect | None, over: float | int | None = None) -> Part:
    """The number lies above the bound; above zero, and by no less than what matters, where none is given."""
    return Part(effect, over)


def below(effect: Effect | None, over: float | int | None = None) -> Part:
    """The number lies below the bound; below zero, and by no less than what matters, where none is given."""
    return Part(effect, over, below=True)


def no_gain(effect: Effect | None) -> Part:
    """The number lies below the smallest effect of interest."""
    return Part(effect, None if effect is None else SMALLEST[effect.unit], below=True)


@dataclass(frozen=True, eq=False)
class Claim:
    """What runs are asked: whether all of these numbers lie where they are said to.

    Attributes:
        parts: by name.
        size: a key of `WORDS`.
        level: whether the claim is about a level, which a small network can confirm and not deny.

    Raises:
        ValueError: no parts, or an unknown size.
    """

    parts: Mapping[str, Part]
    size: str = "small"
    level: bool = False

    def __post_init__(self) -> None:
        """Refuse what says nothing."""
        if not self.parts:
            raise ValueError("parts: got none, expected at least one")
        if self.size not in WORDS:
            raise ValueError(f"size: got {self.size!r}, expected one of {', '.join(WORDS)}")

    @property
    def missing(self) -> bool:
        """Whether a number is missing, or has too few seeds."""
        return any(part.missing for part in self.parts.values())

    @property
    def trained(self) -> bool:
        """Whether all runs that it speaks of have trained."""
        return all(part.effect is not None and part.effect.trained for part in self.parts.values())

    @cached_property
    def p(self) -> float:
        """Of the claim: for it speaks the weakest of its numbers, against it the strongest, times their number."""
        if self.missing or not self.trained:
            return 1.0
        parts = self.parts.values()
        against = [part.p for part in parts if part.lead < 0]
        return min(1.0, len(parts) * min(against)) if against else max(part.p for part in parts)

    def word(self, corrected: float) -> str:
        """What is said of the claim if this is its corrected p."""
        agree, disagree, undecided = WORDS[self.size]
        if self.missing:
            return WAITING
        parts = self.parts.values()
        if corrected >= LEVEL:
            return undecided
        if all(part.lead > 0 and part.matters for part in parts):
            return agree
        strong = [part for part in parts if part.lead < 0 and part.matters]
        decided = any(len(parts) * part.p <= self.p for part in strong)
        return disagree if decided and not self.level else undecided


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was said of a claim.

    Attributes:
        word: one of those of `WORDS`, or `WAITING`.
        claim: None where a proof or a count decides.
        p: corrected for the claims of the page; 1 where it waits.
        fact: what a proof or a count gives.
    """

    word: str
    claim: Claim | None = None
    p: float = 1.0
    fact: str = ""

    @property
    def measured(self) -> str:
        """The numbers with their intervals; empty where the claim waits."""
        if self.claim is None or self.word == WAITING:
            return self.fact
        said = {name: "" if part.effect is None or part.effect.trained else " (not trained)"
                for name, part in self.claim.parts.items()}
        return "; ".join(f"{name} {part.effect}{said[name]}".strip() for name, part in self.claim.parts.items())

    @property
    def p_text(self) -> str:
        """The p as it is printed."""
        if self.claim is None or self.word == WAITING:
            return "exact" if self.claim is None else ""
        if self.p < 0.001:
            return "< 0.001"
        text = f"{self.p:.3f}"
        return f"{self.p:.4f}" if text == f"{LEVEL:.3f}" else text  # on which side of the level it lies

    @property
    def seeds(self) -> str:
        """Runs of each kind; where numbers differ in them, each way of it."""
        if self.claim is None or self.word == WAITING:
            return ""
        return "; ".join(dict.fromkeys(part.effect.counts for part in self.claim.parts.values() if part.effect))

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Numbers, p, n and word: the last columns of a table, under `HEADINGS`."""
        return self.measured, self.p_text, self.seeds, self.word

    @property
    def said(self) -> str:
        """Numbers, p and n; empty where there are none."""
        if self.claim is None or self.word == WAITING:
            return self.fact
        p = self.p_text if self.p < 0.001 else f"= {self.p_text}"
        return f"{self.measured}; p {p}; n = {self.seeds}"

    def __str__(self) -> str:
        """The word, and what it rests on."""
        return f"{self.word} ({self.said})" if self.said else self.word


HEADINGS = ("difference [95 %]", "p", "n", "verdict")
"""Of the cells of a verdict."""


def proved(holds: bool, fact: str = "") -> Verdict:
    """The verdict of a proof or a count."""
    return Verdict(HOLDS if holds else CONTRADICTED, fact=fact)


def holm(values: Sequence[float]) -> list[float]:
    """Each p, corrected for their number after Holm (1979): the k-th smallest of m times m − k + 1, never falling.

    Raises:
        ValueError: a p outside [0, 1].

    Label: eq-static-holm.
    """
    wrong = [p for p in values if not 0 <= p <= 1]
    if wrong:
        raise ValueError(f"values: got p = {wrong[0]}, expected numbers from 0 to 1")
    found, highest = [0.0] * len(values), 0.0
    for place, k in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[k]))
        found[k] = highest
    return found


def judge(claims: Mapping[Key, Claim | Verdict]) -> dict[Key, Verdict]:
    """The verdicts on all claims of one page. Those that are proved already pass and are not counted.

    Raises:
        ValueError: no claims.
    """
    if not claims:
        raise ValueError("claims: got none, expected at least one")
    open_ = {key: claim for key, claim in claims.items() if isinstance(claim, Claim)}
    corrected = dict(zip(open_, holm([claim.p for claim in open_.values()]), strict=True))
    return {key: Verdict(claim.word(corrected[key]), claim, corrected[key]) if isinstance(claim, Claim) else claim
            for key, claim in claims.items()}


DEVIATIONS, MISSING = 2.0, "not yet measured"
"""Of `Estimate.above`, the rule before this one, by which one page shows what it had said."""


@dataclass(frozen=True)
class Estimate:
    """A number that runs measured, as tables print it: mean ± standard deviation of a single run.

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

    def __str__(self) -> str:
        """The mean and, where there are several runs, the standard deviation, with two decimals."""
        text = f"{self.mean:.2f}" + (f" ± {self.deviation:.2f}" if self.runs > 1 else "")
        return text.replace("-", "−")


def difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """Subtract; None where one of them is not measured."""
    return None if one is None or other is None else one - other
