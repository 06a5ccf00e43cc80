"""Property tests of the rules of chapter "The ledger"."""

import math
from decimal import ROUND_HALF_UP, Decimal
from statistics import mean, stdev

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from translution_book.facts import ledger
from translution_book.facts.ledger import rules

VALUES = st.lists(st.floats(0, 100), min_size=2, max_size=8).filter(lambda v: stdev(v) > 1e-3)
LEVELS = st.floats(0.5, 0.999)


@pytest.mark.identity("eq-ledger-rounding")
@given(ten_thousandths=st.integers(0, 10**8), digits=st.integers(0, 3))
def test_a_number_agrees_with_what_it_rounds_to_and_with_nothing_else(ten_thousandths, digits):
    value = Decimal(ten_thousandths).scaleb(-4)
    unit = Decimal(1).scaleb(-digits)
    rounded = value.quantize(unit, ROUND_HALF_UP)
    assert ledger.rounds_to(value, str(rounded))
    assert not any(ledger.rounds_to(value, str(rounded + k * unit)) for k in (-2, -1, 1, 2))


@pytest.mark.identity("eq-ledger-interval", "eq-ledger-reach")
@given(values=VALUES, level=LEVELS)
def test_the_interval_is_that_of_one_further_normal_run(values, level):
    n = len(values)
    low, high = ledger.interval(values, level)
    expected = stats.t.interval(level, n - 1, mean(values), stdev(values) * math.sqrt(1 + 1 / n))
    assert (low, high) == pytest.approx(expected)
    assert high - mean(values) == pytest.approx(ledger.reach(n, level) * stdev(values))
    other = ledger.interval([3 - 2 * v for v in values], level)  # a change of units turns the interval along
    assert other == pytest.approx((3 - 2 * high, 3 - 2 * low))


@pytest.mark.identity("eq-ledger-reach")
@given(level=LEVELS)
def test_more_seeds_reach_less_far_and_never_less_than_a_known_spread(level):
    reach = [ledger.reach(n, level) for n in range(2, 10)]
    assert all(a > b for a, b in zip(reach, reach[1:], strict=False))
    assert reach[-1] > stats.norm.ppf((1 + level) / 2)


@pytest.mark.identity("eq-ledger-three")
@given(p=st.floats(0.5, 0.9999), degrees=st.integers(1, 40))
def test_quantiles_of_student(p, degrees):
    """The incomplete beta function of another package: P(|T| > t) = I(ν/(ν + t²); ν/2, ½)."""
    t = rules.student_quantile(p, degrees)
    outside = mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)
    assert float(1 - outside / 2) == pytest.approx(p, rel=1e-9)
    assert rules.student_cdf(t, degrees) == pytest.approx(p)
    two = rules.student_quantile(p, 2)
    assert two == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), abs=1e-8)


@pytest.mark.identity("thm-ledger-coverage")
@pytest.mark.parametrize(("n", "mu", "sigma", "level"), [(2, 0, 1, 0.9), (3, 97, 0.2, 0.95), (7, -5, 30, 0.99)])
def test_a_further_run_lies_inside_with_the_level_whatever_mean_and_spread(n, mu, sigma, level):
    runs = mu + sigma * torch.randn(50_000, n + 1, dtype=torch.float64)
    distance = (runs[:, 0] - runs[:, 1:].mean(1)).abs() / runs[:, 1:].std(1)
    share = float((distance <= ledger.reach(n, level)).double().mean())
    assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / len(runs))


@pytest.mark.identity("eq-ledger-alarms")
@given(m=st.integers(1, 12), level=LEVELS)
def test_false_alarms_of_independent_cells(m, level):
    """The law of the number of alarms, summed over all patterns of alarms."""
    law = [math.comb(m, k) * (1 - level) ** k * level ** (m - k) for k in range(m + 1)]
    assert sum(k * p for k, p in enumerate(law)) == pytest.approx(m * (1 - level))
    assert sum(law[1:]) == pytest.approx(1 - level**m)


def test_rounding_of_the_printed_number_is_allowed_for():
    runs = [97.0, 97.2, 97.4]
    low, high = ledger.interval(runs)
    assert ledger.compatible("98.2", runs) and not 98.2 < high  # 98.15 rounds to 98.2 and lies inside
    assert ledger.compatible("98.19", runs) and not ledger.compatible("98.21", runs)
    assert ledger.compatible("96.21", runs) and not ledger.compatible("96.19", runs)
    assert low == pytest.approx(96.2063, abs=1e-4)


@pytest.mark.parametrize(("function", "arguments", "message"), [
    (ledger.interval, ([97.0],), "at least two, got 1"),
    (rules.student_quantile, (0.4, 2), "at least 0.5 and below 1, got 0.4"),
    (rules.student_quantile, (1.0, 2), "below 1, got 1.0"),
    (rules.student_quantile, (0.9, 0), "at least 1, got 0"),
    (ledger.reach, (1,), "at least 1, got 0"),
])  # fmt: skip
def test_bad_numbers_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
