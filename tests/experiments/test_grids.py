"""Grids: every file is read in every profile, tables share runs, and what is wrong is refused with the choices."""

from functools import cache
from pathlib import Path

import pytest
import torch
from translution_book import facts
from translution_book.facts import ledger
from translution_runs import ImageClassificationConfig, Run, build_model, lock, read_records
from translution_runs.building import model_without_numbers
from translution_runs.checkpoint import Keeper
from translution_runs.grids import (
    MISSING,
    comparison,
    counts,
    find,
    grid_files,
    plan,
    read_file,
    read_grid,
    report,
    results,
    status,
    summary,
)
from translution_runs.grids.tables import Result
from translution_runs.records import Evaluation, Record

from translution_lib import MIXERS, cost

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "grids"
FILES = sorted(grid_files(FOLDER))
TINY = {"epochs": 1, "train_samples": 48, "test_samples": 24, "batch_size": 16, "threads": 1, "canvas": 16,
        "patch_size": 8, "depth": 1, "dim": 8, "ff": 16}
SMALL = """
name: small
title: A small table
paper: translution
table: 2
experiment: image-classification
common: {epochs: 1, train_samples: 48, test_samples: 24, threads: 1, canvas: 16, patch_size: 8, depth: 1, dim: 8,
         ff: 16}
seeds: [0, 1]
rows:
  turned: {mixer: rotary, method: turning}
  plain: {mixer: self-attention, printed: {architecture: ViT-A/12, method: self-attention}}
columns:
  static → static: {run: {train_placement: static}, evaluation: static, metric: top1 static->static}
  dynamic → dynamic: {run: {train_placement: dynamic}, evaluation: dynamic, metric: top1 dynamic->dynamic}
  static → dynamic: {run: {train_placement: static}, evaluation: dynamic, metric: top1 static->dynamic}
profiles:
  smoke: {differs: "{epochs} epoch of {train_samples:,} images.", without: [turned], seeds: [0]}
  cpu: {common: {epochs: 2}, differs: "{epochs} epochs."}
"""


@cache
def stored(name, profile):
    return read_grid(name, profile, folder=FOLDER)


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "small.yaml"


def names(grid):
    return {config.name for config in grid.runs}


SEEDS = {**dict.fromkeys((
    "riemannformer-base", "static-dynamic-seeds", "static-dynamic-eight", "static-dynamic-deep-seeds",
    "longer-encodings-eight", "preprint-eight", "preprint-eight-moving", "preprint-eight-still",
    "static-dynamic-window", "static-dynamic-clip", "wider-digits-eight", "riemannformer-paired",
    "riemannformer-coarse-paired", "photographs", "photographs-coarse",
    "photographs-more", "photographs-starts", "photographs-starts-coarse", "preprint-width-one"), 8),
    "performers-shifts-paired": 5, "static-dynamic-wide": 4}
"""Seeds of a grid's small runs, where they are not three."""


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("name", FILES)
def test_every_grid_has_runs_in_every_profile_and_printed_cells_that_exist(name, profile):
    if profile == "cpu" and name == "characters":  # its small runs would be those of Table 8
        assert "cpu" not in read_file(FOLDER / "characters.yaml").profiles
        return
    grid = stored(name, profile)
    assert grid.rows and len(names(grid)) == len(grid.runs) > 0 and grid.differs
    assert [config.seed for config in grid.runs] == sorted(config.seed for config in grid.runs)
    if profile == "smoke":
        files = [config for config in grid.runs if config.data_source != "generated"]
        assert {config.data for config in files} <= {"digits", "grammar"}  # no file, no network
        assert max(map(plan.images, grid.runs)) < 2_000  # seconds
    else:
        chooses_a_rate = all(getattr(config, "held_out", 0) for config in grid.runs)
        seeds = len({config.seed for config in grid.runs})
        assert seeds == (1 if chooses_a_rate else SEEDS.get(name, 3) if profile == "cpu" else 3)
    metrics = [column for column in grid.file.columns.values() if column.metric]
    found = [grid.printed(row, heading) for row in grid.rows.values() for heading in grid.file.columns]
    assert sum(cell is not None for cell in found) == len(metrics) * sum(row.printed is not None
                                                                        for row in grid.rows.values())


