"""Property tests of the labels of the chapter "Random features".

Means over ω are Gauss–Hermite sums in one or two dimensions. Statistical statements have fixed seeds and bounds that a
correct library passes with probability above 1 − 1e-6 (Hoeffding, or Dvoretzky–Kiefer–Wolfowitz).
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.special import ndtr
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.strategies import F64
from translution_lib.functional import linear_attention as la
from translution_lib.functional import random_features as rf

SEEDS, SIZES = st.integers(0, 2**16), st.integers(1, 6)
NAMES = st.sampled_from(rf.FEATURES)
ERROR = 1e-7
t, w = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(48))
NODES, WEIGHTS = torch.cartesian_prod(t, t), torch.cartesian_prod(w, w).prod(1) / w.sum() ** 2


def normal(seed, *shape, size=1.0):
    return size * torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def pair(seed, d=2):
    """Two vectors no longer than one."""
    x, y = normal(seed, 2, d)
    return x / max(1, x.norm()), y / max(1, y.norm())


def each(name, x, y, omega):
    """The estimate by each single draw, relative to the exact value."""
    feature = getattr(rf, name)
    terms = (len(omega) * feature(x, omega) * feature(y, omega)).view(-1, len(omega)).sum(0)
    return terms / (x @ y).exp()


def squares(x, y):
    return (x - y).square().sum(), (x + y).square().sum()


def variance(name, x, y, m=1, draw="gaussian"):
    return getattr(rf, f"variance_{name}")(x, y, m, draw) / (2 * x @ y).exp()


@pytest.mark.identity("eq-features-trigonometric", "eq-features-positive")
@given(SEEDS, SIZES, SIZES, SIZES)
def test_features_one_number_at_a_time(seed, n, d, m):
    x, omega = normal(seed, n, d), normal(seed + 1, m, d)
    waves, powers = rf.trigonometric(x, omega), rf.positive(x, omega)
    assert waves.shape == (n, 2 * m) and powers.shape == (n, m)
    for i in range(n):
        for r in range(m):
            dot, half = float(omega[r] @ x[i]), float(x[i] @ x[i]) / 2
            expected = [math.exp(half) * math.sin(dot), math.exp(half) * math.cos(dot), math.exp(dot - half)]
            found = torch.stack([waves[i, r], waves[i, m + r], powers[i, r]])
            assert_close(found, torch.tensor(expected, dtype=F64) / math.sqrt(m))


@pytest.mark.identity("eq-features-relative")
@given(SEEDS, SIZES, SIZES)
def test_one_map_sees_the_difference_the_other_the_sum(seed, d, m):
    (x, y), omega = pair(seed, d), normal(seed + 1, m, d)
    minus, plus = squares(x, y)
    waves = rf.trigonometric(x, omega) @ rf.trigonometric(y, omega) / (x @ y).exp()
    powers = rf.positive(x, omega) @ rf.positive(y, omega) / (x @ y).exp()
    assert_close(waves, (minus / 2).exp() * (omega @ (x - y)).cos().mean())
    assert_close(powers, (-plus / 2).exp() * (omega @ (x + y)).exp().mean())


@pytest.mark.identity("thm-features-unbiased", "thm-features-variance")
@given(SEEDS, NAMES, st.integers(1, 9))
def test_mean_and_variance_by_quadrature(seed, name, m):
    x, y = pair(seed)
    terms = each(name, x, y, NODES)
    assert_close(WEIGHTS @ terms, torch.ones((), dtype=F64))
    minus, plus = squares(x, y)
    formula = 2 * (minus / 2).sinh() ** 2 if name == "trigonometric" else plus.exp() - 1
    assert_close(WEIGHTS @ (terms - 1).square(), formula, rtol=1e-5, atol=1e-9)
    assert_close(variance(name, x, y, m), formula / m, rtol=1e-5, atol=1e-9)


@pytest.mark.identity("thm-features-unbiased")
@settings(max_examples=4)
@given(SEEDS, st.sampled_from(rf.DRAWS), st.integers(2, 5))
def test_the_library_draws_are_unbiased(seed, draw, d):
    """Terms of trigonometric estimates lie within ± e^{u₋/2}: Hoeffding over independent blocks."""
    n, (x, y) = 4000, pair(seed, d)
    terms = each("trigonometric", x, y, rf.draw_features(draw, n * d, d, torch.Generator().manual_seed(seed)))
    bound = (squares(x, y)[0] / 2).exp() * math.sqrt(2 * math.log(2 / ERROR) / n)
    assert abs(terms.mean() - 1) < bound


@pytest.mark.identity("thm-features-which")
@given(SEEDS, SIZES, st.floats(0.1, 2.5), st.integers(1, 50))
def test_which_map_wins(seed, d, size, m):
    x, y = normal(seed, 2, d, size=size / math.sqrt(d))
    minus, plus = squares(x, y)
    waves, powers = rf.variance_trigonometric(x, y, m), rf.variance_positive(x, y, m)
    assert (waves < powers) == (minus.cosh() < plus.exp())
    assert (rf.variance_trigonometric(x, y, m) < rf.variance_positive(x, y, 2 * m)) == (
        2 * (minus.cosh() - 1) < plus.exp() - 1)
    assert_close(rf.variance_positive(x, -x, m), torch.zeros((), dtype=F64), rtol=0, atol=1e-12)
    assert rf.variance_trigonometric(x, x, m) == 0


@pytest.mark.identity("thm-features-sign")
@settings(max_examples=6)
@given(SEEDS, st.floats(0.2, 6))
def test_the_share_of_negative_estimates(seed, u):
    """Hoeffding for the share; monotone growth on a grid; positive features have none."""
    n = 40_000
    x = torch.tensor([math.sqrt(u), 0, 0], dtype=F64)
    y = torch.zeros(3, dtype=F64)
    omega = rf.gaussian_draw(n, 3, torch.Generator().manual_seed(seed))
    odd = torch.arange(40, dtype=F64)

    def share(s):
        series = (-1) ** odd / (2 * odd + 1) * (-((2 * odd + 1) ** 2) * s / 2).exp()
        return 0.5 - 2 / math.pi * series.sum()

    found = (each("trigonometric", x, y, omega) < 0).double().mean()
    assert abs(found - share(u)) < math.sqrt(math.log(2 / ERROR) / (2 * n))
    assert (each("positive", x, y, omega) > 0).all()
    shares = torch.stack([share(s) for s in np.linspace(0.1, 8, 50)])
    assert (shares.diff() > 0).all() and 0 < shares[0] < shares[-1] < 0.5


@pytest.mark.identity("thm-features-orthogonal")
@given(SEEDS, NAMES)
def test_the_covariance_of_a_block_in_the_plane(seed, name):
    x, y = pair(seed)
    minus, plus = squares(x, y)
    s = plus if name == "positive" else -minus
    angle = torch.arange(40, dtype=F64) * math.tau / 40
    rows = torch.stack([angle.cos(), angle.sin()], 1), torch.stack([-angle.sin(), angle.cos()], 1)
    length = NODES.norm(dim=1)[:, None, None]
    f, g = (WEIGHTS @ each(name, x, y, (length * row).view(-1, 2)).view(-1, 40) for row in rows)
    covariance = (f * g).mean() - 1
    assert_close(covariance, (1 + s / 2) * (-s / 2).exp() - 1, rtol=1e-4, atol=1e-6)
    assert_close(rf.pair_covariance(s, 2), covariance, rtol=1e-4, atol=1e-6)
    assert_close(variance(name, x, y, 2, "orthogonal"), variance(name, x, y, 2) + covariance / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.identity("thm-features-orthogonal")
@given(SEEDS, st.integers(2, 6), st.integers(2, 15))
def test_orthogonal_draws_help_positive_features(seed, d, m):
    x, y = pair(seed, d)
    _, plus = squares(x, y)
    half, rise = float(plus) / 2, [_rising(d / 2, i) for i in range(48)]
    double = sum(half ** (i + j) / math.factorial(i) / math.factorial(j) * rise[i] * rise[j] / rise[i + j]
                 for i in range(24) for j in range(24))
    assert_close(rf.pair_covariance(plus, d), double * (-plus).exp() - 1, rtol=1e-6, atol=1e-9)
    assert rf.pair_covariance(plus + 0.01, d) < 0
    x, y = x + 0.1, y + 0.1
    assert variance("positive", x, y, m, "orthogonal") < variance("positive", x, y, m) or squares(x, y)[1] < 1e-3
    u = torch.tensor([2.0, 8.0, 12.0], dtype=F64)
    assert_close(rf.pair_covariance(-u, 4), (u / 2).exp() * (1 - u / 2 + u**2 / 24) - 1)
    assert (rf.pair_covariance(-u, 4) > 0).tolist() == [False, False, True]


def _rising(a, n):
    return math.prod(a + i for i in range(n))


@pytest.mark.identity("thm-features-haar")
@settings(max_examples=6)
@given(SEEDS, st.integers(2, 4), st.floats(0.3, 1.5), st.sampled_from([1, -1]))
def test_raw_qr_is_biased_and_trigonometric_features_do_not_mind(seed, d, c, sign):
    n, g = 2000, torch.Generator()
    raw, haar = (rf.orthogonal_draw(n * d, d, g.manual_seed(seed), haar=h) for h in (False, True))
    assert (raw[::d, 0] <= 0).all()
    assert_close(raw.abs(), haar.abs())
    x, y = pair(seed, d)
    assert_close(each("trigonometric", x, y, raw), each("trigonometric", x, y, haar))
    assert 0.4 < (haar[::d, 0] <= 0).double().mean() < 0.6                 # Hoeffding: fails with 2 e^{-40}
    z = torch.zeros(d, dtype=F64)
    z[0] = sign * c / 2
    # ω z is −|g| c for the raw first draw: its law is that of a half-normal number.
    half = -raw[::d, 0].sort(descending=True).values
    gap = (torch.arange(1, n + 1, dtype=F64) / n - (2 * ndtr(half) - 1)).abs().max()
    assert gap < math.sqrt(math.log(2 / ERROR) / (2 * n)) + 1 / n
    # the mean under that law, by quadrature, is 2 Φ(−c)
    s = torch.linspace(0, 12, 20_001, dtype=F64)
    density = math.sqrt(2 / math.pi) * (-s * s / 2).exp()
    mean = torch.trapezoid(density * (-sign * c * s - c * c / 2).exp(), s)
    assert_close(mean, 2 * ndtr(torch.tensor(-sign * c, dtype=F64)), rtol=1e-5, atol=1e-6)
    terms = each("positive", z, z, raw[::d])
    assert_close(terms, (sign * c * raw[::d, 0] - c * c / 2).exp())
    assert (mean < 1) == (sign > 0)


@pytest.mark.identity("thm-features-ratio")
@given(SEEDS, st.integers(1, 2))
def test_the_weight_of_the_other_key_is_too_small_in_the_mean(seed, m):
    q, k = pair(seed)
    x = each("positive", q, k, NODES) * (q @ k).exp()
    weights = WEIGHTS
    if m == 2:                                          # the mean of two independent draws, both by quadrature
        few, light = NODES.view(48, 48, 2)[4:44:2, 4:44:2].reshape(-1, 2), WEIGHTS.view(48, 48)[4:44:2, 4:44:2]
        light = light.reshape(-1) / light.sum()
        y = each("positive", q, k, few) * (q @ k).exp()
        x, weights = (y[:, None] + y).flatten() / 2, (light[:, None] * light).flatten()
    a = rf.positive(q, NODES[:1]) @ rf.positive(-q, NODES[:1])
    assert_close(a, (-q @ q).exp())
    mean = weights @ x                                  # the kernel itself for m = 1
    assert weights @ (x / (a + x)) < mean / (a + mean)
    if m == 1:
        assert_close(mean, (q @ k).exp())


@st.composite
def features(draw):
    n, f, e = (draw(st.integers(1, 9)) for _ in range(3))
    seed = draw(SEEDS)
    return normal(seed, 1, 2, n, f).abs() + 0.1, normal(seed + 1, 1, 2, n, f).abs() + 0.1, normal(seed + 2, 1, 2, n, e)


@pytest.mark.identity("eq-features-attention", "eq-features-linear", "eq-features-chunks")
@given(features(), st.integers(1, 11), st.booleans())
def test_sums_over_keys_pair_by_pair(given_, chunk, causal):
    fq, fk, v = given_
    n = fq.shape[2]
    for h in range(2):
        for i in range(n):
            keys = range(i + 1) if causal else range(n)
            kernel = torch.stack([fq[0, h, i] @ fk[0, h, j] for j in keys])
            total = sum(a * v[0, h, j] for a, j in zip(kernel, keys, strict=True))
            assert_close(la.kernel_sums(fq, fk, v, causal)[0, h, i], total)
            assert_close(la.linear_attention(fq, fk, v, causal)[0, h, i], total / kernel.sum())
            if causal:
                assert_close(la.causal_sums(fq, fk, v, chunk)[0, h, i], total)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    assert_close(la.linear_attention_definition(fq, fk, v, mask), la.linear_attention(fq, fk, v, causal))


@pytest.mark.identity("thm-features-cost")
@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 60))
def test_what_the_two_orders_cost(n, f, e):
    def macs(run):
        with FlopCounterMode(display=False) as counter:
            run(*(torch.empty(1, 1, n, s, device="meta") for s in (f, f, e)))
        return counter.get_total_flops() // 2

    table, linear = macs(la.linear_attention_definition), macs(la.linear_attention)
    assert table == n * n * (f + e) and linear == 2 * n * f * (e + 1)
    assert (linear < table) == (n * (f + e) > 2 * f * (e + 1))
    if n > 2 * min(f, e + 1):
        assert linear < table
    c = math.sqrt(f * (e + 1))
    assert 2 * c <= f + e + 1 + 1e-9
    assert la.chunk_length(f, e + 1) == round(c)


@pytest.mark.identity("eq-features-shift", "thm-features-stable")
@given(SEEDS, SIZES, SIZES, SIZES, st.floats(0.1, 30))
def test_the_stabiliser_keeps_all_denominators_in_range(seed, n, d, m, size):
    q, k, omega = normal(seed, n, d, size=size), normal(seed + 1, n + 2, d, size=size), normal(seed + 2, m, d)
    fq, fk = rf.stabilised(q, k, omega)
    log_q, log_k = (x @ omega.T - x.square().sum(1, keepdim=True) / 2 for x in (q, k))
    c = log_k.max(0).values
    a = (log_q + c).max(1, keepdim=True).values
    # Log-scales of some thousand lose digits in their difference; the exponentials show them.
    assert_close(fq, (log_q + c - a).exp() / math.sqrt(m), rtol=1e-6, atol=1e-9)
    assert_close(fk, (log_k - c).exp() / math.sqrt(m), rtol=1e-6, atol=1e-9)
    sums = fq @ fk.sum(0)
    assert (sums > (1 - 1e-9) / m).all() and (sums < (n + 2) * (1 + 1e-9)).all()
    if size < 1:
        kernel = rf.positive(q, omega) @ rf.positive(k, omega).T
        assert_close(fq @ fk.T / sums[:, None], kernel / kernel.sum(1, keepdim=True))
