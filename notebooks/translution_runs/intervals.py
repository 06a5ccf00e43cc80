"""How sure a measured proportion is, and a measured mean.

SciPy's functions are imported where they are called: a run needs neither, and would wait for them.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, mean, stdev


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson, 1927).

    With p = successes / trials and z the normal quantile, the ends are
    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z sqrt(p(1-p)/n) it stays within [0, 1] and
    keeps a width when every trial succeeds.

    It answers for the choice of the test images alone, not for the choice of the training seed.

    Raises:
        ValueError: no trials, more successes than trials, or a confidence outside (0, 1).

    Label: eq-performers-wilson.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"successes: got {successes} of {trials} trials, expected 0 to trials, and at least one trial")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}, expected a number between 0 and 1")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p, n = successes / trials, trials
    centre = p + z * z / (2 * n)
    margin = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # min and max undo rounding: with every success the upper end is exactly 1.
    return max(0.0, min(p, (centre - margin) / scale)), min(1.0, max(p, (centre + margin) / scale))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, tuple[float, float]]:
    """The mean of independent values, its standard error s / √n, and the interval mean ± t · error by Student's law.

    Raises:
        ValueError: fewer than two values, which have no spread, or a confidence outside (0, 1).
    """
    if len(values) < 2:
        raise ValueError(f"values: got {len(values)}, expected at least 2")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}, expected a number between 0 and 1")
    centre, error = mean(values), stdev(values) / sqrt(len(values))
    margin = student_quantile((1 + confidence) / 2, len(values) - 1) * error
    return centre, error, (centre - margin, centre + margin)


def student_cdf(t: float, degrees: int | float) -> float:
    """Return P(T ≤ t) of Student's law with ν degrees of freedom, which Welch's formula need not make whole."""
    from scipy.special import stdtr

    return float(stdtr(degrees, t))


def student_quantile(p: float, degrees: int | float) -> float:
    """Return the t with P(T ≤ t) = p ≥ ½.

    Raises:
        ValueError: p outside [½, 1), or no degrees of freedom.

    Label: eq-ledger-three.
    """
    from scipy.special import stdtrit

    if not 0.5 <= p < 1:
        raise ValueError(f"p must be at least 0.5 and below 1, got {p!r}")
    if degrees < 1:
        raise ValueError(f"degrees must be at least 1, got {degrees!r}")
    return float(stdtrit(degrees, p))
