"""What a record keeps of the layers' single numbers."""

import pytest
import torch
from translution_runs import ImageClassificationConfig, Record, read_record
from translution_runs.learnt import learnt
from translution_runs.run import Run

from translution_lib import ViT, offsets
from translution_lib.mixers import MIXERS


def vit(mixer: str, **options) -> ViT:
    return ViT(8, 2, 1, 3, 16, 2, 2, 8, mixer, **options)


def test_scales_and_widths_by_layer_and_head():
    model = vit("riemann", focus="after")
    found = learnt(model)
    assert list(found) == ["layer 1: s", "layer 1: sigma", "layer 2: s", "layer 2: sigma"]
    assert found["layer 1: s"] == [[pytest.approx(1 / 1.1, rel=1e-5)] * 2] * 2
    assert found["layer 2: sigma"] == [[2.0], [2.0]]


def test_a_table_by_distance_is_the_mean_over_offsets_of_a_length():
    layer = MIXERS["scalar-bias"](offsets((2, 2)), 4, 1)
    with torch.no_grad():
        layer.table.copy_(torch.arange(9.0)[None])  # δ from (−1, −1) to (1, 1)
    assert layer.learnt()["bias by distance"].tolist() == [[4.0, 4.0, 4.0]]
    with torch.no_grad():
        layer.table[0, 1] = 9  # δ = (−1, 0)
    assert layer.learnt()["bias by distance"].tolist() == [[4.0, 6.0, 4.0]]
    assert MIXERS["scalar-bias"](offsets((2, 2)), 4, 1, bias="alibi").learnt() == {}


def test_a_window_at_the_start_is_the_focus_of_riemannformer():
    grid = offsets((3, 5))
    table = MIXERS["scalar-bias"](grid, 8, 2, start="window").table
    focus = MIXERS["riemann"](grid, 8, 2, transport="none", metric=None, focus="before")
    torch.testing.assert_close(table, focus.offset_focus(torch.tensor(grid.labels).float()).to(table))
    with pytest.raises(ValueError, match="start"):
        MIXERS["scalar-bias"](grid, 8, 2, bias="alibi", start="window")
    with pytest.raises(ValueError, match="start"):
        MIXERS["scalar-bias"](grid, 8, 2, start="far")


def test_networks_without_such_numbers_have_none():
    assert learnt(vit("self-attention")) == {} == learnt(torch.nn.Linear(2, 2))


def test_a_run_keeps_them(tmp_path):
    config = ImageClassificationConfig.of(dict(
        mixer="riemann", dim=16, heads=2, ff=8, depth=1, pool="mean", canvas=8, patch_size=4, test_placements="static",
        epochs=1, train_samples=16, test_samples=8, batch_size=8, learning_rate=0.05, threads=1,
        results_dir=str(tmp_path)))
    made = Run.begin(config).complete()
    kept = read_record(tmp_path / f"{made.name}.json")
    assert isinstance(kept, Record) and kept.learnt == made.learnt
    (values,) = kept.learnt.values()
    assert all(0 < s < 1 and abs(s - 1 / 1.1) > 1e-6 for head in values for s in head)