@pytest.mark.parametrize("name", ["table-2", "table-5", "table-10"])
def test_the_rows_are_those_of_the_printed_table_and_the_models_have_its_sizes(name):
    grid = stored(name, "paper")
    lines = {(c.subject, c.method, c.variant) for c in facts.cells("translution", int(name.removeprefix("table-")))}
    assert {(r.printed.architecture, r.printed.method, r.printed.variant) for r in grid.rows.values()} == lines
    for row in grid.rows.values():
        config = row.cells["static → static"][0]
        with torch.device("meta"):
            model = build_model(config)
        of = {(c.subject, c.method, c.variant): c for c in facts.cells("translution", grid.file.table, "parameters")}
        line = (row.printed.architecture, row.printed.method, row.printed.variant)
        if line in of:
            assert cost.parameters(model) == facts.recount(of[line]).value
        assert (config.sizes.dim, config.sizes.depth, config.sizes.heads) == (192, 6, 3)


def test_the_nine_methods_are_those_of_table_4():
    grid = stored("table-4", "cpu")
    printed = facts.cells("translution", 4, "parameters")
    assert [row.printed.method for row in grid.rows.values()] == [cell.method for cell in printed]
    for row, cell in zip(grid.rows.values(), printed, strict=True):
        mixer, = {config.mixer for config in row.cells["dynamic → dynamic"]}
        assert [mixer] == [name for name in [mixer] if name in (facts.config_of(cell).mixer[0], "absolute")]


def test_the_four_performers_have_the_sizes_of_the_papers_appendix():
    grid = stored("performers-table-1", "paper")
    performers = [row.cells["MNIST"][0] for row in grid.rows.values() if row.cells["MNIST"][0].model == "vit"]
    assert [config.mixer for config in performers] == ["performer", "performer-absolute", "performer-s1",
                                                       *["performer-s2"] * 3]
    assert [config.options.get("clip") for config in performers] == [None, None, None, 2, 4, 6]
    for config in performers:
        assert (config.sizes.dim, config.sizes.depth, config.sizes.heads) == (256, 6, 8)        # appendix A.2
        assert (config.batch_size, config.learning_rate, config.shift) == (22, 5e-4, 8)
        assert config.canvas == config.image_size == 32 and config.patch_size == 1


PRINTED = ("translution", "performers", "riemannformer")


def test_every_printed_accuracy_and_perplexity_has_runs_that_repeat_it():
    """All tables of all sources, at the paper's size; parameters and operations are counted, not run."""
    grids = [stored(name, "paper") for name in FILES]
    cells = [grid.printed(row, heading) for grid in grids for row in grid.rows.values()
             for heading, column in grid.file.columns.items() if column.evaluation]
    repeated = {(cell.paper, *cell.key) for cell in cells if cell is not None}
    wanted = {(cell.paper, *cell.key) for paper in PRINTED for cell in facts.cells(paper)
              if cell.metric not in ("parameters", "flops", "status")}
    assert repeated == wanted and len(wanted) == 199


def test_every_accuracy_of_the_relative_performers_table_has_its_place():
    grid = stored("performers-table-1", "paper")
    cells = [grid.printed(row, heading) for row in grid.rows.values() for heading in grid.file.columns]
    places = [cell.key for cell in cells if cell is not None]
    assert sorted(places) == sorted(cell.key for cell in facts.cells("performers", 1, "top1")) and len(places) == 27
    without = stored("performers-table-1", "cpu")
    shown = [column.evaluation for column in without.file.columns.values() if column.subject]
    assert shown == ["static", None, "static"]
    assert {config.data for config in without.runs} == {"mnist", "cifar10"}


