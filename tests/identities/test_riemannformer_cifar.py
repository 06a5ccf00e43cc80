"""The statements of the chapter "RiemannFormer on CIFAR", on random grids, sizes and weights."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from translution_lib import MIXERS, ViT, cost, offsets
from translution_lib.functional.rotary import frequencies, rotate
from translution_lib.functional.transport import log_attenuation, rotation_block
from translution_lib.models.embedding import sinusoids

pytestmark = pytest.mark.usefixtures("double")
seeds, FEW = st.integers(0, 999), settings(max_examples=8, deadline=None)
ALONE = {"transport": "none", "metric": None, "focus": "after"}


def vit(mixer: str, side: int, seed: int = 0, depth: int = 2, **options) -> ViT:
    """Return a ViT over side × side patches of 2 × 2 pixels, read by the mean, its small parameters moved."""
    torch.manual_seed(seed)
    model = ViT(2 * side, 2, 1, 3, 8, depth, 2, 8, mixer, pool="mean", **options)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("scale", "log_sigma", "table")):
                p += 0.3 * torch.randn_like(p)
    return model


def rearranged(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Place k receives the patch of place order[k]."""
    side = math.isqrt(len(order))
    tiles = images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(2, 3)[:, :, order].unflatten(2, (side, side))
    return tiles.permute(0, 1, 2, 4, 3, 5).reshape_as(images)


@pytest.mark.identity("eq-cifar-general")
@settings(max_examples=6, deadline=None)
@given(st.integers(2, 3), seeds, st.booleans(), st.sampled_from([None, "scalar"]), st.sampled_from([None, "after"]))
def test_one_equation_for_all_rows(side, seed, turns, metric, focus):
    """Pair by pair, plane by plane, with a rotation matrix for each."""
    torch.manual_seed(seed)
    grid = offsets((side, side))
    layer = MIXERS["riemann"](grid, 8, 1, transport="rotation" if turns else "none", metric=metric, focus=focus,
                              output=False)
    with torch.no_grad():
        for p in (layer.scale, layer.log_sigma):
            if p is not None:
                p += 0.5 * torch.randn_like(p)
    x, places, theta = torch.randn(1, grid.n, 8), grid.positions.double() + 1, frequencies(8, 2)
    q, k, v = (x[0] @ w for w in layer.matrices)
    s = layer.learnt()["s"][0] if metric else torch.ones(2)
    a, window = torch.zeros(grid.n, grid.n), torch.ones(grid.n, grid.n)
    for m in range(grid.n):
        for n in range(grid.n):
            delta = places[m] - places[n]
            for pair in range(4):
                axis = pair // 2
                angle = turns * delta[axis] * theta[axis, pair]
                u, w = (t[2 * pair : 2 * pair + 2] for t in (q[m], k[n]))
                a[m, n] += s[axis] ** ((places[m, axis] + places[n, axis]) / 2) * (u @ rotation_block(angle) @ w)
            if focus:
                window[m, n] = torch.exp(-delta.square().sum() / (2 * layer.learnt()["sigma"][0] ** 2))
    assert_close(layer(x)[0], (window * (a / math.sqrt(8)).softmax(1)) @ v)


@pytest.mark.identity("eq-cifar-general")
@given(st.integers(2, 3), st.integers(0, 24), seeds)
def test_a_bias_belongs_to_the_place_of_the_query_minus_that_of_the_key(side, entry, seed):
    torch.manual_seed(seed)
    grid = offsets((side, side))
    layer, x = MIXERS["scalar-bias"](grid, 8, 1, output=False), torch.randn(1, grid.n, 8)
    labels = torch.tensor(grid.labels)
    with torch.no_grad():
        layer.table.zero_()[0, entry % len(labels)] = 2.0
    q, k, v = (x[0] @ w for w in layer.matrices)
    there = (grid.positions[:, None] - grid.positions == labels[entry % len(labels)]).all(-1)
    assert_close(layer(x)[0], (q @ k.T / math.sqrt(8) + 2 * there).softmax(1) @ v)


@pytest.mark.identity("eq-cifar-sinusoid")
@given(st.integers(1, 5), st.integers(1, 5), st.integers(2, 6), st.floats(-3, 3))
def test_products_of_sinusoids_know_the_offset(height, width, pairs, shift):
    p = offsets((height, width)).positions.double()
    theta = frequencies(2 * pairs, 2)
    e, delta = sinusoids(p, 2 * pairs), p[:, None] - p
    assert_close(e @ e.T, (delta @ theta).cos().sum(-1))
    assert_close(sinusoids(p + shift, 2 * pairs) @ sinusoids(p + shift, 2 * pairs).T, e @ e.T)
    assert_close(rotate(e, torch.full_like(p, -shift), theta), sinusoids(p + shift, 2 * pairs))


