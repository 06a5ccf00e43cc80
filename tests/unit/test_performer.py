"""The Performer layer: fast form = equations, an outside oracle, redrawing, models, half precision, errors.

The one statistical test has a fixed seed; a correct layer fails it with probability below 1e-6 (Hoeffding).
"""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import (
    F64,
    assert_forms_agree,
    assert_half_precision_serves,
    assert_weights_are_a_mean,
    grids,
)
from translution_lib import GPT, MIXERS, definition, offsets, pairs, shared
from translution_lib.mixers.performer import Performer
from translution_lib.models.blocks import make_blocks, run_blocks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from performer_pytorch import performer_pytorch as package


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def layer_of(relations, heads=2, head_dim=3, **options):
    return Performer(relations, heads * head_dim, heads, **options).double()


@st.composite
def layers(draw):
    """Any maker of features on any table that a sum over keys serves."""
    causal, grid = offsets(draw(st.integers(1, 9)), causal=True), offsets(draw(grids()), cls=draw(st.booleans()))
    relations = [causal, grid, pairs(3), shared(5)][draw(st.integers(0, 3))]
    features = draw(st.sampled_from(["positive", "trigonometric"]))
    # Trigonometric sums come near zero, where a ratio has no accuracy; many draws keep them away.
    m = draw(st.integers(1, 9)) if features == "positive" else 400
    return partial(layer_of, relations, draw(st.integers(1, 3)), draw(st.integers(1, 4)), num_features=m,
                   features=features, draw=draw(st.sampled_from(["orthogonal", "gaussian"])),
                   absolute=draw(st.booleans()))


@given(layers())
def test_the_fast_form_is_the_equation(make):
    layer = make()
    x = randn(2, layer.relations.n, layer.dim).requires_grad_()
    assert_forms_agree(layer, x)
    assert_weights_are_a_mean(layer, x)


@given(layers())
def test_weights_are_the_kernel_divided_by_its_sums(make):
    layer = make()
    x = randn(2, layer.relations.n, layer.dim)
    kernel = layer.kernel(x).masked_fill(~layer.relations.mask, 0)
    assert_close(layer.weights(x), kernel / kernel.sum(-1, keepdim=True))
    q, k = layer.projected(x)
    assert_close(layer.scores(x), q @ k.mT)
    assert_close(layer.scores(x), layer.content(x))


def test_the_kernel_estimates_the_exponential_of_the_scores():
    """Trigonometric estimates divided by their scale are means of m cosines: Hoeffding bounds all 2 · 7² of them."""
    m = 100_000
    layer = layer_of(offsets(7), num_features=m, features="trigonometric", draw="gaussian")
    x = randn(1, 7, 6)
    q, k = layer.projected(x)
    scale = ((q.square().sum(-1)[..., None] + k.square().sum(-1)[:, :, None]) / 2).exp()
    gap = ((layer.kernel(x) - layer.scores(x).exp()) / scale).abs()
    assert gap.max() < math.sqrt(2 * math.log(2 * 98 / 1e-6) / m) < 0.03
    exact = layer.scores(x).softmax(-1)
    assert_close(layer.weights(x), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("causal", [False, True])
def test_an_established_package(monkeypatch, causal):
    """The whole layer of performer-pytorch with its ε set to zero, on the same weights and draws."""
    monkeypatch.setattr(package, "softmax_kernel", partial(package.softmax_kernel, eps=0.0))
    theirs = package.SelfAttention(6, causal=causal, heads=2, dim_head=5, nb_features=11, qkv_bias=True).double()
    if causal:
        theirs.fast_attention.causal_linear_fn = partial(package.causal_linear_attention_noncuda, eps=0.0)
    layer = Performer(offsets(7, causal=causal), 6, 2, head_dim=5, num_features=11, qkv_bias=True).double()
    with torch.no_grad():
        for linear, own in zip((theirs.to_q, theirs.to_k, theirs.to_v), (layer.query, layer.key, layer.value),
                               strict=True):
            own.load_state_dict(linear.state_dict())
        layer.output.weight.copy_(theirs.to_out.weight)
        layer.output.bias.copy_(theirs.to_out.bias if theirs.to_out.bias is not None else torch.zeros(6))
    layer.omega = theirs.fast_attention.projection_matrix.double()
    x = randn(2, 7, 6)
    assert_close(layer(x), theirs(x))


@given(st.integers(2, 80))
def test_the_default_number_of_features_is_that_of_the_package(d):
    layer = Performer(offsets(3), d, 1)
    assert len(layer.omega) == package.FastAttention(d).nb_features == int(d * math.log(d))
    assert len(Performer(offsets(3), 2, 2).omega) == 1


@pytest.mark.parametrize("features", ["positive", "trigonometric"])
def test_gradients(features):
    layer = layer_of(offsets(4, cls=True), head_dim=2, features=features, num_features=50, absolute=True)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (randn(1, 5, 4).requires_grad_(), *weights))


