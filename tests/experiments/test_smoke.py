"""The notebook itself, run as the README says: papermill, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from translution_runs import ImageClassificationConfig, read_records

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))
NOTEBOOK = ROOT / "notebooks" / "image_classification.ipynb"
SMALL = ["-p", "epochs", "2", "-p", "train_samples", "400", "-p", "test_samples", "100", "-p", "threads", "1"]


def papermill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "papermill", str(NOTEBOOK), str(folder / "out.ipynb"), "--no-progress-bar",
               "-p", "results_dir", str(folder / "records"), *SMALL, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def executed(folder: Path) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(folder / "out.ipynb", 4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_a_run_trains_draws_and_leaves_one_record(tmp_path):
    done = papermill(tmp_path, "-p", "mixer", "self-attention", "-p", "seed", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = read_records(tmp_path / "records")
    assert os.listdir(tmp_path / "records") == [f"{record.name}.json"]
    expected = ImageClassificationConfig.of({"mixer": "self-attention", "seed": 3, "epochs": 2, "train_samples": 400,
                                             "test_samples": 100, "threads": 1})
    assert record.parameters == expected.parameters() and record.name == expected.name and record.seed == 3
    assert {name: found.n for name, found in record.evaluations.items()} == {"static": 100, "dynamic": 100}
    assert record.evaluations["static"].interval[0] > 0.1 > record.curve[1].learning_rate  # better than chance
    assert record.curve[1].loss < record.curve[0].loss and len(record.curve) == 2
    assert record.data["train"].samples == 400 and len(record.data["train"].sha256["images"]) == 64
    pictures = [output for cell in executed(tmp_path) for output in cell.outputs if "<svg" in str(output.get("data"))]
    assert len(pictures) == 3
    assert not any(output.get("name") == "stderr" for cell in executed(tmp_path) for output in cell.outputs)


def test_wrong_parameters_stop_the_run_before_it_computes(tmp_path):
    done = papermill(tmp_path, "-p", "epoch", "3", "-p", "epochs", "abc", "-p", "batch_size", "0")
    assert done.returncode != 0
    for message in ("epoch: no such parameter", "epochs: got 'abc' (str); input should be a valid integer",
                    "batch_size: got 0 (int); input should be greater than or equal to 1"):
        assert message in done.stderr
    ran = [cell.source for cell in executed(tmp_path) if cell.execution_count is not None]
    assert any("from_namespace" in source for source in ran) and not any("run.load()" in source for source in ran)
    assert not (tmp_path / "records").exists()


def test_the_notebook_has_the_configurations_parameters_and_defaults():
    cells = nbformat.read(NOTEBOOK, 4).cells
    (parameters,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    namespace: dict = {}
    exec(parameters.source, namespace)
    assert ImageClassificationConfig.from_namespace(namespace) == ImageClassificationConfig.of({})
    assert list(namespace["__annotations__"]) == list(ImageClassificationConfig.model_fields)
    assert all("  # " in line for line in parameters.source.splitlines())


def test_the_notebook_is_stored_without_outputs_and_with_steady_ids():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == [f"cell-{k:02d}" for k in range(len(notebook.cells))]
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


def test_running_a_cell_again_does_not_take_the_notebooks_own_names_for_parameters(tmp_path):
    code = [cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    values = {"epochs": 1, "train_samples": 20, "test_samples": 10, "mixer": "self-attention",
              "results_dir": str(tmp_path)}
    namespace: dict = {}
    for number, source in enumerate(code):
        exec(source, namespace)
        namespace.update(values if number == 0 else {})
    assert ImageClassificationConfig.from_namespace(namespace).epochs == 1
    assert len(read_records(tmp_path)) == 1
