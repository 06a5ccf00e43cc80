"""The ledger: every cell once, statuses decided by what they name, tampered evidence and bad claims noticed."""

import json
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from translution_book import facts
from translution_book.facts import ledger
from translution_book.facts.ledger import checks, numbers, printed
from translution_book.facts.ledger.claims import claim_row
from translution_book.facts.ledger.row import COMPUTED
from translution_runs import read_records
from translution_runs.grids import read_grid
from translution_runs.records import DataSource, Evaluation, Record, TextEvaluation

import translution_lib

ROOT = Path(__file__).resolve().parents[2]
GRIDS, CELLS = ROOT / "notebooks" / "grids", [c for s in numbers.PRINTED_PAPERS for c in facts.cells(s)]
SMALL = """
name: small
title: A small table
paper: translution
table: 2
experiment: image-classification
common: {epochs: 1, train_samples: 48, test_samples: 1000, threads: 1, canvas: 16, patch_size: 8, depth: 1, dim: 8,
         ff: 16}
seeds: [0, 1, 2]
rows:
  plain: {mixer: self-attention, printed: {architecture: ViT-A/12, method: self-attention}}
  relative: {mixer: translution, printed: {architecture: ViT-A/12, method: translution}}
columns:
  moved: {run: {train_placement: dynamic}, evaluation: dynamic, metric: top1 dynamic->dynamic}
profiles:
  cpu: {common: {epochs: 2}, differs: two epochs}
  paper: {differs: nothing}
"""
MOVING = facts.cells("translution", 2, "top1 dynamic->dynamic")
PLAIN, RELATIVE = (next(c for c in MOVING if c.key[1:3] == ("ViT-A/12", m))
                   for m in ("self-attention", "translution"))  # printed: 92.64 and 97.35


@pytest.fixture(scope="module")
def book():
    """The ledger as it stands, without any record."""
    return {row.id: row for row in ledger.read_ledger(ROOT / "no such folder", GRIDS)}


@pytest.fixture
def small(tmp_path):
    """A grid of two rows, and what writes records of it."""
    (tmp_path / "grids").mkdir(), (tmp_path / "image-classification").mkdir()
    (tmp_path / "grids" / "small.yaml").write_text(SMALL)
    grid = {profile: read_grid("small", profile, folder=tmp_path / "grids") for profile in ("cpu", "paper")}

    def measure(row, *correct, profile="paper", **changes):
        for config, number in zip(grid[profile].rows[row].cells["moved"], correct, strict=False):
            record(config, number, **changes).write(tmp_path / "image-classification")
        return ledger.Runs(tmp_path / "grids", tmp_path)

    return measure


def record(config, correct, **changes):
    """A record of a run that never was: so many of 1000 images were right."""
    found = Evaluation(placement="dynamic", n=1000, correct=correct, accuracy=correct / 1000, interval=(0, 1),
                       confidence=0.95, loss=1.0)
    data = DataSource(name="digits", split="test", samples=1000, sha256={"digits": "0" * 64})
    whole = {"experiment": "image-classification", "name": config.name, "parameters": config.parameters(),
             "seed": config.seed, "model": {}, "cost": {"parameters": 1}, "evaluations": {"dynamic": found},
             "curve": (), "data": {"test": data}, "source": None,
             "versions": {"translution_lib": translution_lib.__version__, "torch": "2"},
             "device": {"model": "none", "threads": 1}, "seconds": {"total": 1.0}, "resumed": 0, "peak_memory": {},
             "date": "2026-01-01"}  # fmt: skip
    return Record(**{**whole, **changes})


def text(config, perplexity):
    """A record of a run on text that never was."""
    read = TextEvaluation(length=160, tokens=1600, blocks=10, block=160, loss=math.log(perplexity), error=0.01,
                          perplexity=perplexity, perplexity_error=0.01 * perplexity,
                          interval=(perplexity - 1, perplexity + 1), confidence=0.95, bits_per_character=1.0,
                          accuracy=0.2, places=(4.0, 4.0, 4.0, 4.0), how="within")
    return record(config, 0, experiment="language-modelling", evaluations={}, texts={"1x": read})


def test_every_printed_cell_has_exactly_one_row(book):
    names = [numbers.name(cell) for cell in CELLS]
    assert len(names) == len(set(names)) == 378 and set(names) <= set(book)
    claims = {claim.id for claim in ledger.read_claims()}
    assert set(book) == set(names) | claims and not set(names) & claims
    assert sum(sum(line.values()) for line in ledger.tally(book.values()).values()) == len(book)


