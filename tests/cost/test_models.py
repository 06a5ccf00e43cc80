"""Closed formulas of whole models against counting parameters and counting operations of a run."""

import pytest
import torch
from hypothesis import given

from tests.cost.strategies import models
from tests.unit.strategies import ANY_TABLE, LINEAR
from translution_lib import GPT, ViT, cost
from translution_lib.mixers import MIXERS


def by_hand(n: int, m: int, p: int, classes: int) -> tuple[int, int]:
    c, r, depth = 192, 24, 6
    around = m * (5 * p + p * c + 5 * c) + depth * (10 * n * c + 8 * n * c * c) + 5 * n * c + c * classes
    tr = n * n * (3 * c * c + 2 * c) + n * c * c
    lor = 4 * n * c * c + 2 * n * n * c + 4 * n * c * r + n * n * (3 * r * r + 2 * r)
    return around + depth * tr, around + depth * lor


@given(models())
def test_closed_formulas_equal_counts(model):
    assert cost.parameters(model) == cost.count_parameters(model) == cost.parameters(model.config)
    assert cost.macs_products(model) == cost.count_macs(model) == cost.macs_products(model.config)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("causal", [False, True])
def test_closed_formulas_equal_counts_for_convolution(causal):
    for kernel in (1, 2, 3):
        options = {"mixer": "convolution", "dim": 4, "depth": 2, "heads": 1, "ff": 5, "kernel_size": kernel}
        model = GPT(9, 6, **options) if causal else ViT(6, 2, 1, 3, pool="mean", **options)
        assert cost.parameters(model) == cost.count_parameters(model)
        assert cost.macs_products(model) == cost.count_macs(model)


@given(models())
def test_order_of_the_counts(model):
    printed, true, attended = (f(model) for f in (cost.macs_as_printed, cost.macs_true,
                                                  lambda m: cost.macs_true(m, attended_only=True)))
    assert attended <= true and printed <= true
    assert (attended == true) == (model.relations.complete or set(model.config.mixer) <= LINEAR | {"convolution"})
    # A fast form of another encoding may run more products than its equation has: every query by every vector, or
    # the triangles of causal chunks.
    assert cost.macs_products(model) < true or not (ANY_TABLE - LINEAR).issuperset(model.config.mixer)


@pytest.mark.parametrize("name,n", [("A/56", 17), ("A/32", 50)])
def test_true_counts_by_hand(name, n):
    patch = int(name[2:])
    hand = by_hand(n, n - 1, 3 * patch ** 2, 1000)
    with torch.device("meta"):
        made = [ViT.named(name, mixer=mixer) for mixer in ("translution", "lor-translution")]
    assert tuple(cost.macs_true(model) for model in made) == hand


def test_causal_count_by_hand():
    model = GPT(11, 4, dim=6, depth=1, heads=2, ff=5, mixer="translution")
    around = 10 * 4 * 6 + 2 * 4 * 6 * 5 + 10 * 4 * 6 + 4 * 6 * 11
    assert cost.macs_true(model) == around + 16 * (3 * 36 + 12) + 4 * 36
    assert cost.macs_true(model, attended_only=True) == around + 10 * (3 * 36 + 12) + 4 * 36


def test_same_number_for_sample_and_default_input():
    model = ViT(6, 3, 2, 5, dim=8, depth=1, heads=2, ff=12)
    assert cost.count_macs(model) == cost.count_macs(model, torch.zeros(1, 2, 6, 6))
    assert cost.count_macs(model, torch.zeros(3, 2, 6, 6)) == 3 * cost.count_macs(model)


@pytest.mark.parametrize("function", [cost.parameters, cost.macs_as_printed, cost.macs_true, cost.macs_products,
                                      cost.saved_bytes, cost.layers_of])
@pytest.mark.parametrize("bad", [None, "A/56", torch.nn.Linear(2, 2)])
def test_unknown_models_are_refused(function, bad, plain_types):
    with pytest.raises(ValueError, match="model must be a ViT, a GPT or the configuration of one"):
        function(bad)


def test_unknown_mixers_and_modules_are_refused(plain_types):
    with pytest.raises(ValueError, match="mixer must be"):
        cost.layer.of(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="mixer must be one of"):
        cost.layer.named("none", None, 4)
    with pytest.raises(ValueError, match="inputs must be given"):
        cost.count_macs(torch.nn.Linear(2, 2))
    assert cost.count_macs(torch.nn.Linear(2, 3), torch.zeros(5, 2)) == 30


def test_every_mixer_has_a_cost():
    assert set(MIXERS) <= set(cost.layer.KINDS)
