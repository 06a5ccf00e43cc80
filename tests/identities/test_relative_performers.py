"""Property tests of the identities of chapter "Relative Performers"."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import grids, normal
from translution_lib import ViT, offsets
from translution_lib.functional.ball_sums import Balls
from translution_lib.functional.positional_features import commuting_blocks, positional_features, shift_rotation
from translution_lib.functional.random_features import (
    gaussian_draw,
    orthogonal_draw,
    positive,
    stabilised,
    trigonometric,
    variance_positive,
)
from translution_lib.functional.window_sum import (
    line_sum,
    line_sum_definition,
    window_columns,
    window_sum,
    window_sum_definition,
    window_sum_unfold,
)
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2

SEEDS, FREQUENCIES = st.integers(0, 10**6), st.floats(0.2, 2.9)


pytestmark = pytest.mark.usefixtures("double")


def invariants(omega, integers):
    """Dimension of the matrices whose form no shift of ℤᵃ, or ℝᵃ, changes; omega is scales × axes."""
    axes = omega.shape[1]
    z = normal(1, 60, axes) * 3
    z, shifts = (z.round(), torch.eye(axes)) if integers else (z, normal(2, 3, axes))

    def features(p):
        phase = p @ omega.T
        return torch.stack([phase.sin(), phase.cos()], -1).flatten(1)

    def form(p):
        return torch.einsum("ia,jb->ijab", features(p), features(p)).flatten(2).flatten(0, 1)

    change = torch.cat([form(z - tau) - form(z) for tau in shifts])
    return change.shape[1] - int(torch.linalg.matrix_rank(change, atol=1e-8, rtol=0))


@pytest.mark.identity("thm-relative-performers-lemma", "eq-relative-performers-score")
@given(SEEDS, FREQUENCIES)
def test_the_lemma_in_both_directions(seed, omega):
    (alpha, beta), (z, other) = normal(seed, 2), normal(seed + 1, 2) * 4
    scale = torch.tensor([[omega]])
    left, right = (positional_features(p.view(1, 1), scale) for p in (z, other))
    m = commuting_blocks(alpha.view(1), beta.view(1))
    delta = omega * (z - other)
    assert_close((left @ m @ right.T)[0, 0], alpha * delta.cos() + beta * delta.sin())
    # Any other part of the matrix is seen by a shift, and a stretch by π, for integers alone, is not.
    for integers in (True, False):
        assert invariants(scale, integers) == 2
    assert invariants(torch.tensor([[math.pi * round(omega)]]), True) == 4 and invariants(0 * scale, False) == 4


@pytest.mark.identity("thm-relative-performers-scales")
@settings(max_examples=10)
@given(SEEDS, st.integers(2, 3), st.integers(1, 2), st.booleans(), st.sampled_from(["generic", "zero", "equal"]))
def test_several_scales_are_blocks_unless_they_collide(seed, scales, axes, integers, case):
    omega = 0.4 + 2.4 * torch.rand(scales, axes, generator=torch.Generator().manual_seed(seed))
    both = torch.cat([omega, -omega])
    apart = (both[:, None] - both + math.pi) % (2 * math.pi) - math.pi
    assume((apart.abs().amax(-1) + torch.eye(len(both))).min() > 0.15)
    period = 2 * math.pi if integers else 0.0
    if case == "zero":
        omega[0] = period / 2
    elif case == "equal":
        omega[0] = -omega[1] + period
    p = 2 * scales
    # Generic: two per scale. A dead sine frees its row and column, and the rest of the cosine's block.
    expected = {"generic": p, "zero": 2 * (scales - 1) + 1 + 2 * p - 1, "equal": 2 * (scales - 1) + p**2 - (p - 2) ** 2}
    assert invariants(omega, integers) == expected[case]


@pytest.mark.identity("eq-relative-performers-bias")
@given(SEEDS, grids(), st.integers(1, 3), st.integers(1, 3))
def test_the_bias_of_strategy_1(seed, shape, heads, scales):
    torch.manual_seed(seed)
    layer = PerformerS1(offsets(shape), heads * 4, heads, length_scales=scales)
    x = normal(seed, 1, layer.relations.n, layer.dim)
    q, k = ((x @ w)[0].unflatten(-1, (heads, 4)) for w in layer.matrices[:2])
    p = layer.relations.positions.double()
    phase = ((p[:, None] - p)[..., None] * layer.scales).flatten(2)
    alpha, beta = layer.blocks
    bias = torch.einsum("hs,ijs->hij", alpha, phase.cos()) + torch.einsum("hs,ijs->hij", beta, phase.sin())
    assert_close(layer.scores(x)[0], (torch.einsum("ihd,jhd->hij", q, k) + bias) / 2)


@pytest.mark.identity("eq-relative-performers-price")
@given(SEEDS, grids(), st.integers(1, 3), st.integers(1, 3))
def test_the_position_of_strategy_1_lengthens_the_sum_of_two_rows(seed, shape, heads, scales):
    torch.manual_seed(seed)
    layer = PerformerS1(offsets(shape), heads * 4, heads, length_scales=scales)
    content = torch.zeros(1, layer.relations.n, layer.dim, dtype=torch.float64)
    u = positional_features(layer.relations.positions.double(), layer.scales)
    bias = layer.scores(content)[0]                                # without content the score is b_δ
    for head in range(heads):
        c, s = layer.blocks[:, head]
        rows = torch.stack([u @ commuting_blocks(c, s), u]) / 4**0.25
        square = (rows[0][:, None] + rows[1]).square().sum(-1)
        assert_close(square, (1 + c**2 + s**2).sum() / 2 + 2 * bias[head])


def tokens(seed, n, d, axes, scales):
    """Contents of queries and keys, positions, scales and two commuting factors."""
    omega, p = normal(seed, axes, scales), normal(seed + 1, n, axes) * 3
    factors = [commuting_blocks(*normal(seed + 2 + i, 2, axes * scales) / 2) for i in range(2)]
    return normal(seed + 4, 2, n, d) / 2, p, omega, factors


@pytest.mark.identity("thm-relative-performers-law")
@given(SEEDS, st.integers(1, 3), st.integers(1, 2), st.sampled_from([positive, trigonometric]))
def test_a_shift_is_a_turn_of_the_draws(seed, scales, axes, feature):
    content, p, omega, factors = tokens(seed, 5, 3, axes, scales)
    tau, draws = normal(seed + 9, axes) * 4, orthogonal_draw(7, 3 + 2 * axes * scales)
    turn = torch.block_diag(torch.eye(3), shift_rotation(tau, omega))
    assert_close(turn @ turn.T, torch.eye(len(turn)))

    def table(p, draws):
        phi = positional_features(p, omega)
        q, k = (torch.cat([c, phi @ w], -1) for c, w in zip(content, factors, strict=True))
        return feature(q, draws) @ feature(k, draws).T

    assert_close(table(p - tau, draws), table(p, draws @ turn.T))


@pytest.mark.identity("thm-relative-performers-law")
def test_the_law_needs_invariant_draws_and_commuting_factors():
    """Haar blocks turned are Haar blocks again; the factor of a raw QR has a sign that turns away."""
    for haar in (True, False):
        draws = orthogonal_draw(4 * 4000, 4, torch.Generator().manual_seed(0), haar=haar)
        first = (draws[::4, 0] > 0).double().mean()                  # a turn by π makes it 1 − this
        assert (abs(first - 0.5) < 0.05) == haar


@pytest.mark.identity("thm-relative-performers-factors")
@given(SEEDS, st.floats(0.3, 2.5), st.floats(0.3, 3.0), st.floats(-2.0, 2.0))
def test_factors_decide_about_the_variance(seed, omega, a, shift):
    scale = torch.tensor([[omega]])
    m = commuting_blocks(*normal(seed, 2, 1))

    def spread(d, z):
        q, k = (positional_features(torch.tensor([[y]]), scale) for y in (z, z - 0.8))
        q, k = q @ m @ torch.linalg.inv(d).T, k @ d
        s = (q + k).square().sum()
        assert_close(variance_positive(q, k, 5)[0], (2 * (q * k).sum()).exp() * torch.expm1(s) / 5)
        return (q * k).sum(), s

    commuting = commuting_blocks(*normal(seed + 1, 2, 1).abs().add(0.3))
    for d in (commuting, torch.diag(torch.tensor([a, 1 / a]))):
        (mean, s), (mean_moved, s_moved) = spread(d, 0.3), spread(d, 0.3 + shift)
        assert_close(mean, mean_moved)
        if d is commuting:
            assert_close(s, s_moved)
    stretched = torch.stack([spread(torch.diag(torch.tensor([2.0, 0.5])), z)[1] for z in (0.0, 0.5, 1.1)])
    assert stretched.max() - stretched.min() > 1e-3


@pytest.mark.identity("thm-relative-performers-draw", "eq-relative-performers-change")
@settings(max_examples=5)
@given(SEEDS)
def test_the_change_of_a_kernel_entry(seed):
    content, p, omega, factors = tokens(seed, 2, 2, 1, 2)
    content, factors = content / 2, [w / 3 for w in factors]
    phi, tau = positional_features(p, omega), normal(seed + 9, 1)
    q, k = (torch.cat([c, phi @ w], -1)[i] for i, (c, w) in enumerate(zip(content, factors, strict=True)))
    turn = torch.block_diag(torch.eye(2), shift_rotation(tau, omega))
    draws, m = gaussian_draw(200_000, 6, torch.Generator().manual_seed(seed)), 4

    def estimates(q, k):
        terms = (draws @ (q + k) - (q @ q + k @ k) / 2).exp()
        return terms.view(-1, m).mean(1)

    squares = (estimates(q @ turn, k @ turn) - estimates(q, k)) ** 2 / (2 * q @ k).exp()
    s = q + k
    law = 2 / m * ((s @ s).exp() - (s @ turn @ s).exp())
    assert abs(squares.mean() - law) < 8 * squares.std() / len(squares) ** 0.5 + 1e-9


@pytest.mark.identity("thm-relative-performers-window", "eq-relative-performers-window")
@given(SEEDS, grids(max_tokens=20), st.integers(1, 5))
def test_the_printed_identity_with_its_denominator(seed, shape, k):
    n = math.prod(shape)
    rho, v = normal(seed, 1, 2, n, k + 1), normal(seed + 1, 1, 2, n, 3)
    for a, b in zip(window_sum_unfold(rho, v, shape), window_sum_definition(rho, v, shape), strict=True):
        assert_close(a, b)
    inside = (window_columns((2 * k + 1,) * 2, k) < k).sum(1)
    assert int(inside[2 * k * (k + 1)]) == 2 * k * k - 2 * k + 1


@pytest.mark.identity("thm-relative-performers-recursion", "eq-relative-performers-recursion")
@given(SEEDS, grids(max_tokens=40), st.integers(1, 9))
def test_sums_of_every_other_ring(seed, shape, k):
    v = normal(seed, 1, math.prod(shape), 1, 2)
    family, distance = Balls(shape, k), window_columns(shape, 99)
    pictures = family.moved(v)
    previous = [torch.zeros_like(pictures)] * 2
    for r, _, part in family.terms(pictures):
        parity = ((distance <= r) & ((r - distance) % 2 == 0)).double()
        assert_close(family.restored(part)[0, :, 0], parity @ v[0, :, 0])
        if len(shape) == 2 and min(shape) > 2 and r:
            # On the inner columns the recursion can be read off.
            y = torch.arange(pictures.shape[1])
            padded = F.pad(pictures, (0, 0, 0, 0, 0, 0, r, r))
            rows = [padded[:, y + r + s] for s in (-r, r)]
            right = previous[1][:, :, :-2] + previous[1][:, :, 2:] - previous[0][:, :, 1:-1] + sum(rows)[:, :, 1:-1]
            assert_close(part[:, :, 1:-1], right)
        previous = [previous[1], part.clone()]


@pytest.mark.identity("thm-relative-performers-recursion", "eq-relative-performers-balls")
@given(SEEDS, grids(max_tokens=30), st.integers(1, 8), st.booleans())
def test_balls_give_the_sum(seed, shape, k, cls):
    n = math.prod(shape) + cls
    rho, v = normal(seed, 1, 2, n, k + 1 + cls), normal(seed + 1, 1, 2, n, 3)
    for a, b in zip(window_sum(rho, v, shape, cls=cls), window_sum_definition(rho, v, shape, cls=cls), strict=True):
        assert_close(a, b)


@pytest.mark.identity("thm-relative-performers-line", "eq-relative-performers-line")
@given(SEEDS, st.integers(1, 12), st.integers(1, 5))
def test_two_far_fields(seed, n, k):
    rho, v = normal(seed, 1, 1, n, 2 * k + 1), normal(seed + 1, 1, 1, n, 2)
    literal = line_sum_definition(rho, v)
    by_hand = torch.zeros_like(literal[0])
    for i in range(n):
        for j in range(n):
            by_hand[0, 0, i] += rho[0, 0, i, min(max(i - j, -k), k) + k] * v[0, 0, j]
    assert_close(literal[0], by_hand)
    for options, columns in (({}, rho), ({"causal": True}, rho[..., k:])):
        for a, b in zip(line_sum(columns, v, **options), line_sum_definition(columns, v, **options), strict=True):
            assert_close(a, b)
    # One far field serves only where the two agree, or where no key is that far on the other side.
    one = rho.clone()
    one[..., 0] = rho[..., -1]
    change = (line_sum(one, v)[0] - literal[0])[0, 0].abs().amax(1)
    assert (change[max(0, n - k):] < 1e-12).all() and (change[:max(0, n - k)] > 1e-12).all()


@pytest.mark.identity("thm-relative-performers-blind")
@settings(max_examples=3)
@given(SEEDS, st.integers(2, 4))
def test_a_network_of_strategy_2_sees_no_direction(seed, side):
    torch.manual_seed(seed)
    images = normal(seed, 1, 3, side, side)
    for pool in ("cls", "mean"):
        net = ViT(side, 1, 3, 4, 8, 2, 2, 8, mixer="performer-s2", clip=2, pool=pool).requires_grad_(False)
        for turns in range(4):
            turned = images.rot90(turns, (2, 3))
            assert_close(net(turned), net(images))
            assert_close(net(turned.flip(3)), net(images))


@pytest.mark.identity("thm-relative-performers-blind")
@given(SEEDS, st.integers(1, 3), st.integers(1, 6))
def test_a_shift_of_the_set_is_exact_for_every_draw(seed, axes, n):
    """The kernel values of scattered tokens, by the definition of the layer: distances alone."""
    torch.manual_seed(seed)
    layer = PerformerS2(offsets((2, 2)), 4, 2, clip=3)
    x = normal(seed, 1, 4, 4)
    _, _, queries, vectors = layer.halves(x)
    fq, fw = stabilised(queries, vectors, layer.omega)
    p = torch.randint(-9, 9, (4, axes), generator=torch.Generator().manual_seed(seed))
    tables = [(fq @ fw.mT).gather(-1, (q[:, None] - q).abs().sum(-1).clamp(max=3).expand(1, 1, -1, -1))
              for q in (p, p + n, -p, p.flip(1))]
    for table in tables[1:]:
        assert torch.equal(table, tables[0])
    on_grid = F.normalize((fq @ fw.mT).gather(-1, window_columns((2, 2), 3).expand(1, 1, -1, -1)), p=1, dim=-1)
    assert_close(layer.weights(x)[:, 1:], on_grid)
