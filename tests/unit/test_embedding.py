"""Embeddings of places: sinusoids against two outside implementations, in the model, errors."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers.models.aimv2.modeling_aimv2 import build_2d_sinusoidal_position_embedding
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

from translution_lib import ViT, cost
from translution_lib.models.embedding import sinusoids
from translution_lib.relations import offsets

SMALL = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 3, "dim": 16, "depth": 1, "heads": 2, "ff": 8}
ADDED = {"mixer": "absolute", "embedding": "sinusoidal"}


def test_a_line_is_that_of_distilbert():
    theirs = torch.empty(20, 12)
    create_sinusoidal_embeddings(20, 12, theirs)
    assert_close(sinusoids(torch.arange(20.0)[:, None], 12), theirs.double(), rtol=1e-5, atol=1e-6)


def test_a_grid_is_that_of_aimv2_up_to_the_order_of_the_channels():
    theirs = build_2d_sinusoidal_position_embedding(height=4, width=4, embed_dim=16).view(16, 16).double()
    ours = sinusoids(offsets((4, 4)).positions.double(), 16)
    ours, theirs = (table[:, np.lexsort(table.numpy().round(6))] for table in (ours, theirs))
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_model_adds_it_once_and_does_not_learn_it(pool):
    model = ViT(**SMALL, **ADDED, pool=pool)
    plain = ViT(**SMALL, mixer="self-attention", pool=pool)
    plain.load_state_dict(model.state_dict())  # the table is not saved
    images = torch.rand(2, 1, 8, 8)
    added = model.tokens(images) - plain.tokens(images)
    table = sinusoids(offsets((4, 4)).positions.double(), 16).float()
    assert_close(added[:, -16:], table.expand(2, -1, -1), rtol=1e-4, atol=1e-5)
    assert pool == "mean" or not added[:, 0].any()
    assert cost.parameters(model) == cost.count_parameters(model) == cost.parameters(plain)
    assert model.to(torch.float64).tokens(images.double()).dtype == torch.float64


@pytest.mark.parametrize("std", [0, 0.02, 2.0])
def test_a_learned_embedding_starts_with_its_deviation(std):
    tables = []
    for more in ({}, {"embedding_std": std}):
        torch.manual_seed(3)
        tables.append(ViT(**SMALL, mixer="absolute", **more).position)
    assert_close(tables[1], std * tables[0])


@pytest.mark.parametrize("embedding", ["learned", "sinusoidal"])
@pytest.mark.parametrize("trains", [True, False])
def test_an_embedding_trains_where_it_should(embedding, trains):
    model = ViT(**SMALL, mixer="absolute", embedding=embedding, embedding_trains=trains)
    before = model.position.detach().clone()
    step = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.rand(2, 1, 8, 8)).square().sum().backward()
    step.step()
    assert torch.equal(before, model.position.detach()) != trains
    if embedding == "sinusoidal":
        assert torch.equal(before, ViT(**SMALL, **ADDED).position)
    else:  # what was drawn is saved
        other = ViT(**SMALL, mixer="absolute", embedding_trains=trains)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.position, model.position) and other.position.requires_grad == trains


@pytest.mark.parametrize("more", [{}, {"embedding_std": 0.02}, ADDED, {**ADDED, "embedding_trains": True}])
def test_its_memory_is_counted_where_there_are_no_numbers(more):
    table = 17 * 16
    with torch.device("meta"):
        model = ViT(**SMALL, **{"mixer": "absolute", **more})
    trained = isinstance(model.position, torch.nn.Parameter)
    without = ViT(**SMALL, mixer="self-attention")
    assert cost.parameters(model) - cost.parameters(without) == table * trained
    assert cost.memory(model, 2).parameters - cost.memory(without, 2).parameters == 4 * table * trained


@pytest.mark.parametrize(("call", "word"), [
    (lambda: ViT(**SMALL, mixer="rotary", embedding="sinusoidal"), "embedding"),
    (lambda: ViT(**SMALL, mixer="rotary", embedding_std=0.02), "embedding_std"),
    (lambda: ViT(**SMALL, **ADDED, embedding_std=0.02), "embedding_std"),
    (lambda: ViT(**SMALL, mixer="absolute", embedding_std=-1), "embedding_std"),
    (lambda: ViT(**SMALL, mixer="absolute", embedding_std=float("nan")), "embedding_std"),
    (lambda: ViT(**SMALL, mixer="rotary", embedding_trains=True), "embedding_trains"),
    (lambda: ViT(**SMALL, mixer="absolute", embedding_trains="yes"), "embedding_trains"),
    (lambda: ViT(**SMALL, mixer="absolute", embedding="random"), "embedding"),
    (lambda: ViT(**{**SMALL, "dim": 15, "heads": 3}, **ADDED), "dim"),
    (lambda: sinusoids(torch.zeros(2, 2), 2), "dim")])
def test_errors_name_the_argument(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()
