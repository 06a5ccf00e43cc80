"""Every parameter and FLOPs cell of the Translution paper, to the printed digit, and the list of the cells that are
wrong."""

import pytest
import torch
from translution_book import facts

from translution_lib import ViT, cost
from translution_lib.cost.tracking import build

COUNTED = [cell for table in facts.COUNTED for metric in ("parameters", "flops")
           for cell in facts.cells("translution", table, metric)]


def test_all_cells_are_read():
    assert len(facts.cells("translution")) + len(facts.cells("performers")) + len(facts.cells("riemannformer")) == 378
    assert len(COUNTED) == 162 and len({cell.key for cell in COUNTED}) == 162


@pytest.mark.parametrize("cell", COUNTED, ids=lambda cell: " ".join(map(str, cell.key)))
def test_cell(cell):
    computed, wrong = facts.recount(cell), facts.ERRATA.get(cell.key)
    assert computed.agrees == (wrong is None)
    if wrong is not None and wrong.should is not None:
        assert computed.rounded == wrong.should


def test_errata_name_cells_that_exist():
    assert set(facts.ERRATA) <= {cell.key for cell in COUNTED}
    assert {wrong.kind for wrong in facts.ERRATA.values()} <= set(facts.errata.KINDS)


def test_baselines_that_are_self_attention_cost_what_the_model_costs():
    cell = next(c for c in facts.cells("translution", 2, "parameters") if c.method == "self-attention")
    model = ViT.named("A/12", mixer="absolute", image_size=84, channels=1, classes=10)
    assert facts.recount(cell).value == cost.count_parameters(model) == 2_706_346
    assert facts.config_of(cell) == model.config


NINE = {"self-attention, no position": 4_685_032, "self-attention, absolute position": 4_688_296,
        "relative key vector": 4_744_744, "relative value vector": 4_744_744, "relative scalar bias (Swin)": 4_685_914,
        "gated scalar bias (ConViT)": 4_685_104, "rotary (RoFormer)": 4_685_032, "lor-translution": 5_334_760,
        "translution": 38_526_184}


@pytest.mark.parametrize("metric", ["parameters", "flops"])
def test_the_nine_methods_of_table_4_are_models_of_the_library(metric):
    """The cell is that of the model that its row names, built and counted."""
    for cell in facts.cells("translution", 4, metric):
        config = facts.config_of(cell)
        with torch.device("meta"):
            model = build(config)
        value = facts.recount(cell).value
        counted = cost.count_parameters(model) if metric == "parameters" else cost.macs_as_printed(model)
        assert value == counted and (metric == "flops" or value == NINE[cell.method])


def test_the_methods_of_table_8_count_offsets_of_the_future():
    for cell in facts.cells("translution", 8, "parameters"):
        with torch.device("meta"):
            model = build(facts.config_of(cell))
        more = facts.recount(cell).value - cost.count_parameters(model)
        per_offset = {"relative key vector": 192, "relative value vector": 192, "relative scalar bias (Swin)": 3}
        assert more == 6 * 159 * per_offset.get(cell.method, 0)


@pytest.mark.parametrize("arguments", [("preprint",), ("translution", 9), ("translution", 2, "perplexity")])
def test_absent_cells_are_refused(arguments):
    with pytest.raises(ValueError, match="no cells of"):
        facts.cells(*arguments)


def test_only_counts_can_be_recounted():
    for cell in (facts.cells("performers")[0], facts.cells("translution", 2, "top1 static->static")[0]):
        with pytest.raises(ValueError, match="parameters or FLOPs"):
            facts.recount(cell)
    with pytest.raises(ValueError, match="architecture"):
        facts.config_of(facts.cells("performers")[0])
