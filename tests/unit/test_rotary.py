"""Rotations and the rotary layer: fast form = equations, outside oracles, layouts, CLS, shorter texts, errors."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch.testing import assert_close
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.unit.strategies import F64, assert_forms_agree
from translution_lib import MIXERS, Attention, offsets, pairs, shared
from translution_lib.functional import rotary

OPTIONS = [{}, {"angles": "learned"}, {"layout": "half"}, {"cls_token": "origin"}, {"base": 50.0, "output": False},
           {"angles": "learned", "cls_token": "origin", "layout": "half"}, {"absolute": True}, {"head_dim": 8}]


@st.composite
def grid_tables(draw):
    """Any table with a grid: one to three axes, CLS, causal, windows."""
    window = draw(st.none() | st.integers(1, 3))
    if draw(st.booleans()):
        return offsets(draw(st.integers(1, 9)), causal=True, window=window)
    sides = draw(st.sampled_from([(1,), (5,), (2, 3), (3, 3), (1, 4), (2, 1, 3), (2, 2, 2)]))
    return offsets(sides, cls=draw(st.booleans()), window=window)


def build(relations=None, dim=12, heads=2, **options):
    return MIXERS["rotary"](relations or offsets((2, 3), cls=True), dim, heads, **options).to(F64)


def perturb(layer):
    """Move learned angles away from the axial start."""
    if layer.theta is not None:
        with torch.no_grad():
            layer.theta += torch.randn_like(layer.theta)
    return layer


@given(grid_tables(), st.sampled_from(OPTIONS), st.integers(1, 2))
def test_forward_equals_the_equations(relations, options, batch):
    layer = perturb(build(relations, **options))
    x = torch.randn(batch, relations.n, 12, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)


# Outside oracles


@given(st.integers(1, 3), st.integers(1, 8), st.integers(2, 5), st.sampled_from([10000.0, 100.0]))
def test_one_dimension_is_rotary_embedding_torch(heads, n, half, base):
    d = 2 * half
    theta = base ** (-torch.arange(0, d, 2, dtype=F64) / d)
    oracle = RotaryEmbedding(dim=d, custom_freqs=theta, cache_if_possible=False).to(F64)
    x = torch.randn(2, heads, n, d, dtype=F64)
    expected = oracle.rotate_queries_or_keys(x)
    positions = torch.arange(n)[:, None]
    assert_close(rotary.rotate(x, positions, rotary.frequencies(d, base=base)), expected)
    order = rotary.half_order(d)
    in_halves = rotary.rotate(x[..., order], positions, rotary.frequencies(d, base=base), "half")
    assert_close(in_halves, expected[..., order])


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 5))
def test_halves_are_the_rotation_of_llama_in_transformers(heads, n, half):
    angles, positions = rotary.frequencies(2 * half), torch.arange(n)[:, None]
    phase = (positions * angles).repeat(1, 2)[None]
    q, k = torch.randn(2, 2, heads, n, 2 * half, dtype=F64)
    expected = apply_rotary_pos_emb(q, k, phase.cos(), phase.sin())
    for x, y in zip((q, k), expected, strict=True):
        assert_close(rotary.rotate(x, positions, angles, "half"), y)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 3))
def test_two_axes_are_rotary_embedding_torch(rows, columns, quarter):
    d = 4 * quarter
    theta = 10000.0 ** (-torch.arange(quarter, dtype=F64) / quarter)
    oracle = RotaryEmbedding(dim=d // 2, custom_freqs=theta, cache_if_possible=False).to(F64)
    x = torch.randn(2, 3, rows, columns, d, dtype=F64)
    expected = apply_rotary_emb(oracle.get_axial_freqs(rows, columns), x).flatten(2, 3)
    relations = offsets((rows, columns))
    assert_close(rotary.rotate(x.flatten(2, 3), relations.positions, rotary.frequencies(d, 2)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_the_layer_is_the_oracle_and_torch_attention(causal):
    layer = build(offsets(7, causal=causal))
    oracle = RotaryEmbedding(dim=6, custom_freqs=10000.0 ** (-torch.arange(3, dtype=F64) / 3)).to(F64)
    x = torch.randn(2, 7, 12, dtype=F64)
    q, k, v = ((x @ w).unflatten(-1, (2, 6)).transpose(1, 2) for w in layer.matrices)
    q, k = oracle.rotate_queries_or_keys(q), oracle.rotate_queries_or_keys(k)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)
    assert_close(layer(x), layer.output(mixed))


def test_a_plane_turns_like_a_complex_number():
    z = torch.randn(5, dtype=torch.complex128)
    p = torch.arange(5)[:, None]
    turned = rotary.rotate(torch.view_as_real(z), p, torch.tensor([[0.7]], dtype=F64))
    assert_close(torch.view_as_complex(turned), z * torch.exp(0.7j * torch.arange(5)))


# What a rotation is


@given(st.integers(1, 3), st.integers(0, 2**16), st.sampled_from(rotary.LAYOUTS))
def test_matrices_form_a_group_and_act_on_rows(axes, seed, layout):
    g = torch.Generator().manual_seed(seed)
    angles = torch.randn(2, axes, 3, dtype=F64, generator=g)
    a, b = torch.randint(-9, 9, (2, 4, axes), generator=g)
    ra, rb, rab = (rotary.rotation(p, angles, layout) for p in (a, b, a + b))
    assert ra.shape == (2, 4, 6, 6)
    assert_close(ra @ rb, rab)
    assert_close(ra.mT, rotary.rotation(-a, angles, layout))
    x = torch.randn(3, 2, 4, 6, dtype=F64, generator=g)
    assert_close(rotary.rotate(x, a, angles, layout), (x[..., None, :] @ ra).squeeze(-2))


def test_frequencies_are_dealt_out_to_the_axes():
    one = rotary.frequencies(64)
    assert one.shape == (1, 32) and one.dtype == F64 and one[0, 0] == 1
    assert_close(one[0], torch.tensor([10000 ** (-2 * m / 64) for m in range(32)], dtype=F64))
    two = rotary.frequencies(64, 2)
    assert_close(two[0, :16], rotary.frequencies(32)[0])
    assert_close(two[1, 16:], rotary.frequencies(32)[0])
    assert (two[0, 16:] == 0).all() and (two[1, :16] == 0).all()
    assert [int((row > 0).sum()) for row in rotary.frequencies(64, 3)] == [11, 11, 10]


@given(st.integers(-50, 50), st.sampled_from([{}, {"angles": "learned"}, {"layout": "half"}]))
def test_scores_depend_on_offsets_only(shift, options):
    """Positions enter by their differences: a text in the middle of a longer one has the same scores."""
    layer = perturb(build(offsets(6), **options))
    x = torch.randn(1, 6, 12, dtype=F64)
    q, k = layer.projected(x)
    p = torch.arange(6)[:, None] + shift
    q, k = (rotary.rotate(t, p, layer.angles, layer.layout) for t in (q, k))
    assert_close(q @ k.mT / math.sqrt(6), layer.scores(x), rtol=1e-6, atol=1e-9)


def test_zero_angles_are_self_attention():
    layer = build(angles="learned")
    with torch.no_grad():
        layer.theta.zero_()
    plain = Attention(layer.relations, 12, 2).to(F64)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "theta" not in k})
    x = torch.randn(2, 7, 12, dtype=F64)
    assert_close(layer(x), plain(x))


# CLS


def test_a_free_cls_sees_no_position():
    """Exchange two image tokens: the scores that involve CLS are exchanged, and only an origin changes them."""
    for cls_token, invariant in (("free", True), ("origin", False)):
        layer = build(cls_token=cls_token)
        x = torch.randn(1, 7, 12, dtype=F64)
        order = torch.tensor([0, 4, 2, 3, 1, 5, 6])
        a, b = layer.scores(x), layer.scores(x[:, order])
        same = torch.allclose(a[..., 0, order], b[..., 0, :]) and torch.allclose(a[..., order, 0], b[..., :, 0])
        assert same == invariant


def test_an_origin_is_a_token_at_position_zero():
    layer = build(offsets((2, 3), cls=True), cls_token="origin")
    x = torch.randn(2, 7, 12, dtype=F64)
    p = torch.cat([torch.zeros(1, 2), offsets((2, 3)).positions])
    q, k = (rotary.rotate(t, p, layer.angles) for t in layer.projected(x))
    assert_close(layer.scores(x), q @ k.mT / math.sqrt(6))


# Layer


def test_layouts_agree_up_to_a_permutation_of_channels():
    layer, half = build(), build(layout="half")
    half.load_state_dict(layer.state_dict())
    order = rotary.half_order(6)
    with torch.no_grad():
        for there, here in zip(half.matrices[:2], layer.matrices, strict=False):
            there.copy_(here.unflatten(-1, (2, 6))[..., order].flatten(-2))
    x = torch.randn(2, 7, 12, dtype=F64)
    assert_close(half(x), layer(x))


def test_parameters():
    plain = Attention(offsets((2, 3)), 12, 2)
    count = lambda layer: sum(p.numel() for p in layer.parameters())  # noqa: E731
    assert count(build()) == count(plain)
    assert count(build(angles="learned")) == count(plain) + 2 * 2 * 3
    assert set(build().state_dict()) == set(plain.state_dict())


@pytest.mark.parametrize("angles", ["fixed", "learned"])
def test_lower_precision_stays_near_double(angles):
    layer = build(offsets(40), angles=angles)
    x = torch.randn(2, 40, 12, dtype=F64)
    expected = layer(x).detach()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        low = copy.deepcopy(layer).to(dtype)
        y = low(x.to(dtype))
        assert y.dtype == dtype
        # bfloat16 rounds learned angles themselves: 39 positions multiply that error.
        bar = (8 if angles == "fixed" else 60) * torch.finfo(dtype).eps * max(1.0, float(expected.abs().max()))
        assert (y.to(F64) - expected).abs().max() < bar


def test_tables_are_exact_after_a_detour_through_half_precision():
    layer = build(offsets(30))
    waves = layer.waves(30)
    for moved in (layer.half().double(), copy.deepcopy(layer).half().double(), layer.float().double()):
        assert_close(moved.waves(30), waves, rtol=0, atol=0)


def test_meta_layers_come_back_with_their_tables():
    with torch.device("meta"):
        layer = MIXERS["rotary"](offsets((2, 3)), 12, 2)
    assert layer.waves(6)[0].device.type == "meta"
    assert_close(layer.to_empty(device="cpu").waves(6), MIXERS["rotary"](offsets((2, 3)), 12, 2).waves(6))


@pytest.mark.usefixtures("plain_types")
@pytest.mark.parametrize(("make", "message"), [
    (lambda: MIXERS["rotary"](pairs(4), 8, 2), "relations must have a grid"),
    (lambda: MIXERS["rotary"](shared(4), 8, 2), "relations must have a grid"),
    (lambda: MIXERS["rotary"](offsets(4), 6, 2), "head_dim must be an even integer"),
    (lambda: MIXERS["rotary"](offsets((2, 2)), 4, 2), "axes must be from 1 to head_dim / 2 = 1"),
    (lambda: MIXERS["rotary"](offsets(4), 8, 2, base=0), "base must be a number above zero"),
    (lambda: MIXERS["rotary"](offsets(4), 8, 2, base=True), "base must be a number above zero"),
    (lambda: MIXERS["rotary"](offsets(4), 8, 2, angles="both"), "angles must be one of"),
    (lambda: MIXERS["rotary"](offsets(4), 8, 2, layout="pairs"), "layout must be one of"),
    (lambda: MIXERS["rotary"](offsets(4), 8, 2, cls_token="end"), "cls_token must be one of"),
    (lambda: rotary.rotate(torch.randn(3, 4), torch.zeros(2, 1), rotary.frequencies(4)), "positions must have the sh"),
    (lambda: rotary.rotate(torch.randn(3, 6), torch.zeros(3, 1), rotary.frequencies(4)), "x must have 4 channels"),
    (lambda: rotary.rotate(torch.randn(3, 4), torch.zeros(3, 1), rotary.frequencies(4), "x"), "layout must be one"),
])
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