def test_omega_is_redrawn_while_training_and_saved():
    layer = layer_of(offsets(4), redraw_interval=2)
    x, seen = randn(1, 4, 6), []
    for _ in range(5):
        layer(x)
        seen.append(layer.omega)
    same = [torch.equal(a, b) for a, b in zip(seen, seen[1:], strict=False)]
    assert same == [True, False, True, False]
    layer.eval()(x)
    assert torch.equal(layer.omega, seen[-1]) and int(layer.forwards) == 5
    twin = layer_of(offsets(4), redraw_interval=2)
    twin.load_state_dict(layer.state_dict())
    assert_close(twin.eval()(x), layer(x), rtol=0, atol=0)
    for made in (layer, twin, copy.deepcopy(layer)):
        torch.manual_seed(1)
        made.train()(x), made(x)
        assert int(made.forwards) == 7
    assert_close(twin(x), layer(x), rtol=0, atol=0)
    fixed = layer_of(offsets(4))
    first = fixed.omega
    fixed(x), fixed(x)
    assert fixed.omega is first and int(fixed.forwards) == 0


def test_two_forwards_before_a_backward_keep_their_own_draws():
    layer = layer_of(offsets(4), redraw_interval=1)
    x = randn(1, 4, 6).requires_grad_()
    total = layer(x).sum() + layer(x).sum()
    total.backward()
    assert x.grad.isfinite().all()


@pytest.fixture
def registered(monkeypatch):
    for name, make in (("performer", Performer), ("performer-absolute", partial(Performer, absolute=True))):
        monkeypatch.setitem(MIXERS, name, MIXERS.get(name, make))


@pytest.mark.usefixtures("registered")
def test_a_checkpoint_that_runs_a_block_again_draws_nothing():
    blocks = make_blocks(["performer"] * 2, offsets((2, 2), cls=True), 6, 2, 8, {"redraw_interval": 1}).double()
    x = randn(2, 5, 6)
    run_blocks(blocks, x, recompute=True)                            # the first forward keeps the first draws
    run_blocks(blocks, x, recompute=True).square().sum().backward()
    omegas, kept = [block.mixer.omega for block in blocks], [p.grad.clone() for p in blocks.parameters()]
    assert [int(block.mixer.forwards) for block in blocks] == [2, 2]
    blocks.zero_grad()
    run_blocks(blocks.eval(), x, recompute=False).square().sum().backward()
    assert all(block.mixer.omega is omega for block, omega in zip(blocks, omegas, strict=True))
    for before, parameter in zip(kept, blocks.parameters(), strict=True):
        assert_close(before, parameter.grad)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["performer", "performer-absolute"])
def test_a_language_model_reads_shorter_texts(name):
    model = GPT(11, 8, 4, 2, 2, 8, name).double()
    tokens = torch.randint(11, (2, 8))
    for n in (1, 5):
        # The stabiliser of the keys looks at the whole text, but cancels.
        assert_close(model(tokens[:, :n]), model(tokens)[:, :n])
    with definition():
        literal = model(tokens)
    assert_close(model(tokens), literal)


def test_without_positions_tokens_may_change_places():
    layer = layer_of(offsets((2, 4)), num_features=5)
    x, order = randn(2, 8, 6), torch.randperm(8)
    assert_close(layer(x[:, order]), layer(x)[:, order])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("features", ["positive", "trigonometric"])
def test_half_precision(features, causal):
    layer = Performer(offsets(9, causal=causal), 8, 2, features=features, num_features=60)
    assert_half_precision_serves(layer, torch.randn(2, 9, 8))


def test_large_scores_do_not_overflow():
    layer = Performer(offsets(9), 8, 2)
    assert layer(300 * torch.randn(2, 9, 8)).isfinite().all()


def test_meta_device():
    with torch.device("meta"):
        layer = Performer(offsets(5), 8, 2)
        assert layer(torch.empty(1, 5, 8)).shape == (1, 5, 8)
    assert layer.omega.is_meta


@pytest.mark.parametrize(("options", "match"), [
    ({"dropout": 0.1}, "dropout must be 0: the attention weights are never formed, got 0.1"),
    ({"features": "relu"}, r"features must be one of .*, got 'relu'"),
    ({"draw": "sobol"}, r"draw must be one of .*, got 'sobol'"),
    ({"num_features": 0}, "num_features must be an integer ≥ 1, got 0"),
    ({"redraw_interval": -1}, "redraw_interval must be an integer ≥ 1, got -1"),
    ({"relations": offsets(4, window=1)}, "relations must allow all pairs"),
    ({"relations": offsets(5, causal=True, window=2)}, "relations must allow all pairs"),
])
def test_bad_input(options, match):
    with pytest.raises(ValueError, match=match):
        Performer(**{"relations": offsets(4), "dim": 4, "heads": 2, **options})


def test_all_heads_share_the_draws():
    """A head alone, cut out of the layer, gives the same."""
    layer = layer_of(offsets(5), output=False)
    x, single = randn(1, 5, 6), Performer(offsets(5), 6, 1, head_dim=3).double()
    with torch.no_grad():
        for alone, both in zip(single.matrices, layer.matrices, strict=True):
            alone.copy_(both[:, 3:])
    single.omega = layer.omega
    assert_close(single.mix(x), rearrange(layer.mix(x), "b n (h d) -> h b n d", h=2)[1])
