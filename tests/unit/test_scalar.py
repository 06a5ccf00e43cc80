"""Scalar biases: fast form = equations, Swin, T5 and ALiBi of an outside library, torch's kernels, models, errors."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing import assert_close
from transformers import SwinConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.swin.modeling_swin import SwinAttention
from transformers.models.t5.modeling_t5 import T5Attention

from tests.unit.strategies import F64, assert_forms_agree, assert_half_precision_serves, grids
from translution_lib import GPT, MIXERS, ViT, definition, offsets, pairs, shared
from translution_lib.mixers.encodings.scalar import alibi_slopes, t5_buckets
from translution_lib.mixers.positional import per_pair

HEADS = st.integers(1, 4)
MAKERS = ["table", "t5", "alibi"]


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def layer_of(relations, heads=2, head_dim=2, **options):
    """A layer with weights of size one, so that every part of it matters."""
    layer = MIXERS["scalar-bias"](relations, heads * head_dim, heads, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def projected(layer, x):
    return (rearrange(x @ w, "b n (h d) -> b h n d", h=layer.heads) for w in layer.matrices)


@st.composite
def layers(draw):
    """Any maker on any table of offsets that it knows, with every option of a layer."""
    maker = draw(st.sampled_from(MAKERS))
    limits = {name: draw(st.none() | st.integers(0, 3)) for name in ("window", "clip")}
    if draw(st.booleans()):
        relations = offsets(draw(st.integers(1, 9)), causal=True, **limits)
    else:
        shape = draw(st.integers(1, 9)) if maker == "t5" else draw(grids())
        relations = offsets(shape, cls=draw(st.booleans()), **limits)
    options = {"num_buckets": 8, "max_distance": draw(st.integers(5, 20))} if maker == "t5" else {}
    return partial(layer_of, relations, draw(HEADS), draw(st.integers(1, 3)), bias=maker,
                   absolute=draw(st.booleans()), **options)


@given(layers())
def test_the_fast_form_is_the_equation(make):
    layer = make()
    x = randn(2, layer.relations.n, layer.dim).requires_grad_()
    assert_forms_agree(layer, x)
    assert (layer.weights(x)[..., ~layer.relations.mask] == 0).all()


@given(layers())
def test_the_bias_is_added_to_the_scores_of_self_attention(make):
    layer = make()
    x, rel = randn(1, layer.relations.n, layer.dim), layer.relations
    extra = (layer.scores(x) - layer.content(x))[0]
    b = layer.offset_bias()
    m = rel.count - 3 * rel.cls
    assert b.shape == (layer.heads, m)
    for i in range(rel.n):
        for j in range(rel.n):
            r = int(rel.index[i, j])
            assert_close(extra[:, i, j], b[:, r] if 0 <= r < m else torch.zeros_like(b[:, 0]))


@pytest.mark.parametrize("maker", MAKERS)
def test_gradients(maker):
    layer = layer_of(offsets(4, cls=True), bias=maker, num_buckets=4, max_distance=3)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (randn(1, 5, 4).requires_grad_(), *weights))


def test_dropout_drops_the_weights():
    """Torch's fused kernel drops the same share of the weights, scaled, as the equations do."""
    layer = layer_of(offsets((2, 3)), dropout=0.5, output=False)
    x = randn(1, 6, 4)
    alpha = layer.weights(x)
    v = rearrange(x @ layer.matrices.value, "b n (h d) -> b h n d", h=2)
    y = rearrange(layer(x), "b n (h d) -> b h n d", h=2)
    assert not torch.equal(layer(x), layer(x))
    # Every output is Σ_j 2 keep_j α_ij v_j for some keep in {0, 1}^6.
    keep = torch.cartesian_prod(*[torch.tensor([0.0, 2.0], dtype=F64)] * 6)
    for h in range(2):
        for i in range(6):
            assert ((keep * alpha[0, h, i]) @ v[0, h] - y[0, h, i]).abs().amax(1).min() < 1e-12
    assert_close(layer.eval()(x), layer.output(layer.values(alpha, x)))