def test_counts_are_recomputed(book):
    for cell in facts.cells("translution"):
        if cell.metric in ("parameters", "flops"):
            expected = "contradicted" if cell.key in facts.ERRATA else "recomputed"
            assert book[numbers.name(cell)].status == expected, cell
    counts = {c.method: book[numbers.name(c)].status for c in facts.cells("performers", 1, "parameters")}
    assert [m for m, status in counts.items() if status != "recomputed"] == ["Linformer", "Routing Transformer"]


def test_nothing_is_reproduced_without_a_run_and_nothing_measured_is_decided_without_records(book):
    for cell in CELLS:
        row = book[numbers.name(cell)]
        if row.kind in ("accuracy", "perplexity"):
            assert row.status == "not yet run"
    for claim in ledger.read_claims():
        status = book[claim.id].status
        if claim.check:
            holds = checks.CHECKS[claim.check]()
            assert status == (("recomputed" if claim.kind in COMPUTED else "reproduced") if holds else "contradicted")
        elif claim.printed and not printed.STATEMENTS[claim.printed]():
            assert status == "contradicted"
        else:
            assert status == "cannot be run here" if claim.beyond else status in ("not yet run", "recomputed")


def test_the_headlines(book):
    """What the errata prove has to come out of the checks."""
    said = {"translution-contains-convolution": "reproduced", "translution-box": "contradicted",
            "translution-matrices": "recomputed",
            "translution-same-computation": "contradicted", "translution-lor-costs-more": "contradicted",
            "preprint-sets": "contradicted",
            "performers-lemma-if": "reproduced", "performers-lemma-only-if": "contradicted",
            "performers-cnns": "contradicted",
            "riemannformer-rope": "reproduced", "riemannformer-curved": "contradicted",
            "note-window-sum": "contradicted",
            "translution-table-3-vit-b-32-translution-parameters": "contradicted",
            "translution-table-3-vit-c-32-translution-status": "cannot be run here"}  # fmt: skip
    assert {name: book[name].status for name in said} == said
    assert {"translution", "preprint", "performers", "riemannformer", "note"} == {row.paper for row in book.values()}


def test_every_check_and_statement_decides_something():
    claims = ledger.read_claims()
    assert {claim.check for claim in claims if claim.check} == set(checks.CHECKS)
    assert {claim.printed for claim in claims if claim.printed} == set(printed.STATEMENTS)
    for text in [*map(checks.looks_for, checks.CHECKS), *map(printed.says, printed.STATEMENTS)]:
        assert len(text) > 20, text


def test_labels_and_chapters_are_those_of_the_book(book):
    sources = [path for path in (ROOT / "book").glob("*/*.ipynb")]
    text = "\n".join("".join(cell["source"]) for path in sources for cell in json.loads(path.read_text())["cells"]
                     if cell["cell_type"] == "markdown")
    labels = set(re.findall(r":label: (thm-[\w-]+)|\$\$ \((eq-[\w-]+)\)|[({#](erratum-\d+)[)}]", text))
    known = {label for found in labels for label in found if label}
    assert not {label for row in book.values() for label in row.labels} - known
    titles = set(re.findall(r"^# (.+)$", text, flags=re.MULTILINE))
    assert not {row.chapter for row in book.values()} - titles - {""}


@pytest.fixture(scope="module")
def measured():
    """The ledger with the records of the repository."""
    return ledger.read_ledger(ROOT / "results", GRIDS)


def test_every_claim_of_every_source_has_a_status_and_evidence_that_is_there(measured):
    """What decides is a check, a statement, a count, records that lie in the repository, or a stated reason."""
    assert {row.paper for row in measured} == set(ledger.PAPERS)
    records = {record.name for record in read_records(ROOT / "results")}
    claims = {claim.id: claim for claim in ledger.read_claims()}
    for row in measured:
        status, by, remark, names = row.ruling
        assert status in ledger.STATUSES and by and row.place and row.claim, row.id
        assert set(names) <= records, row.id
        if status in ("reproduced", "recomputed", "contradicted", "not reproduced"):
            claim = claims.get(row.id)
            ran = by.startswith("runs of") and names
            read = claim and (by == f"check {claim.check}" or (by == "its own table" and claim.printed))
            counted = not claim and by in ("facts.recount", "cost.parameters", "counted in the network")
            assert ran or read or counted, row.id
        elif row.id in claims:
            assert remark or row.note or by.startswith(("no records of", "no runs that decide")), row.id


