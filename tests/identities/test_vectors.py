"""The statements of the chapter "Vectors", on random grids and weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import F64, grids
from translution_lib import MIXERS, Attention, Translution, cost, functional, offsets
from translution_lib.mixers.positional import offset_count

DIM = st.integers(1, 4)
HEADS = st.integers(1, 3)
SIDES = st.sampled_from(["k", "v", "kv"])
GRIDS = grids(max_tokens=9)


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def layer_on(relations, c, heads=1, head_dim=3, **options):
    """A layer whose vectors are large; its ``mix`` is the layer before the output map."""
    layer = MIXERS["key-value-vector"](relations, c, heads, head_dim=head_dim, **options).to(F64).requires_grad_(False)
    for table in (layer.key_vector, layer.value_vector):
        if table is not None:
            torch.nn.init.normal_(table)
    return layer


def vector(table, relations, i, j):
    """The vector of a pair; zero where the pair has no offset."""
    r = int(relations.index[i, j])
    return table[r] if 0 <= r < offset_count(relations) else torch.zeros_like(table[0])


@pytest.mark.identity("eq-vectors-definition", "eq-vectors-fast")
@given(GRIDS, DIM, HEADS, DIM, st.booleans())
def test_every_form_is_the_equation(shape, c, heads, d, cls):
    rel = offsets(shape, cls=cls)
    layer, x = layer_on(rel, c, heads, d), randn(1, rel.n, c)
    out = torch.zeros(rel.n, heads * d, dtype=F64)
    for h in range(heads):
        s = slice(h * d, (h + 1) * d)
        q, k, v = (x[0] @ w[:, s] for w in layer.matrices)
        for i in range(rel.n):
            r, r_v = (torch.stack([vector(t[:, s], rel, i, j) for j in range(rel.n)])
                      for t in (layer.key_vector, layer.value_vector))
            out[i, s] = ((k + r) @ q[i] / math.sqrt(d)).softmax(0) @ (v + r_v)
    assert_close(layer.mix(x)[0], out)
    assert_close(layer.values(layer.weights(x), x)[0], out)


@pytest.mark.identity("eq-vectors-fast")
@given(GRIDS, st.none() | st.integers(0, 3))
def test_the_value_side_is_a_sum_per_offset(shape, clip):
    rel = offsets(shape)
    layer, x = layer_on(rel, 2, clip=clip, sides="v"), randn(1, rel.n, 2)
    alpha, index = layer.weights(x)[0, 0], layer.near.index
    sums = torch.zeros(rel.n, layer.near.count, dtype=F64)
    for i in range(rel.n):
        for j in range(rel.n):
            sums[i, index[i, j]] += alpha[i, j]
    if clip is None:
        assert ((sums > 0).sum(1) == rel.n).all()
    assert_close(layer.mix(x)[0], alpha @ (x[0] @ layer.matrices.value) + sums @ layer.value_vector)


@pytest.mark.identity("eq-vectors-clip")
@given(GRIDS, st.integers(0, 4), st.booleans())
def test_a_clipped_layer_is_a_tied_layer(shape, k, cls):
    rel = offsets(shape, cls=cls)
    near, full = layer_on(rel, 2, clip=k), layer_on(rel, 2)
    m = offset_count(rel)
    state = near.state_dict()
    for name in ("key_vector", "value_vector"):
        clamped = [tuple(max(-k, min(k, step)) for step in delta) for delta in rel.labels[:m]]
        state[f"encodings.0.{name}"] = torch.stack([getattr(near, name)[near.near.id_of(delta)] for delta in clamped])
    full.load_state_dict(state)
    x = randn(2, rel.n, 2)
    assert_close(near.mix(x), full.mix(x))


@pytest.mark.identity("eq-vectors-split", "eq-vectors-form")
@given(GRIDS, DIM, DIM)
def test_the_score_is_content_plus_place(shape, c, d):
    rel = offsets(shape)
    layer, f = layer_on(rel, c, 1, d), randn(1, rel.n, c)
    A = layer.matrices.query @ layer.matrices.key.T / math.sqrt(d)
    b = layer.key_vector @ layer.matrices.query.T / math.sqrt(d)
    place = (f[0] @ b.T).gather(1, rel.index)
    a = f[0] @ A @ f[0].T + place
    assert_close(layer.scores(f)[0, 0], a)
    values = (f[0] @ layer.matrices.value)[None] + layer.value_vector[rel.index]
    assert_close(layer.mix(f)[0], torch.einsum("ij,ijd->id", a.softmax(1), values))


@pytest.mark.identity("eq-vectors-cost", "eq-vectors-parameters")
@given(st.integers(1, 7), st.integers(1, 3), HEADS, st.integers(1, 6), SIDES, st.booleans())
def test_products_and_parameters(n, rows, heads, d, sides, causal):
    rel = offsets(n, causal=True) if causal else offsets((n, rows))
    c = heads * d
    layer, plain = MIXERS["key-value-vector"](rel, c, heads, sides=sides).to(F64), Attention(rel, c, heads).to(F64)
    extra = len(sides) * rel.count * c
    assert cost.count_parameters(layer) == cost.count_parameters(plain) + extra
    assert cost.count_macs(layer, randn(1, rel.n, c)) == 4 * rel.n * c**2 + 2 * rel.n**2 * c + rel.n * extra


@pytest.mark.identity("thm-vectors-parity")
@given(GRIDS, DIM, HEADS, DIM, st.booleans())
def test_translution_is_odd(shape, c, heads, d, cls):
    rel = offsets(shape, cls=cls)
    layer, f = Translution(rel, c, heads, head_dim=d).to(F64), randn(2, rel.n, c)
    assert_close(layer.mix(-f), -layer.mix(f))


@pytest.mark.identity("thm-vectors-parity")
@given(st.floats(0.1, 3), st.floats(0.1, 2))
def test_vectors_are_not_odd(first, strength):
    keys = layer_on(offsets(2), 1, head_dim=1, sides="k")
    keys.matrices.query.fill_(1.0), keys.matrices.key.zero_(), keys.matrices.value.fill_(1.0)
    keys.key_vector.copy_(torch.tensor([[strength], [0], [0]]))
    outputs = [float(keys.mix(torch.tensor([[[s * first], [0]]], dtype=F64))[0, 0, 0]) for s in (1, -1)]
    assert outputs[0] == pytest.approx(first / (1 + math.exp(first * strength)))
    assert outputs[1] == pytest.approx(-first / (1 + math.exp(-first * strength)))
    assert abs(outputs[0] + outputs[1]) > 1e-5
    values = layer_on(offsets((2, 3)), 2, sides="v")
    mean = values.value_vector[values.relations.index].mean(1)
    assert_close(values.mix(torch.zeros(1, 6, 2, dtype=F64))[0], mean)
    assert mean.abs().max() > 1e-3


@pytest.mark.identity("thm-vectors-contained")
@given(GRIDS, DIM, HEADS, DIM, SIDES, st.booleans())
def test_a_constant_channel_contains_vectors(shape, c, heads, d, sides, cls):
    rel = offsets(shape, cls=cls)
    layer, x = layer_on(rel, c, heads, d, sides=sides), randn(2, rel.n, c)

    def stacked(matrix, vectors):
        last = torch.zeros(rel.count, 1, heads * d, dtype=F64)
        if vectors is not None:
            last[: len(vectors), 0] = vectors
        return torch.cat([matrix.expand(rel.count, -1, -1), last], dim=1)

    weights = (stacked(layer.matrices.query, None), stacked(layer.matrices.key, layer.key_vector),
               stacked(layer.matrices.value, layer.value_vector))
    assert_close(functional.translution(F.pad(x, (0, 1), value=1.0), *weights, rel, heads), layer.mix(x))


@pytest.mark.identity("thm-vectors-content")
@given(grids(max_tokens=9).filter(lambda shape: math.prod(shape) > 1), DIM, DIM, st.data())
def test_the_odds_change_alike_at_every_place(shape, c, d, data):
    rel = offsets(shape)
    layer, free = layer_on(rel, c, 1, d), Translution(rel, c, 1, head_dim=d).to(F64).requires_grad_(False)
    i = data.draw(st.integers(0, rel.n - 1))
    j = data.draw(st.integers(0, rel.n - 1).filter(lambda j: j != i))
    f, g = randn(1, rel.n, c), randn(c)
    changed = f.clone()
    changed[0, j] = g
    r = rel.index[i, j]
    for one, A in ((layer, layer.matrices.query @ layer.matrices.key.T), (free, free.query[r] @ free.key[r].T)):
        before, after = (one.weights(x)[0, 0, i, j].logit() for x in (f, changed))
        assert_close(after - before, f[0, i] @ A @ (g - f[0, j]) / math.sqrt(d))


@pytest.mark.identity("eq-vectors-impulse")
@given(grids(max_tokens=9).filter(lambda shape: math.prod(shape) > 1), DIM, SIDES, st.data())
def test_the_answer_to_an_impulse_knows_no_offset(shape, c, sides, data):
    rel = offsets(shape)
    layer, u = layer_on(rel, c, sides=sides), randn(c)
    j = data.draw(st.integers(0, rel.n - 1))
    f = torch.zeros(1, rel.n, c, dtype=F64)
    f[0, j] = u
    mean = 0 if layer.value_vector is None else layer.value_vector[rel.index].mean(1)
    expected = (u @ layer.matrices.value / rel.n + mean).expand(rel.n, -1)
    others = torch.arange(rel.n) != j
    assert_close(layer.mix(f)[0, others], expected[others])


@pytest.mark.identity("thm-vectors-convolution")
@given(st.integers(2, 5), DIM, HEADS, DIM, st.booleans(), st.data())
def test_an_impulse_answers_along_one_matrix_per_head(n, c, heads, d, centre, data):
    """The steps of the proof: the rest is bounded, and far out the answer is one combination of the heads' matrices."""
    rel = offsets(n)
    layer = layer_on(rel, c + 1, heads, d)
    i, j = data.draw(st.permutations(range(n)))[:2]
    i = j if centre else i
    matrices = torch.stack([F.pad(layer.matrices.value[:c, h * d : (h + 1) * d], (h * d, (heads - 1 - h) * d))
                            for h in range(heads)])
    rho = (layer.matrices.value[c] + layer.value_vector).norm(dim=1).max()

    def answer(u, s):
        f = F.pad(torch.zeros(1, n, c, dtype=F64), (0, 1), value=1.0)
        f[0, j, :c] = s * u
        return layer.mix(f)[0, i], layer.weights(f)[0, :, i, j]

    start = randn(c)
    for s in (0.5, 3.0, 1e8):
        y, alpha = answer(start, s)
        moved = torch.einsum("h,hce,c->e", alpha, s * matrices, start)
        assert (y - moved).norm() <= heads * rho * (1 + 1e-6) + 1e-6
    limit = torch.einsum("h,hce->ce", answer(start, 1e8)[1], matrices)
    for u in start + 1e-6 * randn(3, c):
        assert_close(answer(u, 1e8)[0] / 1e8, u @ limit, atol=1e-5, rtol=0)


