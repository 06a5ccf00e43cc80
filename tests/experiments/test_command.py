"""The command: choices, checks before any work, exit codes, tables, and one run that is stopped and goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from translution_runs import Run, command, read_records
from translution_runs.checkpoint import finished
from translution_runs.grids import execute, read_grid, status
from translution_runs.reading import places
from translution_runs.signals import Interrupted
from typer.testing import CliRunner

from tests.experiments.small_grid import GRID

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(map(str, (ROOT, ROOT / "notebooks", ROOT / "book")))


def call(*arguments):
    done = CliRunner().invoke(command.app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_runs_are_done_once_and_the_table_and_the_record_show_them(quick):
    code, text = call("status", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "4 missing" in text
    code, text = call("run", "quick.yaml", "--profile", "smoke", "--method", "rotary", "--seed", 1)
    assert code == 0 and "[1 of 1]" in text
    (record,) = read_records(quick / "runs" / "image-classification")  # a smoke run is no result of the book's
    assert (record.parameters["mixer"], record.seed) == ("rotary", 1)
    code, text = call("run", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "1 done, 3 missing" in text and "[3 of 3]" in text and "4 done" in text
    code, text = call("run", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "[1 of" not in text
    code, text = call("table", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "98.48" in text and "2 of 2" in text and " ± " in text and "Small." in text
    assert record.name not in text and record.name in call("table", "quick.yaml", "--profile", "smoke", "--runs")[1]
    assert call("table", "quick.yaml", "--profile", "smoke", "--markdown")[1].startswith("| row | column |")
    store = Path("runs/image-classification")  # the runs are lines of the grid's file now
    assert sorted(path.name for path in store.iterdir()) == ["quick.jsonl"]
    where = next(f"record: {one.where}" for one in places(store) if one.name == record.name)
    assert where.startswith(f"record: {store / 'quick.jsonl'}, line ")
    code, text = call("record", record.name[:-4], "--results", "runs")
    assert code == 0 and all(part in text for part in (record.name, "mixer", "static", record.date, "sha256", where,
                                                       f"{record.cost['parameters']:,}", "executed notebook: none"))


def test_a_dry_run_predicts_and_does_nothing(quick):
    code, text = call("run", "quick.yaml", "--profile", "smoke", "--dry-run", "--row", "plain")
    assert code == 0 and text.count("3 steps here") == 2 and "left to do" in text and "MiB" in text
    assert not (quick / "runs").exists()


def test_a_run_that_fails_stops_no_other_and_the_exit_code_says_so(quick, monkeypatch):
    def fail(config, store):
        if config.seed == 0 and config.mixer == "rotary":
            raise execute.Failed("it broke")
        return Run.begin(execute.placed(config, store)).complete()

    monkeypatch.setattr(command, "execute", fail)
    code, text = call("run", "quick.yaml", "--profile", "smoke", "--results", "elsewhere")
    assert code == 1 and "Failed: it broke" in text and "3 done, 1 missing" in text
    assert len(read_records(quick / "elsewhere" / "image-classification")) == 3


def test_a_run_that_is_stopped_says_how_to_go_on(quick, monkeypatch):
    def stop(config, store):
        if config.seed == 1:
            raise Interrupted(signal.SIGTERM, 12)
        return Run.begin(execute.placed(config, store)).complete()

    monkeypatch.setattr(command, "execute", stop)
    monkeypatch.setattr(sys, "argv", ["translution", "run", "quick.yaml", "--row", "a b"])
    code, text = call("run", "quick.yaml", "--profile", "smoke")
    assert code == 143 and "after step 12" in text and "to go on: translution run quick.yaml --row 'a b'" in text
    assert "[3 of" in text and "[4 of" not in text
    store = quick / "runs" / "image-classification"
    assert len(read_records(store)) == 2 and sorted(path.name for path in store.iterdir()) == ["quick.jsonl"]


def test_a_file_that_is_damaged_is_not_run_over(quick):
    call("run", "quick.yaml", "--profile", "smoke", "--seed", 0)
    file = quick / "runs" / "image-classification" / "quick.jsonl"
    file.write_text(text := file.read_text().replace('"schema_version":2', '"schema_version":3', 1))
    code, said = call("status", "quick.yaml", "--profile", "smoke")
    assert code == 0 and "1 done, 1 invalid, 2 missing" in said and "quick.jsonl, line 1: not a run record" in said
    code, said = call("run", "quick.yaml", "--profile", "smoke")
    assert code == 1 and "3 done, 1 invalid" in said and "are not gathered: " in said
    assert file.read_text() == text and len(list(file.parent.glob("*.json"))) == 2
    code, said = call("record", "digits", "--results", "runs")
    assert code == 2 and "records begin so" in said


@pytest.mark.parametrize(("arguments", "message"), [
    (["run", "none"], "grid: got 'none', expected one of"),
    (["run", "quick.yaml", "--row", "x"], "row: got 'x', expected one of plain, turned"),
    (["run", "quick.yaml", "--method", "x"], "method: got 'x', expected one of self-attention, rotary"),
    (["run", "quick.yaml", "--profile", "x"], "profile: got 'x', expected one of smoke, cpu, paper"),
    (["run", "quick.yaml", "--seed", "9"], "seed: got 9, expected one of 0, 1"),
    (["run", "quick.yaml", "--seed", "x"], "'--seed': Input should be a valid integer"),
    (["run", "quick.yaml", "--device", "tpu"], "device: got 'tpu'"),
    (["run", "quick.yaml", "--set", "epoch=3"], "set: got 'epoch', no such parameter; expected one of absolute_emb"),
    (["run", "quick.yaml", "--set", "epochs"], "set: got 'epochs', expected name=value"),
    (["run", "quick.yaml", "--set", "epochs=x"], "epochs: got 'x' (str); input should be a valid integer"),
    (["run", "quick.yaml", "--set", "epochs=0"], "epochs: got 0 (int); input should be greater than"),
    (["run", "quick.yaml", "--set", "epochs=1", "--set", "epochs=2"], "set: epochs is given twice"),
    (["run", "quick.yaml", "--set", "seed=3"], "set: seed is set by --seed"),
    (["run", "quick.yaml"], "data_root: got nothing, expected the folder with mnist"),
    (["run", "quick.yaml", "--data-root", "nowhere"], "which is no folder"),
    (["run", "quick.yaml", "--data-root", "loop"], "which is no folder"),
    (["run", "quick.yaml", "--scheduler", "there"], "scheduler: got 'there', expected 'local' or an address"),
    (["run", "quick.yaml", "--jobs", "0"], "jobs: got 0, expected at least 1"),
    (["run", "quick.yaml", "--row"], "requires an argument"),
    (["status", "none"], "grid: got 'none', expected one of"),
    (["table", "12", "--profile", "cpu"], "grid: got '12', expected one of"),
    (["record", "mnist"], "run: got 'mnist', no record in 'results' or 'runs'; there are none"),
    (["walk"], "No such command"),
])
def test_wrong_usage_is_refused_before_any_work(quick, monkeypatch, arguments, message):
    monkeypatch.setattr(command, "execute", lambda *_, **__: pytest.fail("work was done"))
    (quick / "loop").symlink_to("loop")
    code, text = call(*arguments)
    assert code == 2 and message in " ".join(text.split())
    assert sorted(path.name for path in quick.iterdir()) == ["loop", "quick.yaml"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_before_any_work(quick):
    code, text = call("run", "quick.yaml", "--profile", "paper")
    assert code == 2 and "torch finds none; choose --profile cpu or --device cpu" in text
    code, text = call("run", "quick.yaml", "--profile", "paper", "--device", "cpu", "--seed", 0, "--row", "plain")
    assert code == 0


def test_values_are_read_in_the_types_of_the_configuration():
    found = command.parse_changes(["epochs=3", "learning_rate=1e-4", "outcomes=true", "mixer=rotary",
                                   'mixer_options={"relative_dim": 4}', "data=mnist", "dim=1.5"])
    assert found == {"epochs": 3, "learning_rate": 1e-4, "outcomes": True, "mixer": "rotary",
                     "mixer_options": '{"relative_dim": 4}', "data": "mnist", "dim": 1.5}


def test_a_cluster_is_asked_for_by_jobs_or_by_address(quick, monkeypatch):
    scheduler = pytest.importorskip("translution_runs.scheduler")
    asked = []

    def run_all(configs, store, *, address, workers):
        asked.append((len(configs), str(store), address, workers))
        return [scheduler.Outcome(config, "done") for config in configs[:-1]] + [
            scheduler.Outcome(configs[-1], "failed", "worker lost")]

    monkeypatch.setattr(scheduler, "run_all", run_all)
    for more, expected in [(["--jobs", "3"], (None, 3)), (["--scheduler", "local"], (None, 1)),
                           (["--scheduler", "tcp://node:8786"], ("tcp://node:8786", 1))]:
        code, text = call("run", "quick.yaml", "--profile", "smoke", *more)
        assert code == 1 and "worker lost" in text
        assert asked.pop() == (4, str(Path("runs/image-classification")), *expected)


def test_the_command_itself_is_stopped_by_a_signal_and_the_run_goes_on(tmp_path):
    """A process of its own, the true notebook, TERM after the first checkpoint; the rest of the run here."""
    (tmp_path / "quick.yaml").write_text(GRID)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    arguments = [sys.executable, "-m", "translution_runs.command", "run", str(tmp_path / "quick.yaml"),
                 "--profile", "smoke", "--row", "plain", "--seed", "0", "--results", str(tmp_path / "records"),
                 "--set", "epochs=150", "--set", "checkpoint_steps=1"]
    running = subprocess.Popen(arguments, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    store = tmp_path / "records" / "image-classification"
    while running.poll() is None and not [one for one in store.glob("*.checkpoints") if finished(one)]:
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate()
    assert running.returncode == 143, output
    assert "to go on: translution run" in output and "--set epochs=150" in output
    (config,) = read_grid(tmp_path / "quick.yaml", "smoke", {"epochs": 150}).select(["plain"], seeds=[0]).runs
    (folder,) = store.glob("*.checkpoints")
    assert 0 < finished(folder)[-1] < 300 and folder.name == f"{config.name}.checkpoints"
    assert (store / f"{config.name}.failed.ipynb").exists() and not (store / f"{config.name}.json").exists()

    resumed = Run.begin(execute.placed(config, store)).complete()
    assert resumed.resumed == 1 and [epoch.number for epoch in resumed.curve] == list(range(1, 151))
    assert status(config, store).record == resumed


def test_a_layer_of_ones_own_runs_by_name_from_a_grid(tmp_path):
    """Nothing of the package is touched: a module registers a part, the command imports it, and so does the run."""
    (tmp_path / "mine.py").write_text("""
