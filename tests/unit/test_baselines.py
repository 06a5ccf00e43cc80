"""The networks that the Performers are compared with, held against other programs and against torch's attention."""

import logging

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from translution_runs import ImageClassificationConfig, Run
from translution_runs.baselines import BASELINES, Baseline
from translution_runs.baselines.convolutional import CONVOLUTIONAL, SpreadTo, alexnet, resnet18, vgg16
from translution_runs.baselines.efficient import Routed
from translution_runs.building import build_model

from translution_lib import cost

SIZES = {"patch_size": 8, "depth": 1, "heads": 2, "ff": 12}


def made(name: str, dim: int = 4, **options) -> Baseline:
    torch.manual_seed(0)
    return Baseline(name, 32, 1, 5, dim, {} if name in CONVOLUTIONAL else SIZES, **options)


@pytest.mark.parametrize(("network", "published"), [(vgg16, 138_357_544), (resnet18, 11_689_512)])
def test_the_sizes_are_those_that_torchvision_documents_for_1000_classes(network, published):
    with torch.device("meta"):
        assert cost.count_parameters(network(3, 1000)) == published


def test_alexnets_convolutions_are_those_of_the_published_network():
    with torch.device("meta"):
        small = alexnet(3, 10)
    # torchvision documents 61,100,840; without its three dense layers 2,469,696 remain.
    dense = sum(a * b + b for a, b in ((9216, 4096), (4096, 4096), (4096, 1000)))
    assert cost.count_parameters(small) - 2570 == 61_100_840 - dense == 2_469_696


@pytest.mark.parametrize("side", [32, 64])
def test_resnet_18_computes_what_that_of_transformers_computes(side):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ours = resnet18(3, 7, 8).double().eval()
    theirs = transformers.ResNetForImageClassification(transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 2, 2, 2], layer_type="basic", num_labels=7))
    theirs = theirs.double().eval()
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
    # Both list a block's shortcut at another place: pair the layers by the shape of their weights, in order.
    left, right = ([m for m in net.modules() if isinstance(m, kinds)] for net in (ours, theirs))
    assert len(left) == len(right)
    for shape in {tuple(m.weight.shape) for m in left}:
        pairs = zip(*([m for m in net if tuple(m.weight.shape) == shape] for net in (left, right)), strict=True)
        for one, other in ((a, b) for a, b in pairs if not isinstance(a, nn.BatchNorm2d)):
            other.load_state_dict(one.state_dict())
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    assert_close(ours(x), theirs(x).logits)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_spreading_is_adaptive_pooling(side, channels, height, width):
    x = torch.randn(2, channels, height, width)
    assert_close(SpreadTo(side)(x), F.adaptive_avg_pool2d(x, side))


@pytest.mark.parametrize("name", sorted(CONVOLUTIONAL))
def test_multiply_adds_of_a_convolutional_network_are_fvcores(name):
    fvcore = pytest.importorskip("fvcore.nn")
    logging.getLogger("fvcore").setLevel(logging.ERROR)
    model, x = made(name).eval(), torch.zeros(1, 1, 32, 32)
    analysis = fvcore.FlopCountAnalysis(model, x).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    found = analysis.by_operator()
    assert cost.count_macs(model, x) == found["conv"] + found["linear"]


def test_linformer_is_attention_to_learned_sums_of_the_tokens():
    model = made("linformer", dim=6, projected=3).double()
    layer, x = model.network.blocks[0].mixer, torch.randn(2, 17, 6, dtype=torch.float64)
    keys, values = layer.proj_k.mT @ layer.to_k(x), layer.proj_v.mT @ layer.to_v(x)
    q, k, v = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in (layer.to_q(x), keys, values))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    assert_close(layer(x), layer.to_out(expected))
    assert keys.shape == (2, 3, 6)


def test_routing_in_one_cluster_is_attention():
    torch.manual_seed(0)
    layer, x = Routed(6, 2, 9, window=9).double().eval(), torch.randn(2, 9, 6, dtype=torch.float64)
    inner = layer.attention
    q, k, v = (m(x).unflatten(-1, (2, 3)).transpose(1, 2) for m in (inner.to_q, inner.to_k, inner.to_v))
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    # the package divides by the number of clusters that a token is in plus 1e-5
    assert_close(layer(x), inner.to_out(expected), rtol=2e-5, atol=1e-9)