@pytest.mark.identity("thm-vectors-convolution")
@given(st.integers(2, 5), DIM, HEADS, DIM, st.data())
def test_far_out_a_head_hands_over_an_impulse_or_its_opposite(n, c, heads, d, data):
    """The step that asks for one head more: at another token one of the two weights tends to 1, the other to 0."""
    rel = offsets(n)
    layer, u = layer_on(rel, c + 1, heads, d), randn(c)
    i, j = data.draw(st.permutations(range(n)))[:2]
    f = F.pad(torch.zeros(2, n, c, dtype=F64), (0, 1), value=1.0)
    f[0, j, :c], f[1, j, :c] = 1e8 * u, -1e8 * u
    there, back = layer.weights(f)[:, :, i, j]
    assert_close(there + back, torch.ones(heads, dtype=F64))
    assert_close(there * back, torch.zeros(heads, dtype=F64), atol=1e-6, rtol=0)


@pytest.mark.identity("thm-vectors-convolution")
@given(DIM, DIM, st.integers(1, 3))
def test_a_layer_of_heads_reaches_every_combination(c, e, heads):
    """The bound is attained: with heads that read one tap each, any matrices are the layer's kernel up to e^-B."""
    rel, taps, B = offsets(5), [-1, 0, 1][:heads], 60.0
    kernel = randn(3, c, e)
    layer = layer_on(rel, c + 1, heads, e)
    for weight in (*layer.matrices, layer.value_vector):
        weight.zero_()
    layer.matrices.query[c] = 1.0
    layer.key_vector.fill_(-B)
    for h, tap in enumerate(taps):
        layer.key_vector[rel.id_of((-tap,)), h * e : (h + 1) * e] = 0
        layer.matrices.value[:c, h * e : (h + 1) * e] = kernel[tap + 1]
    kernel[[tap + 1 for tap in (-1, 0, 1) if tap not in taps]] = 0
    f = randn(1, 5, c)
    y = layer.mix(F.pad(f, (0, 1), value=1.0)).unflatten(-1, (heads, e)).sum(2)
    assert_close(y[:, 1:-1], functional.convolution(f, kernel, (5,))[:, 1:-1])


