"""The rule of the verdicts: Welch's test against scipy's, Holm's correction by hand, and what it never does."""

from itertools import product
from math import inf, sqrt
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from translution_runs import tables, verdicts
from translution_runs.verdicts import Claim, Effect, Sample, above, below, holm, judge, mean_variance, no_gain

values = st.lists(st.floats(0, 100, width=32), min_size=2, max_size=9)


@given(values, values)
def test_two_samples_give_welchs_p_and_interval(one, other):
    found = Effect.of(*one) - Effect.of(*other)
    if max(stdev(one), stdev(other)) < 1e-3:
        return
    expected = ttest_ind(one, other, equal_var=False)
    assert found.p() == pytest.approx(expected.pvalue, abs=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert found.interval() == pytest.approx((low, high), rel=1e-6, abs=1e-6)
    assert found.degrees == pytest.approx(expected.df, rel=1e-6)


def test_holm_by_hand():
    """0.01 · 4, then 0.02 · 3, then 0.03 · 2 = 0.06 again, then 0.04, which must not fall below 0.06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.data())
def test_a_smaller_p_never_makes_another_larger(found, data):
    k = data.draw(st.integers(0, len(found) - 1))
    smaller = [*found]
    smaller[k] *= data.draw(st.floats(0, 1))
    assert all(a <= b for a, b in zip(holm(smaller), holm(found), strict=True))
    assert all(a >= p for a, p in zip(holm(found), found, strict=True))


def spread(mean, deviation, runs, test_error=0.0):
    """Values with exactly this mean and standard deviation."""
    half = deviation * sqrt((runs - 1) / runs) if runs % 2 == 0 else deviation
    signs = [-1.0] * (runs // 2) + [0.0] * (runs % 2) + [1.0] * (runs // 2)
    return Effect.of(*(mean + half * sign for sign in signs), test_error=test_error)


@given(st.floats(0.1, 20), st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 2))
def test_more_seeds_make_the_rule_more_able_to_decide(gap, one, other, test_error):
    """The same means and deviations from more seeds: p falls, and so does the width of the interval."""
    found = [spread(50 + gap, one, n, test_error) - spread(50, other, n, test_error) for n in (4, 6, 8, 12, 20)]
    p = [effect.p() for effect in found]
    assert all(a >= b for a, b in zip(p, p[1:], strict=False))
    width = [effect.interval()[1] - effect.mean for effect in found]
    assert all(a > b for a, b in zip(width, width[1:], strict=False))
    decided = [judge({"": Claim({"": above(effect)})})[""].word == verdicts.AGREE for effect in found]
    assert decided == sorted(decided)


def test_results_of_the_same_runs_are_taken_run_by_run_and_no_others():
    names = ("a", "b", "c")
    here, moved = Sample((70, 80, 90), runs=names), Sample((65, 75, 85), runs=names)
    lost = Effect(((1, here), (-1, moved)))
    assert lost.mean == pytest.approx(5) and lost.error == 0 and lost.p() == 0 and lost.p(5) == 1
    others = Effect(((1, here), (-1, Sample((65, 75, 85), runs=("d", "e", "f")))))
    assert others.error == pytest.approx(10 * sqrt(2 / 3)) and others.counts == "3 + 3"
    with pytest.raises(ValueError, match="share some of their runs"):
        _ = Effect(((1, here), (-1, Sample((1, 2, 3), runs=("c", "d", "e"))))).mean


def test_stored_outcomes_give_the_bootstraps_variance():
    draw = np.random.default_rng(0)
    hard = draw.random(400)
    right = [100.0 * (draw.random((3, 400)) > hard).mean(0) for _ in range(2)]
    one, other = (Sample((50.0, 50.0, 50.0), shares=found, test="images") for found in right)
    found = Effect(((1, one), (-1, other))).test_variance
    images = draw.integers(400, size=(20_000, 400))
    assert found == pytest.approx((right[0] - right[1])[images].mean(1).var(), rel=0.05)
    apart = Effect(((1, one), (-1, Sample((50.0,) * 3, shares=right[1], test="other images")))).test_variance
    assert apart == pytest.approx(right[0].var() / 400 + right[1].var() / 400) and apart > 1.5 * found


def test_the_errors_of_seeds_and_test_images_add_up():
    found = Effect.of(1.0, 2.0, 3.0, test_error=0.5) - Effect.of(7.0, 7.0, 7.0, test_error=0.25)
    assert found.error == pytest.approx(sqrt(1 / 3 + 0.25 + 0.0625))
    assert found.degrees == 2  # of the seeds alone: one side does not spread, and lends none
    assert (Effect.of(0.0, 9.0, 18.0, test_error=1) - Effect.of(1.0, 4.0, 7.0)).degrees == pytest.approx(30**2 / 369)


UP, DOWN, UNSURE = Effect.of(29.0, 30.0, 31.0), Effect.of(-29.0, -30.0, -31.0), Effect.of(-5.0, 1.0, 6.0)
SLIGHT, FEW = Effect.of(0.49, 0.5, 0.51), Effect.of(30.0, 30.1)
AGREE, DISAGREE, UNDECIDED = verdicts.WORDS["small"]


@pytest.mark.parametrize(("parts", "word"), [
    ([above(UP), above(UP)], AGREE), ([above(UP), above(DOWN)], DISAGREE), ([above(UP), above(UNSURE)], UNDECIDED),
    ([above(UP), above(None)], verdicts.WAITING), ([above(None), above(DOWN)], verdicts.WAITING),
    ([above(FEW)], verdicts.WAITING), ([above(SLIGHT)], UNDECIDED), ([below(SLIGHT)], UNDECIDED),
    ([below(DOWN)], AGREE), ([below(UP)], DISAGREE), ([above(UP, 25)], AGREE), ([above(UP, 35)], DISAGREE),
    ([below(DOWN, -25)], AGREE), ([no_gain(SLIGHT)], AGREE), ([no_gain(UP)], DISAGREE), ([no_gain(UNSURE)], UNDECIDED),
    ([no_gain(None)], verdicts.WAITING),
])  # fmt: skip
def test_a_claim_asks_for_all_and_neither_doubt_nor_a_gap_counts(parts, word):
    found = judge({"claim": Claim({str(k): part for k, part in enumerate(parts)})})["claim"]
    assert found.word == word
    assert bool(found.measured) == bool(found.seeds) == (word != verdicts.WAITING)


@given(st.lists(st.sampled_from([UP, DOWN, UNSURE, None]), min_size=1, max_size=4), st.sampled_from([above, below]))
def test_what_is_undecided_or_missing_never_holds(effects, way):
    found = judge({0: Claim({str(k): way(one) for k, one in enumerate(effects)})})[0].word
    if None in effects:
        assert found == verdicts.WAITING
    elif UNSURE in effects:
        assert found != AGREE
    elif DOWN in effects and UP in effects:
        assert found == DISAGREE


def test_the_sources_own_size_has_other_words_and_a_level_is_not_denied():
    assert [judge({0: Claim({"": above(one)}, size="source")})[0].word for one in (UP, DOWN, UNSURE)] == [
        "holds", "contradicted", "runs do not decide"]  # fmt: skip
    assert judge({0: Claim({"": above(UP, 90)}, level=True)})[0].word == UNDECIDED
    assert judge({0: Claim({"": above(UP, 20)}, level=True)})[0].word == AGREE


def test_runs_that_did_not_train_carry_no_conclusion():
    lost = Effect(((1, Sample((60.0, 60.1, 60.2))), (-1, Sample((10.0, 10.1, 10.2), trained=False))))
    found = judge({0: Claim({"A − B": above(lost)}), 1: Claim({"A − B": below(lost)})})
    assert [one.word for one in found.values()] == [UNDECIDED, UNDECIDED] and found[0].p == 1
    assert found[0].measured.endswith("(not trained)")


def test_many_claims_are_corrected_and_proofs_are_not_counted():
    near = Effect.of(2.0, 3.0, 4.0)  # p = 0.035
    alone = judge({0: Claim({"": above(near)}), 1: verdicts.proved(True, "by proof")})
    assert alone[0].word == AGREE and alone[0].p == pytest.approx(near.p()) and alone[1].cells == ("by proof", "exact",
                                                                                                   "", "holds")
    two = judge({0: Claim({"": above(near)}), 1: Claim({"": above(None)})})
    assert two[0].word == UNDECIDED and two[0].p == pytest.approx(2 * near.p()) and two[1].p == 1


def test_a_verdict_prints_difference_interval_p_and_n():
    found = str(judge({0: Claim({"A − B": above(UP)})})[0])
    low, high = (f"{end:.2f}" for end in UP.interval())
    assert found == f"small runs agree (A − B +30.00 [+{low}, +{high}]; p < 0.001; n = 3)"
    assert str(Effect.of(-0.5, -0.5, -0.5, unit="bits")) == "−0.500 [−0.500, −0.500]"
    assert str(Effect.of(1.0)) == "+1.00 [?, ?]" and Effect.of(1.0).p() == 1


@pytest.mark.parametrize(("ratio", "images", "most"), [(1, 0, 0.05), (5, 0, 0.10), (1, 5, 0.05), (5, 50, 0.05)])
def test_under_ties_a_page_seldom_errs(ratio, images, most):
    """Twelve true ties a page, three seeds: some verdict falls in 5 % of the pages, in 10 % with unequal spreads."""
    draw, wrong, pages = np.random.default_rng(1), 0, 300
    for _ in range(pages):
        sides = draw.normal(size=(12, 2, 3)) * np.array([1, ratio])[:, None] * 10
        sides[:, 0] += images * draw.normal(size=(12, 1))
        found = judge({k: Claim({"": above(Effect.of(*a, test_error=images) - Effect.of(*b))})
                       for k, (a, b) in enumerate(sides)})
        wrong += any(one.word != UNDECIDED for one in found.values())
    assert wrong / pages < most + 2 * sqrt(most * (1 - most) / pages)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Sample(()), "values: got"), (lambda: Sample((1.0, inf)), "values: got"),
    (lambda: Sample((1.0,), "metres"), "unit: got 'metres', expected one of points, bits"),
    (lambda: Sample((1.0, 2.0), runs=("a",)), "runs: got 1 names, expected 2"),
    (lambda: Sample((1.0,), test_error=-1), "test_error: got -1"),
    (lambda: Effect(()), "terms: got the units of nothing"),
    (lambda: Effect.of(1.0) - Effect.of(1.0, unit="bits"), "terms: got the units bits, points"),
    (lambda: Claim({}), "parts: got none"), (lambda: Claim({"": above(UP)}, size="large"), "size: got 'large'"),
    (lambda: judge({}), "claims: got none"), (lambda: holm([0.5, 1.5]), "values: got p = 1.5"),
])  # fmt: skip
def test_bad_input_is_refused_by_its_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_smallest_effects_are_those_of_the_units():
    for unit, sign in product(verdicts.SMALLEST, (1, -1)):
        least = verdicts.SMALLEST[unit]
        for factor, word in ((1.01, AGREE), (0.99, UNDECIDED)):
            sure = Effect.of(*[sign * factor * least] * 3, unit=unit)
            assert judge({0: Claim({"": (above if sign > 0 else below)(sure)})})[0].word == word


def test_a_table_of_verdicts_has_a_line_for_each():
    found = judge({("A", "is above"): Claim({"A − B": above(UP)}), ("C", "waits"): Claim({"": above(None)}),
                   ("D", "is counted"): verdicts.proved(False, "3 of 4")})  # fmt: skip
    shown = tables.verdict_table(found, ("who", "claim"), "Verdicts.")
    assert shown.header == ("who", "claim", *verdicts.HEADINGS)
    assert [row[-1] for row in shown.rows] == [AGREE, verdicts.WAITING, "contradicted"]
    assert shown.rows[1][2:] == ("", "", "", "not yet run") and shown.rows[2][2:4] == ("3 of 4", "exact")
    with pytest.raises(ValueError, match="found: got the key"):
        tables.verdict_table(found, ("claim",))


def test_the_error_of_a_text_counts_what_neighbouring_blocks_have_in_common():
    """Newey and West's sum as a double loop over pairs, and its size on blocks whose true error is known."""
    draw = np.random.default_rng(0)
    blocks = draw.normal(size=108)
    centred = blocks - blocks.mean()
    pairs = sum(max(0, 1 - abs(i - j) / 5) * centred[i] * centred[j] for i in range(108) for j in range(108))
    assert mean_variance(blocks, "bits") == pytest.approx(pairs / 108**2)
    assert mean_variance(blocks, "points") == pytest.approx(blocks.var() / 108)
    noise = draw.normal(size=(2_000, 109))
    alike = noise[:, 1:] + noise[:, :-1]  # a moving sum: the variance of its mean is about 4/n, by single blocks 2/n
    found = np.mean([mean_variance(row, "bits") for row in alike]) * 108
    assert 3.2 < found < 4 and 1.9 < np.mean(alike.var(1)) < 2.1
