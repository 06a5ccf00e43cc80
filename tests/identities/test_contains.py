"""The statements of the chapter "What Translution contains", on random grids, kernels and inputs."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.strategies import F64, grids
from translution_lib import Translution, offsets
from translution_lib import functional as fn

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
seeds = st.integers(0, 999)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=F64, generator=g)


def torch_convolution(x, kernel, shape):
    """Odd kernels through torch's own layers, zero padding."""
    padding = [k // 2 for k in kernel.shape[:-2]]
    image = x.mT.reshape(x.shape[0], x.shape[2], *shape)
    return CONV[len(shape)](image, torch.einsum("...ce->ec...", kernel), padding=padding).flatten(2).mT


@pytest.mark.identity("eq-contains-weights", "thm-contains-convolution")
@given(grids(), st.data())
def test_convolution_is_contained(shape, data):
    g, heads, cls = rng(data.draw(seeds)), data.draw(st.integers(1, 2)), data.draw(st.booleans())
    size = [data.draw(st.sampled_from([1, 3, 5])) for _ in shape]
    rel, kernel = offsets(shape, cls=cls), normal(g, *size, 2, 2 * heads)
    x = normal(g, 2, rel.n, 2)
    zero = torch.zeros(2, heads, dtype=F64)
    w_v = rel.n * fn.relation_kernel(kernel, rel)
    y = fn.translution(x, zero, zero, w_v, rel, heads)
    torch.testing.assert_close(y[:, int(cls):], torch_convolution(x[:, int(cls):], kernel, shape))
    for delta, w in zip(rel.labels, w_v, strict=True):
        if isinstance(delta, tuple):
            index = tuple(k // 2 - v for k, v in zip(size, delta, strict=True))
            on = all(0 <= i < k for i, k in zip(index, size, strict=True))
            torch.testing.assert_close(w, rel.n * kernel[index] if on else torch.zeros_like(w))
        else:
            assert not w.any()


@pytest.mark.identity("eq-contains-sign")
@given(grids(max_dims=2), seeds)
def test_the_sign_of_the_display_reflects_the_kernel(shape, seed):
    g, rel = rng(seed), offsets(shape)
    kernel = normal(g, *(3 for _ in shape), 2, 2)
    axes = tuple(range(len(shape)))
    w_v = torch.zeros(rel.count, 2, 2, dtype=F64)
    for index, tap in fn.taps(kernel.shape[:-2]):
        if tap in rel.labels:
            w_v[rel.id_of(tap)] = rel.n * kernel[index]                 # W_δ = N K_δ, as the display reads
    x, zero = normal(g, 1, rel.n, 2), torch.zeros(2, 1, dtype=F64)
    y = fn.translution(x, zero, zero, w_v, rel)
    torch.testing.assert_close(y, torch_convolution(x, kernel.flip(axes), shape))


@pytest.mark.identity("thm-contains-attention")
@given(grids(), st.booleans(), st.integers(1, 3), seeds)
def test_tied_weights_are_torch_attention(shape, cls, heads, seed):
    g, rel = rng(seed), offsets(shape, cls=cls)
    x, w = normal(g, 2, rel.n, 3), [normal(g, 3, 2 * heads) for _ in range(3)]
    q, k, v = ((x @ m).unflatten(-1, (heads, 2)).transpose(1, 2) for m in w)
    oracle = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(fn.translution(x, *(m.expand(rel.count, -1, -1) for m in w), rel, heads), oracle)


@pytest.mark.identity("thm-contains-concentrated")
@given(grids(max_dims=2), st.floats(0, 20), seeds)
def test_concentrated_attention_has_a_gain(shape, sharpness, seed):
    g, rel = rng(seed), offsets(shape)
    kernel = normal(g, *(3 for _ in shape), 2, 2)
    taps = 3 ** len(shape)
    near = torch.tensor([max(map(abs, d)) <= 1 for d in rel.labels])
    alpha = torch.where(near, 0.0, -sharpness).to(F64)[rel.index].softmax(-1).expand(1, 1, -1, -1)
    x = normal(g, 1, rel.n, 2)
    y = fn.translution_values(alpha, x, taps * fn.relation_kernel(kernel, rel), rel)
    met = near[rel.index].sum(1).to(F64)
    gain = taps / (met + (rel.n - met) * math.exp(-sharpness))
    torch.testing.assert_close(y, gain[:, None] * torch_convolution(x, kernel, shape))
    window, zero = offsets(shape, window=1), torch.zeros(2, 1, dtype=F64)                # the limit, by a mask
    hard = fn.translution(x, zero, zero, taps * fn.relation_kernel(kernel, window), window)
    torch.testing.assert_close(hard, (taps / met)[:, None] * torch_convolution(x, kernel, shape))
    order = met.argsort()
    if sharpness > 1e-6:
        assert ((met[order].diff() > 0) <= (gain[order].diff() < 0)).all()


@pytest.mark.identity("thm-contains-scores")
@given(grids(), st.integers(1, 3), seeds)
def test_scores_of_the_offset_with_a_constant_and_without(shape, d, seed):
    g, rel = rng(seed), offsets(shape)
    b, x = normal(g, rel.count), normal(g, 2, rel.n, 4)
    x[..., 2] = 1.0
    w_q, w_k = (torch.zeros(rel.count, 4, d, dtype=F64) for _ in range(2))
    w_q[:, 2, 0], w_k[:, 2, 0] = math.sqrt(d) * b, 1.0
    scores = fn.translution_scores(x, w_q, w_k, rel)
    torch.testing.assert_close(scores, b[rel.index].expand_as(scores))
    zero = fn.translution_scores(torch.zeros_like(x), normal(g, rel.count, 4, d), normal(g, rel.count, 4, d), rel)
    assert not zero.any()
    w_q, w_k = normal(g, rel.count, 4, d), normal(g, rel.count, 4, d)
    flipped = x.clone()                                                 # (c): a key's sign turns its score, not a_ii
    flipped[:, 0] *= -1
    before, after = (fn.translution_scores(t, w_q, w_k, rel)[:, 0] for t in (x, flipped))
    torch.testing.assert_close(after[:, 1:, 0], -before[:, 1:, 0])
    torch.testing.assert_close(after[:, 0, 0], before[:, 0, 0])
    start = F.layer_norm(normal(g, 2, rel.n, 4), (4,), eps=0.0)         # no constant, and yet b_0 differs
    itself = torch.zeros(rel.count, 4, 4, dtype=F64)
    itself[rel.index[0, 0]] = torch.eye(4)
    scores = fn.translution_scores(start, itself, itself, rel)
    torch.testing.assert_close(scores, 2 * torch.eye(rel.n, dtype=F64).expand_as(scores))


@pytest.mark.identity("thm-contains-constant")
@given(st.integers(2, 9), seeds)
def test_an_affine_layer_norm_hides_a_constant(channels, seed):
    g = rng(seed)
    gamma, beta = normal(g, channels).exp(), normal(g, channels)
    kappa = (beta / gamma).sum()
    assume(abs(float(kappa)) > 0.1)
    f = F.layer_norm(normal(g, 5, channels), (channels,), gamma, beta)
    torch.testing.assert_close(f @ (1 / (kappa * gamma)), torch.ones(5, dtype=F64))


@pytest.mark.identity("thm-contains-causal")
@given(st.integers(1, 9), st.integers(1, 4), seeds)
def test_a_sink_makes_the_causal_convolution_exact(n, size, seed):
    g, rel = rng(seed), offsets(n + 1, causal=True)
    lag, words = normal(g, size, 2, 3), normal(g, 2, n, 2)
    z = torch.zeros(2, n + 1, 4, dtype=F64)
    z[:, 1:, :2], z[:, 1:, 2], z[:, 0, 3] = words, 1.0, 1.0
    w_q, w_k = (torch.zeros(n + 1, 4, 1, dtype=F64) for _ in range(2))
    w_q[:, 2, 0], w_k[:, 3, 0] = torch.log(n + 1 - torch.arange(n + 1, dtype=F64)), 1.0
    w_v = torch.zeros(n + 1, 4, 3, dtype=F64)
    w_v[:size, :2] = (n + 1) * lag[: n + 1]
    past = F.conv1d(F.pad(words.mT, (size - 1, 0)), lag.flip(0).permute(2, 1, 0)).mT
    torch.testing.assert_close(fn.translution(z, w_q, w_k, w_v, rel)[:, 1:], past)
    front = offsets(n + size - 1, causal=True, window=size - 1)                          # or a window and zeros
    zero = torch.zeros(2, 1, dtype=F64)
    windowed = fn.translution(F.pad(words, (0, 0, size - 1, 0)), zero, zero, size * lag[: front.count], front)
    torch.testing.assert_close(windowed[:, size - 1:], past)


@given(grids(max_dims=2), st.booleans(), seeds)
def test_dropped_tokens_scale_the_convolution_up(shape, held, seed):
    """A mask leaves N/N′ of the sum over the kept neighbours; zero features leave the convolution with holes."""
    g, rel = rng(seed), offsets(shape)
    kernel, x = normal(g, *(3 for _ in shape), 2, 2), normal(g, 1, rel.n, 2)
    kept = torch.rand(rel.n, generator=g) < 0.5
    assume(kept.any())
    layer = Translution(rel, 2, 1, relative="v", output=False).double().requires_grad_(False)
    layer.query.weight.zero_()
    layer.value.copy_(rel.n * fn.relation_kernel(kernel, rel))
    holes = x * kept[:, None]
    y = layer(holes) if held else layer(x, mask=kept[None])
    gain = 1 if held else rel.n / int(kept.sum())
    torch.testing.assert_close(y[:, kept], gain * torch_convolution(holes, kernel, shape)[:, kept])


@pytest.mark.identity("thm-contains-strict")
@given(grids(), st.integers(1, 3), st.floats(0.2, 1.5), seeds)
def test_value_only_translution_is_more_than_both(shape, heads, t, seed):
    """Two tokens answer each other differently (not attention), and scaling is not linear (not convolution)."""
    g, rel = rng(seed), offsets(shape)
    assume(rel.n >= 2)
    i, j = 0, rel.n - 1
    one, w_v = torch.ones(1, 1, dtype=F64), normal(g, rel.count, 1, 1)
    w_v[rel.index[i, i]] = 1.0
    lit = torch.eye(rel.n, dtype=F64)[[i, j], :, None]                                  # one image per lit token
    answers = fn.translution(lit, one, one, w_v, rel)[..., 0]
    crossing = torch.stack([answers[1, i], answers[0, j]])
    torch.testing.assert_close(crossing, w_v[rel.index[[i, j], [j, i]]].flatten() / rel.n)
    assert abs(float(crossing[0] - crossing[1])) > 0
    weights = (normal(g, 2, 2 * heads) for _ in range(3))
    plain = fn.self_attention(lit * normal(g, 2), *weights, heads=heads)
    torch.testing.assert_close(plain[1, i], plain[0, j])                                # the same both ways
    grown = fn.translution(t * lit[:1], one, one, w_v, rel)[0, i, 0]
    torch.testing.assert_close(float(grown), t * math.exp(t * t) / (math.exp(t * t) + rel.n - 1))


@given(st.integers(2, 8), st.booleans(), seeds)
def test_scores_of_the_offset_contain_a_convolution_exactly_when_they_are_periodic(n, periodic, seed):
    g, rel = rng(seed), offsets(n)
    b = normal(g, n)[[delta % n for (delta,) in rel.labels]] if periodic else normal(g, rel.count)
    total = b[rel.index].exp().sum(1)                                                   # Z_i
    kernel, x = normal(g, 3, 2, 2), normal(g, 1, n, 2)
    values = fn.relation_kernel(kernel, rel) * (total[0] / b.exp())[:, None, None]
    y = fn.translution_values(b[rel.index].softmax(-1).expand(1, 1, n, n), x, values, rel)
    error = (y - torch_convolution(x, kernel, (n,))).abs().max()
    assert error < 1e-9 if periodic else error > 1e-9


@given(grids(), st.integers(1, 4), seeds)
def test_shared_values_answer_a_constant_picture_alike(shape, heads, seed):
    g, rel = rng(seed), offsets(shape)
    alpha = (5 * normal(g, 1, heads, rel.n, rel.n)).softmax(-1)  # any scores
    flat = normal(g, 1, 1, 3).expand(1, rel.n, 3)
    shared = normal(g, 3, 2 * heads).expand(rel.count, -1, -1)
    y = fn.translution_values(alpha, flat, shared, rel)
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
    # a kernel whose missing taps do not cancel: ones on three taps an axis
    blur = fn.convolution(torch.ones(1, rel.n, 1, dtype=F64), torch.ones(*[3 for _ in shape], 1, 1, dtype=F64), shape)
    met = (rel.positions[:, None] - rel.positions).abs().amax(-1).le(1).sum(1)
    torch.testing.assert_close(blur[0, :, 0], met.double())
    assert (met.min() < met.max()) == any(side > 2 for side in shape)