@pytest.mark.identity("thm-vectors-convolution")
@given(st.integers(2, 6), DIM, DIM, st.booleans(), st.data())
def test_one_head_more_than_matrices_is_exact_inside(n, c, e, wraps, data):
    """Heads of the proof: D + 1 of them make every periodic kernel, and a zero-padded one where its taps lie on the
    line, for contents of any size."""
    rel, count = offsets(n), data.draw(st.integers(1, 3))
    start = data.draw(st.integers(1 - n, 0))
    taps = list(range(n)) if wraps else list(range(start, start + data.draw(st.integers(1, n))))
    factors, matrices = torch.zeros(n, count, dtype=F64), randn(count, c, e)  # of δ modulo n
    for tap in taps:
        factors[-tap % n] = randn(count)
    mean = factors.mean(0)
    t = 0.5 / (factors - mean).abs().max().clamp_min(1e-3)
    layer = layer_on(rel, c + 1, count + 1, c, sides="k")  # head dimension C
    for weight in (*layer.matrices, layer.key_vector):
        weight.zero_()
    last = -n * ((1 / t - mean)[:, None, None] * matrices).sum(0)
    rows = torch.tensor([delta[0] for delta in rel.labels]) % n
    for m in range(count + 1):
        own = slice(m * c, (m + 1) * c)
        layer.matrices.value[:c, own] = torch.eye(c, dtype=F64)
        layer.matrices.query[c, m * c] = math.sqrt(c)
        layer.key_vector[:, m * c] = (1 + t * (factors[:, m] - mean[m])).log()[rows] if m < count else 0.0
    output = torch.cat([*(n / t * matrices), last])
    f = 100 * randn(2, n, c)
    y = layer.mix(F.pad(f, (0, 1), value=1.0)) @ output
    kernel = torch.einsum("dm,mce->dce", factors, matrices)
    around = (torch.arange(n)[:, None] - torch.arange(n)) % n
    assert_close(y, torch.einsum("bjc,ijce->bie", f, kernel[around]), atol=1e-6, rtol=1e-6)
    for p in range(n):
        if all(0 <= p + tap < n for tap in taps):
            padded = sum(f[:, p + tap] @ kernel[-tap % n] for tap in taps)
            assert_close(y[:, p], padded, atol=1e-6, rtol=1e-6)


