"""The grids of language models: the printed rows and sizes, shared runs, and tables with what cannot be read."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from translution_book import facts
from translution_book.facts import ledger
from translution_book.facts.ledger import numbers
from translution_runs import Run
from translution_runs.grids import comparison, plan, read_grid, results, status, store_of, summary
from translution_runs.grids.changes import parse_changes
from translution_runs.kinds import TEXTS, kind_of
from translution_runs.verdicts import mean_variance

from translution_lib import MIXERS, cost

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "grids"
VECTORS = {"relative key vector": 192, "relative value vector": 192, "relative scalar bias (Swin)": 3}


@cache
def stored(name, profile):
    return read_grid(name, profile, folder=FOLDER)


@pytest.mark.parametrize("number", [7, 8])
def test_the_rows_are_those_of_the_printed_table_and_the_models_have_its_sizes(number):
    grid = stored(f"table-{number}", "paper")
    printed = {(c.subject, c.method, c.variant): c for c in facts.cells("translution", number, "parameters")}
    assert {(r.printed.architecture, r.printed.method, r.printed.variant) for r in grid.rows.values()} == set(printed)
    for row in grid.rows.values():
        config = row.cells["perplexity"][0]
        cell = printed[row.printed.architecture, row.printed.method, row.printed.variant]
        future = config.sizes.depth * (config.context - 1) * VECTORS.get(cell.method, 0)  # printed, and never used
        assert cost.parameters(kind_of(config).skeleton(config)) + future == facts.recount(cell).value
        assert (config.batch_size, config.data, config.tokens) == (8, "openwebtext", "gpt2")
        assert row.printed.architecture.endswith(str(config.context))


def test_every_encoding_is_tested_beyond_its_context():
    for profile in ("smoke", "cpu", "paper"):
        grid = stored("text-lengths", profile)
        mixers = {config.mixer for config in grid.runs}
        assert mixers == set(MIXERS) - {"performer-no-position"}  # another name of "performer"
        assert {tuple(config.tested) for config in grid.runs} == {
            ("1x", "2x", "4x", "2x clip", "4x clip", "2x window", "4x window")}


def test_a_run_of_several_tables_is_one_run():
    names = {name: {config.name for config in stored(name, "cpu").runs}
             for name in ("table-7", "table-8", "text-lengths")}
    assert names["table-7"] < names["table-8"]
    assert len(names["table-8"] & names["text-lengths"]) == 3 * 7  # all but the two vectors with an embedding


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The runs of two rows."""
    folder = tmp_path_factory.mktemp("measured")
    grid = stored("text-lengths", "smoke").select(["scalar-bias", "rotary"])
    store = store_of(grid, folder)
    for config in grid.runs:
        Run.begin(type(config).of({**config.model_dump(), "results_dir": str(store)})).complete()
    return grid, store


def test_a_table_shows_perplexities_and_what_cannot_be_read(measured):
    grid, store = measured
    assert store.name == "language-modelling" and grid.kind is TEXTS
    found = {(one.row, one.column): one for one in results(grid, store)}
    near, far = found["scalar-bias", "1×"], found["scalar-bias", "4×"]
    assert near.values == [near.records[0].texts["1x"].perplexity] and near.text == f"{near.mean:.2f}"
    assert far.values == [] and far.text == "cannot" and "parameters for 16 offsets" in far.cannot
    assert found["rotary", "4×"].cannot == "" and found["rotary", "4× clip"].text == "cannot"
    shown = comparison(grid, store)
    assert shown.header == ("row", "column", "ours", "printed", "difference", "seeds")
    assert ("scalar-bias", "2×", "cannot", "", "", "1 of 1") in shown.rows
    assert summary(grid, store).header[2:4] == ("1×", "2×") and "tokens of grammar" in shown.provenance[0]
    printed = comparison(stored("table-8", "smoke").select(["rotary"]), store)
    assert printed.rows[0][2:] == (found["rotary", "1×"].text, "58.02", "", "1 of 1")  # other tokens: no difference


def test_two_networks_are_compared_block_by_block_where_their_records_keep_the_losses(measured):
    grid, store = measured
    found = {one.row: one for one in results(grid, store) if one.column == "1×"}
    gap = found["scalar-bias"].effect - found["rotary"].effect
    one, other = (np.array(found[row].records[0].texts["1x"].losses) / math.log(2) for row in ("scalar-bias", "rotary"))
    assert gap.test_variance == pytest.approx(mean_variance(one - other, "bits"))
    assert gap.mean == pytest.approx((one - other).mean())
    without = replace(found["rotary"], records=tuple(
        record.model_copy(update={"texts": {"1x": record.texts["1x"].model_copy(update={"losses": ()})}})
        for record in found["rotary"].records))
    error = found["rotary"].records[0].texts["1x"].error / math.log(2)
    apart = found["scalar-bias"].effect - without.effect
    assert apart.test_variance == pytest.approx(mean_variance(one, "bits") + error**2)


def test_a_plan_knows_the_time_and_the_memory_of_texts(measured):
    grid, store = measured
    known, new = grid.runs[0], read_grid("text-lengths", "smoke", {"dim": 16}, folder=FOLDER).select(["rotary"]).runs[0]
    found = plan.predict([status(config, store) for config in (known, new)], store)
    assert "record on" in found[0].source and found[1].source == "3 steps here"
    windows = 4 * 8 + 7 * 2049 / 16 / 3
    assert found[0].seconds == pytest.approx(status(known, store).record.seconds["train"] / 32 * windows)
    assert found[1].memory == cost.memory(kind_of(new).skeleton(new), 8, device="cpu")


def test_changes_are_read_in_the_types_of_the_kind():
    assert parse_changes(["steps=3", "data=shakespeare", "test_contexts=1,2"], TEXTS) == {
        "steps": 3, "data": "shakespeare", "test_contexts": "1,2"}
    with pytest.raises(ValueError, match="got 'canvas', no such parameter"):
        parse_changes(["canvas=3"], TEXTS)


@pytest.mark.parametrize(("shift", "expected"), [(0.0, "reproduced"), (1.0, "not reproduced")])
def test_the_ledger_decides_about_a_perplexity_by_runs_of_the_papers_profile(measured, tmp_path, shift, expected):
    """Records that never were: three seeds around the printed number."""
    record, grid = status(measured[0].runs[0], measured[1]).record, stored("table-8", "paper")
    cell = next(c for c in facts.cells("translution", 8, "perplexity") if c.method == "translution")
    assert numbers.number_row(cell, ledger.Runs(FOLDER, tmp_path)).status == "not yet run"
    (tmp_path / "language-modelling").mkdir()
    for config, value in zip(grid.rows["translution"].cells["perplexity"], (56.2, 56.3, 56.4), strict=True):
        found = value + shift
        own = {"loss": math.log(found), "perplexity": found, "interval": (found - 1, found + 1), "losses": ()}
        texts = {"1x": record.texts["1x"].model_copy(update=own)}
        changed = record.model_copy(update={"name": config.name, "parameters": config.parameters(), "texts": texts,
                                            "seed": config.seed})
        changed.write(tmp_path / "language-modelling")
    row = numbers.number_row(cell, ledger.Runs(FOLDER, tmp_path))
    assert row.status == expected and row.kind == "perplexity" and len(row.ruling.records) == 3
    assert replace(cell, printed="70.0").value == 70 and numbers.number_row(
        replace(cell, printed="70.0"), ledger.Runs(FOLDER, tmp_path)).status == "not reproduced"
