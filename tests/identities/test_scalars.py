"""The statements of the chapter "Scalars and gates", on random shapes and weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import grids
from translution_lib import MIXERS, Attention, Translution, backend, offsets
from translution_lib.mixers.convert import NoTranslution, as_translution, factors
from translution_lib.mixers.encodings.scalar import alibi_slopes, t5_buckets
from translution_lib.mixers.positional import per_pair

HEADS = st.integers(1, 4)
DIM = st.integers(1, 3)
SIDES = grids(max_tokens=9)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def layer_of(kind, relations, heads, d, **options):
    layer = kind(relations, heads * d, heads, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def by_pairs(layer, table):
    """A table of offsets (h m) per pair (h n n), entry by entry: zero for pairs with CLS."""
    rel = layer.relations
    out, m = torch.zeros(layer.heads, rel.n, rel.n, dtype=torch.float64), rel.count - 3 * rel.cls
    for i in range(rel.n):
        for j in range(rel.n):
            if rel.index[i, j] < m:
                out[:, i, j] = table[:, rel.index[i, j]]
    return out


@pytest.mark.identity("eq-scalars-bias")
@given(SIDES, st.booleans(), HEADS, DIM)
def test_the_bias_is_added_to_the_score(shape, cls, heads, d):
    layer = layer_of(MIXERS["scalar-bias"], offsets(shape, cls=cls), heads, d)
    x = randn(2, layer.relations.n, layer.dim)
    q, k, v = (rearrange(x @ w, "b n (h d) -> b h n d", h=heads) for w in layer.matrices)
    a = q @ k.mT / math.sqrt(d) + by_pairs(layer, layer.table)
    expected = layer.output(rearrange(a.softmax(-1) @ v, "b h n d -> b n (h d)"))
    assert_close(layer(x), expected)
    with backend("definition"):
        assert_close(layer(x), expected)


@pytest.mark.identity("eq-scalars-product")
@given(SIDES, HEADS, DIM)
def test_content_times_position(shape, heads, d):
    layer = layer_of(MIXERS["scalar-bias"], offsets(shape), heads, d)
    x = randn(1, layer.relations.n, layer.dim)
    joint = layer.content(x).softmax(-1) * by_pairs(layer, layer.table).softmax(-1)
    alpha = layer.weights(x)
    assert_close(alpha, joint / joint.sum(-1, keepdim=True))
    with torch.no_grad():
        layer.table += randn(heads, 1)
    assert_close(layer.weights(x), alpha)


@pytest.mark.identity("eq-scalars-parameters")
@given(st.integers(1, 30), HEADS, st.sampled_from([8, 16, 32]), st.booleans())
def test_parameters_of_the_makers(n, heads, buckets, causal):
    relations = offsets(n, causal=causal)
    plain = sum(p.numel() for p in Attention(relations, heads, heads).parameters())
    for maker, entries in (("table", heads * (n if causal else 2 * n - 1)), ("t5", heads * buckets), ("alibi", 0)):
        layer = MIXERS["scalar-bias"](relations, heads, heads, bias=maker, num_buckets=buckets)
        assert sum(p.numel() for p in layer.parameters()) == plain + entries


@pytest.mark.identity("eq-scalars-t5")
@given(st.sampled_from([4, 8, 32, 40]), st.integers(21, 300), st.booleans())
def test_buckets(count, largest, causal):
    side, sign = (count, 1) if causal else (count // 2, -1)
    near = side // 2
    delta = torch.arange(0 if causal else -400, 401)
    for d, bucket in zip(delta.tolist(), t5_buckets(delta, count, largest, causal).tolist(), strict=True):
        r = abs(d)
        place = near + (side - near) * math.log(max(r, 1) / near) / math.log(largest / near)
        options = {r} if r < near else {min(side - 1, math.floor(place + e)) for e in (-1e-4, 1e-4)}
        assert bucket - (side if sign * d > 0 and not causal else 0) in options
    assert not causal or (t5_buckets(delta, count, largest, True).diff() >= 0).all()


@pytest.mark.identity("eq-scalars-alibi")
@given(st.integers(0, 4), st.integers(1, 9), st.booleans())
def test_slopes(power, n, causal):
    h = 2**power
    layer = MIXERS["scalar-bias"](offsets(n, causal=causal), h, h, bias="alibi").double()
    distance = torch.arange(0 if causal else 1 - n, n, dtype=torch.float64).abs()
    assert_close(layer.offset_bias(), torch.stack([-(2.0 ** (-8 * m / h)) * distance for m in range(1, h + 1)]))
    assert_close(alibi_slopes(3 * h // 2)[:h], alibi_slopes(h))


@pytest.mark.identity("thm-scalars-ratio")
@given(st.data(), SIDES.filter(lambda s: math.prod(s) > 2), HEADS, DIM)
def test_equal_keys_have_the_ratio_of_their_biases(data, shape, heads, d):
    layer = layer_of(MIXERS["scalar-bias"], offsets(shape), heads, d)
    n = layer.relations.n
    j, other = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=2, unique=True))
    b = by_pairs(layer, layer.table)
    for _ in range(2):
        x = randn(1, n, layer.dim)
        x[:, other] = x[:, j]
        alpha = layer.weights(x)[0]
        assert_close(alpha[..., j] / alpha[..., other], (b[..., j] - b[..., other]).exp())


@pytest.mark.identity("thm-scalars-limit")
@given(SIDES, HEADS, DIM)
def test_small_features(shape, heads, d):
    rel = offsets(shape)
    scalar, matrices = (layer_of(kind, rel, heads, d) for kind in (MIXERS["scalar-bias"], Translution))
    x = torch.zeros(1, rel.n, heads * d, dtype=torch.float64)
    assert_close(scalar.weights(x)[0], by_pairs(scalar, scalar.table).softmax(-1))
    assert_close(matrices.weights(x), torch.full((1, heads, rel.n, rel.n), 1 / rel.n, dtype=torch.float64))


@pytest.mark.identity("thm-scalars-layer")
@given(SIDES.filter(lambda s: math.prod(s) > 1), st.integers(2, 5), st.data())
def test_one_growing_token_tells_the_layers_apart(shape, dim, data):
    """Its factor on the value: from β to 1 with a bias, from 1/N to 0 or 1 in Translution, never 1 with a gate."""
    rel = offsets(shape)
    i = data.draw(st.integers(0, rel.n - 1))
    scalar, gated, matrix = (
        layer_of(kind, rel, 1, dim, output=False) for kind in (MIXERS["scalar-bias"], MIXERS["gated-bias"], Translution)
    )
    with torch.no_grad():
        for layer in (scalar, gated):
            layer.matrices.key[:] = layer.matrices.query  # f A fᵀ > 0
        matrix.key[:] = matrix.query * data.draw(st.sampled_from([-1.0, 1.0]))
    f = randn(dim)

    def factor(layer, w_v, t):
        x = torch.zeros(1, rel.n, dim, dtype=torch.float64)
        x[0, i] = t * f
        out, value = layer(x)[0, i] / t, f @ w_v
        assert_close(out, (out @ value / (value @ value)) * value)
        return (out @ value / (value @ value)).item()

    own = rel.id_of((0,) * len(rel.labels[0]))
    sign = ((f @ matrix.query[own]) @ (f @ matrix.key[own])).item()
    beta = by_pairs(scalar, scalar.table).softmax(-1)[0, i, i].item()
    sigma, bump = gated.gate.sigmoid().item(), gated.position_weights(rel)[0, i, i].item()
    floor = (1 - sigma) / rel.n + sigma * bump
    limits = [
        (scalar, scalar.matrices.value, beta, 1.0),
        (gated, gated.matrices.value, floor, 1 - sigma + sigma * bump),
        (matrix, matrix.value[own], 1 / rel.n, float(sign > 0)),
    ]
    for layer, w_v, small, large in limits:
        assert factor(layer, w_v, 1e-5) == pytest.approx(small, abs=1e-6)
        assert factor(layer, w_v, 1e7) == pytest.approx(large, abs=1e-6)


@pytest.mark.identity("thm-scalars-dimension")
@given(SIDES, st.booleans(), HEADS, DIM, st.sampled_from(["table", "alibi"]))
def test_one_more_dimension(shape, cls, heads, d, maker):
    layer = layer_of(MIXERS["scalar-bias"], offsets(shape, cls=cls), heads, d, bias=maker)
    same = as_translution(layer)
    x = randn(2, layer.relations.n, layer.dim)
    assert_close(same(x), layer(x))
    assert same.constant and same.translution.head_dim == d + 1
    star = factors(layer).star()
    biases = layer.offset_bias()
    for head in range(heads):
        u, t = randn(layer.dim, 1), float(randn(1))
        for s in (biases[head] + t).tolist()[:4]:
            full = torch.cat([torch.cat([star.A[0, head], u], 1), torch.tensor([[0.0] * layer.dim + [s]])])
            assert torch.linalg.matrix_rank(full) >= d + (abs(s) > 1e-6)


@pytest.mark.identity("thm-scalars-window")
@given(st.integers(1, 400), st.integers(0, 100), st.floats(0.01, 2), st.floats(0, 3), st.integers(1, 30))
def test_windows(n, k, m, bound, constant_from):
    s, r = bound * (2 * torch.rand(n, dtype=torch.float64) - 1), torch.arange(n)
    assert (s - m * r).softmax(0)[k:].sum() <= math.exp(2 * bound - m * k) + 1e-12
    b = randn(constant_from + 1)[r.clamp(max=constant_from)]
    if n > constant_from:
        limit = math.exp(2 * bound) * (b[:constant_from] - b[-1]).exp().sum() / (n - constant_from)
        assert (s + b).softmax(0)[:constant_from].sum() <= limit + 1e-12


@pytest.mark.identity("eq-scalars-gate")
@given(SIDES, st.booleans(), HEADS, DIM, st.sampled_from(["original", "printed"]))
def test_the_gate_mixes_and_needs_no_normalisation(shape, cls, heads, d, form):
    layer = layer_of(MIXERS["gated-bias"], offsets(shape, cls=cls), heads, d, form=form)
    x = randn(1, layer.relations.n, layer.dim)
    alpha = layer.content(x).softmax(-1)
    beta = by_pairs(layer, layer.offset_scores()).softmax(-1)
    sigma = 1 / (1 + torch.exp(-layer.gate))[:, None, None]
    xi = (1 - sigma) * alpha + sigma * beta
    assert_close(layer.weights(x), xi)
    assert_close(xi.sum(-1), torch.ones_like(xi[..., 0]))
    assert_close(layer(x), layer.output(layer.values(xi / xi.sum(-1, keepdim=True), x)))


@pytest.mark.identity("eq-scalars-centre", "thm-scalars-neighbour")
@given(st.data(), SIDES, st.floats(0.1, 30))
def test_a_centre_attracts_its_key(data, shape, sharpness):
    rel = offsets(shape)
    layer = MIXERS["gated-bias"](rel, 1, 1).double()
    c = torch.tensor(data.draw(st.sampled_from(rel.labels)), dtype=torch.float64)
    with torch.no_grad():
        layer.position_weight[0] = sharpness * torch.cat([torch.tensor([-1.0]), 2 * c])
    delta = torch.tensor(rel.labels, dtype=torch.float64)
    expected = sharpness * (c.square().sum() - (delta - c).square().sum(1))
    assert_close(layer.offset_scores()[0], expected, rtol=1e-9, atol=1e-9)
    beta = layer.position_weights(rel)[0]
    i, j = rel.pairs_of(rel.id_of(tuple(int(v) for v in c)))
    assert (1 - beta[i, j] <= (rel.n - 1) * math.exp(-sharpness) + 1e-12).all()


@pytest.mark.identity("thm-scalars-distance")
@given(SIDES, HEADS)
def test_equal_distances_have_equal_weights(shape, heads):
    layer = layer_of(MIXERS["gated-bias"], offsets(shape), heads, 1, form="printed")
    beta, p = layer.position_weights(layer.relations), layer.relations.positions
    squares = (p[:, None] - p[None]).square().sum(-1)
    for i in range(len(p)):
        for s in squares[i].unique():
            ring = beta[:, i, squares[i] == s]
            assert_close(ring, ring[:, :1].expand_as(ring))
            assert (ring <= 1 / ring.shape[1] + 1e-12).all()


@pytest.mark.identity("thm-scalars-gate")
@given(SIDES.filter(lambda s: math.prod(s) > 1), HEADS, DIM, st.sampled_from(["original", "printed"]))
def test_two_heads_make_a_gate_and_one_does_not(shape, heads, d, form):
    layer = layer_of(MIXERS["gated-bias"], offsets(shape), heads, d, form=form)
    pair = MIXERS["scalar-bias"](layer.relations, layer.dim, 2 * heads, head_dim=d).double()
    share, scores = torch.sigmoid(layer.gate).repeat_interleave(d), layer.offset_scores()
    with torch.no_grad():
        w_q, w_k, w_v = layer.matrices
        for wide, one in zip(pair.matrices, (F.pad(w_q, (0, w_q.shape[1])), *(w.repeat(1, 2) for w in (w_k, w_v))),
                             strict=True):
            wide[:] = one
        pair.table[:] = torch.cat([torch.zeros_like(scores), scores])
        pair.output.weight[:] = torch.cat([layer.output.weight * (1 - share), layer.output.weight * share], 1)
        pair.output.bias[:] = layer.output.bias
    x = randn(2, layer.relations.n, layer.dim)
    assert_close(pair(x), layer(x))
    assert_close(as_translution(pair)(x), layer(x))
    with pytest.raises(NoTranslution):
        as_translution(layer)
    # The floor that no head of growing scores keeps.
    floor = torch.sigmoid(layer.gate)[:, None, None] * layer.position_weights(layer.relations)
    for t in (1.0, 1e2, 1e4):
        assert (layer.weights(t * x) >= floor - 1e-12).all()
    spread = layer.content(x).diff(dim=-1).abs().amax()
    assert pair.weights(1e6 / spread.item() * x)[:, :heads].amin() < 1e-3 * floor.max().item()


@pytest.mark.identity("eq-scalars-locality")
@given(SIDES, st.data())
def test_a_factor_before_and_after_the_softmax(shape, data):
    rel = offsets(shape)
    s, lam = randn(rel.n, rel.n), torch.rand(1, rel.count, dtype=torch.float64) + 0.01
    factor = per_pair(lam, rel)[0]
    alpha = s.softmax(1)
    z = (factor * alpha).sum(1, keepdim=True)
    assert_close((s + factor.log()).softmax(1), factor * alpha / z)
    assert ((factor.amin(1, keepdim=True) - 1e-12 <= z) & (z <= factor.amax(1, keepdim=True) + 1e-12)).all()