def test_a_key_vector_that_doubles_a_tap_needs_one_head_of_equal_weights():
    """The construction of the chapter: weights 2/(N+1) and 1/(N+1), and a head that takes the sum away."""
    n, kernel = 9, randn(3, 1, 4)
    rel, f = offsets(n), 1000 * randn(3, n, 1)
    y = -n * f.mean(1, keepdim=True) @ kernel.sum(0)
    for tap, matrix in zip((-1, 0, 1), kernel, strict=True):
        prefers = torch.tensor([delta[0] == -tap for delta in rel.labels])[rel.index]
        y = y + (n + 1) * torch.einsum("ij,bjc->bic", (math.log(2) * prefers.to(F64)).softmax(1), f) @ matrix
    assert_close(y[:, 1:-1], functional.convolution(f, kernel, (n,))[:, 1:-1])


@pytest.mark.identity("thm-vectors-convolution")
@given(st.integers(3, 5), st.integers(1, 2), st.integers(0, 2), st.integers(1, 3))
def test_a_kernel_of_narrow_heads_has_a_combination_of_low_rank(matrices, d, more, e):
    """Why heads are too narrow: the span of D matrices of D + 1 heads meets that of two heads, in rank 2d or less."""
    c = 2 * d + 1 + more
    heads = randn(matrices + 1, c, d) @ randn(matrices + 1, d, c + e)
    coefficients = randn(matrices, matrices + 1)
    kernel = torch.einsum("km,mce->kce", coefficients, heads)
    combination = torch.linalg.svd(coefficients[:, 2:].T).Vh[-1]  # away from all heads but the first two
    assert_close(combination @ coefficients[:, 2:], torch.zeros(matrices - 1, dtype=F64))
    found = torch.einsum("k,kce->ce", combination, kernel)
    assert torch.linalg.matrix_rank(found, rtol=1e-8) <= 2 * d < c
    assert torch.linalg.matrix_rank(kernel.flatten(1)) == matrices