def test_routing_adds_its_second_loss_in_backward_and_moves_its_centres_then():
    torch.manual_seed(0)
    layer, x = Routed(6, 2, 9, window=3).double().train(), torch.randn(2, 9, 6, dtype=torch.float64)
    layer(x)                                                       # the first pass sets the centres
    layer.attention.global_attn.kmeans.commitment = 1.0
    before = layer.attention.global_attn.kmeans.means.clone()
    layer(x).square().sum().backward()
    ours = [weight.grad.clone() for weight in (layer.attention.to_q.weight, layer.attention.to_v.weight)]
    assert not torch.equal(layer.attention.global_attn.kmeans.means, before)
    layer.attention.global_attn.kmeans.means.copy_(before)
    layer.zero_grad()
    out, loss = layer.attention(x)
    (out.square().sum() + loss).backward()
    assert_close(ours, [layer.attention.to_q.weight.grad, layer.attention.to_v.weight.grad])


def test_a_trained_or_judged_network_has_the_asked_shape_and_a_gradient_everywhere():
    for name in BASELINES:
        model, x = made(name).train(), torch.rand(3, 1, 32, 32)
        model(x).square().sum().backward()
        # the package's memory of a cluster has no elements here
        assert all(p.grad is not None for p in model.parameters() if p.numel()), name
        assert model.eval()(x).shape == (3, 5)


@pytest.mark.parametrize(("arguments", "expected"), [
    (("lenet", 32, 1, 5), "name must be one of alexnet, vgg-16, resnet-18, linformer, routing-transformer, got 'len"),
    (("alexnet", 31, 1, 5), "image_size must be at least 32 for alexnet, got 31"),
    (("alexnet", 32, 0, 5), "channels"),
    (("alexnet", 32, 1, 5, 8, {"depth": 2}), r"alexnet has no sizes and options but dim, got \['depth'\]"),
])
def test_wrong_arguments_are_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        Baseline(*arguments)


def test_wrong_options_and_pictures_are_refused():
    with pytest.raises(ValueError, match="linformer has the option 'projected' alone, got"):
        made("linformer", window=3)
    with pytest.raises(ValueError, match="window"):
        made("routing-transformer", window=0)
    with pytest.raises(ValueError, match=r"images must have the shape \(batch, 1, 32, 32\), got \(2, 1, 28, 28\)"):
        made("alexnet")(torch.zeros(2, 1, 28, 28))


RUN = {"canvas": 32, "digit_size": 16, "patch_size": 8, "dim": 4, "epochs": 1, "train_samples": 32, "test_samples": 32,
       "batch_size": 16, "threads": 1, "test_placements": "static"}


@pytest.mark.parametrize(("model", "more"), [
    ("alexnet", {}), ("routing-transformer", {"depth": 1, "heads": 2, "ff": 8})])
def test_a_run_trains_a_baseline_and_its_record_says_what_it_costs(tmp_path, model, more):
    config = ImageClassificationConfig.of({**RUN, **more, "model": model, "results_dir": str(tmp_path)})
    record = Run.begin(config).complete()
    network = build_model(config).eval()
    macs = cost.count_macs(network, torch.zeros(1, 1, 32, 32))
    assert record.cost == {"parameters": cost.count_parameters(network), "macs_as_printed": macs, "macs_true": macs}
    assert record.model["name"] == model and f"-{model}-seed0-" in record.name


@pytest.mark.parametrize(("parameters", "expected"), [
    ({"model": "alexnet", "depth": 2}, "depth: got 2 with model 'alexnet', which does not read it; expected it at its"),
    ({"model": "linformer", "mixer": "absolute"}, "mixer: got 'absolute' with model 'linformer', which does not read"),
    ({"model": "resnet-18", "mixer_options": '{"clip": 2}'}, "mixer_options: got"),
    ({"model": "vgg-16", "canvas": 24}, "the model cannot be built with model 'vgg-16'"),
    ({"model": "lenet"}, "model: got 'lenet'"),
])
def test_a_configuration_refuses_what_a_baseline_would_not_read(parameters, expected):
    with pytest.raises(ValueError, match=expected):
        ImageClassificationConfig.of({"canvas": 32, "patch_size": 8, **parameters})


def test_a_configuration_without_a_baseline_is_called_what_it_was_before():
    assert ImageClassificationConfig.of({}).fingerprint() == "44136fa355b3"
    assert ImageClassificationConfig.of({}).name == "digits-static-translution-seed0-44136fa355b3"


def test_kept_bytes_are_the_same_on_every_device_and_in_every_count():
    """Storages on "meta" share one address, and freed ones lend theirs to others."""
    def kept(device, seed):
        torch.manual_seed(seed)
        with torch.device(device):
            model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
            return cost.count_saved_bytes(model, torch.zeros(3, 4))

    by_hand = 4 * 3 * (4 + 8 + 8 + 8 + 8)  # the input, and before and after each GELU
    assert {kept(device, seed) for device in ("cpu", "meta") for seed in (0, 1)} == {by_hand}
