"""as_translution: every layer of the library that is a Translution layer becomes one; every other says why not."""

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.unit.strategies import F64, LINEAR, grids
from translution_lib import (
    MIXERS,
    Attention,
    Convolution,
    LoRTranslution,
    Translution,
    offsets,
    pairs,
    place_cls,
    shared,
)
from translution_lib.mixers import Mixer, Rotary, ScalarBias, Vectors, inclusions
from translution_lib.mixers.bilinear import BilinearAttention
from translution_lib.mixers.convert import NoTranslution, as_translution, factors
from translution_lib.mixers.factors import Factors, plain
from translution_lib.mixers.general import GeneralTranslution
from translution_lib.mixers.rotary_translution import RotaryTranslution
from translution_lib.relations import every_offset

RULES = {
    # name: (layer, its relative weights as Translution, constant channel, growth of the head dimension)
    "self-attention": (Attention, "", False, 0),
    "translution": (Translution, "qkv", False, 0),
    "translution kv": (functools.partial(Translution, relative="kv"), "kv", False, 0),
    "general": (GeneralTranslution, "qkv", False, 0),
    "key vector": (MIXERS["key-vector"], "k", True, 0),
    "value vector": (MIXERS["value-vector"], "v", True, 0),
    "both vectors": (MIXERS["key-value-vector"], "kv", True, 0),
    "shared vectors": (functools.partial(MIXERS["key-value-vector"], per_head=False, clip=1), "kv", True, 0),
    "scalar": (MIXERS["scalar-bias"], "q", True, 1),
    "alibi": (functools.partial(MIXERS["scalar-bias"], bias="alibi"), "q", True, 1),
    "rotary": (MIXERS["rotary"], "q", False, 0),
    "rotary half": (functools.partial(MIXERS["rotary"], layout="half", angles="learned"), "q", False, 0),
    "rotary translution": (RotaryTranslution, "qv", False, 0),
    "lor": (functools.partial(LoRTranslution, relative_dim=(1, 3)), "qkv", False, 3),
    "lor released": (functools.partial(LoRTranslution, relative_dim=2, variant="released"), "qkv", False, 2),
    "lor alone": (functools.partial(LoRTranslution, relative_dim=2, shared=False), "qkv", False, -2),
    "biases": (functools.partial(Attention, qkv_bias=True), "", True, 0),
    "biased key vector": (functools.partial(MIXERS["key-vector"], qkv_bias=True), "k", True, 0),
    "biased rotary": (functools.partial(MIXERS["rotary"], qkv_bias=True), "q", True, 0),
    "biased values": (functools.partial(Translution, relative="v", qkv_bias=True), "v", True, 0),
    "biased lor": (functools.partial(LoRTranslution, relative_dim=2, variant="released", qkv_bias=True), "qkv", True,
                   2),
    "lor none": (functools.partial(LoRTranslution, relative_dim=0, variant="released"), "", False, 0),
}


@st.composite
def tables(draw):
    """Draw a table of offsets in one or two dimensions, with CLS, causal, windowed or clipped."""
    kind = draw(st.sampled_from(["grid", "cls", "causal"]))
    window, clip = (draw(st.none() | st.integers(1, 3)) for _ in range(2))
    if kind == "causal":
        return offsets(draw(st.integers(2, 7)), causal=True, window=window, clip=clip)
    return offsets(draw(grids(max_tokens=8, max_dims=2)), cls=kind == "cls", window=window, clip=clip)


def build(make, rel, heads, head_dim=4, dim=5, **options):
    """Build a layer whose every number is random."""
    layer = make(rel, dim, heads, head_dim=head_dim, **options).to(F64)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    return layer.eval()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=8)
@given(tables(), st.integers(1, 4), st.integers(0, 99))
def test_every_inclusion(name, rel, heads, seed):
    torch.manual_seed(seed)
    make, relative, constant, growth = RULES[name]
    layer, x = build(make, rel, heads), torch.randn(2, rel.n, 5, dtype=F64)
    same = as_translution(layer)
    close(same(x), layer(x))
    close(same.weights(x), layer.weights(x))
    inner = same.translution
    assert type(inner) is Translution and inner.heads == heads
    assert same.constant == constant and inner.dim == 5 + constant and inner.head_dim == 4 + growth
    assert inner.relative == (relative if inner.relations.count > 1 else "")


@given(grids(max_tokens=9, max_dims=2), st.integers(1, 4), st.integers(0, 99))
def test_a_convolution_is_values_alone(shape, size, seed):
    torch.manual_seed(seed)
    layer = Convolution(offsets(shape), 3, kernel_size=size).to(F64)
    x = torch.randn(2, layer.relations.n, 3, dtype=F64)
    same = as_translution(layer)
    close(same(x), layer(x))
    close(same.weights(x), torch.full_like(same.weights(x), 1 / layer.relations.n))
    assert not same.constant and same.translution.relative in ("v", "")


