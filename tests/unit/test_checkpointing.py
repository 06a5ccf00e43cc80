"""Activation checkpointing of the models: same outputs and gradients, fewer bytes, everything else as before."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.unit.strategies import LINEAR
from translution_lib import GPT, MIXERS, ViT, backend, cost

SIZE = {"dim": 8, "depth": 3, "heads": 2, "ff": 12}
ATTENTION = sorted(set(MIXERS) - {"convolution"})


def vit(**options) -> ViT:
    torch.manual_seed(1)
    return ViT(6, 2, 2, 5, **{**SIZE, **options})


def gpt(**options) -> GPT:
    torch.manual_seed(1)
    return GPT(11, 6, **{**SIZE, **options})


def step(model, inputs, seed=3):
    """Return the logits and all gradients of one forward and backward run."""
    torch.manual_seed(seed)
    logits = model(inputs)
    logits.square().mean().backward()
    return logits.detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("mixer", "dropout"), [
    *((mixer, 0.0) for mixer in ATTENTION), *((mixer, 0.5) for mixer in ATTENTION if mixer not in LINEAR)])
def test_same_outputs_and_gradients(mixer, dropout):
    for make, inputs in ((vit, torch.randn(2, 2, 6, 6)), (gpt, torch.randint(11, (2, 5)))):
        models = [make(mixer=mixer, dropout=dropout, checkpoint=on).double() for on in (False, True)]
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        plain, again = (step(model, inputs) for model in models)
        torch.testing.assert_close(again, plain)
        if dropout:
            assert not torch.allclose(step(models[0], inputs, seed=4)[0], plain[0])


def test_blocks_run_twice_only_while_training_with_gradients():
    model, images, runs = vit(checkpoint=True), torch.randn(1, 2, 6, 6), []
    model.blocks[1].register_forward_pre_hook(lambda *args: runs.append(1))
    step(model, images)
    assert len(runs) == 2
    with torch.no_grad():
        model(images)
    assert len(runs) == 3
    step(model.eval(), images)
    assert len(runs) == 4


def kept(model, inputs) -> int:
    """Count the bytes that the whole model hands to autograd, each storage once."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(inputs)
    del result
    return sum(storages.values())


@pytest.mark.parametrize("mixer", ATTENTION)
def test_fewer_bytes_are_kept(mixer):
    images = torch.randn(4, 2, 6, 6)
    plain, again = (kept(vit(mixer=mixer, depth=4, checkpoint=on), images) for on in (False, True))
    assert again < plain / 2


def test_configuration_and_state_are_those_of_the_plain_model():
    plain, again = vit(), vit(checkpoint=True)
    assert again.config.checkpoint and not plain.config.checkpoint and plain.config != again.config
    assert list(plain.state_dict()) == list(again.state_dict())
    plain.load_state_dict(again.state_dict())
    assert cost.parameters(plain) == cost.parameters(again) and cost.macs_true(plain) == cost.macs_true(again)
    assert ViT.named("A/56", checkpoint=True, mixer="self-attention").config.checkpoint
    assert gpt(checkpoint=True).config.checkpoint


def test_autocast():
    models = [vit(checkpoint=on) for on in (False, True)]
    images = torch.randn(2, 2, 6, 6)
    results = []
    for model in models:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        logits.float().square().mean().backward()
        results.append((logits, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0])


def test_meta_device():
    with torch.device("meta"):
        model = vit(checkpoint=True)
        logits = model(torch.empty(2, 2, 6, 6))
    logits.sum().backward()
    assert logits.shape == (2, 5) and all(p.grad.is_meta for p in model.parameters())


def test_the_form_of_a_layer_is_that_of_the_forward_run():
    plain, again = vit().double(), vit(checkpoint=True).double()
    images = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    expected = step(plain, images)
    with backend("definition"):
        logits = again(images)
    logits.square().mean().backward()
    torch.testing.assert_close([p.grad for p in again.parameters()], expected[1])


@pytest.mark.parametrize("make", [vit, gpt])
def test_only_truth_values(make, plain_types):
    with pytest.raises(ValueError, match="checkpoint must be True or False, got 1"):
        make(checkpoint=1)