def test_the_networks_of_the_table_have_the_printed_sizes():
    printed = {cell.method: cell for cell in facts.cells("performers", 1, "parameters")}
    for name, data in [("AlexNet", "CIFAR-10"), ("VGG-16", "MNIST"), ("VGG-16", "CIFAR-10"), ("ResNet-18", "MNIST")]:
        config = stored("performers-table-1", "paper").rows[name].cells[data][0]
        count = cost.count_parameters(model_without_numbers(config))
        assert ledger.rounds_to(count / 1e6, printed[name].printed)


def test_a_profile_has_parameters_of_single_rows_and_columns(small):
    own = ("cpu: {rows: {turned: {dim: 16}}, columns: {static → dynamic: {learning_rate: 0.01}}, "
           "without_columns: [static → static], common")
    text = SMALL.replace("cpu: {common", own)
    small.write_text(text)
    grid = read_grid(small, "cpu")
    assert {(row.name, heading): {(c.dim, c.learning_rate) for c in cell} for row in grid.rows.values()
            for heading, cell in row.cells.items() if heading == "static → dynamic"} == {
        ("turned", "static → dynamic"): {(16, 0.01)}, ("plain", "static → dynamic"): {(8, 0.01)}}
    assert all("static → static" not in row.cells for row in grid.rows.values())
    small.write_text(text.replace("rows: {turned: {dim: 16}}", "rows: {bent: {dim: 16}}"))
    with pytest.raises(ValueError, match="profiles.cpu.rows: got 'bent', expected one of turned, plain"):
        read_grid(small, "cpu")


@pytest.mark.parametrize("profile", ["smoke", "cpu", "paper"])
def test_a_run_of_two_tables_is_one_run(profile):
    table_2 = stored("table-2", profile)
    for name, row in [("table-5", "lor-translution, relative"), ("table-5", "translution, relative"),
                      ("table-10", "lor-translution, without"), ("table-10", "translution, without")]:
        assert names(stored(name, profile).select(rows=[row])) <= names(table_2)
    assert not names(stored("table-5", profile).select(rows=["translution, pairs"])) & names(table_2)
    shared = names(stored("table-4", profile)) & names(table_2)
    assert {name.split("-seed")[0] for name in shared} >= {
        f"{'digits' if profile == 'smoke' else 'mnist'}-dynamic-{mixer}"
        for mixer in ("absolute", "lor-translution", "translution")}


def test_what_is_more_particular_holds(small):
    assert {config.epochs for config in read_grid(small, "smoke").runs} == {1}
    assert {config.epochs for config in read_grid(small, "cpu").runs} == {2}
    assert {config.epochs for config in read_grid(small, "cpu", {"epochs": 3}).runs} == {3}
    assert read_grid(small, "cpu").differs == "2 epochs."
    assert read_grid(small, "smoke").differs == "1 epoch of 48 images. Left out: turned."
    assert [len(read_grid(small, profile).runs) for profile in ("smoke", "cpu")] == [2, 8]


def test_a_file_like_another_takes_what_it_does_not_say(small):
    small.with_name("other.yaml").write_text(
        "name: other\ntitle: Another\npaper: translution\nexperiment: image-classification\nlike: small\n"
        "rows:\n  only: {mixer: rotary}\nprofiles:\n  cpu: {common: {dim: 16}, seeds: [5]}\n")
    first, second = read_grid(small.with_name("other.yaml"), "smoke"), read_grid(small.with_name("other.yaml"), "cpu")
    assert list(first.rows) == ["only"] and {config.seed for config in first.runs} == {0}
    assert {(c.seed, c.dim, c.epochs, c.train_samples) for c in second.runs} == {(5, 16, 2, 48)}
    assert second.differs == "2 epochs."


def test_of_the_other_file_s_profiles_it_takes_the_rows_that_it_has(small):
    small.write_text(SMALL.replace("cpu: {", "cpu: {rows: {plain: {dim: 24}, turned: {dim: 40}}, "))
    other = small.with_name("other.yaml")
    other.write_text("name: other\ntitle: Another\npaper: translution\nlike: small\nrows:\n  turned: {mixer: rotary}\n")
    assert {config.dim for config in read_grid(other, "cpu").runs} == {40}


