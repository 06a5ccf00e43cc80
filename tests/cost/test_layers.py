"""One mixing layer: the same cost from the layer and from its name, its parts by hand, bytes kept for backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.strategies import ATTENTION, head_counts, options, widths
from tests.unit.strategies import LINEAR, tables, tables_of
from translution_lib import MIXERS, Attention, LoRTranslution, Translution, cost, definition, offsets, shared
from translution_lib.functional import grouped


@st.composite
def layers(draw, name: str) -> tuple:
    """Draw what a layer is built from: its table, channels, heads and options."""
    heads = draw(head_counts([name]))
    return draw(tables_of(name)), heads * draw(widths([name])), heads, draw(options([name]))


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=8)
@given(data=st.data())
def test_a_layer_and_its_name_cost_the_same(name, data):
    relations, dim, heads, drawn = data.draw(layers(name))
    with torch.device("meta"):
        layer = MIXERS[name](relations, dim=dim, heads=heads, **drawn)
    made = cost.layer.of(layer)
    same = cost.layer.named(name, relations, dim, heads, **drawn)
    assert (made.parameters, made.macs_as_printed, made.macs_true(), made.macs_true(True), made.macs_products) == (
        same.parameters, same.macs_as_printed, same.macs_true(), same.macs_true(True), same.macs_products)
    assert made.parameters == cost.count_parameters(layer)


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=8)
@given(data=st.data(), batch=st.integers(1, 3))
def test_products_of_a_layer(name, data, batch):
    relations, dim, heads, drawn = data.draw(layers(name))
    layer = MIXERS[name](relations, dim=dim, heads=heads, **drawn)
    counted = cost.count_macs(layer, torch.zeros(batch, relations.n, dim))
    made = cost.layer.of(layer)
    planned = batch * made.macs_products - (batch - 1) * made.macs_once
    assert counted == planned if heads > 1 else counted <= planned


@given(tables(), st.sampled_from(["", "q", "k", "v", "qk", "kv", "qv", "qkv"]), st.integers(1, 3), st.integers(1, 3))
def test_true_count_of_translution_pair_by_pair(relations, relative, heads, d):
    """Count every vector–matrix product, dot product and weighted sum of eq. (1) one pair at a time."""
    c, e, total = 5, heads * d, 0
    for letter in "qkv":
        total += c * e * (int(relations.mask.sum()) if letter in relative else relations.n)
    for attended in relations.mask.flatten().tolist():
        total += attended * 2 * e
    layer = cost.layer.named("translution", relations, c, heads, head_dim=d, relative=relative, output=False)
    assert layer.macs_true(attended_only=True) == total


def test_ranks_and_subsets_end_at_self_attention():
    rel = offsets((3, 3), cls=True)
    plain = cost.layer.named("self-attention", rel, 12, 3)
    nothing = cost.layer.named("translution", rel, 12, 3, relative="")
    zero = cost.layer.named("lor-translution", rel, 12, 3, relative_dim=0)
    for layer in (nothing, zero):
        assert layer.parameters == plain.parameters and layer.macs_true() == plain.macs_true()
        assert layer.macs_products == plain.macs_products


@pytest.fixture(params=["keep", "recompute"])
def policy(request, monkeypatch):
    """Run a test with the projected pairs kept for backward, and with them computed again."""
    monkeypatch.setattr(grouped, "KEEP_BYTES", 2**30 if request.param == "keep" else 0)
    return request.param


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("relative", ["", "q", "k", "v", "qk", "kv", "qv", "qkv"])
def test_saved_bytes_of_translution(relative, batch, policy):
    layer = Translution(offsets((2, 3), cls=True), dim=6, heads=2, head_dim=5, relative=relative)
    x, made = torch.randn(batch, 7, 6), cost.layer.of(layer)
    assert cost.count_saved_bytes(layer, x) - (not layer.relations.complete) * x.nbytes == made.saved_bytes(batch)
    if policy == "recompute":
        assert made.saved_bytes(batch) == made.saved_bytes(batch, form="lean")
    else:
        kept = batch * 7 * 7 * 10 * 4 * len(relative)
        assert made.saved_bytes(batch) == made.saved_bytes(batch, form="lean") + kept
    with definition():
        assert cost.count_saved_bytes(layer, x) == made.saved_bytes(batch, form="gather")
    pair = batch * 7 * 7 * 4 * len(relative)
    assert made.saved_bytes(batch, form="gather") - made.saved_bytes(batch, form="pairs") == pair * (6 + 6 * 10)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("settings", [{"relative_dim": 2}, {"relative_dim": (3, 1)}, {"shared": False},
                                      {"relative_dim": 0}])
def test_saved_bytes_of_low_rank(settings, batch, policy):
    layer = LoRTranslution(offsets((2, 3), cls=True), dim=6, heads=2, head_dim=5, **settings)
    assert cost.count_saved_bytes(layer, torch.randn(batch, 7, 6)) == cost.layer.of(layer).saved_bytes(batch)


@pytest.mark.parametrize("relative", ["q", "k", "qk", "qkv"])
@pytest.mark.parametrize("room", range(-1, 3))
def test_scores_and_values_keep_their_pairs_each_for_itself(relative, room, monkeypatch):
    """The bound is that of one call: two projected sides for the scores, one for the values."""
    layer, x = Translution(offsets(5, causal=True), dim=6, heads=2, relative=relative), torch.randn(2, 5, 6)
    side = 2 * 15 * 6 * 4
    monkeypatch.setattr(grouped, "KEEP_BYTES", side * room)
    # Where the table masks, the layer reads a copy of the tokens, which a model keeps in place of them.
    assert cost.count_saved_bytes(layer, x) - x.nbytes == cost.layer.of(layer).saved_bytes(2)
    made = cost.layer.of(layer)
    kept = (room >= 2) * len(set(relative) & set("qk")) + (room >= 1) * ("v" in relative)
    assert made.saved_bytes(2) - made.saved_bytes(2, form="lean") == kept * side


@pytest.mark.parametrize("batch", [1, 3])
def test_saved_bytes_of_self_attention(batch):
    layer = Attention(offsets((2, 3)), dim=6, heads=2, head_dim=5)
    assert cost.count_saved_bytes(layer, torch.randn(batch, 6, 6)) == cost.layer.of(layer).saved_bytes(batch)
    with definition():
        counted = cost.count_saved_bytes(layer, torch.randn(batch, 6, 6))
    assert counted == cost.layer.of(layer).saved_bytes(batch, form="gather")


ENCODINGS = [
    ("key-vector", {}), ("value-vector", {}), ("key-value-vector", {}), ("key-value-vector", {"per_head": False}),
    ("key-vector", {"clip": 1}), ("scalar-bias", {}), ("scalar-bias", {"bias": "alibi"}), ("gated-bias", {}),
    ("gated-bias", {"form": "printed"}), ("rotary", {}), ("rotary", {"angles": "learned"}),
    ("rotary", {"cls_token": "origin"}), ("rotary-translution", {}), ("rotary-translution", {"angles": "learned"}),
    ("general-translution", {}), ("general-translution", {"kernel": "radial"}),
    ("general-translution", {"kernel": "table"}), ("general-translution", {"kernel": "axes"}),
    ("absolute-translution", {}), ("lor-translution", {"relative_dim": 3, "core": "diagonal"}),
    ("performer", {}), ("performer", {"features": "trigonometric", "num_features": 9}),
    ("performer", {"absolute": True, "draw": "gaussian", "redraw_interval": 2}),
    ("performer-s1", {}), ("performer-s1", {"features": "trigonometric", "length_scales": 1}),
    ("performer-s2", {}), ("performer-s2", {"clip": 1}), ("performer-s2", {"clip": 2, "features": "trigonometric"}),
    ("riemann", {}), ("riemann", {"metric": None, "transport": "reflection"}), ("riemann", {"transport": "blocks4"}),
    ("riemann", {"transport": "skew", "metric": "pairs"}), ("riemann", {"metric": "general", "angles": "learned"}),
    ("riemann", {"metric": "diagonal", "alpha": None}), ("riemann", {"focus": "before", "form": "covector"}),
    ("riemann", {"focus": "after", "transport": "skew", "metric": "general"}), ("riemann", {"schedule": "log"}),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("cls", [False, True])
@pytest.mark.parametrize(("name", "settings"), ENCODINGS)
def test_saved_bytes_of_the_encodings(name, settings, cls, batch):
    layer = MIXERS[name](offsets((2, 3), cls=cls), dim=8, heads=2, **settings)
    assert cost.count_saved_bytes(layer, torch.randn(batch, 6 + cls, 8)) == cost.layer.of(layer).saved_bytes(batch)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("name", "settings"), [
    *((name, {}) for name in sorted(LINEAR)), ("performer", {"features": "trigonometric"}),
    ("performer-s2", {"clip": 2, "signed": True})])
def test_saved_bytes_of_sums_over_the_past_and_of_signed_lines(name, settings, batch):
    tables = [offsets(7, cls=True)] if settings.get("signed") else []
    for relations in (offsets(7, causal=True), offsets(13, causal=True), *tables):
        layer, x = MIXERS[name](relations, dim=8, heads=2, **settings), torch.randn(batch, relations.n, 8)
        made = cost.layer.of(layer)
        assert cost.count_saved_bytes(layer, x) - (not layer.relations.complete) * x.nbytes == made.saved_bytes(batch)
        assert cost.count_macs(layer, x) == batch * made.macs_products - (batch - 1) * made.macs_once


def test_features_stay_in_single_precision():
    """In half precision the tokens take two bytes and what the features need four."""
    layer, x = MIXERS["performer"](offsets((2, 3)), dim=8, heads=2).bfloat16(), torch.randn(2, 6, 8).bfloat16()
    counted, made = cost.count_saved_bytes(layer, x), cost.layer.of(layer)
    half = 2 * 2 * (6 * 8 + 6 * 8)                      # x, and the input of the output map
    assert made.saved_bytes(2, itemsize=2) - half == made.saved_bytes(2) - 2 * half
    assert counted == pytest.approx(made.saved_bytes(2, itemsize=2), rel=0.1)


def test_a_performer_needs_no_pairs():
    """Parameters, multiply–adds and bytes by hand; twice the tokens cost twice as much."""
    made = [cost.layer.named("performer", offsets(n), 8, 2, num_features=5, output=False) for n in (6, 12)]
    assert made[0].parameters == 3 * 8 * 8
    assert made[0].macs_true() == 3 * 6 * 64 + 2 * 6 * 8 * 5 + 2 * 6 * 2 * 5 * (4 + 1)
    assert made[1].macs_true() == 2 * made[0].macs_true() == made[1].macs_products
    once = 2 * 5 + 2 * 5 * 5                                                         # the state of the keys, its scale
    assert made[1].saved_bytes() - 4 * once == 2 * (made[0].saved_bytes() - 4 * once)


@pytest.mark.parametrize("name", ["key-vector", "value-vector", "scalar-bias", "gated-bias", *sorted(LINEAR)])
def test_saved_bytes_of_the_literal_encodings(name):
    layer, x = MIXERS[name](offsets((2, 3), cls=True), dim=8, heads=2), torch.randn(2, 7, 8)
    with definition():
        assert cost.count_saved_bytes(layer, x) == cost.layer.of(layer).saved_bytes(2, form="gather")


def test_double_precision_doubles_the_bytes():
    layer = Translution(offsets((2, 3)), dim=6, heads=2).double()
    counted = cost.count_saved_bytes(layer, torch.randn(2, 6, 6, dtype=torch.float64))
    assert counted == cost.layer.of(layer).saved_bytes(2, itemsize=8) == 2 * cost.layer.of(layer).saved_bytes(2)


def test_tables_can_be_counted_too():
    layer, x = Translution(offsets((2, 3)), dim=6, heads=2), torch.randn(1, 6, 6)
    with definition():
        assert cost.count_saved_bytes(layer, x, tables=True) == cost.count_saved_bytes(layer, x) + 3 * 36 * 8


@pytest.mark.parametrize("bad", [{"batch": 0}, {"batch": True}, {"itemsize": 0}, {"form": "none"}])
def test_bad_arguments_of_saved_bytes(bad, plain_types):
    with pytest.raises(ValueError, match=next(iter(bad))):
        cost.layer.named("translution", shared(3), 4, 2).saved_bytes(**bad)