def test_a_grid_is_made_only_where_some_record_may_be_of_it(small):
    runs = small("plain", 925, profile="cpu")
    assert runs.possible("small", "cpu") and not runs.possible("small", "smoke")
    assert not runs.possible("small", "paper")  # two epochs in every record, one in every run of that profile
    assert small("plain", 925).possible("small", "cpu")


def test_perplexities_are_read_from_the_records_of_texts(tmp_path):
    """Table 8 by three made-up records of each of two rows: the printed number decides, and so does the comparison."""
    (tmp_path / "language-modelling").mkdir()
    for row, found in (("absolute", (60.3, 60.4, 60.5)), ("translution", (70.0, 70.1, 70.2))):
        grid = read_grid("table-8", "paper", folder=GRIDS)
        for config, perplexity in zip(grid.rows[row].cells["perplexity"], found, strict=True):
            text(config, perplexity).write(tmp_path / "language-modelling")
    runs = ledger.Runs(GRIDS, tmp_path)
    of = {c.method: numbers.number_row(c, runs) for c in facts.cells("translution", 8, "perplexity")}
    assert of["self-attention, absolute position"].status == "reproduced"  # printed: 60.40
    assert of["translution"].status == "not reproduced"  # printed: 56.26
    assert of["rotary (RoFormer)"].status == "not yet run"
    lower = {"plus": [["absolute", "perplexity"]], "minus": [["translution", "perplexity"]]}
    below = {"grid": "table-8", "all": [lower]}
    assert claim_row(ledger.Claim.model_validate({**ABOVE, "runs": below}), runs).status == "contradicted"


def test_a_tampered_check_changes_the_status(monkeypatch):
    claim = next(c for c in ledger.read_claims() if c.id == "translution-contains-convolution")
    runs = ledger.Runs(GRIDS, ROOT)
    assert claim_row(claim, runs).status == "reproduced"

    def broken():
        """Value-only Translution is no convolution."""
        return False

    monkeypatch.setitem(checks.CHECKS, claim.check, broken)
    assert claim_row(claim, runs).status == "contradicted"


def test_a_tampered_table_changes_the_status(small):
    runs = small("plain")
    right = next(c for c in CELLS if c.key == (2, "ViT-A/12", "self-attention", "", "parameters"))
    assert numbers.number_row(right, runs).status == "recomputed"
    wrong = type(right)(**{**vars(right), "printed": "2.8"})
    assert numbers.number_row(wrong, runs).status == "contradicted"


def test_records_decide_about_an_accuracy(small):
    assert numbers.number_row(PLAIN, small("plain")).status == "not yet run"
    two = numbers.number_row(PLAIN, small("plain", 925, 926))
    assert two.status == "not yet run" and two.ruling.remark.startswith("2 of at least 3 seeds")
    row = numbers.number_row(PLAIN, small("plain", 925, 926, 927))
    low, high = ledger.interval([92.5, 92.6, 92.7])
    assert low < 92.64 < high and row.status == "reproduced" and len(row.ruling.records) == 3
    assert f"{low:.2f} to {high:.2f}" in row.ruling.remark


@pytest.mark.parametrize(("correct", "status"), [
    ((925, 926, 927), "reproduced"), ((945, 946, 947), "not reproduced"), ((300, 301, 302), "not reproduced"),
])  # fmt: skip
def test_a_printed_accuracy_far_from_the_runs_is_not_reproduced_and_stays_open(small, correct, status):
    """No source prints its whole recipe, so that runs contradict no number of its, however far away they are."""
    row = numbers.number_row(PLAIN, small("plain", *correct))
    assert row.status == status and len(row.ruling.records) == 3 and row.ruling.by == "runs of profile paper"
    assert row.side == ("holds" if status == "reproduced" else "open")
    assert "not print in full" in ledger.STATUSES["not reproduced"]


def test_a_record_of_other_runs_decides_nothing(small):
    old = {"versions": {"translution_lib": "0.0.0", "torch": "2"}}
    assert numbers.number_row(PLAIN, small("plain", 925, 926, 927, **old)).status == "not yet run"
    assert numbers.number_row(PLAIN, small("plain", 925, 926, 927, parameters={"dim": 9})).status == "not yet run"


def test_a_smaller_profile_makes_a_remark_and_no_status_of_a_number(small):
    row = numbers.number_row(RELATIVE, small("relative", 960, 961, 962, profile="cpu"))
    assert row.status == "not yet run" and len(row.ruling.records) == 3
    assert row.ruling.remark == "Profile cpu: 96.10 ± 0.10"