@given(st.integers(1, 3), HEADS)
def test_swin(side, heads):
    """A window of the Swin transformer, as the transformers library has it: same table, same order of offsets."""
    config = SwinConfig(attention_probs_dropout_prob=0.0, qkv_bias=True, attn_implementation="sdpa")
    oracle = SwinAttention(config, 2 * heads, heads, side).double().eval()
    layer = layer_of(offsets((side, side)), heads, qkv_bias=True)
    with torch.no_grad():
        for theirs, own in zip((oracle.q_proj, oracle.k_proj, oracle.v_proj), (layer.query, layer.key, layer.value),
                               strict=True):
            torch.nn.init.normal_(own.bias)
            theirs.load_state_dict(own.state_dict())
        oracle.o_proj.load_state_dict(layer.output.state_dict())
        oracle.relative_position_bias.relative_position_bias_table.copy_(layer.table.T)
    x = randn(2, side**2, 2 * heads)
    assert_close(layer(x), oracle(x)[0])
    assert_close(per_pair(layer.offset_bias(), layer.relations)[None], oracle.relative_position_bias())


@given(st.sampled_from([8, 16, 32, 40]), st.integers(21, 200), st.booleans())
def test_t5_buckets(num_buckets, max_distance, causal):
    delta = torch.arange(0 if causal else -300, 301)
    expected = T5Attention._relative_position_bucket(-delta, not causal, num_buckets, max_distance)
    buckets = t5_buckets(delta, num_buckets, max_distance, causal)
    assert torch.equal(buckets, expected)
    assert buckets.min() == 0 and buckets.max() == num_buckets - 1


@given(st.integers(1, 20), HEADS, st.booleans())
def test_t5(n, heads, causal):
    """T5's own layer, which does not divide the scores by √d: its queries carry the factor."""
    config = T5Config(d_model=2 * heads, d_kv=2, num_heads=heads, relative_attention_num_buckets=8, dropout_rate=0.0,
                      relative_attention_max_distance=10, is_decoder=causal, attn_implementation="eager")
    oracle = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    layer = layer_of(offsets(n, causal=causal), heads, bias="t5", num_buckets=8, max_distance=10)
    with torch.no_grad():
        w_q, w_k, w_v = layer.matrices
        for linear, weight in ((oracle.q, w_q / math.sqrt(2)), (oracle.k, w_k), (oracle.v, w_v)):
            linear.weight.copy_(weight.T)
        oracle.o.weight.copy_(layer.output.weight)
        oracle.relative_attention_bias.weight.copy_(layer.table.T)
        torch.nn.init.zeros_(layer.output.bias)
    x = randn(2, n, 2 * heads)
    mask = torch.zeros(n, n, dtype=F64).masked_fill(~layer.relations.mask, -math.inf)[None, None]
    assert_close(layer(x), oracle(x, mask=mask)[0], rtol=1e-5, atol=1e-6)  # its softmax rounds to float32


@given(st.integers(1, 9), st.integers(1, 13))
def test_alibi(n, heads):
    """Bloom adds slope · j, which is −slope · (i − j) up to a constant of the row."""
    layer = layer_of(offsets(n, causal=True), heads, bias="alibi")
    alibi = build_alibi_tensor(torch.ones(1, n, dtype=torch.int64), heads, F64)  # h 1 n
    x = randn(1, n, layer.dim)
    a = layer.content(x) + alibi
    assert_close(layer.weights(x), a.masked_fill(~layer.relations.mask, -math.inf).softmax(-1), rtol=1e-6, atol=1e-6)


def test_alibi_slopes_as_the_paper_lists_them():
    assert_close(alibi_slopes(8), torch.tensor([2.0**-k for k in range(1, 9)], dtype=F64))
    assert_close(alibi_slopes(16)[:3], torch.tensor([2**-0.5, 2**-1.0, 2**-1.5], dtype=F64))
    assert_close(alibi_slopes(3), torch.tensor([2**-4.0, 2**-8.0, 2**-2.0], dtype=F64))
    assert not list(MIXERS["scalar-bias"](offsets(3), 4, 2, bias="alibi").state_dict().keys() & {"bias", "distance"})


def test_alibi_on_an_image_falls_with_the_distance():
    rel = offsets((3, 4))
    b = MIXERS["scalar-bias"](rel, 4, 2, bias="alibi").double().offset_bias()
    assert_close(b[:, rel.id_of((2, -3))], -alibi_slopes(2) * math.sqrt(13))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@settings(max_examples=4)
