"""Every benchmark command runs at tiny sizes and writes a whole record. Nothing timed is asserted."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from translution_lib.backends import library

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))
KINDS = {
    "machine": {"gemm", "copy", "triad", "gather"},
    "translution_layer": {"layer"},
    "scaling": {"sweep"},
    "training_step": {"training-step"},
    "linear_attention": {"length"},
    "relative_performer": {"window"},
    "image_loading": {"image-loading"},
}


IN_C = bool(library.compiler() or os.environ.get("CI"))   # in CI there has to be a compiler
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES}
each = pytest.mark.parametrize("name", KINDS)


@cache
def run(name: str) -> tuple[str, dict]:
    """Run a command once; give what it printed and its record."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "deep" / "record.json"
        command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--threads", "1", "--write", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(file.read_text())


def evaluate(code: str) -> str:
    """What a program prints that may import the benchmarks."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True,
                          env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@each
def test_a_record_is_whole(name):
    printed, record = run(name)
    assert record["benchmark"] == name.replace("_", "-") and record["schema"] == 1
    assert {"status", "parameters", "versions", "threads", "ceilings", "processor"} <= set(record)
    assert {row["kind"] for row in record["rows"]} == KINDS[name]
    assert all(row["status"] == "measured" or "compiled" in row.get("form", "") and not IN_C
               for row in [record["ceilings"], *record["rows"]])
    assert len(printed.splitlines()) >= len(record["rows"])


@each
def test_a_record_names_no_place_of_the_machine(name):
    record = run(name)[1]
    text = json.dumps(record)
    assert str(ROOT) not in text and str(Path.home()) + "/" not in text and os.uname().nodename not in text


@each
def test_every_time_is_the_best_of_its_runs(name):
    record = run(name)[1]
    for row in record["rows"]:
        if "all_seconds" in row:
            assert row["seconds"] == min(row["all_seconds"]) > 0 and row["peak_bytes"] >= 0


def test_the_forms_of_a_layer_agree():
    record = run("translution_layer")[1]
    found = {row["form"]: row for row in record["rows"]}
    assert set(found) == {"literal", "grouped", "kept", "compiled", "compiled_kept", "self-attention", "products"}
    assert all(found[form]["disagreement"] < 2e-3 for form in ("literal", "kept"))
    for row in (found["compiled"], found["compiled_kept"]):
        assert row["disagreement"] < 2e-3 if row["status"] == "measured" else "backend(" in row["reason"]
    assert set(found["products"]["mm"]) == {"forward", "rows", "matrix", "together"}
    assert {"grouped_gflops", "kept_share_of_mm", "literal_over_grouped_time"} <= set(record["summary"])


def test_the_pages_of_a_step_are_counted():
    rows = [row for row in run("translution_layer")[1]["rows"] if row["status"] == "measured"]
    assert all(row["new_pages"] >= 0 for row in rows if row["form"] != "products")
    code = "import torch, system_memory as m; print(m.new_pages(lambda: torch.ones(2**24)) >= 2**26 // 2**21)"
    assert evaluate(code) == "True\n"


def test_large_pages_are_asked_for_before_anything_is_measured():
    code = ("import os, sys; from unittest.mock import patch; import measuring as m; sys.argv[1:] = ['--huge-pages']; "
            "task = lambda *a: print(os.environ['THP_MEM_ALLOC_ENABLE']) or {'status': 'measured'}; "
            "patch.object(m.Worker, 'run', task).start(); "
            "m.main('x', m.parser(None), lambda a: [], None, lambda r: print(r['parameters']['huge_pages']))")
    assert evaluate(code) == "1\nTrue\n"


def test_the_bars_of_a_preset_hold_for_its_own_size_alone():
    code = ("import translution_layer as t; parse = lambda *a: t.bars(**{k: v for k, v in "
            "vars(t.options().parse_args(a)).items() if k not in ('write', 'authors')}); "
            "print(*(f'{what} {bound}' for what, _, bound in parse('--preset', 'vit-a56'))); "
            "print(parse('--preset', 'vit-a56', '--batch', '8'), parse('--quick'))")
    forms = ["grouped", "kept", "compiled", "compiled_kept"]
    assert evaluate(code) == " ".join(f"literal_over_{form}_time 80" for form in forms) + "\n[] []\n"


def test_a_card_is_measured_with_the_forms_that_serve_it():
    code = ("import translution_layer as t; print(*t.forms_of('cuda', 'float32')); print(*t.forms_of('cuda', "
            "'bfloat16')); print(*t.forms_of('cpu', 'bfloat16')); print({*t.ON_CARDS} <= {*t.FORMS})")
    assert evaluate(code).splitlines() == ["grouped loop padded triton", "grouped loop padded grouped_mm triton",
                                           "grouped kept", "True"]


def test_the_form_sweep_has_every_form_at_every_length():
    rows = [row for row in run("scaling")[1]["rows"] if row["sweep"] == "form"]
    lengths = {row["tokens"] for row in rows}
    assert {(row["form"], row["tokens"]) for row in rows} == {
        (form, n) for form in ("gather", "keep", "recompute") for n in lengths}


def test_the_plan_of_training_steps_covers_the_tables():
    code = ("import training_step as t; t.needs = lambda task: {}; p = t.tasks(t.options().parse_args([])); "
            "print(len(p), len({r['name'] for r in p}), {r['table'] for r in p})")
    assert evaluate(code).split(maxsplit=2) == ["48", "16", "{2, 3, 7}\n"]


def test_the_forms_of_linear_attention_agree_and_their_growth_is_fitted():
    record = run("linear_attention")[1]
    found = {(row["form"], row["tokens"]): row for row in record["rows"]}
    first = min(n for _, n in found)
    assert found["performer-definition", first]["disagreement"] < 2e-3
    assert found["tables", first]["disagreement"] < 2e-3
    assert set(record["growth"]) == {"performer", "softmax", "tables"}
    assert all(growth["from"] == first and {"seconds", "peak_bytes"} <= set(growth)
               for growth in record["growth"].values())


def test_the_forms_of_position_heads_agree_and_are_weighed():
    printed, record = run("relative_performer")
    found = {(row["part"], row["form"]): row for row in record["rows"]}
    assert set(found) == {(part, form) for part in ("heads", "sums") for form in ("fast", "unfold", "literal")}
    assert all(row["disagreement"] < 2e-3 for row in record["rows"] if row["form"] != "fast")
    assert [bar["met"] for bar in record["bars"]] == [
        bar["value"] >= bar["at_least"] if "at_least" in bar else bar["value"] <= bar["at_most"]
        for bar in record["bars"]]
    assert len(record["bars"]) == printed.count("bar: ") == 3


def test_the_loader_and_the_model_are_measured_alone_and_together():
    printed, record = run("image_loading")
    found = {(row["part"], row["workers"]): row for row in record["rows"]}
    assert set(found) == {("loader", 1), ("model", 0), ("both", 1)}
    assert all(row["images_per_second"] == row["batch"] * row["steps"] / min(row["times"]) for row in found.values())
    assert "data_root" not in record["parameters"] and printed.count("pictures/s") == 3


def test_the_loader_begins_no_further_epoch():
    """It would start new workers within the measured time."""
    code = """if True:
        import tempfile
        from pathlib import Path
        import image_loading as bench
        task = {"quick": True, "model": "", "part": "loader", "workers": 0, "batch": 2, "steps": 2, "device": "cpu",
                "dtype": "float32"}
        asked, kept = [], bench.StreamedBatches.parts
        bench.StreamedBatches.parts = lambda self, step: asked.append(step) or kept(self, step)
        with tempfile.TemporaryDirectory() as folder:
            bench.write_files(Path(folder) / "train", task)
            images = bench.imagenet(folder, "train", 2, None)
            print(len(list(bench.batches(bench.configuration(task), images, task))), asked)"""
    assert evaluate(code) == "3 [0, 1, 2]\n"


def test_as_many_batches_are_read_within_the_measured_time_as_are_counted():
    code = """if True:
        import tempfile
        from pathlib import Path
        from types import SimpleNamespace
        import image_loading as bench
        task = {"quick": True, "model": "", "part": "loader", "workers": 0, "batch": 2, "steps": 2, "device": "cpu",
                "dtype": "float32", "threads": 1}
        asked, read, kept = [], [], bench.StreamedBatches.parts
        bench.StreamedBatches.parts = lambda self, step: asked.append(step) or kept(self, step)
        bench.time = SimpleNamespace(perf_counter=lambda: read.append(len(asked)) or 0.0)
        with tempfile.TemporaryDirectory() as folder:
            bench.write_files(Path(folder) / "train", task)
            images = bench.imagenet(folder, "train", 2, None)
            bench.timed(bench.configuration(task), images, task)
            print(read, task["steps"])"""
    assert evaluate(code) == "[1, 3] 2\n"
