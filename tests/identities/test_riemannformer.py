"""Property tests of the identities of chapter "RiemannFormer"."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import normal
from translution_lib import MIXERS, offsets
from translution_lib.functional import transport
from translution_lib.mixers.convert import NoTranslution, as_translution
from translution_lib.mixers.encodings.transport import METRICS

SEEDS, PLANES = st.integers(0, 10**6), st.integers(1, 3)
FEW = settings(max_examples=8)
inv, exp, power = torch.linalg.inv, torch.matrix_exp, torch.linalg.matrix_power


pytestmark = pytest.mark.usefixtures("double")


def near_identity(seed, *shape):
    """Well-conditioned random matrices."""
    return torch.eye(shape[-1]) + 0.2 * normal(seed, *shape)


def positive(seed, d):
    root = normal(seed, d, d)
    return root @ root.T + torch.eye(d)


def orthogonal(seed, d):
    return torch.linalg.qr(normal(seed, d, d))[0]


def column(n, first=1):
    return torch.arange(first, first + n, dtype=torch.float64)[:, None]


def layer(seed, relations, d=4, heads=2, **options):
    """A layer with random parameters."""
    made = MIXERS["riemann"](relations, 5, heads, head_dim=d, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=generator))
    return made


def same_weights(source, target):
    state = source.state_dict()
    target.load_state_dict({name: state[name].clone() for name in target.state_dict()})
    return target


def relative(a):
    """The largest change of scores (b h n n) of one feature at every place when the pair moves on by one place."""
    return (a[..., 1:, 1:] - a[..., :-1, :-1]).abs().max()


@pytest.mark.identity("eq-riemann-isometry", "eq-riemann-transport", "eq-riemann-common", "thm-riemann-isometry")
@FEW
@given(seed=SEEDS, n=st.integers(2, 5), d=st.integers(2, 4))
def test_lengths_are_kept_exactly_if_the_pulled_back_metrics_agree(seed, n, d):
    T, G, k = near_identity(seed, n, d, d), positive(seed + 1, d), normal(seed + 2, d)
    M = inv(T).mT @ G @ inv(T)
    for a in range(n):
        for b in range(n):
            carried = T[b] @ inv(T[a]) @ k
            assert_close(k @ M[a] @ k, carried @ M[b] @ carried)
    assert_close(T.mT @ M @ T, G.expand_as(M))
    # A metric that breaks (5) changes the length of some vector: the one where the quadratic forms differ.
    other = M[0] + 0.1 * positive(seed + 3, d)
    carried = T[1] @ inv(T[0]) @ k
    assert (k @ other @ k - carried @ M[1] @ carried) > 1e-3 * (k @ k)


@pytest.mark.identity("eq-riemann-isometry", "eq-riemann-transport", "eq-riemann-common", "thm-riemann-isometry")
@given(seed=SEEDS, kind=st.sampled_from(transport.TRANSPORTS), metric=st.sampled_from(METRICS))
def test_the_frames_of_the_layer_keep_lengths(seed, kind, metric):
    at, k = layer(seed, offsets(5), transport=kind, metric=metric).frame(column(5)), normal(seed, 4)
    P = at.map[:, 3] @ at.inverse[:, 1]
    carried, M = P @ k, at.metric
    after = (carried[:, None] @ M[:, 3] @ carried[..., None])[:, 0, 0]
    assert_close((k @ M[:, 1] @ k).expand_as(after), after)


@pytest.mark.identity("thm-riemann-absolute")
@given(seed=SEEDS, n=st.integers(2, 5), d=st.integers(2, 4))
def test_the_metric_disappears(seed, n, d):
    T, G = near_identity(seed, n, d, d), positive(seed + 1, d)
    q, k = normal(seed + 2, 2, 1, 1, n, d)
    at = transport.Frame(T, inv(T), inv(T).mT @ G @ inv(T))
    values, vectors = torch.linalg.eigh(G)
    U = (vectors * values.sqrt()) @ vectors.T @ inv(T)
    uq, uk = ((U @ t[..., None])[..., 0] for t in (q, k))
    assert_close(transport.transport_scores_definition(q, k, at), uq @ uk.mT)
    # Conversely, any invertible U_i.
    back = transport.Frame(inv(U), U, U.mT @ U)
    assert_close(transport.transport_scores_definition(q, k, back), uq @ uk.mT)
    assert_close(transport.transport_scores(q, k, back), uq @ uk.mT)


@pytest.mark.identity("thm-riemann-absolute")
@FEW
@given(seed=SEEDS, kind=st.sampled_from(transport.TRANSPORTS), metric=st.sampled_from(METRICS),
       loop=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_no_loop_turns_anything(seed, kind, metric, loop):
    at = layer(seed, offsets((2, 3)), transport=kind, metric=metric).frame(offsets((2, 3)).positions + 1.0)
    product = torch.eye(4)
    for a, b in zip(loop, loop[1:] + loop[:1], strict=True):
        product = at.map[:, b] @ at.inverse[:, a] @ product
    assert_close(product, torch.eye(4).expand_as(product))


@pytest.mark.identity("eq-riemann-metric", "eq-riemann-product", "eq-riemann-score")
@given(seed=SEEDS, m=st.integers(0, 12), n=st.integers(0, 12), w=st.floats(-2, 3))
def test_powers_of_a_scale_and_of_a_rotation(seed, m, n, w):
    X, s = transport.skew(normal(seed, 4, 4)), math.exp(w) / (math.exp(w) + 0.1)
    log_s = transport.log_scale(torch.tensor(w)).expand(1, 4)
    places = torch.tensor([[m], [n]], dtype=torch.float64)
    at = transport.frame(exp(places[..., None] * X), transport.half_logs(places, log_s))
    assert_close(at.map[0], s ** (-m / 2) * exp(m * X))
    assert_close(at.metric[0], s**m * torch.eye(4))
    assert_close(at.map[0] @ at.inverse[1], s ** ((n - m) / 2) * exp((m - n) * X))
    q, k = normal(seed + 1, 2, 1, 1, 2, 4)
    expected = s ** ((m + n) / 2) * q[0, 0, 0] @ exp((m - n) * X) @ k[0, 0, 1]
    for scores in (transport.transport_scores_definition, transport.transport_scores):
        assert_close(scores(q, k, at)[0, 0, 0, 1], expected)


@pytest.mark.identity("eq-riemann-blocks")
@given(seed=SEEDS, planes=PLANES)
def test_a_skew_matrix_is_blocks_in_another_basis(seed, planes):
    d, t = 2 * planes, column(5)
    θ, B = normal(seed, 1, planes), orthogonal(seed + 1, d)
    blocks = transport.orthogonal(transport.schedule_angles(t, θ), "rotation")
    J = torch.tensor([[0.0, -1], [1, 0]])
    X = B @ transport.block_diagonal(θ[0][:, None, None] * J) @ B.T
    assert_close(exp(t[..., None] * X), B @ blocks @ B.T)
    q, k = normal(seed + 2, 2, d)
    whole = (inv(exp(5 * X)) @ q) @ (inv(exp(2 * X)) @ k)
    assert_close(whole, (B.T @ q) @ blocks[2] @ (B.T @ k))                    # 5 − 2 = 3, the third
    pairs = sum((B.T @ q)[2 * p : 2 * p + 2] @ exp(3 * θ[0, p] * J) @ (B.T @ k)[2 * p : 2 * p + 2]
                for p in range(planes))
    assert_close(whole, pairs)


@pytest.mark.identity("thm-riemann-rope")
@FEW
@given(seed=SEEDS, sides=st.sampled_from([(5,), (2, 3), (3, 2)]), cls=st.booleans())
def test_at_scale_one_it_is_rope(seed, sides, cls):
    rel = offsets(sides, cls=cls)
    made, x = layer(seed, rel, metric=None, angles="learned"), normal(seed, 2, rel.n, 5)
    back = same_weights(made, MIXERS["rotary"](rel, 5, 2, head_dim=4, angles="learned"))
    forth = same_weights(made, MIXERS["rotary"](rel, 5, 2, head_dim=4, angles="learned"))
    with torch.no_grad():
        back.theta.neg_()
        for weight in forth.matrices[:2]:
            weight[:, 1::2] *= -1
    assert_close(back(x), made(x))
    assert_close(forth(x), made(x))


@pytest.mark.identity("eq-riemann-reflection", "eq-riemann-four")
@given(seed=SEEDS)
def test_reflections(seed):
    a, b = normal(seed, 2)
    turn, mirror, F = transport.rotation_block, transport.reflection_block, torch.diag(torch.tensor([1.0, -1]))
    assert_close(mirror(a), turn(2 * a) @ F)
    axis = torch.stack([a.cos(), a.sin()])
    assert_close(mirror(a) @ axis, axis)
    assert_close(mirror(a) @ mirror(a), torch.eye(2))
    assert_close(mirror(a / 2) @ mirror(b / 2), turn(a - b))
    four = transport.orthogonal(torch.stack([a, b])[None], "blocks4")[0]
    assert_close(four, torch.block_diag(turn(a), mirror(b)))
    assert_close(inv(four), torch.block_diag(turn(-a), mirror(b)))


@pytest.mark.identity("thm-riemann-reflection")
@FEW
@given(seed=SEEDS, kind=st.sampled_from(["reflection", "blocks4"]), metric=st.sampled_from([None, "scalar"]),
       sides=st.sampled_from([(5,), (2, 3)]))
def test_reflections_add_nothing(seed, kind, metric, sides):
    rel = offsets(sides)
    made, x = layer(seed, rel, transport=kind, metric=metric, angles="learned"), normal(seed, 2, rel.n, 5)
    turning = same_weights(made, MIXERS["riemann"](rel, 5, 2, head_dim=4, metric=metric, angles="learned"))
    with torch.no_grad():
        turning.theta *= torch.tensor([2.0 if kind == "reflection" else 1.0, 2.0])
    assert_close(turning(x), made(x))
    T, C = near_identity(seed, 3, 4, 4), near_identity(seed + 1, 4, 4)
    assert_close((T[2] @ C) @ inv(T[1] @ C), T[2] @ inv(T[1]))
    B = transport.reflection_block(normal(seed + 2, 1)[0])
    for m in range(4):
        for n in range(4):
            assert_close(power(B, m) @ inv(power(B, n)), B if (m - n) % 2 else torch.eye(2))


@pytest.mark.identity("thm-riemann-temperature")
@FEW
@given(seed=SEEDS, n=st.integers(2, 6), τ=st.integers(1, 30), kind=st.sampled_from(transport.TRANSPORTS))
def test_a_shift_is_a_temperature(seed, n, τ, kind):
    made, x = layer(seed, offsets(n), transport=kind), normal(seed, 1, n, 5)
    q, k = made.projected(x)
    at = lambda t: transport.transport_scores(q, k, made.frame(column(n) + t)) / 2  # noqa: E731
    s = made.log_scale()[:, 0, 0].exp()[:, None, None]
    a, b = at(0), at(τ)
    assert_close(a, made.scores(x))
    assert_close(b, s**τ * a)
    assert (b - a).abs().max() > 1e-6
    weights, later, end = (t.softmax(-1).amax(-1) for t in (a, b, at(5000)))
    assert (later <= weights + 1e-12).all()
    assert_close(end, torch.full_like(end, 1 / n))
    with pytest.raises(NoTranslution, match="offset"):
        as_translution(made)


@pytest.mark.identity("eq-riemann-log")
@given(m=st.integers(1, 10**5), s=st.floats(0.1, 1.5), base=st.floats(1.1, 20))
def test_a_logarithmic_schedule_is_a_power_of_the_place(m, s, base):
    place = torch.tensor([[float(m)]])
    half = transport.half_logs(transport.exponents(place, "log", base), torch.tensor([[math.log(s)]]), math.inf)
    assert_close((2 * half).exp(), place ** (math.log(s) / math.log(base)))
    with pytest.raises(ValueError, match="positions"):
        transport.exponents(0 * place, "log", base)


@pytest.mark.identity("thm-riemann-covector")
@FEW
@given(seed=SEEDS, kind=st.sampled_from(["rotation", "reflection", "blocks4"]))
def test_covectors_are_relative_exactly_if_the_scale_commutes(seed, kind):
    x = normal(seed, 2, 1, 5).expand(-1, 6, -1)
    for metric in ("scalar", "pairs"):
        made = layer(seed, offsets(6), transport=kind, metric=metric, form="covector", angles="learned")
        assert relative(made.scores(x)) < 1e-11
        varied = normal(seed + 2, 2, 6, 5)
        assert_close(as_translution(made)(varied), made(varied))
        q, k, at = *made.projected(x), made.frame(column(6))
        for scores in (transport.transport_scores, transport.transport_scores_definition):
            assert_close(scores(q, k, at, "covector") / 2, made.scores(x))
        made.form = "inner"
        assert relative(made.scores(x)) > 1e-9
    # Within a plane the two scales must agree; then T_m T_n⁻¹ = S^((n − m)/2) e^((m − n)X).
    X, S = transport.skew(4 * normal(seed, 2, 2)), normal(seed + 1, 2)
    T = lambda m, S: torch.diag((-m / 2 * S).exp()) @ exp(m * X)  # noqa: E731
    even = S.mean().expand(2)
    assert_close(T(5, even) @ inv(T(3, even)), T(2, even))
    size = (torch.diag((S / 2).exp()) @ exp(X) - exp(X) @ torch.diag((S / 2).exp())).abs().max()
    change = (T(2, S) @ inv(T(1, S)) - T(1, S)).abs().max()
    assert (change > 1e-9) == (size > 1e-9)


@pytest.mark.identity("thm-riemann-diagonal", "eq-riemann-appendix")
@FEW
@given(seed=SEEDS, m=st.integers(1, 5), n=st.integers(0, 5))
def test_maps_of_a_diagonal_and_of_a_turning_metric(seed, m, n):
    θ, log_s = normal(seed, 1, 1), -normal(seed + 1, 1, 2).abs() - torch.tensor([0.0, 0.2])
    places, eye = torch.tensor([[m], [n]], dtype=torch.float64), torch.eye(2)
    turns = transport.orthogonal(transport.schedule_angles(places, θ), "rotation")
    halves = transport.half_logs(places, log_s)
    diagonal = transport.frame(turns, halves)
    S = lambda t: torch.diag((t * log_s[0]).exp())  # noqa: E731
    assert_close(diagonal.metric[0], S(m))
    assert_close(diagonal.map[0], S(-m / 2) @ turns[0])
    assert_close(diagonal.map.mT @ diagonal.metric @ diagonal.map, eye.expand(2, 2, 2))
    failing = (turns[0] @ S(-m / 2), (-m / 2 * log_s[0, 0]).exp() * turns[0])
    for T in failing:
        gap = (T.T @ S(m) @ T - eye).abs().max()
        assert gap > 1e-9 or turns[0, 0, 1].abs() < 1e-4
    # Scalar maps fit a diagonal metric at no two places: the eigenvalues (s_i/s)^m and (s_i/s)^n would have to agree.
    fitted = (turns.mT @ torch.stack([S(m), S(n)]) @ turns) / (places[..., None] * log_s[0, 0]).exp()
    expected = (places * (log_s - log_s[0, 0])).exp()
    assert_close(torch.linalg.eigvalsh(fitted), expected.sort(-1).values)
    assert m == n or (fitted[0] - fitted[1]).abs().max() > 1e-9 or (log_s[0, 0] - log_s[0, 1]).abs() < 1e-6
    # The appendix: back turns, and a metric whose axes turn.
    back = transport.frame(turns.mT, halves, turning=True)
    assert_close(back.metric[0], turns[0].T @ S(m) @ turns[0])
    assert_close(back.map[0], turns[0].T @ S(-m / 2))
    made = layer(seed, offsets(5), d=2, metric="general", angles="learned")
    phase = m * made.theta[0, 0, 0]
    there, s = transport.rotation_block(-phase), made.log_scale()[0, 0]
    assert_close(made.frame(places).metric[0, 0], there @ torch.diag((m * s).exp()) @ there.T)
    assert_close(made.frame(places).map[0, 0], there @ torch.diag((-m / 2 * s).exp()))
    q, k = normal(seed + 2, 2, 1, 1, 2, 2)
    score = q[0, 0, 0] @ turns[0].T @ S((m + n) / 2) @ turns[1] @ k[0, 0, 1]
    assert_close(transport.transport_scores_definition(q, k, back)[0, 0, 0, 1], score)
    assert_close(score, (S(m / 2) @ turns[0] @ q[0, 0, 0]) @ (S(n / 2) @ turns[1] @ k[0, 0, 1]))


@pytest.mark.identity("thm-riemann-only")
@given(seed=SEEDS, d=st.integers(1, 4), n=st.integers(2, 6))
def test_relative_scores_have_one_metric(seed, d, n):
    values, vectors = torch.linalg.eigh(positive(seed, d))
    half = (vectors * values.sqrt()) @ vectors.T
    first, Q = orthogonal(seed + 1, d), orthogonal(seed + 2, d)
    U = torch.stack([first @ power(Q, m) @ half for m in range(n)])
    A = torch.einsum("mab,nac->mnbc", U, U)
    assert_close(A[1:, 1:], A[:-1, :-1])
    assert_close(U.mT @ U, (half @ half).expand(n, d, d))
    turns = U @ inv(half)
    assert_close(turns[:-1].mT @ turns[1:], Q.expand(n - 1, d, d))
    # Any change of the metric at one place shows: the score of a vector with itself there.
    U[n - 1] *= 1.1
    A = torch.einsum("mab,nac->mnbc", U, U)
    assert (A[1:, 1:] - A[:-1, :-1]).abs().max() > 1e-3


@pytest.mark.identity("thm-riemann-only")
@given(seed=SEEDS, kind=st.sampled_from(transport.TRANSPORTS), metric=st.sampled_from(METRICS))
def test_the_layer_is_relative_exactly_without_a_metric(seed, kind, metric):
    made = layer(seed, offsets(6), transport=kind, metric=metric)
    a = made.scores(normal(seed, 2, 1, 5).expand(-1, 6, -1))
    M = made.frame(column(6)).metric
    constant = (M - M[:, :1]).abs().max() < 1e-12
    assert constant == (metric is None)
    assert (relative(a) < 1e-11) == constant


@pytest.mark.identity("eq-riemann-focus", "thm-riemann-gate")
@FEW
@given(seed=SEEDS, sides=st.sampled_from([(6,), (2, 3), (3, 3)]), cls=st.booleans())
def test_focusing_after_the_softmax_is_a_gated_bias(seed, sides, cls):
    rel = offsets(sides, cls=cls)
    after, x = layer(seed, rel, focus="after", output=True), normal(seed, 2, rel.n, 5)
    before = same_weights(after, MIXERS["riemann"](rel, 5, 2, head_dim=4, focus="before"))
    α, v = after.weights(x), (x @ after.matrices.value).unflatten(-1, (2, 4)).transpose(1, 2)
    p = torch.nn.functional.pad(rel.positions.double(), (0, 0, int(cls), 0))
    square = (p[:, None] - p).square().sum(-1)
    if cls:
        square[0], square[:, 0] = 0, 0
    λ = torch.exp(-square / (2 * after.log_sigma.exp().square())[:, None, None])
    gathered = lambda y: y.transpose(1, 2).flatten(-2)  # noqa: E731
    assert_close(after(x), after.output(gathered((α * λ) @ v)))
    Z = (α * λ).sum(-1)
    assert_close((after.weights(x) * after.focus_bias(x.shape[1]).exp()).sum(-1), Z)
    assert_close(before(x), after.output(gathered((α * λ) @ v / Z[..., None])))
    assert (Z >= λ.amin(-1) - 1e-12).all() and (Z[..., int(cls):] < 1).all()    # CLS sees nothing attenuated
    assert_close(before.weights(x), (after.scores(x) + λ.log()).softmax(-1))


@pytest.mark.identity("thm-riemann-value")
@FEW
@given(seed=SEEDS, c=st.floats(0.1, 5), sides=st.sampled_from([(6,), (2, 3)]))
def test_focusing_is_value_only_translution_or_a_scalar_bias(seed, c, sides):
    rel, x = offsets(sides), normal(seed, 2, math.prod(sides), 5)
    after = layer(seed, rel, focus="after", metric=None)
    made, λ = as_translution(after), after.offset_focus(torch.tensor(rel.labels).double()).exp()         # h r
    assert_close(made(x), after(x))
    expected = (λ.T[:, None, :, None] * after.matrices.value.unflatten(-1, (2, 4))).flatten(-2)
    assert_close(made.translution.value, expected)
    still = layer(seed, rel, focus="after", metric=None, angles="learned")
    with torch.no_grad():
        still.theta.zero_()
    query = as_translution(still).translution.matrices.query                  # value-only: one matrix for all offsets
    assert_close(query, query[:1].expand_as(query))
    before = layer(seed, rel, focus="before", metric=None, angles="learned")
    with torch.no_grad():
        before.theta.zero_()
    bias = MIXERS["scalar-bias"](rel, 5, 2, head_dim=4)
    state = before.state_dict() | {"encodings.0.table": before.offset_focus(torch.tensor(rel.labels).double())}
    bias.load_state_dict({name: state[name].detach() for name in bias.state_dict()})
    assert_close(bias(x), before(x))
    δ, σ, A = normal(seed, 7, 2), normal(seed + 1, 2).exp(), positive(seed + 2, 2)
    assert_close(transport.log_attenuation(δ, c * σ, c * c * A), transport.log_attenuation(δ, σ, A))