ABOVE = {"id": "translution-above", "place": "here", "claim": "Translution is better.", "kind": "outcome",
         "runs": {"grid": "small", "all": [{"plus": [["relative", "moved"]], "minus": [["plain", "moved"]]}]}}


@pytest.mark.parametrize(("relative", "status", "cpu"), [
    ((960, 961, 962), "reproduced", "small runs agree"), ((800, 801, 802), "contradicted", "small runs disagree"),
    ((900, 925, 950), "runs do not decide", "small runs do not decide"), ((960, 961), "not yet run", "not yet run"),
])  # fmt: skip
def test_records_decide_about_a_comparison(tmp_path, small, relative, status, cpu):
    """Whole networks decide; those of a profile with another network agree, disagree or do not decide."""
    small("plain", 924, 925, 926)
    row = claim_row(ledger.Claim.model_validate(ABOVE), small("relative", *relative))
    assert row.status == status and bool(row.ruling.records) == (len(relative) == 3)
    if len(relative) == 3:
        for part in ("relative, moved − plain, moved", "[", "; p ", "n = 3 + 3"):
            assert part in row.ruling.remark
    for path in (tmp_path / "image-classification").glob("*.json"):
        path.unlink()
    grid = tmp_path / "grids" / "small.yaml"
    grid.write_text(SMALL.replace("cpu: {common: {epochs: 2}", "cpu: {common: {epochs: 2, dim: 16}"))
    made = read_grid("small", "cpu", folder=tmp_path / "grids")
    for name, correct in (("plain", (924, 925, 926)), ("relative", relative)):
        for config, number in zip(made.rows[name].cells["moved"], correct, strict=False):
            record(config, number).write(tmp_path / "image-classification")
    runs = ledger.Runs(tmp_path / "grids", tmp_path)
    assert claim_row(ledger.Claim.model_validate(ABOVE), runs).status == cpu


def test_a_shorter_training_of_the_whole_network_decides(small):
    small("plain", 924, 925, 926, profile="cpu")
    row = claim_row(ledger.Claim.model_validate(ABOVE), small("relative", 960, 961, 962, profile="cpu"))
    assert row.status == "reproduced" and row.ruling.by == "runs of small, profile cpu"


def test_the_whole_network_on_fewer_images_is_a_small_run(tmp_path, small):
    """The same network with 24 of its 48 images agrees, and reproduces nothing."""
    few = SMALL.replace("cpu: {common: {epochs: 2}", "cpu: {common: {epochs: 2, train_samples: 24}")
    (tmp_path / "grids" / "small.yaml").write_text(few)
    made = read_grid("small", "cpu", folder=tmp_path / "grids")
    for name, correct in (("plain", (924, 925, 926)), ("relative", (960, 961, 962))):
        for config, number in zip(made.rows[name].cells["moved"], correct, strict=True):
            record(config, number).write(tmp_path / "image-classification")
    runs = ledger.Runs(tmp_path / "grids", tmp_path)
    assert claim_row(ledger.Claim.model_validate(ABOVE), runs).status == "small runs agree"


def test_more_claims_make_the_rule_stricter(small):
    small("plain", 924, 925, 926)
    runs = small("relative", 950, 951, 952)
    one = ledger.Comparison.model_validate(ABOVE["runs"])
    alone, many = runs.judge({"a": one})["a"], runs.judge({"a": one, "b": one, "c": one})["a"]
    assert many.verdict.p == pytest.approx(3 * alone.verdict.p) and many.records == alone.records
    assert runs.judge({}) == {}


def test_a_difference_counts_results_as_often_as_they_are_named(small):
    """2 · relative − plain > 95 holds where relative alone is too uncertain by half."""
    twice = {"plus": [["relative", "moved"]] * 2, "minus": [["plain", "moved"]], "over": 95}
    claim = ledger.Claim.model_validate({**ABOVE, "runs": {"grid": "small", "all": [twice]}})
    small("plain", 924, 925, 926)
    row = claim_row(claim, small("relative", 969, 970, 971))  # 194 − 92.5 = 101.5
    assert row.status == "reproduced" and "2 × relative, moved − plain, moved +101.50 [" in row.ruling.remark
    assert claim_row(claim, small("relative", 930, 970, 1000)).status == "runs do not decide"


