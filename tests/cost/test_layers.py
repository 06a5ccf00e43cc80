"""One mixing layer: formulas against counts of a run, counts without numbers against runs with numbers."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.cost.strategies import ATTENTION, head_counts, options, widths
from tests.unit.strategies import tables, tables_of
from translution_lib import MIXERS, Encoded, Encoding, Translution, ViT, backend, cost, offsets, shared


@st.composite
def layers(draw, name: str) -> tuple:
    """Draw what a layer is built from: its table, channels, heads and options."""
    heads = draw(head_counts([name]))
    return draw(tables_of(name)), heads * draw(widths([name])), heads, draw(options([name]))


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=4)
@given(data=st.data(), batch=st.integers(1, 3))
def test_costs_of_a_layer(name, data, batch):
    """The products of a run on numbers, its parameters, and what it keeps; the same costs from the name alone."""
    relations, dim, heads, drawn = data.draw(layers(name))
    layer, x = MIXERS[name](relations, dim=dim, heads=heads, **drawn), torch.zeros(batch, relations.n, dim)
    made, same = cost.layer.of(layer), cost.layer.named(name, relations, dim, heads, **drawn)
    assert made.parameters == same.parameters == cost.count_parameters(layer)
    assert made.macs_products == same.macs_products and made.macs_as_printed == same.macs_as_printed
    assert (made.macs_true(), made.macs_true(True)) == (same.macs_true(), same.macs_true(True))
    counted = cost.count_macs(layer, x[:1])
    assert counted == made.macs_products if heads > 1 else counted <= made.macs_products
    kept = cost.count_saved_bytes(layer, x)
    assert cost.count_saved_bytes(layer.to("meta"), x.to("meta")) == pytest.approx(kept, rel=0.1)


@given(tables(), st.sampled_from(["", "q", "k", "v", "qk", "kv", "qv", "qkv"]), st.integers(1, 3), st.integers(1, 3))
def test_true_count_of_translution_pair_by_pair(relations, relative, heads, d):
    """Count every vector–matrix product, dot product and weighted sum of eq. (1) one pair at a time."""
    c, e, total = 5, heads * d, 0
    for letter in "qkv":
        total += c * e * (int(relations.mask.sum()) if letter in relative else relations.n)
    for attended in relations.mask.flatten().tolist():
        total += attended * 2 * e
    layer = cost.layer.named("translution", relations, c, heads, head_dim=d, relative=relative)
    assert layer.macs_true(attended_only=True) == total + relations.n * e * c


def test_ranks_and_subsets_end_at_self_attention():
    rel = offsets((3, 3), cls=True)
    plain = cost.layer.named("self-attention", rel, 12, 3)
    nothing = cost.layer.named("translution", rel, 12, 3, relative="")
    zero = cost.layer.named("lor-translution", rel, 12, 3, relative_dim=0)
    for layer in (nothing, zero):
        assert layer.parameters == plain.parameters and layer.macs_true() == plain.macs_true()
        assert layer.macs_products == plain.macs_products


def test_a_performer_needs_no_pairs():
    """Parameters and multiply–adds by hand; twice the tokens cost twice as much."""
    made = [cost.layer.named("performer", offsets(n), 8, 2, num_features=5, output=False) for n in (6, 12)]
    assert made[0].parameters == 3 * 8 * 8
    assert made[0].macs_true() == 3 * 6 * 64 + 2 * 6 * 8 * 5 + 2 * 6 * 2 * 5 * (4 + 1)
    assert made[1].macs_true() == 2 * made[0].macs_true() == made[1].macs_products


@settings(max_examples=8)
@given(tables(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["float32", "float64"]))
def test_bytes_that_translution_keeps(relations, heads, d, batch, dtype):
    assume(relations.n > 1)
    layer = Translution(relations, dim=heads * d, heads=heads).to(getattr(torch, dtype))
    made, x = cost.layer.of(layer), torch.randn(batch, relations.n, heads * d, dtype=getattr(torch, dtype))
    size = x.element_size()
    assert cost.count_saved_bytes(layer, x) == made.saved_bytes(batch, size)
    with backend("definition"):
        assert cost.count_saved_bytes(layer, x) == made.saved_bytes(batch, size, form="gather")
        assert cost.count_saved_bytes(layer, x, tables=True) > cost.count_saved_bytes(layer, x)
    if heads > 1:       # with one head, two rows of a pair do
        with backend("torch", keep=True):
            assert cost.count_saved_bytes(layer, x) == made.saved_bytes(batch, size, form="pairs")


class Fading(Encoding):
    """A bias made of a map of the queries, with a matrix product of its own."""

    def start(self, relations, dim, heads, head_dim):
        self.slope, self.map = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(head_dim, 2))

    def bias(self, q, where):
        return self.slope[0] * (q @ self.map).sum(-1, keepdim=True)

    def bias_definition(self, q, where):
        return self.bias(q, where)


def test_a_new_mixer_is_costed_with_no_more_code(monkeypatch):
    monkeypatch.setitem(MIXERS, "fading", Encoded(Fading))
    model, plain = (ViT(8, 2, 1, 10, 12, 2, 2, 24, mixer=mixer) for mixer in ("fading", "self-attention"))
    assert cost.parameters(model) == cost.count_parameters(model) == cost.parameters(plain) + 2 * (3 + 6 * 2)
    assert cost.macs_products(model) == cost.count_macs(model) == cost.macs_products(plain) + 2 * 17 * 2 * 6 * 2
    assert cost.macs_true(model) == cost.macs_true(plain)
    assert cost.saved_bytes(model, 4) > cost.saved_bytes(plain, 4)
    needed = cost.memory(model, 8, device="cpu")
    assert needed.total == pytest.approx(cost.count_memory(model, 8), rel=0.1)
    monkeypatch.setitem(MIXERS, "fading", MIXERS["self-attention"])
    assert cost.memory(model.config, 8, device="cpu").total < needed.total      # the name means something else now


@pytest.mark.parametrize("bad", [{"batch": 0}, {"batch": True}, {"itemsize": 0}, {"form": "none"}])
def test_bad_arguments_of_saved_bytes(bad, plain_types):
    layer = Translution(shared(3), 4, 2)
    with pytest.raises(ValueError, match=next(iter(bad))):
        cost.layer.of(layer).saved_bytes(**bad)
    if "itemsize" not in bad:
        with pytest.raises(ValueError, match=next(iter(bad))):
            cost.saved_bytes(ViT(6, 3, 1, 5, 8, 1, 2, 12), **bad)
    with pytest.raises(ValueError, match="relative"):
        cost.layer.of(Translution(shared(3), 4, 2, relative="qk")).saved_bytes()


def test_what_is_no_layer_is_refused(plain_types):
    with pytest.raises(ValueError, match="mixer must be a layer"):
        cost.layer.of(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="mixer must be one of"):
        cost.layer.named("none", shared(3), 4)
    with pytest.raises(ValueError, match="relative_dim"):
        cost.layer.named("self-attention", shared(3), 4, relative_dim=2)