def test_a_file_elsewhere_may_be_like_a_grid_of_the_repository(tmp_path):
    """What lies beside it comes first."""
    own = tmp_path / "own.yaml"
    own.write_text("name: own\ntitle: Mine\npaper: translution\nlike: table-2\ncommon: {patch_size: 4}\n"
                   "rows:\n  turned: {mixer: rotary}\n")
    mine, theirs = read_grid(own, "cpu"), stored("table-2", "cpu")
    assert list(mine.rows) == ["turned"] and mine.file.columns == theirs.file.columns
    assert {c.epochs for c in mine.runs} == {c.epochs for c in theirs.runs}
    (tmp_path / "table-2.yaml").write_text(SMALL.replace("name: small", "name: table-2"))
    assert {c.epochs for c in read_grid(own, "cpu").runs} == {2}
    own.write_text("name: own\ntitle: Mine\npaper: translution\nlike: nothing\nrows:\n  turned: {mixer: rotary}\n")
    with pytest.raises(ValueError, match="got 'nothing', expected one of .*table-2"):
        read_grid(own, "cpu")


def test_a_choice_of_rows_methods_and_seeds(small):
    grid = read_grid(small, "cpu")
    assert grid.methods == ["turning", "self-attention"]
    assert list(grid.select(methods=["turning"]).rows) == ["turned"]
    assert {(c.mixer, c.seed) for c in grid.select(["plain"], seeds=[1]).runs} == {("self-attention", 1)}
    with pytest.raises(ValueError, match="both in"):
        grid.select(["plain"], ["turning"])


def test_a_choice_of_columns(small):
    """A column of a table keeps the runs that it reads; two columns that read the same runs share them."""
    grid = read_grid(small, "cpu")
    still = grid.select(columns=["static → static"])
    assert {c.train_placement for c in still.runs} == {"static"} and len(still.runs) == 4
    assert all(list(row.cells) == ["static → static"] for row in still.rows.values())
    assert list(still.rows) == list(grid.rows)
    assert names(grid.select(columns=["static → dynamic"])) == names(still)
    one = grid.select(["plain"], seeds=[1], columns=["dynamic → dynamic"])
    assert [(c.mixer, c.seed, c.train_placement) for c in one.runs] == [("self-attention", 1, "dynamic")]
    assert names(grid.select(columns=[])) == names(grid)
    with pytest.raises(ValueError, match="column: got 'static', expected one of static → static, dynamic → dynamic"):
        grid.select(columns=["static"])


@pytest.mark.parametrize(("change", "message"), [
    (("title: A small table\n", ""), "small.yaml: not a grid\n  title: Field required"),
    (("seeds: [0, 1]", "seeds: []"), "seeds: List should have at least 1 item"),
    (("name: small", "name: large"), "name: got 'large', expected 'small'"),
    (("common:", "commons:"), "commons: Extra inputs are not permitted"),
    (("mixer: rotary", "mixer: turning"), "profile cpu, row 'turned', column 'static → static': .*expected one of"),
    (("epochs: 2", "epoch: 2"), "epoch: no such parameter"),
    (("evaluation: dynamic", "evaluation: near"), "evaluation: got 'near', expected one of static, dynamic"),
    (("method: turning", "printed: {architecture: ViT-Z, method: none}"), "no cell 'ViT-Z', 'none', ''"),
    (("without: [turned]", "without: [bent]"), "without: got 'bent', expected one of turned, plain"),
    (("mixer: self-attention,", "mixer: rotary,"), "rows 'turned' and 'plain' are the same"),
    (('"{epochs} epochs."', '"{epoch} epochs."'), "differs: no parameter 'epoch'"),
    (("  cpu:", "  gpu:"), "got gpu, expected smoke, cpu, paper"),
    (("rows:", "rows: ["), "cannot be read as YAML"),
])
def test_a_wrong_file_is_refused_with_the_place(small, change, message):
    small.write_text(SMALL.replace(*change))
    with pytest.raises(ValueError, match="(?s)" + message):
        for profile in ("cpu", "smoke"):
            grid = read_grid(small, profile)
            comparison(grid, "nowhere")
            assert grid.differs