import torch
from translution_lib import MIXERS, Encoded, Encoding

class Nearer(Encoding):
    def start(self, relations, dim, heads, head_dim):
        self.slope = torch.nn.Parameter(torch.zeros(heads))

    def bias(self, q, where):
        far = torch.arange(where.n, device=q.device)
        return -self.slope[:, None, None] * (far - far[:, None]).abs()

MIXERS["nearer"] = Encoded(Nearer)
""")
    (tmp_path / "quick.yaml").write_text(GRID.replace("mixer: rotary", "mixer: nearer"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}

    def command(*arguments):
        return subprocess.run([sys.executable, "-m", "translution_runs", *arguments], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)

    run = ("run", "quick.yaml", "--profile", "smoke", "--row", "turned", "--seed", "0")
    done = command(*run)
    assert done.returncode == 2 and "mixer: got 'nearer'" in done.stderr
    done = command("--import", "nowhere", *run)
    assert done.returncode == 2 and "import: got 'nowhere'" in done.stderr
    done = command("--import", "mine", *run)
    assert done.returncode == 0, done.stderr
    (record,) = read_records(tmp_path / "runs" / "image-classification")
    assert record.parameters["mixer"] == "nearer" and record.cost["parameters"] > 0


def test_the_states_of_all_grids_are_told_where_one_has_not_the_profile(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "grid_files", lambda: ["characters", "table-7"])
    code, text = call("status")
    assert code == 0 and "characters: has no profile cpu" in text and "table-7: 9 done" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_output_that_finds_no_room_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "translution_runs", "--help"], stdout=full, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "PYTHONPATH": SOURCES})
    assert done.returncode == 1 and done.stderr.strip().endswith(
        "Error: the output cannot be written (No space left on device)")
    assert "Traceback" not in done.stderr
