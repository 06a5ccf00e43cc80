"""The RiemannFormer layer: fast form = equations, outside oracles, RoPE inside it, CLS, long texts, conversion."""

import copy
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rotary_embedding_torch import RotaryEmbedding
from torch.testing import assert_close

from tests.unit.strategies import F64, assert_forms_agree, assert_half_precision_serves, grid_tables
from translution_lib import MIXERS, Attention, offsets, pairs, shared
from translution_lib.functional.transport import FORMS, TRANSPORTS
from translution_lib.mixers.convert import NoTranslution, as_translution
from translution_lib.mixers.encodings.transport import FOCI, METRICS

SEEDS = st.integers(0, 10**6)


def build(relations=None, dim=8, heads=2, random=True, **options):
    """A layer in float64 with random weights, angles, scales and widths."""
    layer = MIXERS["riemann"](relations or offsets((2, 3), cls=True), dim, heads, **options).to(F64)
    with torch.no_grad():
        for p in layer.parameters() if random else ():
            p.add_(0.3 * torch.randn_like(p))
    return layer


@st.composite
def options(draw):
    return {"transport": draw(st.sampled_from(TRANSPORTS)), "metric": draw(st.sampled_from(METRICS)),
            "form": draw(st.sampled_from(FORMS)), "focus": draw(st.sampled_from(FOCI)),
            "angles": draw(st.sampled_from(["fixed", "learned"])), "alpha": draw(st.sampled_from([0.1, None])),
            "schedule": draw(st.sampled_from(["linear", "log"]))}


@settings(max_examples=25)
@given(grid_tables(), options(), st.integers(1, 2), SEEDS)
def test_forward_equals_the_equations(relations, chosen, batch, seed):
    torch.manual_seed(seed)
    layer = build(relations, **chosen)
    x = torch.randn(batch, relations.n, 8, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)
    alpha = layer.weights(x)
    assert (alpha[..., ~relations.mask] == 0).all()
    assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))


# Outside oracles


@pytest.mark.parametrize("kind", ["rotation", "reflection"])
@settings(max_examples=8)
@given(st.integers(1, 6), st.integers(2, 3), SEEDS)
def test_without_a_metric_it_is_rotary_embedding_torch(kind, n, half, seed):
    """Reflections in the axes mθ score as rotations by 2mθ; the sense of turning is the other one."""
    torch.manual_seed(seed)
    d = 2 * half
    layer = build(offsets(n), 2 * d, metric=None, transport=kind)
    theta = (2 if kind == "reflection" else 1) * 10000.0 ** (-torch.arange(0, d, 2, dtype=F64) / d)
    oracle = RotaryEmbedding(dim=d, custom_freqs=-theta, cache_if_possible=False).to(F64)
    x = torch.randn(2, n, 2 * d, dtype=F64)
    q, k, v = ((x @ w).unflatten(-1, (2, d)).transpose(1, 2) for w in layer.matrices)
    mixed = F.scaled_dot_product_attention(*(oracle.rotate_queries_or_keys(t) for t in (q, k)), v)
    assert_close(layer(x), layer.output(mixed.transpose(1, 2).flatten(-2)))


@settings(max_examples=8)
@given(grid_tables(), st.sampled_from(["rotation", "reflection", "blocks4"]), SEEDS)
def test_without_a_metric_it_is_rotary_with_other_angles(relations, kind, seed):
    torch.manual_seed(seed)
    layer = build(relations, metric=None, transport=kind, angles="learned")
    twice = {"rotation": (1, 1), "reflection": (2, 2), "blocks4": (1, 2)}[kind]
    rope = MIXERS["rotary"](relations, 8, 2, angles="learned").to(F64)
    rope.load_state_dict(layer.state_dict())
    with torch.no_grad():
        rope.theta.mul_(-torch.tensor(twice, dtype=F64))
    x = torch.randn(2, relations.n, 8, dtype=F64)
    assert_close(layer(x), rope(x))


def test_a_skew_matrix_starts_as_rope_and_is_a_matrix_exponential():
    rel = offsets((2, 3))
    layer, rope = build(rel, random=False, metric=None, transport="skew"), build(rel, random=False, metric=None)
    rope.load_state_dict({k: v for k, v in layer.state_dict().items() if "generator" not in k})
    x = torch.randn(1, 6, 8, dtype=F64)
    assert_close(layer(x), rope(x))
    layer = build(rel, transport="skew", metric=None)
    steps, big = rel.positions.double() + 1, layer.skew()
    o = layer.orthogonal(steps)
    for i in range(6):
        first, second = (torch.linalg.matrix_power(torch.matrix_exp(big[:, a]), int(steps[i, a])) for a in (0, 1))
        assert_close(o[:, i], first @ second)
    assert_close(o @ o.mT, torch.eye(4, dtype=F64).expand_as(o))
    assert (big[:, 0, 2:] == 0).all() and (big[:, 1, :, :2] == 0).all()


# What the factors do