def test_unknown_grids_rows_methods_and_seeds_are_refused_with_the_choices():
    with pytest.raises(ValueError, match="grid: got '99', expected one of .*table-2"):
        find("99", FOLDER)
    assert find("2", FOLDER) == find("table-2", FOLDER) == FOLDER / "table-2.yaml"
    with pytest.raises(ValueError, match="no such grid file"):
        read_grid("nowhere.yaml")
    grid = stored("table-2", "cpu")
    for choice, message in [({"rows": ["x"]}, "row: got 'x', expected one of A/12 self-attention"),
                            ({"methods": ["x"]}, "method: got 'x', expected one of self-attention, lor"),
                            ({"seeds": [7]}, "seed: got 7, expected one of 0, 1, 2")]:
        with pytest.raises(ValueError, match=message):
            grid.select(**choice)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A small grid of which the row `plain` and one seed of `turned` have records."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "small.yaml").write_text(SMALL)
    grid, store = read_grid(folder / "small.yaml", "cpu"), folder / "records"
    for config in [*grid.select(["plain"]).runs, *grid.select(["turned"], seeds=[1]).runs]:
        Run.begin(ImageClassificationConfig.of({**config.model_dump(), "results_dir": str(store)})).complete()
    return grid, store


def test_a_table_has_mean_spread_seeds_and_difference_beside_the_printed_number(measured):
    grid, store = measured
    found = {(one.row, one.column): one for one in results(grid, store)}
    plain = found["plain", "static → dynamic"]
    right = [100 * record.evaluations["dynamic"].accuracy for record in read_records(store)
             if record.parameters["mixer"] == "self-attention" and record.parameters["train_placement"] == "static"]
    assert sorted(plain.accuracies) == sorted(right) and len(right) == 2
    assert plain.mean == pytest.approx(sum(right) / 2)
    assert plain.estimate.deviation == pytest.approx(abs(right[0] - right[1]) / 2 ** 0.5)
    assert plain.difference == pytest.approx(sum(right) / 2 - 18.18) and plain.text.count(" ± ") == 1
    assert found["turned", "static → static"].estimate.runs == 1 and found["turned", "static → static"].printed is None
    lines = {line[:2]: line[2:] for line in comparison(grid, store).rows}
    assert lines["plain", "static → dynamic"][1:] == ("18.18", f"{plain.difference:+.2f}".replace("-", "−"), "2 of 2")
    assert lines["turned", "static → static"][1:] == ("", "", "1 of 2")
    assert len(comparison(grid, store).provenance) == 6 and "Profile cpu on" in comparison(grid, store).caption


def test_the_runs_of_a_cell_are_compared_at_two_placements_seed_by_seed():
    accuracies = [{"static": 0.9, "dynamic": 0.4}, {"static": 0.8, "dynamic": 0.1}]
    records = tuple(Record.model_construct(evaluations={name: Evaluation.model_construct(accuracy=a)
                                                        for name, a in of.items()}) for of in accuracies)
    one = Result("plain", "static → dynamic", records, "dynamic", 3, facts.cells()[0])
    assert one.tested("static").accuracies == pytest.approx([90, 80]) and one.tested("static").printed is None
    lost = one.lost("static", "dynamic")
    assert (lost.runs, lost.mean, lost.deviation) == (2, pytest.approx(60), pytest.approx(200 ** 0.5))
    assert Result("plain", "static → dynamic", (), "dynamic", 3, None).lost("static", "dynamic") is None


def test_a_cell_without_records_says_so(measured, tmp_path):
    grid, store = measured
    assert {line[2] for line in comparison(grid, tmp_path).rows} == {MISSING}
    assert [line[1] for line in summary(grid, tmp_path).rows] == [MISSING, MISSING]
    assert [line[-1] for line in summary(grid, store).rows] == ["1 of 2", "2 of 2"]
    assert summary(grid, store).header == ("row", "parameters", "static → static, %", "dynamic → dynamic, %",
                                           "static → dynamic, %", "seeds")
    printed = stored("table-4", "cpu")
    texts = {line[1]: line[2:4] for line in comparison(printed, tmp_path).rows if line[0] == "translution"}
    assert texts["ImageNet, ViT-A/56"] == ("not run here", "52.41")


