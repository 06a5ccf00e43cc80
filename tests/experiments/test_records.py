import json
import os

import pytest
from translution_runs import Epoch, Evaluation, Record, read_record, read_records, table
from translution_runs.files import require_writable, write_atomically
from translution_runs.records import DataSource


def record(name: str = "one", **changes) -> Record:
    evaluation = Evaluation(placement="static", n=200, correct=180, accuracy=0.9, interval=(0.85, 0.93),
                            confidence=0.95, loss=0.4)
    values = {
        "experiment": "image-classification", "name": name,
        "parameters": {"mixer": "translution", "train_placement": "static"}, "seed": 3,
        "model": {"dim": 8}, "cost": {"parameters": 1234},
        "evaluations": {p: evaluation.model_copy(update={"placement": p}) for p in ("static", "dynamic")},
        "curve": (Epoch(number=1, learning_rate=0.1, loss=2.0, accuracy=0.2, seconds=1.5),),
        "data": {"test": DataSource(name="digits", split="test", samples=200, sha256={"images": "ab"})},
        "versions": {"torch": "2.0"}, "source": {"commit": "0123456789abcdef", "dirty": False},
        "device": {"type": "cpu", "model": "a <processor>", "threads": 1}, "seconds": {"total": 12.4}, "resumed": 0,
        "peak_memory": {"process": 1000, "device": None}, "date": "2026-01-02T03:04:05+00:00",
    }
    return Record(**{**values, **changes})


def test_a_record_returns_from_its_file(tmp_path):
    path = record().write(tmp_path)
    assert path.name == "one.json"
    assert read_record(path) == record()
    assert os.listdir(tmp_path) == ["one.json"]


def test_records_are_read_in_the_order_of_their_paths(tmp_path):
    (tmp_path / "deeper").mkdir()
    for folder, name in ((tmp_path, "b"), (tmp_path / "deeper", "a"), (tmp_path, "a")):
        record(name).write(folder)
    (tmp_path / "notes.txt").write_text("not a record")
    assert [one.name for one in read_records(tmp_path)] == ["a", "b", "a"]


@pytest.mark.parametrize("change", [
    lambda text: text[: len(text) // 2],
    lambda text: "",
    lambda text: json.dumps({**json.loads(text), "schema_version": 1}),
    lambda text: json.dumps({**json.loads(text), "surprise": 1}),
    lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "seed"}),
])
def test_what_is_not_a_record_is_refused_by_its_name(tmp_path, change):
    path = record().write(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match="one.json: not a run record of schema 2"):
        read_records(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_records(tmp_path / "nowhere")


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ValueError, match="finite"):
        Epoch(number=1, learning_rate=0.1, loss=float("nan"), accuracy=0.2, seconds=1.0)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = record().write(tmp_path)
    before = path.read_bytes()

    def half(partial):
        partial.write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half)
    assert path.read_bytes() == before and read_records(tmp_path) == [record()]
    record(seed=4).write(tmp_path)
    assert os.listdir(tmp_path) == ["one.json"]  # what the failed write left is gone


def test_a_folder_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="results_dir: cannot write into .*file/below"):
        require_writable(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="results_dir: cannot write into .*Permission denied"):
        require_writable(tmp_path)


def test_a_writable_folder_is_made_and_left_empty(tmp_path):
    require_writable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []


def test_a_table_shows_numbers_and_where_they_are_from():
    text = table([record(), record("two", source=None)], caption="Two runs").markdown()
    assert "| translution | 1,234 | static | 90.00 [85.00, 93.00] | 90.00 [85.00, 93.00] |" in text
    assert text.count("| translution |") == 2 and "Two runs" in text
    assert ("* one: 2026-01-02, commit 0123456789, torch 2.0, a <processor>, seed 3, 200 test images of digits, 12 s"
            in text)
    assert "* two: 2026-01-02, no commit known" in text


def test_a_table_in_html_escapes_and_has_the_same_cells():
    html = table([record(source={"commit": "fedcba9876543210", "dirty": True})])._repr_html_()
    assert "<td>90.00 [85.00, 93.00]</td>" in html and "<th scope=\"col\">mixer</th>" in html
    assert "a &lt;processor&gt;" in html and "<processor>" not in html
    assert "commit fedcba9876 with changes" in html


def test_own_columns_replace_the_usual_ones():
    found = table([record()], {"seed": lambda one: str(one.seed)})
    assert (found.header, found.rows) == (("seed",), (("3",),))


def test_a_table_needs_records():
    with pytest.raises(ValueError, match="records: got none"):
        table([])
