"""The planner against real training steps: every tensor followed, and torch's profiler, which sees each allocation."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from translution_book.facts import WAYS, fits

from translution_lib import GPT, ViT, cost
from translution_lib.cost.counting import build
from translution_lib.cost.memory import CONTEXT_BYTES, FRAGMENTATION
from translution_lib.cost.tracking import count_peak_bytes, training
from translution_lib.models import GPTConfig, ViTConfig


def vit(mixer, dim: int = 48, depth: int = 3, heads: int = 4, **options) -> ViTConfig:
    return ViTConfig(40, 8, 3, 10, dim, depth, heads, 4 * dim, (mixer,) * depth, options=options)


def gpt(*mixers: str, context: int = 24, **options) -> GPTConfig:
    return GPTConfig(500, context, 48, len(mixers), 4, 192, mixers, options=options)


AGAIN, HALF, MIXED = {"checkpoint": True}, {"dtype": "bfloat16"}, {"autocast": "bfloat16"}


CONFIGURATIONS = [
    (vit("self-attention", 96), 16, MIXED), (vit("translution"), 16, MIXED),
    (vit("translution"), 1, {"optimizer": "adam"}), (vit("value-translution"), 16, AGAIN | MIXED),
    (gpt(*["translution"] * 3), 8, HALF), (vit("lor-translution", core="diagonal"), 8, {"optimizer": "sgd"}),
    (vit("rotary"), 16, {"optimizer": "momentum"}), (vit("gated-bias"), 16, MIXED),
    (gpt("scalar-bias", "rotary-translution", "scalar-bias"), 8, AGAIN),
    (vit("performer", redraw_interval=2), 16, MIXED), (replace(vit("absolute"), pool="mean"), 16, {})]
MORE = [
    (vit("self-attention", 96, 6), 16, AGAIN), (vit("translution"), 16, {}),
    (vit("translution"), 32, AGAIN | {"optimizer": "none"}), (gpt(*["lor-translution"] * 3), 16, MIXED),
    (vit("lor-translution", shared=False, dropout=0.1), 16, AGAIN), (vit("key-value-vector"), 16, {}),
    (vit("general-translution"), 16, HALF), (gpt("performer-s1", "performer-s2"), 16, {"optimizer": "none"}),
    (vit("riemann", focus="after", transport="skew"), 16, {})]


@pytest.mark.parametrize(("config", "batch", "settings"), [
    *CONFIGURATIONS, *(pytest.param(*one, marks=pytest.mark.nightly) for one in MORE)])
def test_prediction_and_measurement(config, batch, settings):
    predicted = cost.memory(config, batch, device="cpu", **settings)
    assert predicted.total == pytest.approx(cost.count_memory(config, batch, **settings), rel=0.1)


@pytest.mark.parametrize("config", [vit("translution"), gpt(*["self-attention"] * 2)], ids=["vit", "gpt"])
def test_every_allocation_that_the_profiler_sees(config):
    """What kernels make and free inside is among them; the first run prepares tables and is not looked at."""
    step = training(config, 8)
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    now = peak = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    assert peak > 3e6
    assert cost.memory(config, 8, device="cpu").total == pytest.approx(peak, rel=0.1)
    assert cost.count_memory(config, 8) == pytest.approx(peak, rel=0.1)


def test_a_count_by_hand():
    """Two tensors of 400 bytes at once, a view of one of them, and a third after they are gone."""
    def run():
        a = torch.zeros(100)
        b = a.view(10, 10)
        c = b + 1
        del a, b, c
        return torch.zeros(150)

    assert count_peak_bytes(run) == 800
    assert count_peak_bytes(lambda: torch.zeros(100).add_(1)) == 400


def test_parts_by_hand():
    """With Adam on a large model and one sample the optimizer decides: weights four times, and its temporaries."""
    config = vit("translution", 96)
    weights = 4 * cost.parameters(config)
    gpu, cpu = (cost.memory(config, 1, device=device) for device in ("cuda", "cpu"))
    assert gpu.moment == cpu.moment == "optimizer"
    assert (gpu.parameters, gpu.gradients, gpu.optimizer, gpu.workspace) == (weights, weights, 2 * weights, weights)
    largest = 4 * 84 * 96 * 96          # 81 offsets on a grid of 5 × 5, three relations of the CLS token
    assert 2 * largest <= cpu.workspace <= 3 * largest      # the last of one parameter's live on into the next
    assert cost.memory(config, 1, foreach=False) == cpu and cost.memory(config, 1, device="cpu", foreach=True) == gpu
    assert gpu.saved == 4 * 3 * 40 * 40 + 8
    assert gpu.total == 5 * weights + gpu.saved
    states = {name: cost.memory(config, 1, optimizer=name).optimizer for name in ("none", "sgd", "momentum", "adam")}
    assert states == {"none": 0, "sgd": 0, "momentum": weights, "adam": 2 * weights}


def test_checkpointing_and_smaller_types_need_less():
    config = vit("self-attention", 96, 12)
    plain = cost.memory(config, 64)
    again = cost.memory(config, 64, checkpoint=True)
    half = cost.memory(config, 64, dtype="bfloat16")
    assert again.saved < plain.saved / 3 and again == cost.memory(replace(config, checkpoint=True), 64)
    assert cost.memory(replace(config, checkpoint=True), 64, checkpoint=False) == plain
    assert half.total == pytest.approx(plain.total / 2, rel=0.02)
    assert cost.memory(config, 64, autocast="bfloat16").total < plain.total


def test_layers_that_differ_are_counted_one_by_one():
    """A mixture keeps what its layers keep; options of each, and an embedding that one of them brings, included."""
    mixed = gpt("translution", "absolute", "lor-translution", relative_dim=2)
    apart = [gpt("translution"), gpt("self-attention"), gpt("lor-translution", relative_dim=2)]
    assert cost.saved_bytes(mixed, 4) == sum(cost.saved_bytes(config, 4) for config in apart)
    assert cost.memory(mixed, 8, device="cpu").total == pytest.approx(cost.count_memory(mixed, 8), rel=0.1)


def test_a_model_and_its_configuration():
    with torch.device("meta"):
        models = [ViT.named("A/56", mixer="lor-translution"), GPT.named("A", mixer="translution", context=20),
                  ViT(6, 3, 1, 5, 8, 2, 2, 12, mixer=("translution", "self-attention"), pool="mean", dropout=0.5)]
        for model in models:
            assert cost.memory(model, 8) == cost.memory(model.config, 8)
            assert {k: v.shape for k, v in build(model.config).state_dict().items()} == {
                k: v.shape for k, v in model.state_dict().items()}


def test_cards():
    made = cost.Memory(10, 20, 30, 40, 50, "backward")
    assert made.total == 150 and made.on_card == round(150 * (1 + FRAGMENTATION)) + CONTEXT_BYTES
    assert made.fits(made.on_card) and not made.fits(made.on_card - 1)
    for total, card in ((0, 24), (21.9e9, 24), (22e9, 40), (70e9, 80), (76e9, 141), (140e9, None)):
        assert cost.smallest_card(cost.Memory(int(total), 0, 0, 0, 0, "backward")) == card
    assert cost.smallest_card(made, cards=(8, 2)) == 2
    assert repr(cost.Memory(2**30, 0, 2**31, 0, 2**29, "optimizer")) == (
        "Memory(3.50 GiB in optimizer = parameters 1.00 + gradients 0.00 + optimizer 2.00 + saved 0.00 + "
        "workspace 0.50)")


def test_every_architecture_that_ran_out_of_memory_is_planned(monkeypatch):
    """The rows and their ways; what each needs stands in the chapter."""
    asked = []
    monkeypatch.setattr(cost, "memory", lambda *given, **ways: asked.append((given, ways)) or cost.Memory(*[0] * 5, ""))
    rows = fits()
    assert len(rows) == 3 * (2 + 9 + 5) and {r.table for r in rows} == {2, 3, 7} and len(asked) == 4 * len(rows)
    out = {r.subject: r for r in rows if r.out_of_memory}
    assert sorted(out) == ["GPT-A-512", "GPT-B-160", "GPT-B-512", "GPT-C-160", "ViT-A/16", "ViT-B/16", "ViT-C/16",
                           "ViT-C/32"]
    assert all(r.method == "translution" and set(r.memory) == set(WAYS) and r.smallest for r in out.values())
    assert {r.batch for r in rows if r.table == 7} == {8} and {r.batch for r in rows if r.table != 7} == {256}


@pytest.mark.parametrize("bad,name", [({"batch": 0}, "batch"), ({"batch": 1.5}, "batch"),
                                      ({"dtype": "float16"}, "dtype"),
                                      ({"optimizer": "lion"}, "optimizer"), ({"device": "tpu"}, "device"),
                                      ({"autocast": "float16"}, "autocast"),
                                      ({"dtype": "bfloat16", "autocast": "bfloat16"}, "autocast")])
def test_bad_arguments(bad, name, plain_types):
    with pytest.raises(ValueError, match=name):
        cost.memory(vit("translution"), **{"batch": 1, **bad})


def test_unknown_models_and_tables(plain_types):
    with pytest.raises(ValueError, match="model must be"):
        cost.memory(torch.nn.Linear(2, 2), 1)
    with pytest.raises(ValueError, match="table must be"):
        fits(4)