@settings(max_examples=8)
@given(st.integers(2, 4), options(), SEEDS)
def test_scores_by_hand(n, chosen, seed):
    """Equation (9) with an inverse by torch.linalg, pair by pair."""
    torch.manual_seed(seed)
    layer = build(offsets(n), **chosen)
    x = torch.randn(1, n, 8, dtype=F64)
    (q, k), (t, _, m) = layer.projected(x), layer.frame(torch.arange(1.0, n + 1, dtype=F64)[:, None])
    t, m = (y.expand(2, -1, -1, -1) for y in (t, m))
    for h, i, j in product(range(2), range(n), range(n)):
        carried = t[h, i] @ torch.linalg.inv(t[h, j]) @ k[0, h, j]
        score = q[0, h, i] @ (m[h, i] @ carried if chosen["form"] == "inner" else carried) / 2
        if chosen["focus"] == "before":
            score = score - (i - j) ** 2 / (2 * layer.log_sigma[h].exp() ** 2)
        assert_close(layer.scores(x)[0, h, i, j], score)


@settings(max_examples=8)
@given(st.integers(2, 6), st.sampled_from(TRANSPORTS), SEEDS)
def test_a_shift_multiplies_all_scores(n, kind, seed):
    """A text that starts τ places later has s^τ times the scores: read it as the end of a longer text."""
    torch.manual_seed(seed)
    tau = seed % 4
    long = build(offsets(n + tau), transport=kind)
    x = torch.randn(1, n + tau, 8, dtype=F64)
    early, late = build(offsets(n), transport=kind), long.scores(x)[..., tau:, tau:]
    early.load_state_dict(long.state_dict())
    s = long.log_scale()[:, 0, 0].exp()[:, None, None]
    assert_close(late, s**tau * early.scores(x[:, tau:]))


@pytest.mark.parametrize("metric", ["scalar", "pairs"])
def test_covectors_see_offsets_only(metric):
    layer = build(offsets(7), metric=metric, form="covector")
    x = torch.randn(1, 1, 8, dtype=F64).expand(1, 7, 8)
    a = layer.scores(x)
    assert_close(a[..., 1:, 1:], a[..., :-1, :-1])
    layer.form = "inner"
    assert (layer.scores(x)[..., 1:, 1:] - layer.scores(x)[..., :-1, :-1]).abs().max() > 1e-3


@pytest.mark.parametrize("alpha", [0.1, None])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_texts_stay_finite(alpha, form, dtype):
    layer = build(offsets(1500, causal=True), 4, 1, random=False, alpha=alpha, form=form, metric="pairs")
    with torch.no_grad():
        layer.scale.fill_(-0.5 if alpha else 0.5)                  # s < 1, and s > 1
    layer = layer.to(dtype)
    places = torch.tensor([[1.0], [1500.0]], dtype=F64)
    frames = layer.frame(places)
    assert all(y.to(torch.float32).isfinite().all() for y in frames)
    q = k = torch.randn(1, 1, 1500, 4).to(dtype)
    q_there, k_there = layer.queries_keys(q, k, layer.relations)
    products = q_there.float() @ k_there[..., -5:, :].float().mT
    assert products.isfinite().all() and products.to(dtype).isfinite().all()


# CLS, focusing, shorter texts


def test_cls_is_neither_carried_nor_focused():
    for focus in FOCI:
        layer = build(focus=focus)
        x = torch.randn(2, 7, 8, dtype=F64)
        plain = Attention(layer.relations, 8, 2).to(F64)
        plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k in dict(plain.named_parameters())})
        a, b = layer.scores(x), plain.scores(x)
        assert_close(a[..., 0, :], b[..., 0, :])
        assert_close(a[..., :, 0], b[..., :, 0])
        assert (a - b)[..., 1:, 1:].abs().max() > 1e-3
        if focus:
            assert (layer.focus_bias(x.shape[1])[:, 0] == 0).all() and (layer.focus_bias(x.shape[1])[..., 0] == 0).all()


@settings(max_examples=8)
@given(grid_tables(), SEEDS)
def test_focusing_after_is_a_gate_on_focusing_before(relations, seed):
    """(S ⊙ Ω) V = diag(Z) softmax(a + log λ) V."""
    torch.manual_seed(seed)
    after, before = build(relations, focus="after", output=False), build(relations, focus="before", output=False)
    before.load_state_dict(after.state_dict())
    x = torch.randn(2, relations.n, 8, dtype=F64)
    gate = (after.weights(x) * after.focus_bias(x.shape[1]).exp()).sum(-1)
    assert (gate > 0).all() and (gate <= 1 + 1e-12).all()
    y = before(x).unflatten(-1, (2, 4)) * gate.transpose(1, 2)[..., None]
    assert_close(after(x), y.flatten(-2))


@pytest.mark.parametrize("chosen", [{}, {"transport": "skew", "focus": "after"},
                                    {"focus": "before", "angles": "learned"}])
def test_half_precision(chosen):
    assert_half_precision_serves(build(random=False, **chosen), torch.randn(2, 7, 8))


