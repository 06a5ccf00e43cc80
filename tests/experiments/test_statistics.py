import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from translution_runs import wilson_interval


@given(st.data(), st.integers(1, 20_000), st.sampled_from([0.8, 0.95, 0.999]))
def test_wilsons_interval_is_scipys(data, trials, confidence):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials, confidence)
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= successes / trials <= high <= 1


@pytest.mark.parametrize(("arguments", "name"), [
    ((3, 2), "successes"), ((-1, 2), "successes"), ((0, 0), "successes"), ((1, 2, 1.0), "confidence"),
    ((1, 2, 0.0), "confidence"),
])
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        wilson_interval(*arguments)
