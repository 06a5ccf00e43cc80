"""Property tests of the identities of chapter "How runs are judged"."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from translution_runs.verdicts import Effect, holm

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.identity("eq-static-welch")
@given(*[st.lists(st.floats(0, 100, width=32), min_size=2, max_size=8) for _ in range(2)], st.floats(0, 5))
def test_the_statistic_is_welchs_with_the_variance_of_the_test_images(one, other, u):
    terms = [torch.tensor(side).var().item() / len(side) for side in (one, other)]
    assume(min(terms) > 1e-6)
    found = Effect.of(*one, test_error=u) - Effect.of(*other)
    satterthwaite = sum(terms) ** 2 / sum(v * v / (len(side) - 1) for v, side in zip(terms, (one, other), strict=True))
    assert found.error == pytest.approx((sum(terms) + u * u) ** 0.5)
    assert found.degrees == pytest.approx(satterthwaite)
    alone = Effect.of(*one) - Effect.of(*other)
    assert found.degrees == pytest.approx(alone.degrees) and found.degrees <= len(one) + len(other) - 2 + 1e-9
    assert alone.p() == pytest.approx(ttest_ind(one, other, equal_var=False).pvalue, abs=1e-9)


@pytest.mark.identity("eq-static-holm")
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holms_correction_is_the_running_maximum(values):
    ranked = sorted(values)
    corrected = [min(1.0, (len(values) - j) * p) for j, p in enumerate(ranked)]
    expected = {p: max(corrected[: k + 1]) for k, p in enumerate(ranked)}
    assert holm(values) == pytest.approx([expected[p] for p in values])
