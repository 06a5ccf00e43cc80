"""Whole models: formulas against counting parameters and counting operations of a run, by torch's own counter."""

import pytest
import torch
from hypothesis import given, settings

from tests.cost.strategies import models
from translution_lib import GPT, ViT, cost


def by_hand(n: int, m: int, p: int, classes: int) -> tuple[int, int]:
    c, r, depth = 192, 24, 6
    around = m * (5 * p + p * c + 5 * c) + depth * (10 * n * c + 8 * n * c * c) + 5 * n * c + c * classes
    tr = n * n * (3 * c * c + 2 * c) + n * c * c
    lor = 4 * n * c * c + 2 * n * n * c + 4 * n * c * r + n * n * (3 * r * r + 2 * r)
    return around + depth * tr, around + depth * lor


@settings(max_examples=12)
@given(models())
def test_formulas_equal_counts(model):
    assert cost.parameters(model) == cost.count_parameters(model) == cost.parameters(model.config)
    assert cost.macs_products(model) == cost.count_macs(model) == cost.macs_products(model.config)
    attended, true = cost.macs_true(model, attended_only=True), cost.macs_true(model)
    assert attended <= true and 0 < cost.macs_as_printed(model) <= true
    assert attended == true or not model.relations.complete


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("causal", [False, True])
def test_formulas_equal_counts_for_convolution(causal):
    for kernel in (1, 2, 3):
        options = {"mixer": "convolution", "dim": 4, "depth": 2, "heads": 1, "ff": 5, "kernel_size": kernel}
        model = GPT(9, 6, **options) if causal else ViT(6, 2, 1, 3, pool="mean", **options)
        assert cost.parameters(model) == cost.count_parameters(model)
        assert cost.macs_products(model) == cost.count_macs(model)


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
    assert cost.count_macs(torch.nn.Linear(2, 3), torch.zeros(5, 2)) == 30


def test_unknown_models_are_refused(plain_types):
    for count in (cost.parameters, cost.macs_as_printed, cost.macs_true, cost.macs_products, cost.saved_bytes,
                  cost.layers_of, cost.config_of):
        for bad in (None, "A/56", torch.nn.Linear(2, 2)):
            with pytest.raises(ValueError, match="model must be a ViT, a GPT or the configuration of one"):
                count(bad)
    with pytest.raises(ValueError, match="inputs must be given"):
        cost.count_macs(torch.nn.Linear(2, 2))
