"""Relative Performers: fast form = equations, the laws of both strategies, models, half precision, errors.

The statistical test has a fixed seed; a correct layer fails it with probability below 1e-6 (six standard errors).
"""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import (
    F64,
    assert_forms_agree,
    assert_half_precision_serves,
    assert_weights_are_a_mean,
    grids,
)
from translution_lib import GPT, ViT, definition, offsets, pairs, shared
from translution_lib.functional.positional_features import (
    commuting_blocks,
    positional_features,
    shift_rotation,
    through_blocks,
)
from translution_lib.mixers.performer import Performer
from translution_lib.mixers.positional import per_pair
from translution_lib.mixers.relative_performer import PerformerS1, PerformerS2
from translution_lib.models.blocks import make_blocks

SEEDS = st.integers(0, 10**6)


def randn(*shape, seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=F64, generator=generator)


def layer_of(kind, relations, heads=2, head_dim=3, **options):
    return kind(relations, heads * head_dim, heads, **options).double()


@st.composite
def layers(draw, features=("positive", "trigonometric")):
    """Both strategies on a line, a grid or a text, with every option that their sums depend on."""
    relations = draw(st.sampled_from([offsets(draw(st.integers(1, 9)), causal=True), offsets(draw(st.integers(1, 9))),
                                      offsets(draw(grids()), cls=draw(st.booleans()))]))
    features = draw(st.sampled_from(features))
    # Trigonometric sums come near zero, where a ratio has no accuracy; many draws keep them away.
    options = {"features": features, "num_features": draw(st.integers(1, 9)) if features == "positive" else 400}
    if draw(st.booleans()):
        options["length_scales"] = draw(st.integers(1, 3))
        return partial(layer_of, PerformerS1, relations, draw(st.integers(1, 3)), draw(st.integers(1, 4)), **options)
    options |= {"clip": draw(st.integers(1, 5)), "signed": len(relations.shape) == 1 and draw(st.booleans())}
    return partial(layer_of, PerformerS2, relations, 2 * draw(st.integers(1, 2)), draw(st.integers(1, 4)), **options)


@given(layers())
def test_the_fast_form_is_the_equation(make):
    layer = make()
    x = randn(2, layer.relations.n, layer.dim).requires_grad_()
    assert_forms_agree(layer, x)
    assert_weights_are_a_mean(layer, x)


@given(layers())
def test_weights_are_the_kernel_divided_by_its_sums(make):
    layer = make()
    x = randn(1, layer.relations.n, layer.dim)
    kernel = layer.kernel(x).masked_fill(~layer.relations.mask, 0)
    assert_close(layer.weights(x), kernel / kernel.sum(-1, keepdim=True))


@settings(max_examples=6)
@given(layers(features=("positive",)))
def test_the_kernel_estimates_the_exponential_of_the_scores(make):
    layer = make()
    x = randn(1, layer.relations.n, layer.dim) / 4
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(0.5)
    kernels = []
    layer.num_features = 2000
    for _ in range(30):
        layer.redraw()
        kernels.append(layer.kernel(x).detach())
    kernels = torch.stack(kernels)
    error = kernels.std(0) / 30**0.5
    exact = layer.scores(x).exp()
    assert ((kernels.mean(0) - exact).abs() < 6 * error + 1e-9)[..., layer.relations.mask].all()


@given(SEEDS, grids(max_dims=3), st.integers(1, 3), st.integers(1, 3))
def test_strategy_1_adds_a_bias_that_depends_on_the_offset(seed, shape, heads, scales):
    rel = offsets(shape, cls=True)
    layer = layer_of(PerformerS1, rel, heads, length_scales=scales)
    x = randn(1, rel.n, layer.dim, seed=seed)
    delta = torch.tensor(rel.labels[:-3], dtype=F64)                                 # m a
    phase = (delta[..., None] * layer.scales).flatten(1)
    alpha, beta = layer.blocks
    bias = (alpha @ phase.cos().mT + beta @ phase.sin().mT) / layer.head_dim**0.5
    assert_close(layer.scores(x), Performer.scores(without_places(layer), x) + per_pair(bias, rel))


def without_places(layer):
    plain = Performer(layer.relations, layer.dim, layer.heads).double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k not in ("scales", "blocks", "omega")},
                          strict=False)
    return plain


