"""The statements of the chapter "Self-attention", on random shapes and weights."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import MIXERS, Attention, backend, cost, functional, offsets, shared

DIM = st.integers(1, 5)
TOKENS = st.integers(1, 7)
HEADS = st.integers(1, 3)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def layer_of(n, heads, head_dim, *, causal=False, **options):
    layer = MIXERS["self-attention"](shared(n, causal=causal), heads * head_dim, heads, **options).double()
    for weight in layer.matrices:
        torch.nn.init.normal_(weight)
    return layer


def by_loops(f, w_q, w_k, w_v):
    """Equation eq-attention-definition for one head, number by number."""
    n, d = len(f), w_q.shape[1]
    out = torch.zeros(n, w_v.shape[1], dtype=f.dtype)
    for i in range(n):
        e = [math.exp(float((f[i] @ w_q) @ (f[j] @ w_k)) / math.sqrt(d)) for j in range(n)]
        for j in range(n):
            out[i] += e[j] / sum(e) * (f[j] @ w_v)
    return out


@pytest.mark.identity("eq-attention-definition")
@given(n=TOKENS, c=DIM, d=DIM, e=DIM)
def test_every_form_is_the_equation(n, c, d, e):
    f, w_q, w_k, w_v = randn(1, n, c), randn(c, d), randn(c, d), randn(c, e)
    expected = by_loops(f[0], w_q, w_k, w_v)[None]
    assert_close(functional.self_attention_definition(f, w_q, w_k, w_v), expected)
    assert_close(functional.self_attention(f, w_q, w_k, w_v), expected)
    assert_close(F.scaled_dot_product_attention(f @ w_q, f @ w_k, f @ w_v), expected)


@pytest.mark.identity("eq-attention-definition")
@given(n=TOKENS, d=DIM)
def test_the_layer_is_the_equation(n, d):
    layer, f = layer_of(n, 1, d, output=False), randn(2, n, d)
    weights = [weight.detach() for weight in layer.matrices]
    expected = torch.stack([by_loops(one, *weights) for one in f])
    assert_close(layer(f), expected)
    with backend("definition"):
        assert_close(layer(f), expected)


@pytest.mark.identity("thm-attention-softmax")
@given(n=st.integers(2, 9), scale=st.floats(0.1, 8), shift=st.floats(-50, 50))
def test_softmax_weights(n, scale, shift):
    a = scale * randn(1, 1, 3, n)
    alpha = functional.masked_softmax(a)
    assert_close(alpha.sum(-1), torch.ones(1, 1, 3, dtype=a.dtype))
    assert (alpha > 0).all() and (alpha < 1).all()
    assert_close(functional.masked_softmax(a + shift), alpha)
    assert_close(alpha[..., :1] / alpha, (a[..., :1] - a).exp())
    constant = alpha.log() - a                              # the weights determine the scores up to a row constant
    assert_close(constant, constant[..., :1].expand_as(constant))


@pytest.mark.identity("thm-attention-variance")
@given(d=st.integers(1, 3), p=st.floats(0.1, 0.9))
def test_the_variance_of_a_dot_product_is_exactly_d(d, p):
    """Averages over all outcomes of entries that take two values, with mean 0 and variance 1."""
    values = torch.tensor([-math.sqrt((1 - p) / p), math.sqrt(p / (1 - p))], dtype=torch.float64)
    chances = torch.tensor([p, 1 - p], dtype=torch.float64)
    outcomes = torch.tensor(list(product((0, 1), repeat=2 * d)))
    weight, entries = chances[outcomes].prod(1), values[outcomes]
    s = (entries[:, :d] * entries[:, d:]).sum(1)
    assert (weight * s).sum().item() == pytest.approx(0, abs=1e-12)
    assert (weight * s**2).sum().item() == pytest.approx(d)


@pytest.mark.identity("thm-attention-variance")
def test_the_layer_scales_its_scores_to_unit_variance():
    for d in (2, 32):
        layer = Attention(shared(6), d, 1).double()
        for weight in layer.matrices[:2]:
            weight.data.copy_(torch.eye(d))
        scores = layer.scores(randn(4000, 6, d))[:, 0]
        pairs = scores[:, ~torch.eye(6, dtype=torch.bool)]                            # i ≠ j: independent
        assert pairs.var().item() == pytest.approx(1, rel=0.05)


@pytest.mark.identity("eq-attention-bilinear", "eq-attention-homogeneous")
@given(n=TOKENS, heads=HEADS, d=DIM, t=st.floats(-3, 3))
def test_the_score_is_a_homogeneous_bilinear_form(n, heads, d, t):
    layer, x = layer_of(n, heads, d), randn(1, n, heads * d)
    a = layer.scores(x)[0]                                                            # h n n
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        w_q, w_k = (w[:, part] for w in layer.matrices[:2])
        form = w_q @ w_k.T / math.sqrt(d)
        assert_close(a[h], x[0] @ form @ x[0].T)
    assert_close(layer.scores(t * x)[0], t**2 * a)
    x[0, n // 2] = 0
    assert_close(layer.weights(x)[0, :, n // 2], torch.full((heads, n), 1 / n, dtype=x.dtype))


@pytest.mark.identity("thm-attention-rank")
@given(c=st.integers(2, 6), d=DIM)
def test_rank_and_gauge(c, d):
    d = min(c, d)
    layer = Attention(shared(4), c, 1, head_dim=d).double()
    w_q, w_k, _ = (w.data for w in layer.matrices)
    form = w_q @ w_k.T / math.sqrt(d)
    assert torch.linalg.matrix_rank(form) <= d
    x = randn(1, 4, c)
    before = layer.weights(x)
    turn = torch.linalg.qr(randn(d, d))[0] * (0.5 + torch.rand(d, dtype=torch.float64))
    w_q.copy_(w_q @ turn), w_k.copy_(w_k @ torch.linalg.inv(turn).T)
    assert_close(layer.weights(x), before)
    target = randn(c, d) @ randn(d, c)                                                # any form of rank d
    u, s, vh = torch.linalg.svd(target)
    w_q.copy_(math.sqrt(d) * u[:, :d] * s[:d]), w_k.copy_(vh[:d].T)
    assert_close(layer.scores(x)[0, 0], x[0] @ target @ x[0].T)


@pytest.mark.identity("thm-attention-rank")
@given(c=st.integers(2, 6), d=DIM)
def test_equal_forms_of_full_rank_differ_by_a_gauge(c, d):
    d = min(c, d)
    w_q, w_k = randn(c, d), randn(c, d)
    u, s, vh = torch.linalg.svd(w_q @ w_k.T)                                          # a factorisation found otherwise
    other_q, other_k = u[:, :d] * s[:d], vh[:d].T
    turn = torch.linalg.lstsq(w_q, other_q).solution
    assert_close(w_q @ turn, other_q)
    assert_close(w_k @ torch.linalg.inv(turn).T, other_k)


@pytest.mark.identity("eq-attention-heads")
@given(n=TOKENS, heads=HEADS, d=DIM)
def test_the_layer_is_a_sum_over_heads(n, heads, d):
    layer, x = layer_of(n, heads, d), randn(2, n, heads * d)
    alpha, total = layer.weights(x), layer.output.bias.expand(2, n, -1)
    for m in range(heads):
        part = slice(m * d, (m + 1) * d)
        total = total + alpha[:, m] @ x @ layer.matrices.value[:, part] @ layer.output.weight[:, part].T
    assert_close(layer(x), total)


@pytest.mark.identity("eq-attention-causal")
@given(n=TOKENS, heads=HEADS, d=DIM)
def test_causal_weights(n, heads, d):
    layer, x = layer_of(n, heads, d, causal=True), randn(1, n, heads * d)
    a, alpha = layer.scores(x), layer.weights(x)
    for i in range(n):
        row = a[..., i, : i + 1].exp()
        assert_close(alpha[..., i, : i + 1], row / row.sum(-1, keepdim=True))
        assert (alpha[..., i, i + 1:] == 0).all()
    k = n // 2
    changed = torch.cat([x[:, :k], randn(1, n - k, heads * d)], dim=1)
    assert_close(layer(changed)[:, :k], layer(x)[:, :k])
    assert_close(layer(x[:, : k + 1]), layer(x)[:, : k + 1])                          # a shorter text


@pytest.mark.identity("thm-attention-permutation")
@given(n=st.integers(2, 7), heads=HEADS, d=DIM)
def test_attention_commutes_with_permutations(n, heads, d):
    layer, x, order = layer_of(n, heads, d), randn(2, n, heads * d), torch.randperm(n)
    assert_close(layer(x[:, order]), layer(x)[:, order])
    assert_close(layer(x[:, order]).mean(1), layer(x).mean(1))
    twice = torch.nn.Sequential(layer, torch.nn.LayerNorm(heads * d).double(), torch.nn.GELU(), layer_of(n, heads, d))
    assert_close(twice(x[:, order]), twice(x)[:, order])
    kept = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(n - 1)])   # token 0 stays, as CLS does
    assert_close(twice(x[:, kept])[:, 0], twice(x)[:, 0])


@pytest.mark.identity("thm-attention-permutation")
def test_an_embedding_or_a_mask_breaks_it():
    for options in ({"absolute": True}, {"causal": True}):
        layer, x = layer_of(5, 1, 4, **options), randn(1, 5, 4)
        if "absolute" in options:
            torch.nn.init.normal_(layer.position)
        assert not torch.allclose(layer(x.flip(1)), layer(x).flip(1), atol=1e-3)


@pytest.mark.identity("thm-attention-shift")
@given(data=st.data(), height=st.integers(2, 4), width=st.integers(2, 4), heads=HEADS)
def test_a_shift_on_a_constant_background(data, height, width, heads):
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    corners = [(data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))) for _ in range(2)]
    layer = Attention(offsets((height, width)), 2 * heads, heads).double()
    content, background, outputs = randn(h, w, 2 * heads), randn(2 * heads), []
    for r, c in corners:
        x = background.repeat(height, width, 1)
        x[r: r + h, c: c + w] = content
        y = layer(x.view(1, -1, 2 * heads)).view(height, width, -1)
        outside = torch.ones(height, width, dtype=torch.bool)
        outside[r: r + h, c: c + w] = False
        outputs.append((y[r: r + h, c: c + w], y[outside]))
    assert_close(outputs[0][0], outputs[1][0])
    assert_close(outputs[0][1], outputs[1][1][:1].expand_as(outputs[0][1]))


@pytest.mark.identity("eq-attention-absolute")
@given(n=TOKENS, heads=HEADS, d=DIM)
def test_an_absolute_embedding_adds_three_terms_to_the_score_and_one_to_the_value(n, heads, d):
    layer, x = layer_of(n, heads, d, absolute=True, output=False), randn(1, n, heads * d)
    torch.nn.init.normal_(layer.position)
    a, alpha = layer.scores(x)[0], layer.weights(x)[0]
    v = x[0] @ layer.matrices.value + layer.position @ layer.matrices.value
    assert_close(layer(x)[0].unflatten(1, (heads, d)), torch.einsum("hij,jhd->ihd", alpha, v.unflatten(1, (heads, d))))
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        w_q, w_k = (w[:, part] for w in layer.matrices[:2])
        form = w_q @ w_k.T / math.sqrt(d)
        assert_close(a[h], sum(left @ form @ right.T for left, right in product((x[0], layer.position), repeat=2)))


@pytest.mark.identity("thm-attention-hull")
@given(n=TOKENS, heads=HEADS, d=DIM)
def test_outputs_lie_in_the_hull_of_the_values(n, heads, d):
    c = heads * d
    x, weights = randn(1, n, c), [2 * randn(c, c) for _ in range(3)]
    y = functional.self_attention(x, *weights, heads)[0].view(n, heads, d)
    v = (x[0] @ weights[2]).view(n, heads, d)
    u = torch.cat([torch.eye(d, dtype=x.dtype), randn(20, d)]).T
    assert (y @ u <= (v @ u).amax(0) + 1e-9).all() and (y @ u >= (v @ u).amin(0) - 1e-9).all()
    flat = randn(1, 1, c).expand(1, n, c)
    assert_close(functional.self_attention(flat, *weights, heads), flat @ weights[2])


@pytest.mark.identity("eq-attention-cost")
@given(n=TOKENS, heads=HEADS, d=DIM)
def test_the_cost_is_what_torch_counts(n, heads, d):
    layer, c = layer_of(n, heads, d), heads * d
    x = randn(1, n, c)
    assert cost.count_macs(layer, x) == 4 * n * c**2 + 2 * n**2 * c == cost.layer.of(layer).macs_true()
    assert layer.weights(x).numel() == heads * n**2