@given(tables(), st.integers(1, 4), st.integers(0, 99))
def test_form_star_is_universal_with_one_more_dimension_than_channels(rel, heads, seed):
    torch.manual_seed(seed)
    layer, x = build(BilinearAttention, rel, heads, head_dim=3), torch.randn(2, rel.n, 5, dtype=F64)
    same = as_translution(layer)
    close(same(x), layer(x))
    assert same.constant and same.translution.head_dim == 6


@pytest.mark.parametrize("table", [pairs(4), shared(4), shared(4, causal=True)])
@pytest.mark.parametrize("make", [Attention, Translution, LoRTranslution, BilinearAttention])
def test_any_table_of_relations_serves(table, make):
    layer, x = build(make, table, 2), torch.randn(2, 4, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


GRIDS = {
    "placed": place_cls(offsets((2, 3), cls=True)),
    "some": place_cls(offsets((2, 3), cls=True)).select([0, 2, 3, 5]),
    "own ids": replace(offsets((2, 2)), index=torch.arange(16).view(4, 4), count=16, labels=tuple(range(16))),
    "own ids, causal": replace(offsets(3, causal=True), labels=tuple(range(5)), count=5,
                               index=torch.tensor([[0, -1, -1], [1, 2, -1], [0, 3, 4]])),
}


def combined(relations, dim, heads, **options):
    return Attention(relations, dim, heads, [Rotary(), ScalarBias(), Vectors()], **options)


@pytest.mark.parametrize("table", GRIDS)
@pytest.mark.parametrize("make", [RotaryTranslution, MIXERS["rotary"], Translution, LoRTranslution])
def test_a_grid_whose_relations_are_no_offsets(table, make):
    """Pairs of one offset may have matrices of their own; what turns with the offset is told apart as well."""
    layer = build(make, GRIDS[table], 2)
    x = torch.randn(2, layer.relations.n, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


@pytest.mark.parametrize("table", ["placed", "some"])
@pytest.mark.parametrize("make", [combined, MIXERS["scalar-bias"], MIXERS["key-value-vector"],
                                  functools.partial(MIXERS["riemann"], metric=None, focus="before")])
def test_parts_read_offsets_where_the_cls_token_has_a_place(table, make):
    layer = build(make, GRIDS[table], 2)
    x = torch.randn(2, layer.relations.n, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


def test_a_table_that_is_not_finer_is_refused():
    heads = plain(build(Translution, pairs(4), 2))
    with pytest.raises(ValueError, match="tell apart what the coarser table does"):
        heads.on(shared(4))


@pytest.mark.parametrize("name", RULES)
def test_shorter_texts(name):
    layer = build(RULES[name][0], offsets(6, causal=True), 2)
    x = torch.randn(1, 4, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


def test_vectors_meet_a_biased_query_that_is_not_turned():
    layer = build(functools.partial(Attention, encodings=[Rotary(), Vectors()], qkv_bias=True), offsets(5), 2)
    x = torch.randn(2, 5, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


def test_t5_buckets():
    layer = build(functools.partial(MIXERS["scalar-bias"], bias="t5", num_buckets=8, max_distance=6), offsets(9), 2)
    x = torch.randn(1, 9, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


def test_a_layer_without_output_map():
    layer = Attention(offsets(3), 4, 2, output=False).to(F64)
    x = torch.randn(1, 3, 4, dtype=F64)
    close(as_translution(layer)(x), layer(x))


def test_the_constant_is_handed_on():
    """[f, 1] -> [f', 1], so that converted layers stack without appending again."""
    first, second = (build(MIXERS["scalar-bias"], offsets(4), 2) for _ in range(2))
    x, (a, b) = torch.randn(1, 4, 5, dtype=F64), (as_translution(layer) for layer in (first, second))
    z = b.translution(a.translution(a.with_constant(x)))
    close(z[..., :5], second(first(x)))
    close(z[..., 5], torch.ones_like(z[..., 5]))


def test_a_conversion_is_a_copy_and_draws_no_random_number():
    layer, x = build(MIXERS["scalar-bias"], offsets(4), 2), torch.randn(1, 4, 5, dtype=F64)
    state = torch.get_rng_state()
    same = as_translution(layer)
    assert torch.equal(state, torch.get_rng_state())
    before = same(x)
    with torch.no_grad():
        layer.matrices.query.zero_()
        layer.output.bias.zero_()
    assert torch.equal(same(x), before) and not same.training
    assert all(p.requires_grad and p.is_leaf for p in same.parameters())


def test_single_precision_stays_single():
    layer = MIXERS["scalar-bias"](offsets(4), 6, 2)
    x = torch.randn(1, 4, 6)
    torch.testing.assert_close(as_translution(layer)(x), layer(x))


OUTSIDE = {
    "absolute": (lambda: MIXERS["self-attention"](offsets(3), 4, 2, absolute=True), "absolute embedding", "absolute"),
    "absolute bias": (lambda: MIXERS["scalar-bias"](offsets(3), 4, 2, absolute=True), "absolute embedding", "absolute"),
    "gated": (lambda: MIXERS["gated-bias"](offsets(3), 4, 2), "one head", "gate"),
    "causal": (lambda: Convolution(offsets(3, causal=True), 4), "sink", "causal"),
    "cls": (lambda: MIXERS["rotary"](offsets(3, cls=True), 4, 2, cls_token="origin"), "place of the other", "absolute"),
    "unknown": (lambda: nn.Linear(2, 2), "no rule", "star"),
    **{name: (functools.partial(MIXERS[name], offsets(4), 4, 2), "not affine", "star") for name in sorted(LINEAR)},
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_outside_names_its_obstruction(name):
    make, message, theorem = OUTSIDE[name]
    with pytest.raises(NoTranslution, match=message) as error:
        as_translution(make())
    assert theorem in error.value.theorem and error.value.theorem in str(error.value)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("name", ["self-attention", "scalar-bias", *sorted(LINEAR)])
def test_the_obstruction_of_random_features(name):
    """In form (★) log α_ij − log α_ij' is affine in the features of the query i ≠ j, j'; with random features not."""
    layer = build(MIXERS[name], offsets(4), 2, head_dim=4, dim=8)
    x, step = torch.randn(1, 4, 8, dtype=F64), torch.zeros(1, 4, 8, dtype=F64)
    step[0, 0] = torch.randn(8, dtype=F64)
    ratios = torch.stack([layer.weights(x + t * step)[0, :, 0, 1:].log().diff(dim=-1) for t in (-1, 0, 1)])
    bend = (ratios[0] - 2 * ratios[1] + ratios[2]).abs().amax(-1)               # per head
    assert (bend > 1e-3).all() if name in LINEAR else (bend < 1e-9).all()


def test_a_subclass_that_computes_something_else_is_refused():
    class Doubled(ScalarBias):
        def bias(self, q, where):
            return 2 * super().bias(q, where)

    class Twice(Translution):
        mix = Mixer.mix

        def scores(self, x):
            return 2 * super().scores(x)

    with pytest.raises(NoTranslution, match="changes bias of ScalarBias"):
        as_translution(Attention(offsets(3), 4, 2, [Doubled()]))
    with pytest.raises(NoTranslution, match="changes scores, mix of Translution"):
        as_translution(Twice(offsets(3), 4, 2))


def test_a_new_encoding_registers_in_three_lines():
    class Tilted(Attention):
        mix = Mixer.mix             # the fast form of attention does not know the new scores

        def scores(self, x):
            return super().scores(x) + 0.5 * torch.arange(x.shape[1], dtype=x.dtype)[None, :] - 0.5 * torch.arange(
                x.shape[1], dtype=x.dtype)[:, None]

    @factors.register(Tilted)
    def _(layer):
        delta = torch.tensor([d for d, in layer.relations.labels], dtype=F64)
        return plain(layer).with_bias(-0.5 * delta[:, None].expand(-1, layer.heads))

    layer, x = build(Tilted, offsets(5), 3), torch.randn(1, 5, 5, dtype=F64)
    close(as_translution(layer)(x), layer(x))


@given(tables(), st.integers(1, 3), st.integers(0, 99))
def test_the_six_tables_are_the_layer(rel, heads, seed):
    """Scores and output from ``star`` alone, for the layers that use all of it between them."""
    torch.manual_seed(seed)
    x = torch.randn(2, rel.n, 5, dtype=F64)
    for make in (MIXERS["key-value-vector"], MIXERS["scalar-bias"], LoRTranslution, BilinearAttention):
        layer = build(make, rel, heads)
        heads_of = factors(layer)
        at = heads_of.relations.index.clamp(min=0)
        A, b, c, d, B, r = (t.expand(heads_of.relations.count, *t.shape[1:])[at] for t in heads_of.star())
        scores = (torch.einsum("bic,ijhce,bje->bhij", x, A, x) + torch.einsum("bic,ijhc->bhij", x, b)
                  + torch.einsum("ijhc,bjc->bhij", c, x) + d.movedim(-1, 0))
        alpha = scores.masked_fill(~rel.mask, -torch.inf).softmax(-1)
        close(alpha, layer.weights(x))
        out = torch.einsum("bhij,bjc,ijhce->bie", alpha, x, B) + torch.einsum("bhij,ijhe->bie", alpha, r)
        close(layer.output(out), layer(x))


@given(tables())
def test_every_offset_tells_clipped_pairs_apart(rel):
    full = every_offset(rel)
    assert torch.equal(full.mask, rel.mask) and full.count >= rel.count
    merged = full.index[rel.mask] * rel.count + rel.index[rel.mask]         # each full id goes with one clipped id
    assert merged.unique().numel() == full.index[rel.mask].unique().numel()


def test_bad_input_of_the_factors():
    with pytest.raises(ValueError, match="relations must have a grid"):
        every_offset(shared(3))
    assert isinstance(factors(build(Attention, shared(3), 1)), Factors)
    assert inclusions.__doc__
