"""A run through its notebook: the copy that is kept, failures, a kernel that dies, signals, a run that is taken."""

import os
import signal
import threading
import time

import nbformat
import pytest
from translution_runs import ImageClassificationConfig, Run, lock
from translution_runs.grids import execute
from translution_runs.grids.copies import WIDGET, clean
from translution_runs.signals import Interrupted

SMALL = {"epochs": 1, "train_samples": 32, "test_samples": 16, "batch_size": 16, "threads": 1, "canvas": 16,
         "patch_size": 8, "depth": 1, "dim": 8, "ff": 16, "mixer": "self-attention"}
PARAMETERS = "data_root = ''\nresults_dir = 'runs'\n" + "\n".join(f"{name} = None" for name in SMALL)
WAITS = """
import os, signal, time
class Interrupted(RuntimeError): pass
def stop(number, frame): raise Interrupted(number)
signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGINT, stop)
open(results_dir + '/ready', 'w').close()
while True: time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run, for stand-in notebooks to copy its record."""
    folder = tmp_path_factory.mktemp("made")
    config = ImageClassificationConfig.of({**SMALL, "results_dir": str(folder), "data_root": "somewhere/of/mine"})
    return config, Run.begin(config).complete(), folder / f"{config.name}.json"


@pytest.fixture
def notebook(tmp_path):
    """Writes a stand-in for the experiment's notebook, whose kernel needs no torch."""

    def write(*cells: str) -> str:
        first = nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
        content = nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, cells)])
        content.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(content, tmp_path / "standin.ipynb")
        return str(tmp_path / "standin.ipynb")

    return write


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_leaves_its_record_and_the_executed_copy_and_is_not_repeated(tmp_path, made, notebook):
    config, record, path = made
    store = tmp_path / "store"
    book = notebook("raise ValueError('something is wrong')")
    with pytest.raises(execute.Failed, match=f"(?s){config.name}: ValueError: something is wrong.*failed.ipynb"):
        execute.run(config, book, store)
    assert files(store) == [f"{config.name}.failed.ipynb"]
    copy = nbformat.read(store / f"{config.name}.failed.ipynb", 4)
    assert any(output.output_type == "error" for cell in copy.cells for output in cell.get("outputs", []))

    bar = "from ipywidgets import FloatProgress; FloatProgress(value=3, max=7)"
    copies = f"import shutil; _ = shutil.copy({str(path)!r}, results_dir)"
    book = notebook(copies, bar, "print(epochs, data_root != '')")
    assert execute.run(config, book, store) == record
    assert files(store) == [f"{config.name}.ipynb", f"{config.name}.json"]
    text = (store / f"{config.name}.ipynb").read_text()
    assert "1 True" in text and "widget" not in text.replace("ipywidgets", "")
    assert str(tmp_path) not in text.replace(str(path), "") and "somewhere" not in text
    assert 'results_dir = \\"\\"  # not kept' in text

    before = (store / f"{config.name}.ipynb").stat().st_mtime_ns
    assert execute.run(config, notebook("raise ValueError('never run')"), store) == record
    assert (store / f"{config.name}.ipynb").stat().st_mtime_ns == before


def test_only_what_differs_from_the_defaults_is_injected(made):
    config, *_ = made
    assert config.changed() == {**{name: value for name, value in SMALL.items() if name != "batch_size"},
                                "batch_size": 16, "results_dir": config.results_dir,
                                "data_root": "somewhere/of/mine"}


def test_a_kernel_that_dies_fails_its_run_alone(tmp_path, made, notebook):
    with pytest.raises(execute.Failed, match="out of memory, or killed"):
        execute.run(made[0], notebook("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), tmp_path)
    assert f"{made[0].name}.failed.ipynb" in files(tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_kernel_and_ends_the_run(tmp_path, made, notebook, number, code):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are for the main thread")
    store = tmp_path / "store"

    def send():
        while not (store / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        execute.run(made[0], notebook(WAITS, "open(results_dir + '/late', 'w')"), store)
    assert stopped.value.exit_code == code
    assert not (store / "late").exists() and f"{made[0].name}.failed.ipynb" in files(store)
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_run_that_another_process_holds_is_refused_at_once(tmp_path, made, notebook):
    config = made[0]
    with lock.hold(tmp_path / f"{config.name}.lock"), pytest.raises(ValueError, match="is being run by process"):
        execute.run(config, notebook("raise ValueError('never run')"), tmp_path)
    assert not list(tmp_path.glob("*failed*"))


def test_a_notebook_that_is_not_there_is_refused(tmp_path, made):
    with pytest.raises(ValueError, match="notebook: got .*none.ipynb', which is no file"):
        execute.run(made[0], tmp_path / "none.ipynb", tmp_path)


def test_a_copy_keeps_results_and_leaves_out_places():
    shown = nbformat.v4.new_output("display_data", {"text/plain": "a bar", WIDGET: {}})
    kept = nbformat.v4.new_output("stream", text="a result")
    cell = nbformat.v4.new_code_cell('seed = 3\ndata_root = "/home/me"', outputs=[shown, kept],
                                     metadata={"tags": ["injected-parameters"], "papermill": {"duration": 1.0}})
    clean(cell, {"data_root"})
    assert cell.source == 'seed = 3\ndata_root = ""  # not kept' and cell.outputs == [kept]
    assert "papermill" not in cell.metadata
