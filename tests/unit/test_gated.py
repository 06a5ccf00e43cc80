"""Gated positional attention: fast form = equations, torch's kernels as oracle, centres, models, errors."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import F64, assert_forms_agree, assert_half_precision_serves, grids
from translution_lib import GPT, MIXERS, ViT, definition, offsets, pairs, shared
from translution_lib.mixers.encodings.gate import position_encoding
from translution_lib.mixers.positional import per_pair

HEADS = st.integers(1, 4)
FORMS = ["printed", "original"]


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def layer_of(relations, heads=2, head_dim=2, **options):
    """A layer with weights of size one, so that every part of it matters."""
    layer = MIXERS["gated-bias"](relations, heads * head_dim, heads, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@st.composite
def layers(draw):
    window, clip = (draw(st.none() | st.integers(0, 3)) for _ in range(2))
    if draw(st.booleans()):
        relations = offsets(draw(st.integers(1, 9)), causal=True, window=window, clip=clip)
    else:
        relations = offsets(draw(grids()), cls=draw(st.booleans()), window=window, clip=clip)
    return partial(layer_of, relations, draw(HEADS), draw(st.integers(1, 3)), form=draw(st.sampled_from(FORMS)),
                    absolute=draw(st.booleans()))


@given(layers())
def test_the_fast_form_is_the_equation(make):
    layer = make()
    x = randn(2, layer.relations.n, layer.dim).requires_grad_()
    assert_forms_agree(layer, x)


@given(layers())
def test_the_weights_are_a_mixture_and_sum_to_one(make):
    layer = make()
    x = randn(1, layer.relations.n, layer.dim)
    xi, alpha = layer.weights(x), layer.content(x).masked_fill(~layer.relations.mask, -math.inf).softmax(-1)
    sigma = torch.sigmoid(layer.gate)[:, None, None]
    assert_close(xi, alpha * (1 - sigma) + layer.position_weights(layer.relations) * sigma)
    assert_close(xi.sum(-1), torch.ones_like(xi[..., 0]))
    assert (xi[..., ~layer.relations.mask] == 0).all()


@given(layers())
def test_two_kernels_of_torch(make):
    """Content by torch's attention, position by torch's attention whose scores q·k are all zero; the gate adds them."""
    layer = make()
    rel, x = layer.relations, randn(2, layer.relations.n, layer.dim)
    q, k, v = (rearrange(layer.placed(x) @ w, "b n (h d) -> b h n d", h=layer.heads)
               for w in layer.matrices)
    bias = torch.cat([layer.offset_scores(), torch.zeros(layer.heads, 3 * rel.cls, dtype=F64)], 1)[:, rel.index]
    content = F.scaled_dot_product_attention(q, k, v, attn_mask=rel.mask)
    position = F.scaled_dot_product_attention(0 * q, 0 * k, v, attn_mask=bias.masked_fill(~rel.mask, -math.inf))
    sigma = torch.sigmoid(layer.gate)[:, None, None]
    mixed = torch.lerp(content, position, sigma.expand_as(content))
    assert_close(layer(x), layer.output(rearrange(mixed, "b h n d -> b n (h d)")))


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    layer = layer_of(offsets((2, 2), cls=True), form=form)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (randn(1, 5, 4).requires_grad_(), *weights))


def test_dropout_drops_the_mixture():
    layer = layer_of(offsets((2, 3)), dropout=0.5)
    x = randn(1, 6, 4)
    torch.manual_seed(3)
    dropped = F.dropout(layer.weights(x), 0.5)
    torch.manual_seed(3)
    assert_close(layer(x), layer.output(layer.values(dropped, x)))
    assert_close(layer.eval()(x), layer.output(layer.values(layer.weights(x), x)))


@given(grids(), st.integers(1, 9), st.floats(0.5, 3.0))
def test_heads_start_around_their_centres(shape, heads, locality):
    """With a sharp locality a head looks at its centre: the score is −locality·‖δ − c‖² up to a constant."""
    relations = offsets(shape)
    layer = MIXERS["gated-bias"](relations, heads, heads, locality=locality).double()
    d = len(shape)
    side = int(heads ** (1 / d) + 1e-9)
    delta = torch.tensor(relations.labels, dtype=F64)
    seen = set()
    for u, b in zip(layer.position_weight[: side**d], layer.offset_scores(), strict=False):
        c = u[1:] / (2 * locality)
        assert_close(u[0], torch.tensor(-locality, dtype=F64), check_dtype=False, rtol=1e-6, atol=1e-6)
        distance = (delta - c).square().sum(1)
        assert_close(b - b[0], -locality * (distance - distance[0]), rtol=1e-5, atol=1e-5)
        seen.add(tuple((c * 2).round().int().tolist()))
    assert len(seen) == side**d and torch.tensor(sorted(seen)).sum() == 0


def test_causal_heads_start_in_the_past():
    layer = MIXERS["gated-bias"](offsets(6, causal=True), 4, 4, locality=20.0).double()
    beta = layer.position_weights(layer.relations)
    assert beta[:, 5].argmax(-1).tolist() == [5, 4, 3, 2]


@given(grids())
def test_the_printed_form_knows_the_distance_alone(shape):
    relations = offsets(shape)
    layer = layer_of(relations, form="printed")
    b = layer.offset_scores()
    assert layer.encoding.sum(1).eq(1).all()
    squares = [sum(v * v for v in delta) for delta in relations.labels]
    assert layer.position_weight.shape[1] == len(set(squares))
    for r, one in enumerate(squares):
        assert torch.equal(b[:, r], b[:, squares.index(one)])


def test_the_encoding_of_the_original():
    relations = offsets((2, 2))
    assert position_encoding(relations, "original")[relations.id_of((1, -1))].tolist() == [2, 1, -1]


@pytest.mark.parametrize("form", FORMS)
def test_models(form):
    text = GPT(11, 8, 4, 2, 2, 8, "gated-bias", form=form).double()
    tokens = torch.randint(11, (2, 8))
    assert_close(text(tokens[:, :5]), text(tokens)[:, :5])
    image = ViT(6, 2, 1, 3, 4, 2, 2, 8, "gated-bias", form=form).double()
    pixels = randn(2, 1, 6, 6)
    with definition():
        literal = image(pixels)
    assert_close(image(pixels), literal)
    assert not list(image.buffers())


def test_a_stack_with_low_rank_translution():
    """Each layer of a hybrid gets its own option, and neither takes the other's."""
    sizes = {"image_size": 6, "patch_size": 3, "channels": 1, "classes": 3, "dim": 4, "depth": 2, "heads": 2, "ff": 8}
    model = ViT(**sizes, mixer=("lor-translution", "gated-bias"), variant="released", form="printed")
    low_rank, gated = (block.mixer for block in model.blocks)
    assert (low_rank.variant, gated.form) == ("released", "printed")
    assert model(torch.randn(1, 1, 6, 6)).shape == (1, 3)


def test_a_pair_with_cls_has_no_position_score():
    layer = layer_of(offsets((2, 2), cls=True))
    b = per_pair(layer.offset_scores(), layer.relations)
    assert (b[:, 0] == 0).all() and (b[:, :, 0] == 0).all() and (b[:, 1:, 1:] != 0).any()


def test_half_precision_and_autocast():
    assert_half_precision_serves(layer_of(offsets((2, 2), cls=True)), randn(1, 5, 4))


T = offsets(4)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: MIXERS["gated-bias"](T, 4, 2, form="swin"), "form must be one of"),
    (lambda: MIXERS["gated-bias"](T, 4, 2, locality=-1), "locality"),
    (lambda: MIXERS["gated-bias"](T, 4, 2, locality=math.nan), "locality"),
    (lambda: MIXERS["gated-bias"](T, 4, 2, locality="1"), "locality"),
    (lambda: MIXERS["gated-bias"](shared(4), 4, 2), "relations"),
    (lambda: MIXERS["gated-bias"](pairs(3), 4, 2), "relations"),
    (lambda: MIXERS["gated-bias"](T, 4, 3), "heads"),
    (lambda: MIXERS["gated-bias"](T, 4, 2)(torch.zeros(1, 5, 4)), "5 tokens"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()