def test_the_states_of_runs(measured, tmp_path):
    grid, store = measured
    done, *_ = grid.select(["plain"]).runs
    missing, interrupted, running, invalid, failed = read_grid(find_small(store), "cpu", {"ff": 8}).runs[:5]
    assert status(done, store).state == "done" and status(done, store).record.name == done.name
    (store / f"{done.name}.lock").write_text("left behind")
    assert status(done, store).state == "done"
    assert status(missing, tmp_path).state == "missing"
    Keeper(tmp_path / f"{interrupted.name}.checkpoints", "x").save(1234, {})
    assert (status(interrupted, tmp_path).state, status(interrupted, tmp_path).detail) == (
        "interrupted", "after step 1,234")
    text = (store / f"{done.name}.json").read_text()
    (tmp_path / f"{invalid.name}.json").write_text(text)
    assert f"name: got {done.name!r}, expected {invalid.name!r}" in status(invalid, tmp_path).detail
    (tmp_path / f"{failed.name}.failed.ipynb").write_text("{}")
    with lock.hold(tmp_path / f"{running.name}.lock"):
        found = [status(one, tmp_path) for one in (missing, interrupted, running, invalid, failed)]
    assert [one.state for one in found] == ["missing", "interrupted", "running", "invalid", "failed"]
    assert "process" in found[2].detail and counts(found)["running"] == 1
    (tmp_path / f"{done.name}.json").write_text(text[:100])
    assert status(done, tmp_path).state == "invalid" and "not a run record" in status(done, tmp_path).detail
    (tmp_path / f"{done.name}.json").write_text(text.replace('"translution_lib": "', '"translution_lib": "old-'))
    assert "translution_lib: old-" in status(done, tmp_path).detail
    assert "1 missing" in report.states(found)


def find_small(store):
    return store.parent / "small.yaml"


def test_a_plan_takes_the_time_from_a_record_or_from_a_few_steps(measured):
    grid, store = measured
    known = grid.select(["plain"]).runs[0]
    new = read_grid(find_small(store), "cpu", {"dim": 16, "test_samples": 0}).runs[0]
    far = read_grid(find_small(store), "cpu", {"device": "cuda", "precision": "bfloat16"}).runs[0]
    found = plan.predict([status(config, store) for config in (known, new, far)], store)
    rates = [one for one in read_records(store) if one.parameters["mixer"] == "self-attention"]
    latest = max(one.date for one in rates)
    assert "record on" in found[0].source
    assert found[0].seconds in [pytest.approx(one.seconds["train"] / 96 * (96 + 16)) for one in rates
                                if one.date == latest]
    assert found[1].source == "3 steps here" and found[1].seconds > 0
    assert plan.images(new) == pytest.approx(2 * 48 + 2 * 355 / 3)
    with torch.device("meta"):
        model = build_model(new)
    assert found[1].memory == cost.memory(model, 64, device="cpu")
    if not torch.cuda.is_available():
        assert (found[2].seconds, found[2].source) == (None, "no GPU here")
        assert plan.remaining(found) == (found[1].seconds, 1)
    assert "left to do" in report.plan(found) and found[2].memory.on_card > 1e9


@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {"convolution"}))
def test_every_mixer_trains_and_leaves_a_record(tmp_path, mixer):
    config = ImageClassificationConfig.of({**TINY, "mixer": mixer, "results_dir": str(tmp_path)})
    record = Run.begin(config).complete()
    assert record.evaluations["dynamic"].n == 24 and record.curve[0].loss > 0
    assert record.cost["parameters"] == cost.parameters(build_model(config))
    assert [found.name for found in read_records(tmp_path)] == [record.name]
