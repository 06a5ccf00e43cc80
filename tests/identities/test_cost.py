"""The identities of the chapter "What it costs", on random sizes, against models that are built and run."""

from math import isclose

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks

from translution_lib import GPT, MIXERS, Attention, Translution, ViT, backend, cost, functional, offsets
from translution_lib.functional.translution import gather_weight

NAMES = ("self-attention", "translution", "lor-translution")
sides = st.tuples(st.integers(1, 3), st.integers(1, 3))
small = st.integers(1, 3)


@pytest.mark.identity("eq-cost-layer")
@given(sides, st.booleans(), small, small, small, small)
def test_parameters_of_a_layer(shape, cls, heads, d, c, r):
    rel, e = offsets(shape, cls=cls), heads * d
    rho = (2 * shape[0] - 1) * (2 * shape[1] - 1) + 3 * cls
    core = heads * r
    expected = 3 * c * e, 3 * rho * c * e, 3 * c * e + 3 * c * core + core * e + 3 * rho * core ** 2
    with torch.device("meta"):
        layers = [MIXERS[name](rel, dim=c, heads=heads, head_dim=d, **({"relative_dim": r} if "lor" in name else {}))
                  for name in NAMES]
    assert expected == tuple(cost.count_parameters(layer) - (e + 1) * c for layer in layers)
    assert expected == tuple(cost.layer.of(layer).weights for layer in layers)


@pytest.mark.identity("eq-cost-model")
@given(st.sampled_from(NAMES), st.booleans(), small, small, small, st.integers(1, 9), st.booleans())
def test_parameters_of_a_model(mixer, text, heads, d, depth, ff, places):
    c, k = heads * d, 7
    with torch.device("meta"):
        common = {"dim": c, "depth": depth, "heads": heads, "ff": ff, "mixer": mixer, "absolute": places}
        model = GPT(k, 5, **common) if text else ViT(6, 2, 3, k, **common)
    block = 4 * c + cost.count_parameters(model.blocks[0].mixer) + 2 * c * ff + ff + c
    p, n = 3 * 2 ** 2, 5 if text else 10
    vit = 2 * p + (p * c + c) + 2 * c + c + 2 * c + (c * k + k)
    assert cost.count_parameters(model) == (2 * k * c + 4 * c if text else vit) + places * n * c + depth * block
    assert cost.parameters(model) == cost.count_parameters(model)


def run(rel, c, heads, d, mixer, **options):
    """Count the literal equations of one layer as torch executes them, dot products written as matrix products."""
    e, n, x = heads * d, rel.n, torch.zeros(1, rel.n, c)
    layer = MIXERS[mixer](rel, dim=c, heads=heads, head_dim=d, **options)
    query, key = torch.zeros(heads, n, n, 1, d), torch.zeros(heads, n, n, d, 1)
    alpha, value = torch.zeros(heads, n, 1, n), torch.zeros(heads, n, n, d)

    class Pairs(torch.nn.Module):
        def forward(self, x):
            for side, w in zip((x[:, :, None, None], x[:, None, :, None], x[:, None, :, None]),
                               layer.matrices, strict=True):
                side @ gather_weight(w, rel)
            query @ key, alpha @ value
            layer.output(torch.zeros(1, n, e))

    return cost.count_macs(Pairs(), x)


@pytest.mark.identity("eq-cost-true", "eq-cost-low-rank")
@given(sides, st.booleans(), small, small, small, small)
def test_true_count(shape, cls, heads, d, c, r):
    rel, e, core = offsets(shape, cls=cls), heads * d, heads * r
    n = rel.n
    sa = 3 * n * c * e + 2 * n * n * e + n * e * c
    tr = 3 * n * n * c * e + 2 * n * n * e + n * e * c
    lor = sa + n * (3 * c * core + core * e) + n * n * (3 * core ** 2 + 2 * core)
    layers = [cost.layer.named(name, rel, c, heads, head_dim=d, **more)
              for name, more in zip(NAMES, ({}, {}, {"relative_dim": r}), strict=True)]
    assert [layer.macs_true() for layer in layers] == [sa, tr, lor]
    assert run(rel, c, heads, d, "translution") == tr
    fast = Attention(rel, dim=c, heads=heads, head_dim=d)
    assert cost.count_macs(fast, torch.zeros(1, n, c)) == sa
    low = MIXERS["lor-translution"](rel, dim=c, heads=heads, head_dim=d, relative_dim=r)
    counted = cost.count_macs(low, torch.zeros(1, n, c))
    products = lor - 2 * n * n * core                                                   # dot products are elementwise
    assert counted == products if heads > 1 else counted <= products                    # one head may need fewer


