"""Rotary scores with relative values: fast form = equations, its two halves, and the Translution layer that it is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rotary_embedding_torch import RotaryEmbedding
from torch.testing import assert_close

from tests.unit.strategies import F64, assert_forms_agree
from tests.unit.test_rotary import OPTIONS, grid_tables, perturb
from translution_lib import MIXERS, Translution, functional, offsets, shared
from translution_lib.functional.rotary import rotation
from translution_lib.mixers.rotary_translution import RotaryTranslution


def build(relations=None, dim=12, heads=2, **options):
    return RotaryTranslution(relations or offsets((2, 3), cls=True), dim, heads, **options).to(F64)


@given(grid_tables(), st.sampled_from(OPTIONS))
def test_forward_equals_the_equations(relations, options):
    layer = perturb(build(relations, **options))
    x = torch.randn(2, relations.n, 12, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)


def test_gradients_are_derivatives():
    layer = build(offsets((2, 2), cls=True), 4, 1, angles="learned")
    x = torch.randn(1, 5, 4, dtype=F64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values))


def test_attention_is_rotary_and_values_are_translution():
    layer = build()
    x = torch.randn(2, 7, 12, dtype=F64)
    plain = MIXERS["rotary"](layer.relations, 12, 2).to(F64)
    rest = {name: table for name, table in layer.state_dict().items() if name != "value"}
    plain.load_state_dict({**rest, "value.weight": plain.value.weight})
    assert_close(layer.weights(x), plain.weights(x))
    values = Translution(layer.relations, 12, 2, relative="v").to(F64)
    values.load_state_dict(layer.state_dict())
    assert_close(layer(x), values.output(values.values(plain.weights(x), x)))


def test_without_rotation_it_is_value_translution():
    """The authors' file makes the rotation and does not apply it: then only the values know where tokens lie."""
    layer = build(angles="learned")
    with torch.no_grad():
        layer.theta.zero_()
    plain = Translution(layer.relations, 12, 2, relative="v").to(F64)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "theta" not in k})
    x = torch.randn(2, 7, 12, dtype=F64)
    assert_close(layer(x), plain(x))


@pytest.mark.parametrize("relations", [offsets((2, 3), cls=True), offsets(5), offsets(5, causal=True)], ids=str)
@pytest.mark.parametrize("angles", ["fixed", "learned"])
def test_it_is_the_translution_layer_with_rotated_query_matrices(relations, angles):
    layer = perturb(build(relations, angles=angles))
    zero = (0,) * len(relations.shape)
    delta = torch.tensor([label if isinstance(label, tuple) else zero for label in relations.labels])
    turns = rotation(delta, layer.angles).expand(2, -1, -1, -1)                              # h r d d
    w_q = torch.einsum("chd,hrde->rche", layer.matrices.query.unflatten(-1, (2, 6)), turns).flatten(-2)
    x = torch.randn(2, relations.n, 12, dtype=F64)
    y = functional.translution(x, w_q, layer.matrices.key, layer.matrices.value, relations, 2)
    assert_close(layer(x), layer.output(y))


def test_scores_are_those_of_rotary_embedding_torch():
    layer = build(offsets(6))
    oracle = RotaryEmbedding(dim=6, custom_freqs=10000.0 ** (-torch.arange(3, dtype=F64) / 3)).to(F64)
    x = torch.randn(2, 6, 12, dtype=F64)
    q, k = (oracle.rotate_queries_or_keys((x @ w).unflatten(-1, (2, 6)).transpose(1, 2)) for w in
            layer.matrices[:2])
    assert_close(layer.scores(x), q @ k.mT / 6**0.5)


def test_a_shorter_text_is_a_prefix():
    layer = build(offsets(6, causal=True))
    x = torch.randn(2, 6, 12, dtype=F64)
    assert_close(layer(x[:, :4]), layer(x)[:, :4])


def test_bad_input():
    with pytest.raises(ValueError, match="init must be one of"):
        build(init="small")
    with pytest.raises(ValueError, match="relations must have a grid"):
        build(shared(3))
