"""Property tests of the identities of chapter "Rotations"."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import normal
from translution_lib import MIXERS, Attention, backend, functional, offsets
from translution_lib.functional.rotary import frequencies, half_order, rotate, rotation
from translution_lib.mixers.rotary_translution import RotaryTranslution

SEEDS, AXES, PAIRS = st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4)


pytestmark = pytest.mark.usefixtures("double")


def whole(seed, *shape, reach=20):
    return torch.randint(-reach, reach + 1, shape, generator=torch.Generator().manual_seed(seed))


def orthogonal(seed, d):
    q, r = torch.linalg.qr(normal(seed, d, d))
    return q * r.diagonal().sign()


def products(u, v):
    return torch.einsum("sab,tcb->stac", u, v)


def layer(seed, relations, heads=2, d=4, dim=5, kind=MIXERS["rotary"], **options):
    """A layer with random weights, and random angles where they are learned."""
    made = kind(relations, dim, heads, head_dim=d, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return made


@st.composite
def layers(draw, kind=MIXERS["rotary"], cls=(False, True), angles=("fixed", "learned"), **options):
    axes = draw(AXES)
    relations = offsets(tuple(draw(st.integers(1, 3)) for _ in range(axes)), cls=draw(st.sampled_from(cls)))
    d = 2 * draw(st.integers(axes, 4))
    made = layer(draw(SEEDS), relations, draw(st.integers(1, 3)), d, kind=kind, angles=draw(st.sampled_from(angles)),
                 layout=draw(st.sampled_from(["interleaved", "half"])), **options)
    return made, normal(draw(SEEDS), 2, relations.n, 5)


def offset_of_relation(relations):
    zero = (0,) * len(relations.shape)
    return torch.tensor([label if isinstance(label, tuple) else zero for label in relations.labels])


def turned(made, w, offset):
    """W R(offset) per head and relation, r c e."""
    turns = rotation(offset, made.angles, made.layout).expand(made.heads, -1, -1, -1)
    return torch.einsum("chd,hrdk->rchk", w.unflatten(-1, (made.heads, -1)), turns).flatten(-2)


@pytest.mark.identity("thm-rotations-group")
@given(seed=SEEDS, d=st.integers(1, 4), n=st.integers(2, 5))
def test_powers_of_one_matrix_and_nothing_else(seed, d, n):
    u0, v0, a = (torch.eye(d) + 0.2 * orthogonal(seed + i, d) for i in range(3))
    u = torch.stack([u0 @ torch.linalg.matrix_power(a, s) for s in range(n)])
    v = torch.stack([(torch.linalg.matrix_power(a, -s) @ v0.T).T for s in range(n)])
    m = products(u, v)
    assert_close(m[1:, 1:], m[:-1, :-1])
    assert_close(torch.linalg.solve(u[:-1], u[1:]), a.expand(n - 1, d, d))
    # Any other family breaks it: move one matrix, unless it is the only one of its kind.
    for s in range(n):
        moved = u.clone()
        moved[s] = moved[s] @ (torch.eye(d) * 1.5)
        m = products(moved, v)
        assert (m[1:, 1:] - m[:-1, :-1]).abs().max() > 1e-3


@pytest.mark.identity("thm-rotations-group")
@given(seed=SEEDS, d=st.integers(2, 4))
def test_axes_have_to_commute(seed, d):
    a, b = (torch.eye(d) + 0.3 * orthogonal(seed + i, d) for i in range(2))
    for second, relative in ((a @ a, True), (b, torch.allclose(a @ b, b @ a))):
        u = torch.stack([torch.eye(d), a, second, a @ second])                   # (0,0) (1,0) (0,1) (1,1)
        v = torch.linalg.inv(u).mT
        m = products(u, v)
        # The offset (−1, +1) occurs once; (0, 1) and (1, 0) occur twice each.
        same = [torch.allclose(m[2, 0], m[3, 1]), torch.allclose(m[1, 0], m[3, 2])]
        assert all(same) == relative


@pytest.mark.identity("thm-rotations-rope")
@given(seed=SEEDS, d=st.integers(1, 5), n=st.integers(2, 5))
def test_one_map_for_both_sides_is_orthogonal_up_to_a_basis(seed, d, n):
    u0, a = torch.eye(d) + 0.2 * orthogonal(seed, d), orthogonal(seed + 1, d)
    u = torch.stack([u0 @ torch.linalg.matrix_power(a, s) for s in range(n)])
    m = products(u, u)
    assert_close(m[1:, 1:], m[:-1, :-1])
    values, vectors = torch.linalg.eig(a)
    upper, real = values.imag > 1e-9, values.imag.abs() <= 1e-9
    if real.sum() <= 1:                       # a repeated ±1 has no basis of its own
        planes = torch.view_as_real(vectors[:, upper] * math.sqrt(2)).flatten(1)
        rest = vectors[:, real].real
        rest = rest / rest.norm(dim=0)
        s = torch.cat([planes, rest], dim=1)
        blocks = [rotation(torch.tensor([[1]]), values[upper].angle()[None])[0]] if upper.any() else []
        r = torch.block_diag(*blocks, *[values[real].real.diag()] * bool(real.any()))
        assert_close(s.T @ s, torch.eye(d))
        assert_close(u[1], u0 @ s @ r @ s.T)
    stretched = torch.stack([u0 @ torch.linalg.matrix_power(1.3 * a, t) for t in range(n)])
    m = products(stretched, stretched)
    assert (m[1:, 1:] - m[:-1, :-1]).abs().max() > 1e-3


@pytest.mark.identity("thm-rotations-rope")
@given(seed=SEEDS, pairs=PAIRS, axes=st.integers(2, 3), single=st.booleans())
def test_on_a_grid_all_steps_turn_the_same_planes(seed, pairs, axes, single):
    """B R(s) Qᵀ is relative, single entries ±1 included; its steps commute and are orthogonal."""
    d, place = 2 * pairs + single, torch.cartesian_prod(*[torch.arange(2)] * axes)
    signs = (-1.0) ** (place * whole(seed, axes, reach=1)).sum(1)
    r = [torch.block_diag(turn, *sign.view(-1, 1, 1)[: int(single)])
         for turn, sign in zip(rotation(place, normal(seed, axes, pairs)), signs, strict=True)]
    b, q = torch.eye(d) + 0.2 * orthogonal(seed, d), orthogonal(seed + 1, d)
    u = torch.stack([b @ block @ q.T for block in r])
    m, δ = products(u, u), place[:, None] - place[None]
    for i, j in ((1, 0), (2, 1)):                                                  # a step, and an offset of both signs
        same = m[(δ == δ[i, j]).all(-1)]
        assert_close(same, same[:1].expand_as(same))
    first, second = (torch.linalg.solve(u[0], u[i]) for i in (1, 2))
    assert_close(first @ second, second @ first)
    assert_close(first @ first.T, torch.eye(d))
    other = orthogonal(seed + 2, d)
    moved = torch.stack([torch.eye(d), first, other, first @ other])
    m = products(moved, moved)
    assert torch.allclose(m[2, 0], m[3, 1]) == torch.allclose(first @ other, other @ first)


@pytest.mark.identity("eq-rotations-plane", "eq-rotations-rope")
@given(seed=SEEDS, axes=AXES, pairs=PAIRS)
def test_a_rotation_turns_every_plane(seed, axes, pairs):
    x, p, angles = normal(seed, 6, 2 * pairs), whole(seed, 6, axes), normal(seed, axes, pairs)
    z = torch.view_as_complex(x.view(6, pairs, 2)) * torch.exp(1j * (p.double() @ angles))
    expected = torch.view_as_real(z).flatten(1)
    assert_close(rotate(x, p, angles), expected)
    r = rotation(p, angles)
    assert_close((x[:, None] @ r)[:, 0], expected)
    φ = float(p[0].double() @ angles[:, 0])
    plane = torch.tensor([[math.cos(φ), math.sin(φ)], [-math.sin(φ), math.cos(φ)]])
    assert_close(r[0, :2, :2], plane)
    assert_close(r[0] @ r[1], rotation(p[:1] + p[1:2], angles)[0])
    assert_close(r.mT, rotation(-p, angles))


@pytest.mark.identity("eq-rotations-score")
@given(case=layers(cls=(False,)))
def test_one_turn_per_token_is_one_turn_per_pair(case):
    made, x = case
    q, k = made.projected(x)
    p = made.relations.positions
    δ = (p[:, None] - p[None]).flatten(0, 1)
    r = rotation(δ, made.angles, made.layout).expand(made.heads, -1, -1, -1)
    r = r.unflatten(1, (len(p), len(p)))
    expected = torch.einsum("bhic,hijcd,bhjd->bhij", q, r, k) / math.sqrt(made.head_dim)
    assert_close(made.scores(x), expected)
    q_, k_ = (rotate(t, p, made.angles, made.layout) for t in (q, k))
    assert_close(q_ @ k_.mT / math.sqrt(made.head_dim), expected)
    with backend("definition"):
        literal = made(x)
    assert_close(made(x), literal)


@pytest.mark.identity("eq-rotations-cosines", "thm-rotations-sign")
@given(seed=SEEDS, pairs=PAIRS)
def test_a_score_is_a_sum_of_cosines_with_an_odd_part(seed, pairs):
    q, k = normal(seed, 2, 2 * pairs)
    θ, δ = normal(seed + 1, 1, pairs), torch.arange(-9, 10)[:, None]
    z, w = (torch.view_as_complex(t.view(pairs, 2)) for t in (q, k))
    wave = (z.abs() * w.abs() * torch.cos(δ * θ + z.angle() - w.angle())).sum(-1)
    score = lambda a, b: (a @ rotation(δ, θ) * b).sum(-1)  # noqa: E731
    assert_close(score(q, k), wave)
    (u, v), (u_, v_) = q.view(pairs, 2).T, k.view(pairs, 2).T
    assert_close(score(q, k) - score(q, k).flip(0), 2 * (torch.sin(δ * θ) * (u * v_ - v * u_)).sum(-1))
    parallel = (q.view(pairs, 2) * normal(seed + 2, pairs, 1)).flatten()
    assert_close(score(q, parallel), score(q, parallel).flip(0))
    halves = whole(seed, 1, pairs) * math.pi                       # every δθ a multiple of π
    assert_close(q @ rotation(δ, halves), q @ rotation(-δ, halves))


@pytest.mark.identity("eq-rotations-frequencies")
@given(pairs=st.integers(1, 40), base=st.floats(2, 1e6))
def test_frequencies_are_geometric(pairs, base):
    θ = frequencies(2 * pairs, base=base)
    assert θ.shape == (1, pairs) and θ[0, 0] == 1
    assert_close(θ[0], torch.tensor([base ** (-2 * m / (2 * pairs)) for m in range(pairs)]))


@pytest.mark.identity("eq-rotations-bound")
@given(seed=SEEDS, pairs=st.integers(1, 32), δ=st.integers(0, 5000))
def test_summation_by_parts_bounds_every_score(seed, pairs, δ):
    q, k = normal(seed, 2, 2 * pairs)
    z, w = (torch.view_as_complex(t.view(pairs, 2)) for t in (q, k))
    h, terms = z * w.conj(), torch.exp(1j * δ * frequencies(2 * pairs)[0])
    bound = (F.pad(h[1:], (0, 1)) - h).abs().max() * terms.cumsum(0).abs().sum()
    score = (rotate(q[None], torch.tensor([[δ]]), frequencies(2 * pairs))[0] * k).sum()
    assert score.abs() <= (h * terms).sum().abs() + 1e-9 <= bound + 2e-9


@pytest.mark.identity("eq-rotations-mean")
@given(seed=SEEDS, pairs=PAIRS, δ=st.integers(-50, 50), ρ=st.floats(-2, 2))
def test_the_mean_is_the_trace(seed, pairs, δ, ρ):
    """E[q R kᵀ] = Σ_ab R_ab E[q_a k_b], exactly, for a covariance ρ·I."""
    θ = normal(seed, 1, pairs)
    r = rotation(torch.tensor([[δ]]), θ)[0]
    mean = (r * ρ * torch.eye(2 * pairs)).sum()
    assert_close(mean, 2 * ρ * torch.cos(δ * θ).sum())
    # ρ·I as an average over finitely many pairs (q, k) = (√d e_a, ρ √d e_a).
    q = torch.eye(2 * pairs) * math.sqrt(2 * pairs)
    assert_close(mean, (q @ r * (ρ * q)).sum(-1).mean())


@pytest.mark.identity("eq-rotations-log")
@given(δ=st.integers(0, 1000), base=st.floats(100, 1e5))
def test_many_pairs_approach_the_integral(δ, base):
    u = (torch.arange(50000) + 0.5) / 50000
    integral = torch.cos(δ * base**-u).mean()
    errors = [(torch.cos(δ * frequencies(2 * n, base=base)).mean() - integral).abs() for n in (2**12, 2**15)]
    assert errors[1] < 2e-4 and errors[1] <= errors[0] + 1e-6


@pytest.mark.identity("thm-rotations-decay")
@given(seed=SEEDS, pairs=st.integers(1, 16), δ=st.integers(-500, 500))
def test_a_key_for_every_offset(seed, pairs, δ):
    θ, q = frequencies(2 * pairs), normal(seed, 2 * pairs)
    key = rotate(q[None], torch.tensor([[δ]]), θ)[0]
    assert_close(key.norm(), q.norm())
    curve = (q @ rotation(torch.arange(-500, 501)[:, None], θ) * key).sum(-1)
    assert_close(curve[δ + 500], q @ q)
    assert curve.max() <= q @ q + 1e-9


@pytest.mark.identity("thm-rotations-decay")
@given(seed=SEEDS, pairs=st.integers(1, 2), δ=st.integers(0, 10**4))
def test_laws_and_returns(seed, pairs, δ):
    """A normal key keeps its law: its covariance is unchanged. Angles come back as often as one waits."""
    θ = frequencies(2 * pairs)
    r = rotation(torch.tensor([[δ]]), θ)[0]
    assert_close(r @ torch.eye(2 * pairs) @ r.T, torch.eye(2 * pairs))
    later = δ + torch.arange(1, 30000)[:, None]
    distance = (2 * torch.sin(later * θ / 2).abs()).amax(1)
    assert distance.min() < 0.1
    best = later[distance.argmin()][None]
    norm = torch.linalg.matrix_norm(rotation(best, θ)[0] - torch.eye(2 * pairs), 2)
    assert_close(norm, distance.min())
    q, k = normal(seed, 2, 2 * pairs)
    score = (rotate(q[None], best, θ)[0] * k).sum()
    assert (score - q @ k).abs() <= norm * q.norm() * k.norm() + 1e-12


@pytest.mark.identity("eq-rotations-half")
@given(case=layers(cls=(False, True)), seed=SEEDS)
def test_layouts_differ_by_a_permutation(case, seed):
    made, x = case
    d = made.head_dim
    π = half_order(d) if made.layout == "interleaved" else half_order(d).argsort()
    other = "half" if made.layout == "interleaved" else "interleaved"
    t, p = normal(seed, 5, d), whole(seed, 5, made.angles.shape[-2])
    angles = made.angles if made.angles.ndim == 2 else made.angles[0]
    assert_close(rotate(t[:, π], p, angles, other), rotate(t, p, angles, made.layout)[:, π])
    twin = MIXERS["rotary"](made.relations, 5, made.heads, head_dim=d, layout=other,
                  angles="fixed" if made.theta is None else "learned")
    twin.load_state_dict(made.state_dict())
    with torch.no_grad():
        for there, here in zip(twin.matrices[:2], made.matrices[:2], strict=True):
            there.copy_(here.unflatten(-1, (made.heads, d))[..., π].flatten(-2))
    assert_close(twin(x), made(x))


@pytest.mark.identity("eq-rotations-axial", "thm-rotations-blind")
@given(seed=SEEDS, quarter=st.integers(1, 4))
def test_axial_scores_are_sums_over_axes(seed, quarter):
    d = 4 * quarter
    θ, p = frequencies(d, 2), whole(seed, 5, 2)
    r = rotation(p, θ)
    for axis, block in enumerate((slice(0, d // 2), slice(d // 2, d))):
        assert_close(r[:, block, block], rotation(p[:, axis : axis + 1], frequencies(d // 2)))
    assert_close(r[:, : d // 2, d // 2 :], torch.zeros(5, d // 2, d // 2))
    q, k = normal(seed, 2, d)
    grid = torch.cartesian_prod(p[:, 0], p[:, 1])
    a = (q @ rotation(grid, θ) * k).sum(-1).view(5, 5)
    assert_close(a + a[:1, :1], a[:, :1] + a[:1])
    one = (torch.tensor([1.0, 0]) @ rotation(grid, torch.full((2, 1), math.pi)))[:, 0]
    assert_close(one, torch.cos(math.pi * grid.sum(1)))


@pytest.mark.identity("thm-rotations-cls")
@given(seed=SEEDS, axes=st.integers(1, 2), τ=st.integers(1, 30))
def test_an_unturned_cls_stands_at_zero_and_a_free_one_nowhere(seed, axes, τ):
    relations = offsets((3, 2)[:axes], cls=True)
    origin = layer(seed, relations, cls_token="origin")
    free = MIXERS["rotary"](relations, 5, 2, head_dim=4)
    free.load_state_dict(origin.state_dict())
    x = normal(seed, 2, relations.n, 5)
    q, k = origin.projected(x)

    def at(shift):
        place = F.pad(relations.positions + shift, (0, 0, 1, 0))
        q_, k_ = (rotate(t, place, origin.angles) for t in (q, k))
        return q_ @ k_.mT / 2

    assert_close(origin.scores(x), at(0))
    assert (at(τ) - at(0))[..., 0, 1:].abs().max() > 1e-6 < (at(τ) - at(0))[..., 1:, 0].abs().max()
    assert_close(free.scores(x)[..., 1:, 1:], at(τ)[..., 1:, 1:])
    plain = q @ k.mT / 2
    assert_close(free.scores(x)[..., 0, :], plain[..., 0, :])
    assert_close(free.scores(x)[..., :, 0], plain[..., :, 0])
    # A full turn of every pair is the only shift that an origin does not notice.
    turn = (rotate(q, torch.full((relations.n, 1), τ), torch.full((1, 2), 2 * math.pi)) - q).abs().max()
    assert turn < 1e-9


@pytest.mark.identity("thm-rotations-translution")
@given(case=layers())
def test_rotary_attention_is_a_translution_layer(case):
    made, x = case
    δ = offset_of_relation(made.relations)
    w_q, w_k, w_v = made.matrices
    y = functional.translution(x, turned(made, w_q, δ), w_k, w_v, made.relations, made.heads)
    assert_close(made.output(y), made(x))
    q, k = turned(made, w_q, δ / 2), turned(made, w_k, -δ / 2)
    assert_close(made.output(functional.translution(x, q, k, w_v, made.relations, made.heads)), made(x))


@pytest.mark.identity("thm-rotations-absorbed")
@given(seed=SEEDS, n=st.integers(1, 5), pairs=st.integers(1, 3), side=st.sampled_from("qk"))
def test_rotating_relative_queries_or_keys_changes_names_only(seed, n, pairs, side):
    line, p, θ = offsets(n), torch.arange(n)[:, None], normal(seed, 1, pairs)
    w_q, w_k = normal(seed + 1, 2, line.count, 4, 2 * pairs)
    f = normal(seed + 2, n, 4)
    q = torch.einsum("ic,ijce,ied->ijd", f, w_q[line.index], rotation(p, θ))
    k = torch.einsum("jc,ijce,jed->ijd", f, w_k[line.index], rotation(p, θ))
    δ = torch.tensor(line.labels)
    if side == "q":
        w_q = w_q @ rotation(δ, θ)
    else:
        w_k = w_k @ rotation(-δ, θ)
    expected = functional.translution_scores(f[None], w_q, w_k, line)[0, 0]
    assert_close((q * k).sum(-1) / math.sqrt(2 * pairs), expected)


@pytest.mark.identity("thm-rotations-absorbed")
@given(case=layers(kind=RotaryTranslution))
def test_rotary_values_stay_where_they_are(case):
    made, x = case
    δ = offset_of_relation(made.relations)
    w_q, w_k, w_v = made.matrices
    y = functional.translution(x, turned(made, w_q, δ), w_k, w_v, made.relations, made.heads)
    assert_close(made.output(y), made(x))


@pytest.mark.identity("thm-rotations-limits")
@given(seed=SEEDS, pairs=st.integers(1, 3), extra=st.integers(0, 3))
def test_rank_and_volume_of_the_forms_are_fixed(seed, pairs, extra):
    d = 2 * pairs
    w_q, w_k = normal(seed, 2, d + extra, d)
    a = w_q @ rotation(whole(seed, 7, 1), frequencies(d)) @ w_k.T
    singular = torch.linalg.svdvals(a)
    assert_close(singular[:, :d].log().sum(1), singular[:1, :d].log().sum(1).expand(7), rtol=1e-6, atol=1e-6)
    assert (singular[:, d:] < 1e-9 * singular[:, :1]).all()


@pytest.mark.identity("thm-rotations-limits")
@given(case=layers(), seed=SEEDS)
def test_position_alone_is_silent_and_values_keep_their_direction(case, seed):
    made, x = case
    n = made.relations.n
    assert_close(made.weights(0 * x), torch.full((2, made.heads, n, n), 1 / n))
    single, j = torch.zeros_like(x), seed % n
    single[:, j] = x[:, j]
    out = made.values(made.weights(single), single).unflatten(-1, (made.heads, -1))          # b n h d
    v = (x[:, j] @ made.matrices.value).unflatten(-1, (made.heads, -1))                      # b h d
    assert_close(out, made.weights(single)[..., j].transpose(1, 2)[..., None] * v[:, None])
    plain = Attention(made.relations, 5, made.heads, head_dim=made.head_dim)
    assert_close(plain.weights(0 * x), made.weights(0 * x))
