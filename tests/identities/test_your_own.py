"""Property tests of the page "Add your own encoding", on the class that the page defines."""

import math
from unittest.mock import patch

import nbformat
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT
from torch import nn
from torch.testing import assert_close

from translution_lib import MIXERS, Encoded, Encoding, backend, offsets
from translution_lib.mixers.convert import as_translution, part_factors
from translution_lib.mixers.positional import offset_count, offset_vectors, per_pair


def page_part() -> type:
    """Run the cell of the page that defines the encoding."""
    cells = nbformat.read(ROOT / "book/encodings/your_own.ipynb", as_version=4).cells
    source = next(cell.source for cell in cells if "class LearnedDecay(" in cell.source)
    names = {"Encoding": Encoding, "Encoded": Encoded, "offset_vectors": offset_vectors, "per_pair": per_pair,
             "torch": torch, "nn": nn}
    with patch.dict(MIXERS):  # the cell gives the part a name, which other tests of this process must not find
        exec(source, names)
    return names["LearnedDecay"]


DECAY = page_part()
LearnedDecay = Encoded(DECAY)


@part_factors.register(DECAY)
def _decay(part, heads, layer):
    bias = part.offset_bias().T
    return heads.with_bias(F.pad(bias, (0, 0, 0, layer.relations.count - len(bias))))


@st.composite
def layers(draw, causal=True):
    """A layer of the page with random slopes on a random table, and an input."""
    kinds = ["grid", "cls"] + ["causal"] * causal
    kind, window = draw(st.sampled_from(kinds)), draw(st.none() | st.integers(1, 3))
    if kind == "causal":
        relations = offsets(draw(st.integers(1, 7)), causal=True, window=window)
    else:
        sides = draw(st.sampled_from([(4,), (2, 3), (3, 3), (2, 2, 2)]))
        relations = offsets(sides, cls=kind == "cls", window=window)
    heads, d = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    layer = LearnedDecay(relations, heads * d, heads).double()
    nn.init.normal_(layer.log_slope)
    return layer, torch.randn(2, relations.n, heads * d, dtype=torch.float64)


def distances(relations) -> torch.Tensor:
    """‖p_i − p_j‖ of all pairs, zero where a token has no position."""
    p = relations.positions.double()
    return F.pad(torch.cdist(p, p), (int(relations.cls), 0) * 2)


@pytest.mark.identity("eq-yours-score")
@given(layers())
def test_the_score_pair_by_pair(problem):
    layer, x = problem
    q, k = (rearrange(x @ w, "b n (h d) -> b h n d", h=layer.heads) for w in layer.matrices[:2])
    far, slopes = distances(layer.relations), layer.log_slope.exp()
    expected = q @ k.mT / math.sqrt(layer.head_dim) - slopes[:, None, None] * far
    mask = layer.relations.mask
    assert_close(layer.scores(x)[..., mask], expected[..., mask])
    with backend("definition"):
        literal = layer(x)
    assert_close(layer(x), literal)


@pytest.mark.identity("eq-yours-table")
@given(layers())
def test_a_table_with_these_numbers_is_the_same_layer(problem):
    layer, x = problem
    table = MIXERS["scalar-bias"](layer.relations, layer.dim, layer.heads).double()
    table.load_state_dict(layer.state_dict(), strict=False)
    lengths = [math.dist(label, (0,) * len(label)) for label in layer.relations.labels[: offset_count(layer.relations)]]
    with torch.no_grad():
        table.table.copy_(-layer.log_slope.exp()[:, None] * torch.tensor(lengths, dtype=torch.float64))
    assert_close(table(x), layer(x))


@pytest.mark.identity("thm-yours-sets")
@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 3),
       st.integers(0, 3), st.integers(0, 10**6))
def test_a_moved_set_gets_the_moved_outputs(places, down, right, seed):
    torch.manual_seed(seed)
    large = offsets((7, 7))

    def at(y, x):
        return large.select([7 * (a + y) + b + x for a, b in sorted(places)])

    here, there = (LearnedDecay(at(*move), 4, 2).double() for move in ((0, 0), (down, right)))
    there.load_state_dict(here.state_dict())
    f = torch.randn(1, len(places), 4, dtype=torch.float64)
    assert_close(here(f), there(f))


@pytest.mark.identity("thm-yours-locality")
@given(layers(), st.sampled_from([0.1, 1.0, 3.0]))
def test_weights_fall_with_the_distance(problem, scale):
    layer, x = problem
    allowed, r = layer.relations.mask, distances(layer.relations)
    slopes = layer.log_slope.exp()[:, None, None]
    with torch.no_grad():
        most = layer.content(x).abs().masked_fill(~allowed, 0).amax((0, 2, 3))
        # at the scale 1 the largest content score of a head is at most a quarter of its slope; so the bound is below
        # 1 at every distance of 1 and more
        x = x * (scale * min(1.0, (layer.log_slope.exp() / (4 * most + 1e-9)).min().item() ** 0.5))
        most = layer.content(x).abs().masked_fill(~allowed, 0).amax((0, 2, 3))
        bound = torch.exp(2 * most[:, None, None] - slopes * r)
        assert (layer.weights(x) <= bound * (1 + 1e-12)).all()
        if scale <= 1:
            assert (bound[:, r >= 1] < 1).all()


def test_weights_without_a_decay_are_above_the_bound():
    torch.manual_seed(0)
    relations = offsets(12)
    layer = LearnedDecay(relations, 6, 2).double()
    x = 0.1 * torch.randn(2, 12, 6, dtype=torch.float64)
    with torch.no_grad():
        nn.init.constant_(layer.log_slope, -math.inf)           # the slope 0
        most = layer.content(x).abs().amax((0, 2, 3))
        bound = torch.exp(2 * most[:, None, None] - distances(relations))   # of the slope 1
        assert ((layer.weights(x) > bound).double().mean() > 0.5)


@pytest.mark.identity("thm-yours-translution")
@settings(max_examples=12)
@given(layers())
def test_it_is_translution_with_a_constant_channel_and_none_without(problem):
    layer, x = problem
    same = as_translution(layer)
    assert_close(same(x), layer(x), atol=1e-10, rtol=0)
    assert same.constant and same.translution.head_dim == layer.head_dim + 1
    alpha = layer.weights(1e-12 * x)                        # bilinear scores would be zero, and the weights uniform
    expected = (-layer.log_slope.exp()[:, None, None] * distances(layer.relations)).masked_fill(
        ~layer.relations.mask, -math.inf).softmax(-1)
    assert_close(alpha, expected.expand_as(alpha), atol=1e-9, rtol=0)