def test_exact_after_a_detour_and_on_meta():
    layer = build(metric=None, random=False)
    x = torch.randn(1, 7, 8, dtype=F64)
    a = layer.orthogonal(layer.places(x.shape[1]))
    assert_close(copy.deepcopy(layer).half().double().orthogonal(layer.places(x.shape[1])), a, rtol=0, atol=0)
    with torch.device("meta"):
        empty = MIXERS["riemann"](layer.relations, 8, 2, transport="skew", focus="after")
    assert empty(torch.empty(1, 7, 8, device="meta")).shape == (1, 7, 8)


def test_dropout_is_for_training_only():
    for focus in FOCI:
        layer = build(dropout=0.5, focus=focus)
        x = torch.randn(1, 7, 8, dtype=F64)
        assert not torch.equal(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))


# As a Translution layer


@settings(max_examples=25)
@given(grid_tables(), options(), SEEDS)
def test_conversion(relations, chosen, seed):
    torch.manual_seed(seed)
    layer = build(relations, **chosen)
    x = torch.randn(1, relations.n, 8, dtype=F64)
    metric, skewed = chosen["metric"], chosen["transport"] == "skew"
    relative = metric is None or (chosen["form"] == "covector" and chosen["schedule"] == "linear"
                                  and (metric == "scalar" or chosen["transport"] == "none"
                                       or (metric == "pairs" and not skewed)))
    if not relative:
        with pytest.raises(NoTranslution, match="offset|depend on more") as error:
            as_translution(layer)
        assert error.value.theorem == "thm-taxonomy-absolute"
        return
    same = as_translution(layer)
    assert_close(same(x), layer(x), rtol=1e-9, atol=1e-9)
    assert_close(same.weights(x), layer.weights(x), rtol=1e-9, atol=1e-9)
    inner = same.translution
    values = "v" if chosen["focus"] == "after" else ""
    assert inner.relative == ("q" + values if inner.relations.count > 1 else "")
    assert same.constant == (chosen["focus"] == "before")


def test_focusing_alone_is_value_only():
    """Without angles and metric, focusing after softmax is W^v[δ] = λ_δ W^v."""
    layer = build(offsets((2, 3)), metric=None, focus="after", angles="learned")
    with torch.no_grad():
        layer.theta.zero_()
    inner, rel = as_translution(layer).translution, layer.relations
    lam = layer.offset_focus(torch.tensor(rel.labels, dtype=F64)).exp()                     # h r
    expected = layer.matrices.value.unflatten(-1, (2, 4)) * lam.T[:, None, :, None]
    assert_close(inner.matrices.value.detach(), expected.flatten(-2).detach())
    assert_close(inner.matrices.query, inner.matrices.query[:1].expand_as(inner.matrices.query))


def test_a_long_grid_at_its_bound_is_refused():
    layer = build(offsets(1000), 2, 1, random=False, form="covector")
    with pytest.raises(NoTranslution, match="bound"):
        as_translution(layer)


# Errors


@pytest.mark.parametrize(("call", "word"), [
    (lambda: MIXERS["riemann"](shared(3), 4, 1), "grid"), (lambda: MIXERS["riemann"](pairs(3), 4, 1), "grid"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, transport="spiral"), "transport"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, metric="none"), "metric"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, form="outer"), "form"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, focus="now"), "focus"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, angles="free"), "angles"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, schedule="cubic"), "schedule"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, alpha=-1.0), "alpha"),
    (lambda: MIXERS["riemann"](offsets(3), 3, 1), "head_dim"),
    (lambda: MIXERS["riemann"](offsets(3), 6, 1, transport="blocks4"), "multiple of 4"),
    (lambda: MIXERS["riemann"](offsets((2, 2)), 2, 1), "axes"),
    (lambda: MIXERS["riemann"](offsets(3), 4, 1, base=-1.0), "base"),
    (lambda: build(focus=None).focus_bias(7), "focus"), (lambda: build().skew(), "transport"),
])
def test_bad_input(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_parameters_and_description():
    plain = Attention(offsets((2, 3)), 8, 2)
    extra = {"scalar": 2 * 2, "pairs": 2 * 2, "diagonal": 2 * 4, "general": 2 * 4, None: 0}
    for metric, count in extra.items():
        layer = MIXERS["riemann"](offsets((2, 3)), 8, 2, metric=metric, focus="after", angles="learned")
        more = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in plain.parameters())
        assert more == count + 2 + 2 * 2 * 2
    assert "transport='rotation'" in repr(layer)
    assert math.isclose(layer.log_sigma[0].item(), math.log(1.5), rel_tol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("metric", ["scalar", "pairs", "diagonal"])
@pytest.mark.parametrize("transport", ["rotation", "skew", "none"])
def test_a_constant_schedule_is_relative(transport, metric, form):
    layer = build(offsets((2, 3)), transport=transport, metric=metric, form=form, schedule="constant")
    x = torch.randn(1, 6, 8, dtype=F64)
    assert_close(as_translution(layer)(x), layer(x))
    assert_close(layer.output(layer.values(layer.weights(x), x)), layer(x))


def test_a_metric_that_turns_has_no_constant_schedule():
    with pytest.raises(ValueError, match="schedule"):
        MIXERS["riemann"](offsets(3), 4, 1, metric="general", schedule="constant")
