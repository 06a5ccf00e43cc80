"""Random features: exact means and variances by quadrature, the laws of the draws, an outside oracle, errors.

Deterministic tests integrate over ω with Gauss–Hermite nodes. Statistical ones have a fixed seed and a bound on the
probability that a correct library fails: the inequalities of Dvoretzky–Kiefer–Wolfowitz and of Hoeffding, at 1e-7 each.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import hyp1f1
from scipy.stats import chi
from torch.testing import assert_close

from tests.unit.strategies import F64
from translution_lib.functional import random_features as rf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from performer_pytorch.performer_pytorch import orthogonal_matrix_chunk, softmax_kernel

SEEDS, DIMS = st.integers(0, 2**16), st.integers(1, 5)
ERROR = 1e-7


def vectors(seed, *shape, size=0.6):
    return size * torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def hermite(d, nodes=40):
    """Nodes (k, d) and weights (k,) of the standard normal law in d dimensions."""
    t, w = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(nodes))
    return torch.cartesian_prod(*[t] * d).view(-1, d), torch.cartesian_prod(*[w / w.sum()] * d).view(-1, d).prod(1)


def assert_law(sample, cdf):
    """The empirical law is within the bound of Dvoretzky, Kiefer and Wolfowitz of the true one."""
    n = len(sample)
    f = torch.as_tensor(cdf(sample.sort().values))
    steps = torch.arange(n + 1, dtype=F64) / n
    gap = max((f - steps[:-1]).abs().max(), (steps[1:] - f).abs().max())
    assert gap < math.sqrt(math.log(2 / ERROR) / (2 * n)), f"distance {gap:.4f} from the law"


def estimates(feature, x, y, omega):
    """The estimate of exp(x yᵀ) by each single draw: one number per row of omega."""
    product = len(omega) * feature(x, omega) * feature(y, omega)
    return product.view(-1, len(omega)).sum(0)                       # sine and cosine of a draw belong together


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", rf.FEATURES)
def test_the_mean_is_the_kernel_and_the_variance_is_exact(name, d):
    x, y = vectors(d, 2, d)
    nodes, weights = hermite(d)
    estimate = estimates(getattr(rf, name), x, y, nodes)
    mean = (weights * estimate).sum()
    assert_close(mean, (x @ y).exp())
    exact = getattr(rf, f"variance_{name}")
    assert_close((weights * (estimate - mean) ** 2).sum(), exact(x, y, 1))
    assert_close(exact(x, y, 7), exact(x, y, 1) / 7)


@pytest.mark.parametrize("name", rf.FEATURES)
def test_the_covariance_within_a_block(name):
    """Two orthogonal draws of the plane: one angle, two independent lengths, all by quadrature."""
    x, y = vectors(3, 2, 2, size=0.8)
    plane, weights = hermite(2)
    length = plane.norm(dim=1)
    angle = torch.arange(64, dtype=F64) * math.tau / 64
    first = torch.stack([angle.cos(), angle.sin()], 1)                                # 64 2
    second = torch.stack([-angle.sin(), angle.cos()], 1)
    feature = getattr(rf, name)
    f, g = (weights @ estimates(feature, x, y, (length[:, None, None] * side).view(-1, 2)).view(-1, 64)
            for side in (first, second))
    k = (x @ y).exp()
    t = (x + y).square().sum() if name == "positive" else -(x - y).square().sum()
    assert_close((f * g).mean() / k**2 - 1, rf.pair_covariance(t, 2), rtol=1e-5, atol=1e-7)


@given(st.floats(-20, 30), st.integers(1, 12))
def test_the_covariance_is_kummers_function(t, d):
    ours = rf.pair_covariance(torch.tensor(t, dtype=F64), d)
    kummer = torch.tensor(math.exp(-t / 2) * hyp1f1(-d / 2, d / 2, -t / 2) - 1, dtype=F64)
    assert_close(ours, kummer, rtol=1e-7, atol=1e-6)
    if t > 1e-3 and d > 1:
        assert -1 <= ours < 0


def test_the_covariance_of_bounded_estimates():
    """Hoeffding: the mean of n products of cosines is within √(2 ln(2/ERROR)/n) of their mean."""
    n, d, u = 40_000, 3, 3.0
    w = torch.tensor([math.sqrt(u), 0, 0], dtype=F64)
    waves = (rf.orthogonal_draw(n * d, d, generator()) @ w).cos().view(n, d)
    gap = (waves[:, 0] * waves[:, 1]).mean() - math.exp(-u) * (1 + rf.pair_covariance(torch.tensor(-u, dtype=F64), d))
    assert abs(gap) < math.sqrt(2 * math.log(2 / ERROR) / n) < 0.5


@given(SEEDS, DIMS, st.integers(1, 11), st.sampled_from(rf.FEATURES))
def test_orthogonal_variances_count_the_pairs_of_a_block(seed, d, m, name):
    x, y = vectors(seed, 2, d)
    block = [r // d for r in range(m)]
    pairs = sum(a == b for a in block for b in block) - m
    assert rf.pairs_in_blocks(m, d) == pairs
    exact = getattr(rf, f"variance_{name}")
    t = (x + y).square().sum() if name == "positive" else -(x - y).square().sum()
    extra = (2 * x @ y).exp() * pairs * rf.pair_covariance(t, d) / m**2
    assert_close(exact(x, y, m, "orthogonal"), exact(x, y, m) + extra)
    assert exact(x, y, m, "orthogonal") > -1e-9


@pytest.mark.parametrize("draw", rf.DRAWS)
def test_each_draw_is_gaussian(draw):
    m, d = 30_000, 3
    omega = rf.draw_features(draw, m, d, generator())
    assert omega.shape == (m, d) and omega.dtype == F64
    for place in range(d):              # the places of a block are tested apart: raw QR fails at one of them alone
        rows = omega[place::d]
        for direction in torch.eye(d, dtype=F64).unbind():
            assert_law(rows @ direction, lambda z: torch.special.ndtr(z))
        assert_law(rows.norm(dim=1), lambda z: chi(d).cdf(z))


def test_raw_qr_is_not_gaussian():
    raw = rf.orthogonal_draw(3000, 3, generator(), haar=False)
    with pytest.raises(AssertionError, match="from the law"):
        assert_law(raw[::3, 0], lambda z: torch.special.ndtr(z))
    # An established package has the same sign in all its matrices: probability 2^-40 for a Haar matrix.
    assert len({bool(orthogonal_matrix_chunk(4)[0, 0] > 0) for _ in range(41)}) == 1


@given(SEEDS, DIMS, st.integers(1, 11))
def test_orthogonal_draws_are_orthogonal_in_blocks(seed, d, m):
    omega = rf.orthogonal_draw(m, d, generator(seed))
    assert omega.shape == (m, d)
    for block in omega.split(d):
        gram = block @ block.T
        assert_close(gram, gram.diagonal().diag_embed(), rtol=0, atol=1e-9)
    torch.manual_seed(seed)
    again = rf.orthogonal_draw(m, d)
    torch.manual_seed(seed)
    assert torch.equal(rf.orthogonal_draw(m, d), again)


@given(SEEDS, DIMS, st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_features_of_an_established_package(seed, d, m, n, is_query):
    """Their stabiliser is one number per query, or one for all keys of a head; ours cancels as well."""
    x, omega = vectors(seed, 2, 3, n, d), rf.gaussian_draw(m, d, generator(seed))
    theirs = softmax_kernel(x, projection_matrix=omega, is_query=is_query, eps=0.0)
    ours = rf.positive(x / d**0.25, omega)
    factor = (theirs / ours)
    assert_close(factor, factor.amax(-1 if is_query else (-1, -2), keepdim=True).expand_as(factor))
    shift = (x / d**0.25 @ omega.T).amax(-1 if is_query else (-1, -2), keepdim=True)
    assert_close(theirs, rf.positive(x / d**0.25, omega, shift))


@given(SEEDS, DIMS, st.integers(1, 9), st.integers(1, 6), st.sampled_from(rf.FEATURES))
def test_the_stabiliser_multiplies_each_row_of_the_kernel_by_one_number(seed, d, m, n, name):
    q, k, omega = vectors(seed, n, d), vectors(seed + 1, n + 1, d), rf.gaussian_draw(m, d, generator(seed))
    plain = getattr(rf, name)(q, omega) @ getattr(rf, name)(k, omega).mT
    fq, fk = rf.stabilised(q, k, omega, name)
    factor = (fq @ fk.mT) / plain
    assert_close(factor, factor[:, :1].expand_as(factor), rtol=1e-6, atol=1e-9)
    if name == "positive":
        sums = fq @ fk.sum(0)
        assert (sums > 0.999 / m).all() and (sums < 1.001 * (n + 1)).all()


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_the_stabiliser_serves_large_scores_in_single_precision(size):
    q, k = vectors(0, 5, 4, size=size).float(), vectors(1, 6, 4, size=size).float()
    omega = rf.orthogonal_draw(20, 4, generator()).float()
    for name in rf.FEATURES:
        assert all(t.isfinite().all() for t in rf.stabilised(q, k, omega, name))
    fq, fk = rf.stabilised(q, k, omega)
    assert (fq @ fk.sum(0) >= 0.999 / 20).all()
    assert not rf.positive(q, omega).sum() > 0 or not rf.positive(k, omega).isfinite().all() or size < 100


@pytest.mark.parametrize(("call", "match"), [
    (lambda: rf.gaussian_draw(0, 3), "m must be an integer ≥ 1, got 0"),
    (lambda: rf.orthogonal_draw(3, True), "d must be an integer ≥ 1, got True"),
    (lambda: rf.draw_features("sobol", 3, 3), r"draw must be one of .*, got 'sobol'"),
    (lambda: rf.stabilised(torch.ones(2, 3), torch.ones(2, 3), torch.ones(4, 3), "relu"), "features must be one of"),
    (lambda: rf.positive(torch.ones(2, 3), torch.ones(4, 2)), r"omega must have the shape \(m, 3\), got \(4, 2\)"),
    (lambda: rf.variance_positive(torch.ones(3), torch.ones(3), 0), "m must be"),
    (lambda: rf.variance_trigonometric(torch.ones(3), torch.ones(3), 2, "halton"), "draw must be"),
])
def test_bad_input(plain_types, call, match):
    with pytest.raises(ValueError, match=match):
        call()
