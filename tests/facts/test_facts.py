"""Every parameter and FLOPs cell of seed 000, to the printed digit, and the list of the cells that are wrong."""

import pytest

from translution_lib import ViT, cost, facts

COUNTED = [cell for table in facts.COUNTED for metric in ("parameters", "flops")
           for cell in facts.cells("000", table, metric)]


def test_all_cells_are_read():
    assert len(facts.cells("000")) + len(facts.cells("002")) + len(facts.cells("003")) == 378
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
    cell = next(c for c in facts.cells("000", 2, "parameters") if c.method == "self-attention")
    model = ViT.named("A/12", mixer="absolute", image_size=84, channels=1, classes=10)
    assert facts.recount(cell).value == cost.count_parameters(model) == 2_706_346
    assert facts.config_of(cell) == model.config


@pytest.mark.parametrize("arguments", [("001",), ("000", 9), ("000", 2, "perplexity")])
def test_absent_cells_are_refused(arguments):
    with pytest.raises(ValueError, match="no cells of"):
        facts.cells(*arguments)


def test_only_counts_can_be_recounted():
    for cell in (facts.cells("002")[0], facts.cells("000", 2, "top1 static->static")[0]):
        with pytest.raises(ValueError, match="parameters or FLOPs"):
            facts.recount(cell)
    with pytest.raises(ValueError, match="architecture"):
        facts.config_of(facts.cells("002")[0])