@given(layers())
def test_flex_attention_adds_the_same_bias(make):
    layer = make()
    rel, x = layer.relations, randn(1, layer.relations.n, layer.dim)
    b = torch.cat([layer.offset_bias(), torch.zeros(layer.heads, 3 * rel.cls, dtype=F64)], dim=1).detach()
    blocks = create_block_mask(lambda _b, _h, i, j: rel.mask[i, j], None, None, rel.n, rel.n, device="cpu")
    q, k, v = projected(layer, layer.placed(x))
    mixed = flex_attention(q.detach(), k.detach(), v.detach(), lambda a, _b, h, i, j: a + b[h, rel.index[i, j]],
                           block_mask=blocks)
    assert_close(layer(x), layer.output(rearrange(mixed, "b h n d -> b n (h d)")))


@pytest.mark.parametrize("maker", ["t5", "alibi"])
def test_buckets_and_slopes_serve_a_longer_text(maker):
    """Their parameters do not depend on the length; those of the table do."""
    options = {"bias": maker, "num_buckets": 4, "max_distance": 5}
    short, long = (layer_of(offsets(n, causal=True), **options) for n in (4, 11))
    long.load_state_dict(short.state_dict())
    x = randn(1, 11, 4)
    assert_close(long(x)[:, :4], short(x[:, :4]))
    with pytest.raises(RuntimeError, match="table"):
        layer_of(offsets(11, causal=True)).load_state_dict(layer_of(offsets(4, causal=True)).state_dict())


@pytest.mark.parametrize(("maker", "entries"), [("table", 49), ("alibi", 0)])
def test_parameters_in_a_vision_model(maker, entries):
    """Table 4: 49 numbers per head and layer of ViT-A/56 beside those of self-attention."""
    with torch.device("meta"):
        plain, biased = (ViT.named("A/56", mixer=mixer, absolute=False, **options) for mixer, options in
                         (("self-attention", {}), ("scalar-bias", {"bias": maker})))
    counts = [sum(p.numel() for p in model.parameters()) for model in (plain, biased)]
    assert counts[1] - counts[0] == 6 * 3 * entries
    assert not any(buffer.numel() for buffer in biased.blocks[0].mixer.buffers())


@pytest.mark.parametrize("maker", MAKERS)
def test_a_language_model_reads_shorter_texts(maker):
    model = GPT(11, 8, 4, 2, 2, 8, "scalar-bias", bias=maker, num_buckets=4, max_distance=5).double()
    tokens = torch.randint(11, (2, 8))
    assert_close(model(tokens[:, :5]), model(tokens)[:, :5])
    with definition():
        literal = model(tokens)
    assert_close(model(tokens), literal)


def test_half_precision_and_autocast():
    assert_half_precision_serves(layer_of(offsets((2, 2), cls=True)), randn(1, 5, 4))


T = offsets(4)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: MIXERS["scalar-bias"](T, 4, 2, bias="swin"), "bias must be one of"),
    (lambda: MIXERS["scalar-bias"](shared(4), 4, 2), "relations"),
    (lambda: MIXERS["scalar-bias"](pairs(3), 4, 2), "relations"),
    (lambda: MIXERS["scalar-bias"](offsets((2, 2)), 4, 2, bias="t5"), "relations must have one dimension"),
    (lambda: MIXERS["scalar-bias"](T, 4, 2, bias="t5", num_buckets=6), "num_buckets"),
    (lambda: MIXERS["scalar-bias"](T, 4, 2, bias="t5", num_buckets=0), "num_buckets"),
    (lambda: MIXERS["scalar-bias"](offsets(4, causal=True), 4, 2, bias="t5", num_buckets=7), "num_buckets"),
    (lambda: MIXERS["scalar-bias"](T, 4, 2, bias="t5", max_distance=8), "max_distance"),
    (lambda: MIXERS["scalar-bias"](T, 4, 2, bias="t5", max_distance=20.0), "max_distance"),
    (lambda: MIXERS["scalar-bias"](T, 4, 3), "heads"), (lambda: alibi_slopes(0), "heads"),
    (lambda: MIXERS["scalar-bias"](T, 4, 2)(torch.zeros(1, 5, 4)), "5 tokens"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_without_a_bias_it_is_self_attention():
    layer = layer_of(offsets((2, 3), cls=True))
    with torch.no_grad():
        layer.table.zero_()
    q, k, v = projected(layer, x := randn(2, 7, 4))
    assert_close(layer(x), layer.output(rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")))
