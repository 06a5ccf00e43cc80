"""The planner against counted and measured peaks of real training steps."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from translution_book.facts import WAYS, cells, config_of, fits

from translution_lib import GPT, ViT, cost
from translution_lib.cost.memory import CONTEXT_BYTES, FRAGMENTATION
from translution_lib.cost.tracking import build, count_peak_bytes
from translution_lib.functional import grouped
from translution_lib.models import GPTConfig, ViTConfig

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


def vit(mixer: str, dim: int = 48, depth: int = 3, heads: int = 3, **options) -> ViTConfig:
    return ViTConfig(40, 8, 3, 10, dim, depth, heads, 4 * dim, (mixer,) * depth, options=options)


def gpt(mixer: str, context: int = 24, vocabulary: int = 500, depth: int = 3, heads: int = 3, **options) -> GPTConfig:
    return GPTConfig(vocabulary, context, 48, depth, heads, 192, (mixer,) * depth, options=options)


def close(config, batch: int, where: str = "cpu", **settings) -> cost.Memory:
    """Hold the prediction within ten per cent of the counted peak."""
    predicted = cost.memory(config, batch, device="cpu", **settings)
    assert predicted.total == pytest.approx(cost.count_memory(config, batch, device=where, **settings), rel=0.1)
    return predicted


def paper(table: int, subject: str, method: str):
    return config_of(next(c for c in cells(table=table) if (c.subject, c.method) == (subject, method)))


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("keep", [0, 2**28])
@pytest.mark.parametrize("config", [vit("translution"), vit("value-translution"), vit("lor-translution"),
                                    vit("lor-translution", shared=False), gpt("translution"), gpt("lor-translution")])
def test_grouped_layers(config, keep, checkpoint, monkeypatch):
    monkeypatch.setattr(grouped, "KEEP_BYTES", keep)
    close(config, 16, "meta", checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("config", [vit("self-attention", 96, 6), vit("absolute", 96), gpt("self-attention", 64)])
def test_self_attention(config, checkpoint):
    close(config, 16, checkpoint=checkpoint)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("mixer", ["translution", "lor-translution", "self-attention"])
@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}])
def test_smaller_types(mixer, settings, checkpoint):
    for config in (vit(mixer), gpt(mixer)):
        close(config, 16, checkpoint=checkpoint, **settings)


@pytest.mark.parametrize("mixer", ["key-value-vector", "scalar-bias", "gated-bias", "rotary", "rotary-translution",
                                   "general-translution", "absolute-translution"])
def test_encodings(mixer):
    close(vit(mixer), 16)
    close(gpt(mixer), 16, checkpoint=True)


@pytest.mark.parametrize(("mixer", "options"), [
    ("performer", {}), ("performer", {"features": "trigonometric"}), ("performer-s1", {}), ("performer-s2", {}),
    ("riemann", {}), ("riemann", {"transport": "skew"}), ("riemann", {"focus": "before"}),
    ("riemann", {"focus": "after"})])
def test_linear_attention_and_transport(mixer, options):
    close(vit(mixer, heads=4, **options), 16)
    close(gpt(mixer, heads=4, **options), 16, checkpoint=True)


@pytest.mark.parametrize("mixer", ["performer", "performer-s2"])
def test_features_in_single_precision(mixer):
    close(vit(mixer, heads=4), 16, dtype="bfloat16")


@pytest.mark.parametrize("optimizer", ["none", "sgd", "momentum", "adam", "adamw"])
def test_optimizers(optimizer):
    made = close(vit("translution"), 1, "meta", optimizer=optimizer)
    states = {"none": 0, "sgd": 0, "momentum": 1}.get(optimizer, 2)
    assert made.optimizer == states * made.parameters == states * 4 * cost.parameters(vit("translution"))


@pytest.mark.parametrize("table,subject,method,batch", [(3, "ViT-A/56", "translution", 256)])
def test_architectures_of_the_paper_at_its_batch(table, subject, method, batch):
    """Counted on the meta device: gigabytes that need no memory."""
    close(paper(table, subject, method), batch, "meta")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak is read from Linux's /proc")
@pytest.mark.parametrize("case", ["vit-lor", "vit-self-attention"])
def test_a_process_grows_as_predicted(case):
    """Resident memory, the allocator told to hand back what is freed."""
    spec = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    root = BENCHMARK.parents[1]
    paths = os.pathsep.join(map(str, (root, root / "notebooks")))
    done = subprocess.run([sys.executable, str(BENCHMARK), "--measure", case], check=True, capture_output=True,
                          text=True, env={**os.environ, **spec, "PYTHONPATH": paths})
    row = json.loads(done.stdout)
    assert row["predicted"] > 150e6
    assert row["predicted"] == pytest.approx(row["resident"], rel=0.1)
    assert row["counted"] == pytest.approx(row["resident"], rel=0.1)


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
    assert cpu.workspace == 2 * largest
    assert cost.memory(config, 1, foreach=False) == cpu and cost.memory(config, 1, device="cpu", foreach=True) == gpu
    assert gpu.saved == 4 * 3 * 40 * 40 + 8
    assert gpu.total == 5 * weights + gpu.saved


def test_checkpointing_and_smaller_types_need_less():
    config = vit("self-attention", 96, 12)
    plain = cost.memory(config, 64)
    again = cost.memory(config, 64, checkpoint=True)
    half = cost.memory(config, 64, dtype="bfloat16")
    assert again.saved < plain.saved / 3 and again == cost.memory(replace(config, checkpoint=True), 64)
    assert cost.memory(replace(config, checkpoint=True), 64, checkpoint=False) == plain
    assert half.total == pytest.approx(plain.total / 2, rel=0.02)
    assert cost.memory(config, 64, autocast="bfloat16").total < plain.total


def test_it_follows_what_the_layers_keep(monkeypatch):
    """One closed form: what a layer saves enters the prediction as it is."""
    config = replace(vit("translution"), depth=5, mixer=("translution",) * 5)
    parts = []
    for keep in (2**40, 0):
        monkeypatch.setattr(grouped, "KEEP_BYTES", keep)
        parts.append((cost.memory(config, 512, optimizer="none").saved, cost.saved_bytes(config, 512)))
    assert parts[0][0] - parts[1][0] == parts[0][1] - parts[1][1] > 0


def test_a_model_and_its_configuration():
    with torch.device("meta"):
        models = [ViT.named("A/56", mixer="lor-translution"), GPT.named("A", mixer="translution"),
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


def test_every_architecture_that_ran_out_of_memory_has_a_card():
    rows = fits()
    assert len(rows) == 3 * (2 + 9 + 5) and {r.table for r in rows} == {2, 3, 7}
    out = {r.subject: r for r in rows if r.out_of_memory}
    assert sorted(out) == ["GPT-A-512", "GPT-B-160", "GPT-B-512", "GPT-C-160", "ViT-A/16", "ViT-B/16", "ViT-C/16",
                           "ViT-C/32"]
    assert all(r.method == "translution" and set(r.memory) == set(WAYS) and r.smallest for r in out.values())
    assert {r.batch for r in rows if r.table == 7} == {8} and {r.batch for r in rows if r.table != 7} == {256}
    needed = out["ViT-C/16"].memory["float32"]
    assert needed.total > 20 * cost.parameters(out["ViT-C/16"].config) > 75e9 and out["ViT-C/16"].card() == 141


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