@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_blocks_and_rotations(seed, axes, scales, n):
    omega, tau, p = randn(axes, scales, seed=seed), randn(axes, seed=seed + 1), randn(n, axes, seed=seed + 2)
    alpha, beta = randn(2, 2, axes * scales, seed=seed + 3)
    phi, rot, w = positional_features(p, omega), shift_rotation(tau, omega), commuting_blocks(alpha, beta)
    assert_close(positional_features(p - tau, omega), phi @ rot)
    assert_close(rot @ rot.T, torch.eye(len(rot), dtype=F64))
    assert_close(w @ rot, rot @ w)
    assert_close(through_blocks(phi, alpha[:, None], beta[:, None]), phi @ w)
    # A shift of all positions turns queries and keys of the layer by one matrix, and leaves the scores alone.
    assert_close(torch.einsum("np,hpq,mq->hnm", phi @ rot, w, phi @ rot), torch.einsum("np,hpq,mq->hnm", phi, w, phi))


@given(layers(features=("positive",)), SEEDS)
def test_the_class_token_has_no_place(make, seed):
    """All pairs with CLS have the score of their contents; with distance heads it is zero."""
    layer = make()
    if not layer.relations.cls:
        return
    x = randn(1, layer.relations.n, layer.dim, seed=seed)
    a = layer.scores(x)
    if isinstance(layer, PerformerS1):
        content = Performer.scores(without_places(layer), x)
        assert_close(a[..., 0], content[..., 0])
        assert_close(a[..., 0, :], content[..., 0, :])
    else:
        assert (a[:, layer.heads // 2:, 0] == 0).all() and (a[:, layer.heads // 2:, :, 0] == 0).all()
        v = x @ layer.matrices.value
        mean = v.mean(1).unflatten(-1, (layer.heads, -1))[:, layer.heads // 2:]
        mixed = layer.mix(x)[:, 0].unflatten(-1, (layer.heads, -1))[:, layer.heads // 2:]
        assert_close(mixed, mean)


@settings(max_examples=6)
@given(SEEDS, st.integers(2, 4))
def test_strategy_2_commutes_with_the_symmetries_of_the_square(seed, side):
    torch.manual_seed(seed)
    layer = layer_of(PerformerS2, offsets((side, side)), clip=2)
    grid = randn(1, side, side, layer.dim, seed=seed)
    for quarter in range(4):
        for turned in (grid.rot90(quarter, (1, 2)), grid.rot90(quarter, (1, 2)).flip(2)):
            expected = layer(grid.flatten(1, 2)).view_as(grid).rot90(quarter, (1, 2))
            expected = expected if torch.equal(turned, grid.rot90(quarter, (1, 2))) else expected.flip(2)
            assert_close(layer(turned.flatten(1, 2)).view_as(grid), expected)


def test_the_signed_line_sees_directions():
    """A token at the left and one at the right of a query count differently, unless the sign is dropped."""
    x = randn(1, 9, 4)
    for signed in (True, False):
        layer = layer_of(PerformerS2, offsets(9), 2, 2, clip=3, signed=signed)
        assert torch.allclose(layer(x.flip(1)).flip(1), layer(x)) != signed


@pytest.mark.parametrize("features", ["positive", "trigonometric"])
@pytest.mark.parametrize(("relations", "signed", "unread"), [
    (offsets((2, 3)), False, [4, 5, 6]), (offsets((2, 2), cls=True), False, [3, 4, 5, 6]),
    (offsets(3), True, [0, 1, 2, 3, 9, 10, 11, 12]), (offsets(4, causal=True), False, [4, 5, 6])])
def test_a_distance_that_never_occurs_counts_for_nothing(relations, signed, unread, features):
    """Not even for the stabiliser: its scale is that of the vectors in use, however long the others are."""
    layer = layer_of(PerformerS2, relations, clip=6, signed=signed, features=features)
    x = randn(2, relations.n, layer.dim)
    before, alpha = layer(x), layer.weights(x)
    with torch.no_grad():
        layer.distances[unread] = 1e3
    assert_close(layer(x), before)
    assert_close(layer.weights(x), alpha)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), layer.distances)
    read = gradient.abs().amax(1) > 0
    assert not read[unread].any() and read.sum() == len(read) - len(unread)


@pytest.mark.parametrize("kind", [PerformerS1, PerformerS2])
def test_a_shorter_text_is_a_prefix(kind):
    layer = layer_of(kind, offsets(9, causal=True))
    x = randn(1, 9, 6)
    # The stabiliser is shared by all keys: it may differ, the ratio does not.
    assert_close(layer(x[:, :5]), layer(x)[:, :5])


@pytest.mark.parametrize(("kind", "option"), [(PerformerS1, {"length_scales": 1}), (PerformerS2, {"clip": 2})])
def test_gradients(kind, option):
    layer = layer_of(kind, offsets((2, 2), cls=True), 2, 1, num_features=3, **option)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (randn(1, 5, 2).requires_grad_(), *weights))


@pytest.mark.parametrize("kind", [PerformerS1, PerformerS2])
def test_saving_keeps_the_draw(kind):
    layer, other = (layer_of(kind, offsets((2, 3), cls=True)) for _ in range(2))
    x = randn(1, 7, 6)
    assert not torch.allclose(other(x), layer(x))
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert_close(other(x), layer(x))


@pytest.mark.parametrize("kind", [PerformerS1, PerformerS2])
def test_redrawing_counts_the_forwards_of_a_training(kind):
    layer = layer_of(kind, offsets(4), redraw_interval=2).train()
    x = randn(1, 4, 6)
    draws = []
    for _ in range(4):
        layer(x)
        draws.append(layer.omega)
    same = [torch.equal(a, b) for a, b in zip(draws, draws[1:], strict=False)]
    assert same == [True, False, True] and layer.omega.shape[1] == layer.score_dim


def test_parameters():
    """Strategy 2 has k + 1 vectors more than a Performer and half of its keys less: 4.5 M beside 4.7 M in Table 1."""
    rel = offsets((4, 4), cls=True)
    plain, s1, s2 = (sum(p.numel() for p in kind(rel, 8, 4).parameters()) for kind in (Performer, PerformerS1,
                                                                                       PerformerS2))
    assert s1 - plain == 2 * 4 + 2 * 4 * 2 * 4            # scales, then α and β of every head
    assert s2 - plain == 7 * 2 - 8 * 8 // 2


@pytest.mark.parametrize("name", ["performer-s1", "performer-s2"])
def test_models(name):
    gpt = GPT(11, 8, 4, 2, 2, 8, name).double()
    tokens = torch.randint(11, (2, 8))
    assert_close(gpt(tokens[:, :5]), gpt(tokens)[:, :5])
    vit = ViT(8, 2, 1, 3, 4, 2, 2, 8, name).double()
    images = randn(2, 1, 8, 8)
    with definition():
        literal = vit(images)
    assert_close(vit(images), literal)
    assert make_blocks([name], offsets(3), 4, 2, 8, {"num_features": 5})[0].mixer.num_features == 5


@pytest.mark.parametrize("kind", [PerformerS1, PerformerS2])
def test_half_precision_and_autocast(kind):
    assert_half_precision_serves(layer_of(kind, offsets((2, 2), cls=True)), randn(1, 5, 6))


@pytest.mark.parametrize(("call", "word"), [
    (lambda: PerformerS1(pairs(3), 4, 2), "relations must have a grid"),
    (lambda: PerformerS2(shared(4), 4, 2), "relations must have a grid"),
    (lambda: PerformerS1(offsets(4), 4, 2, length_scales=0), "length_scales"),
    (lambda: PerformerS1(offsets(4), 4, 2, base=-1.0), "base"),
    (lambda: PerformerS2(offsets(4), 9, 3), "heads must be even"),
    (lambda: PerformerS2(offsets(4), 4, 2, clip=0), "clip"),
    (lambda: PerformerS2(offsets((2, 2)), 4, 2, signed=True), "signed"),
    (lambda: PerformerS2(offsets(5, window=2), 4, 2), "relations must allow all pairs"),
    (lambda: PerformerS1(offsets(4), 4, 2)(torch.zeros(1, 5, 4)), "5 tokens"),
    (lambda: positional_features(torch.zeros(3, 2), torch.ones(1, 4)), "positions"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()