def test_to_lose_nothing_that_matters_is_asked_of_the_smallest_effect(small):
    claim = {**ABOVE, "runs": {"grid": "small", "all": [{**ABOVE["runs"]["all"][0], "no_less": True}]}}
    small("plain", 500, 500, 500)
    for relative, status in (((700, 700, 700), "reproduced"), ((300, 300, 300), "contradicted"),
                             ((500, 500, 500), "runs do not decide")):
        found = small("relative", *relative)
        assert claim_row(ledger.Claim.model_validate(claim), found).status == status
    with pytest.raises(ValueError, match="over is not given beside no_less"):
        ledger.Difference(plus=(("a", "b"),), over=1, no_less=True)


def test_a_reading_is_the_end_of_an_id_and_rows_of_one_sentence_share_the_rest(book):
    one, other = book["preprint-shallow-placed"], book["preprint-shallow-free"]
    assert one.sentence == other.sentence == "preprint-shallow"
    assert book["translution-box"].sentence == "translution-box"
    with pytest.raises(ValueError, match="reading must be the end of the id"):
        ledger.Claim.model_validate({**GOOD, "reading": "free"})


GOOD = {"id": "translution-x", "place": "§1", "claim": "Something.", "kind": "theorem", "check": "contains_convolution"}
BAD = {
    "a typed status": ({"status": "reproduced"}, "status: Extra inputs"),
    "no place": ({"place": ""}, "place: String should have at least 1"),
    "an unknown paper": ({"id": "other-x"}, "paper must be one of translution, .*, note, got 'other'"),
    "an id in capitals": ({"id": "translution-X"}, "id: String should match"),
    "an unknown kind": ({"kind": "rumour"}, "kind must be one of parameters"),
    "an unknown check": ({"check": "it_is_so"}, "check must be one of .* got 'it_is_so'"),
    "an unknown statement": ({"check": None, "printed": "Table 99"}, "printed must be one of .* got 'Table 99'"),
    "no decider": ({"check": None}, "must decide, or printed with runs, got none"),
    "two deciders": ({"beyond": "why"}, "must decide, or printed with runs, got \\['check', 'beyond'\\]"),
    "a result without a column": ({"check": None, "runs": {"grid": "g", "all": [{"plus": [["row"]]}]}},
                                  "named by row and column"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_claim_is_refused_by_its_name(tmp_path, case):
    change, message = BAD[case]
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([{**GOOD, "id": "translution-good"}, {**GOOD, **change}]))
    name = change.get("id", "translution-x")
    with pytest.raises(ValueError, match=f"(?s)claims.yaml: claim '{name}' is refused.*{message}"):
        ledger.read_claims(path)


@pytest.mark.parametrize(("text", "message"), [
    ("", "expected a list of claims"), ("a: 1", "expected a list of claims"), ("- [1, 2", "cannot be read as YAML"),
    ("- 5", "claim number 1 is refused"),
    (yaml.safe_dump([GOOD, GOOD]), "id must be given once, got translution-x twice"),
])  # fmt: skip
def test_a_file_that_is_no_claims_file_is_refused(tmp_path, text, message):
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        ledger.read_claims(tmp_path / "claims.yaml")


@pytest.mark.parametrize(("grid", "place", "message"), [
    ("none", ["plain", "moved"], "claim 'translution-above': grid must be one of small, got 'none'"),
    ("small", ["best", "moved"], "row of small must be one of plain, relative, got 'best'"),
    ("small", ["plain", "still"], "column of small must be one of moved, got 'still'"),
])  # fmt: skip
def test_a_comparison_of_what_does_not_exist_is_refused(small, grid, place, message):
    claim = ledger.Claim.model_validate({**ABOVE, "runs": {"grid": grid, "all": [{"plus": [place]}]}})
    with pytest.raises(ValueError, match=message):
        claim_row(claim, small("plain"))


def test_a_row_that_no_filter_would_find_is_refused():
    with pytest.raises(ValueError, match="claim 'x': status must be one of .* got 'proved'"):
        ledger.Row("x", "translution", "here", "Something.", "theorem", ledger.Ruling("proved", "me"))
    with pytest.raises(ValueError, match='by must be "paper" or "kind"'):
        ledger.tally([], "place")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        ledger.read_ledger(ROOT, ROOT / "no such folder")


def test_sentences_keep_the_printed_digits(book):
    for cell in CELLS:
        text = numbers.as_printed(cell)
        assert cell.metric == "status" or Decimal(text) == Decimal(cell.printed)
    assert "36.40 %" in book["translution-table-2-vit-a-12-translution-top1-static-to-dynamic"].claim
    assert "223.1 M" in book["translution-table-3-vit-b-32-translution-parameters"].claim