@pytest.mark.identity("thm-cost-distinct")
@given(sides, st.integers(0, 1000))
def test_the_pairs_need_different_products(shape, seed):
    rel, g = offsets(shape), torch.Generator().manual_seed(seed)
    n = rel.n
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    for token in (i, j):
        assert len(torch.unique(token * rel.count + rel.index)) == n * n
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    w = torch.randn(rel.count, 4, 2, generator=g, dtype=torch.float64)
    vectors = (x[None, :, None] @ gather_weight(w, rel)).view(n * n, 2)
    assert len(torch.unique(vectors, dim=0)) == n * n
    with_cls = offsets(shape, cls=True)
    i, j = torch.meshgrid(torch.arange(n + 1), torch.arange(n + 1), indexing="ij")
    for token in (i, j):
        assert len(torch.unique(token * with_cls.count + with_cls.index)) == (n + 1) ** 2 - (n - 1)


@pytest.mark.identity("thm-cost-order", "eq-cost-ratio")
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 6))
def test_order_and_ratio(side, heads, half):
    """R = heads · r ≤ C / 2 for every r up to half, where a head has 2 · half channels."""
    rel, c = offsets((side, side)), 2 * heads * half
    n = rel.n
    assume(n >= 3)
    sa, tr = (cost.layer.named(name, rel, c, heads) for name in NAMES[:2])
    for r in range(1, half + 1):
        lor = cost.layer.named("lor-translution", rel, c, heads, relative_dim=r)
        assert sa.macs_true() < lor.macs_true() < tr.macs_true()
    assert isclose(tr.macs_true() / sa.macs_true(), (n * (3 * c + 2) + c) / (4 * c + 2 * n), rel_tol=1e-12)


@pytest.mark.identity("eq-cost-printed")
@given(st.sampled_from(NAMES), small, small, small, small, st.integers(1, 9), small)
def test_printed_rule(mixer, grid, heads, d, depth, ff, r):
    c, n, p, k = heads * d, grid ** 2 + 1, 2 * 3 ** 2, 4
    options = {"relative_dim": r} if mixer == "lor-translution" else {}
    with torch.device("meta"):
        model = ViT(3 * grid, 3, 2, k, dim=c, depth=depth, heads=heads, ff=ff, mixer=mixer, **options)
    total = (n - 1) * (5 * p + p * c + 5 * c) + 5 * n * c + c * k
    total += depth * (10 * n * c + 4 * n * c * c + 2 * n * n * c + 2 * n * c * ff)
    core = heads * r if mixer == "lor-translution" else 0
    assert cost.macs_as_printed(model) == total + depth * (4 * n * c * core + 3 * n * core ** 2)


@pytest.mark.identity("eq-cost-gather")
@given(sides, small, small, st.integers(2, 5), st.booleans())
def test_the_gather_keeps_a_matrix_for_every_pair_and_sample(shape, batch, heads, d, cls):
    rel, c = offsets(shape, cls=cls), heads * d + 1
    assume(rel.n > 1)
    n, e, layer = rel.n, heads * d, Translution(rel, dim=c, heads=heads, head_dim=d)
    kept = []

    def see(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    x = torch.randn(batch, n, c, requires_grad=True)
    with saved_tensors_hooks(see, lambda tensor: tensor), backend("definition"):
        layer(x)
    assert kept.count((batch * n * n, c, e)) == 3
    with backend("definition"):
        assert cost.count_saved_bytes(layer, x) == cost.layer.of(layer).saved_bytes(batch, form="gather")
    assert cost.count_saved_bytes(layer, x) == cost.layer.of(layer).saved_bytes(batch)


@pytest.mark.identity("thm-cost-gauge", "eq-cost-gauge")
@given(sides, small, small, st.integers(0, 3), st.integers(0, 1000))
def test_gauge(shape, heads, d, more, seed):
    rel, c, g = offsets(shape, cls=True), d + more, torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=g, dtype=torch.float64)

    x, w_q, w_k, w_v = draw(2, rel.n, c), *(draw(rel.count, c, heads * d) for _ in range(3))
    turn = torch.linalg.qr(draw(rel.count, heads, d, d))[0] * (0.5 + draw(rel.count, heads, 1, d).sigmoid())

    def turned(w, a):
        return torch.einsum("rchd,rhde->rche", w.unflatten(-1, (heads, d)), a).flatten(-2)

    same = functional.translution(x, turned(w_q, turn), turned(w_k, turn.inverse().mT), w_v, rel, heads)
    torch.testing.assert_close(same, functional.translution_definition(x, w_q, w_k, w_v, rel, heads))
    jacobian = torch.autograd.functional.jacobian(lambda q, k: q @ k.mT, (w_q[0, :, :d], w_k[0, :, :d]))
    columns = torch.cat([j.flatten(0, 1).flatten(1) for j in jacobian], dim=1)
    assert int(torch.linalg.matrix_rank(columns, rtol=1e-9)) == d * (2 * c - d)