@pytest.mark.identity("thm-vectors-content")
@given(st.integers(3, 9), st.data())
def test_two_sides_take_two_heads_of_key_vectors_or_one_of_matrices(n, data):
    """Vowels on the left and consonants on the right: a head a side, or one head with a key matrix for each offset."""
    rel, B = offsets(n), 60.0
    i = data.draw(st.integers(1, n - 2))
    vowel = torch.randint(2, (n,)).to(F64)
    vowel[[0, n - 1]] = torch.tensor([1.0, 0], dtype=F64)  # a wanted token on each side
    f = torch.stack([vowel, 1 - vowel, torch.ones(n, dtype=F64)], 1)[None]
    step = torch.tensor([delta[0] for delta in rel.labels], dtype=F64)  # positive: the key is on the left
    wanted = torch.where(torch.arange(n) < i, vowel, 1 - vowel)
    wanted[i] = 0
    layer = layer_on(rel, 3, 2, 1, sides="k")
    layer.matrices.query.copy_(torch.tensor([[0, 0], [0, 0], [1, 1]]))
    layer.matrices.key.copy_(B * torch.tensor([[1, -1], [-1, 1], [0, 0]]))
    layer.key_vector.copy_(torch.stack([torch.where(step > 0, 0, -3 * B), torch.where(step < 0, 0, -3 * B)], 1))
    for weights, side in zip(layer.weights(f)[0, :, i], (torch.arange(n) < i, torch.arange(n) > i), strict=True):
        assert_close(weights, (wanted * side) / (wanted * side).sum())
    free = Translution(rel, 3, 1, relative="k", head_dim=1).to(F64).requires_grad_(False)
    free.query.weight.copy_(torch.tensor([[0.0, 0, 1]]))
    side = step.sign()[:, None]  # a row holds the key matrix of the pairs with this offset
    free.key.copy_(torch.cat([B * side, -B * side, -3 * B * (side == 0).to(F64)], 1)[..., None])
    assert_close(free.weights(f)[0, 0, i], wanted / wanted.sum())