@pytest.mark.identity("eq-cifar-parameters")
@settings(max_examples=5, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_numbers_beside_the_matrices(side, heads, quarter, depth):
    dim = heads * 4 * quarter

    def count(mixer, **options):
        with torch.device("meta"):
            model = ViT(2 * side, 2, 1, 3, dim, depth, heads, dim, mixer, pool="mean", **options)
        found = sum(p.numel() for p in model.parameters())
        assert cost.parameters(model) == found
        return found

    plain, table = count("self-attention"), (2 * side - 1) ** 2
    assert count("rotary") == plain == count("absolute", embedding="sinusoidal")
    for mixer, options, more in (("riemann", ALONE, heads), ("riemann", {}, 2 * heads),
                                 ("riemann", {"focus": "after"}, 3 * heads), ("scalar-bias", {}, heads * table),
                                 ("translution", {}, 3 * (table - 1) * dim ** 2)):
        assert count(mixer, **options) - plain == depth * more


@pytest.mark.identity("thm-cifar-symmetry")
@settings(max_examples=4, deadline=None)
@given(st.integers(2, 4), seeds)
def test_what_no_position_and_a_window_see(side, seed):
    images, ids = torch.rand(2, 1, 2 * side, 2 * side), torch.arange(side ** 2).view(side, side)
    models = {name: vit(name, side, seed, **options) for name, options in (
        ("self-attention", {}), ("riemann", ALONE), ("scalar-bias", {}))}

    def same(name, order):
        return torch.allclose(models[name](rearranged(images, order)), models[name](images), atol=1e-9)

    symmetries = [torch.rot90(grid, k).flatten() for grid in (ids, ids.flip(1)) for k in range(4)]
    assert len({tuple(order.tolist()) for order in symmetries}) == 8
    assert all(same(name, order) for name in ("self-attention", "riemann") for order in symmetries)
    assert not any(same("scalar-bias", order) for order in symmetries[1:])
    other = torch.arange(side ** 2)
    other[[0, 1]] = other[[1, 0]]
    assert same("self-attention", other) and not same("riemann", other)


@pytest.mark.identity("thm-cifar-symmetry")
def test_a_window_has_eight_symmetries():
    p = offsets((2, 2)).positions.double()
    window = log_attenuation(p[:, None] - p, torch.tensor(1.3)).exp()
    kept = [o for o in permutations(range(4)) if torch.equal(window[list(o)][:, list(o)], window)]
    assert len(kept) == 8


@pytest.mark.identity("thm-cifar-temperature")
@FEW
@given(st.integers(2, 5), seeds)
def test_a_temperature_without_place_is_rotary_attention(side, seed):
    torch.manual_seed(seed)
    grid, x = offsets((side, side)), torch.randn(2, side ** 2, 16)
    warm, rope, free = (make(grid, 16, 2) for make in (
        lambda *a: MIXERS["riemann"](*a, schedule="constant"), MIXERS["rotary"],
        lambda *a: MIXERS["riemann"](*a, alpha=None)))
    with torch.no_grad():
        warm.scale += torch.randn_like(warm.scale)
        state = {name: t.clone() for name, t in warm.state_dict().items() if "scale" not in name}
        state["query.weight"] *= (warm.learnt()["s"] ** ((side + 1) / 2)).repeat_interleave(4, 1).view(-1, 1)
        free.load_state_dict({**state, "encodings.0.scale": torch.zeros(2, 2)})
        sign = torch.tensor([1.0, -1]).repeat(8)[:, None]
        rope.load_state_dict(state | {f"{name}.weight": state[f"{name}.weight"] * sign for name in ("query", "key")})
    assert_close(warm(x), rope(x))
    assert_close(free(x), rope(x))


@pytest.mark.identity("eq-cifar-factor")
@given(st.integers(1, 12), st.floats(0.2, 1.5))
def test_the_mean_factor(side, s):
    m = torch.arange(1.0, side + 1)
    pairs = torch.stack([s ** ((a + b) / 2) for a in m for b in m])
    assert_close(pairs.mean(), (s ** (m / 2)).mean() ** 2)


@pytest.mark.identity("thm-cifar-reflection")
@pytest.mark.parametrize("method", [torch.optim.AdamW, torch.optim.SGD])
def test_reflections_train_as_rotations_by_twice_the_angle(method):
    images, labels = torch.rand(12, 1, 6, 6), torch.arange(12) % 3
    models = [vit("riemann", 3, transport=kind) for kind in ("reflection", "rotation")]
    for block in models[1].blocks:
        block.mixer.encodings[0]._fixed *= 2
    for model in models:
        step = method(model.parameters(), lr=1e-2)
        for part in range(4):
            step.zero_grad()
            cross_entropy(model(images[3 * part :][:3]), labels[3 * part :][:3]).backward()
            step.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(models[0].head.weight, vit("riemann", 3).head.weight)


@pytest.mark.identity("thm-cifar-window")
@FEW
@given(st.integers(2, 4), seeds)
def test_a_window_learns_along_a_curve(side, seed):
    images, labels = torch.rand(3, 1, 2 * side, 2 * side), torch.arange(3)
    bell = vit("riemann", side, seed, **{**ALONE, "focus": "before"})
    free = vit("scalar-bias", side)
    free.load_state_dict(bell.state_dict(), strict=False)
    squares = torch.tensor(offsets((side, side)).labels).double().square().sum(-1)
    with torch.no_grad():
        for one, other in zip(bell.blocks, free.blocks, strict=True):
            other.mixer.table.copy_(-squares / (2 * one.mixer.log_sigma.exp()[:, None] ** 2))
    assert_close(bell(images), free(images))
    for model in (bell, free):
        cross_entropy(model(images), labels).backward()
    for one, other in zip(bell.blocks, free.blocks, strict=True):
        along = other.mixer.table.grad @ squares / one.mixer.log_sigma.exp() ** 2
        assert_close(one.mixer.log_sigma.grad, along, rtol=1e-6, atol=1e-10)


def test_the_rows_of_the_table_are_mixers():
    assert {"self-attention", "absolute", "rotary", "riemann", "scalar-bias", "lor-translution",
            "translution"} <= set(MIXERS)
