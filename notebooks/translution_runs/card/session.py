"""A session on a card: note what it is, check the forms, measure, and run what is worth most until the time is over.

This process never touches the card. Whatever fails there takes a child process with it and nothing else, and every
result is on the disk before the next begins.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from translution_runs import environment
from translution_runs.card import predict
from translution_runs.card.folder import BENCHMARKS, RECORDS, Folder, lines
from translution_runs.card.plan import Bench, Entry, Plan, runs_of
from translution_runs.files import require_writable
from translution_runs.grids import status
from translution_runs.grids.execute import placed
from translution_runs.grids.files import home
from translution_runs.grids.report import duration
from translution_runs.grids.status import DONE
from translution_runs.kinds import IMAGES, AnyConfig, kind_of
from translution_runs.signals import Interrupted
from translution_runs.together import Done, Task, run_together

FORMS = "TRANSLUTION_FORMS"
"""The environment variable that hands the verdict on the forms to the processes of the runs."""
PROBE_SECONDS, CLOSING_SECONDS = 30.0, 15.0
SCRATCH = Path("runs") / "card"
"""Where runs keep their checkpoints; a later session on the same machine goes on from them."""


@dataclass
class Session:
    """One session; `run` is all of it.

    Args:
        plan: what to do.
        folder: where the results go.
        minutes: from now to the end of the last run.
        device: "cuda", or "cpu" for a rehearsal.
        data_root: folder with the data sets.
        results: folder of the records that are there already.
        again: an earlier session's benchmarks and verdicts on the forms count where they were made on this card.
        authors: folder of the authors' code, whose layer is timed beside ours where it is given.
    """

    plan: Plan
    folder: Folder
    minutes: float
    device: str = "cuda"
    data_root: str = ""
    results: Path = Path("results")
    again: bool = False
    authors: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    sets: dict[str, bool] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        self.times |= self.folder.session.get("times", {})
        self.end = self.start + 60 * self.minutes

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    @property
    def rehearsal(self) -> bool:
        """Whether its numbers mean nothing."""
        return self.plan.profile == "smoke"

    def run(self) -> None:
        """All stages; a signal, or an error of a stage, is noted, and what was found before it stays."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that share the machine
        self.folder.note(form=1, rehearsal=self.rehearsal, minutes=self.minutes, source=environment.commit(),
                         library=environment.digest(), started=now())
        try:
            self.know_the_card()
            self.measure()
            self.train()
            self.folder.note(ended=now(), state="whole")
        except Interrupted as stopped:
            self.folder.note(ended=now(), state=f"stopped by {signal.Signals(stopped.signal).name}")
            raise

    def say(self, text: str) -> None:
        """To who watches, and to the log."""
        line = f"[{duration(time.monotonic() - self.start)}] {text}"
        print(line, flush=True)
        self.folder.say(line)

    # --- what the card is

    def know_the_card(self) -> None:
        """Ceilings and the verdict on the forms; those of an earlier session where they are to count."""
        known = self.folder.session if "exported" in self.folder.session else self.earlier()
        if not (self.again and known.get("exported")):
            seconds = min(60 * self.plan.check_minutes, self.left / 4)
            known = self.ask_the_card(seconds)
        self.folder.note(**{name: known[name] for name in ("card", "ceilings", "forms", "exported") if name in known})
        if known.get("exported"):
            os.environ[FORMS] = known["exported"]
        self.say(f"card: {known.get('card', {}).get('device', {}).get('model', 'unknown')}")

    def earlier(self) -> dict[str, Any]:
        """What an imported session says of a card."""
        path = self.results / "benchmarks" / "card.json"
        return json.loads(path.read_text(encoding="utf-8")) if self.again and path.exists() else {}

    def ask_the_card(self, seconds: float) -> dict[str, Any]:
        """What the process that looks at the card has said by its end, or by ours."""
        command = [sys.executable, "-P", "-m", "translution_runs.card.machine", "--device", self.device,
                   "--seconds", f"{0.8 * seconds:.0f}"]
        output, error = spoken(command, seconds)
        found: dict[str, Any] = {}
        for line in output:
            found |= json.loads(line)
        if "exported" not in found:
            self.fail("the look at the card", error)
        return found

    # --- benchmarks

    def measure(self) -> None:
        """The benchmarks, within their minutes and at most half of what is left."""
        end = time.monotonic() + min(60 * self.plan.measure_minutes, self.left / 2)
        done = self.measured()
        waiting = [bench for bench in self.plan.benchmarks if bench.name not in done]
        for k, bench in enumerate(waiting):
            share = min(1.0, 2 / (len(waiting) - k))
            self.bench(bench, (end - time.monotonic()) * share)

    def measured(self) -> set[str]:
        """The benchmarks that need not be made again."""
        here = {json.loads(line)["name"] for _, line in lines(self.folder.path, BENCHMARKS)}
        card = self.folder.session.get("card", {}).get("device", {}).get("model")
        found = {path.stem for path in (self.results / "benchmarks").glob("*-cuda.json")
                 if self.again and json.loads(path.read_text(encoding="utf-8")).get("processor") == card}
        return here | found

    def bench(self, bench: Bench, seconds: float) -> None:
        """One benchmark, and its record as far as it came."""
        if seconds < 5:
            self.say(f"{bench.name}: no time")
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            command = [sys.executable, str(home() / "benchmarks" / f"{bench.command}.py"), *bench.options,
                       "--device", self.device, "--limit", f"{seconds - 3:.1f}", "--write", str(path)]
            command += ["--authors", self.authors] if self.authors and bench.command == "translution_layer" else []
            _, error = spoken(command, seconds + CLOSING_SECONDS)
            if not path.exists():
                self.fail(bench.name, error)
                return
            record = json.loads(path.read_text(encoding="utf-8"))
        self.folder.add(BENCHMARKS, json.dumps({"name": bench.name, "record": record}, ensure_ascii=False))
        rows = [row["status"] for row in record["rows"]]
        self.say(f"{bench.name}: {rows.count('measured')} of {len(rows)} rows")

    # --- runs

    def train(self) -> None:
        """The entries of the plan, one after the other, each as far as the time reaches."""
        grids: dict[str, str] = dict(self.folder.session.get("grids", {}))
        waiting: dict[str, int] = {}
        for entry in self.plan.runs:
            found = self.missing(entry)
            grids |= {config.name: entry.grid for config in found}
            self.folder.note(grids=grids)
            left = self.together(entry, found) if found and self.left > 0 else found
            waiting[entry.grid] = waiting.get(entry.grid, 0) + len(left)
            self.folder.note(waiting=waiting, failed=self.failed)

    def missing(self, entry: Entry) -> list[AnyConfig]:
        """The runs of an entry that have no record, neither in the results nor in the folder."""
        changes = {"device": self.device}
        configs = runs_of(entry, self.plan.profile, changes)
        if not configs:
            return []
        experiment = kind_of(configs[0]).name
        here = {json.loads(line)["name"] for _, line in lines(self.folder.path, f"{experiment}.jsonl")}
        return [config for config in configs if config.name not in here and self.at_hand(config)
                and status(config, self.results / experiment).state != DONE]

    def at_hand(self, config: AnyConfig) -> bool:
        """Whether the run's data can be read; each set is tried once, by its first examples."""
        if config.data not in self.sets:
            few = {"train_samples": 1, "test_samples": 1} if kind_of(config) is IMAGES else {}
            own = {**config.model_dump(), **few, "device": "cpu", "precision": "float32", "data_root": self.data_root}
            try:
                kind_of(config).load(type(config).of(own))
                self.sets[config.data] = True
            except (ValueError, OSError, ImportError) as error:
                self.sets[config.data] = False
                self.fail(f"data {config.data}", str(error))
        return self.sets[config.data]

    def together(self, entry: Entry, configs: Sequence[AnyConfig]) -> list[AnyConfig]:
        """Run what can end in time, many at once; what was not begun."""
        tasks = [Task(self.at_home(config), seconds) for config, seconds in self.expected(entry, configs)]
        self.say(f"{entry.grid}: {len(tasks)} runs, {entry.together} at once")
        deadline = self.end - CLOSING_SECONDS
        left = run_together(tasks, min(entry.together, len(tasks)), deadline, self.finished)
        return [task.config for task in left]

    def expected(self, entry: Entry, configs: Sequence[AnyConfig]) -> list[tuple[AnyConfig, float]]:
        """Each run with the seconds that it takes beside the others of its entry."""
        if entry.seconds:
            return [(config, entry.seconds) for config in configs]
        slower = max(1.0, entry.together / 2)
        return [(config, seconds * slower) for config, seconds in self.predicted(configs)]

    def at_home(self, config: AnyConfig) -> AnyConfig:
        """The run with its folders."""
        own = {**config.model_dump(), "data_root": self.data_root}
        return placed(type(config).of(own), SCRATCH / kind_of(config).name)

    def predicted(self, configs: Sequence[AnyConfig]) -> list[tuple[AnyConfig, float]]:
        """Each run with the seconds that it takes alone."""
        new = [config for config in configs if predict.key(config) not in self.rates]
        if new:
            self.rates |= predict.measured(new, max(1.0, min(PROBE_SECONDS, self.left / 4)))
        models = {predict.key(config): config for config in configs}
        known = {key: predict.operations_of_an_example(config) for key, config in models.items()}
        return [(config, predict.seconds_of(config, self.rates, known)) for config in configs]

    def finished(self, done: Done) -> None:
        """Write down what became of a run, before anything else happens."""
        config = done.task.config
        if done.record is None:
            self.fail(config.name, done.error)
            return
        self.folder.add(f"{kind_of(config).name}.jsonl", done.text)
        (Path(config.results_dir) / f"{config.name}.json").unlink(missing_ok=True)
        self.times[config.name] = {"predicted": round(done.task.seconds, 1), "seconds": round(done.seconds, 1)}
        self.folder.note(times=self.times)
        self.say(f"  {config.name}: {duration(done.seconds)}")

    def summary(self) -> str:
        """What came out, and where it is."""
        found = {name: sum(1 for _ in lines(self.folder.path, name)) for name in (BENCHMARKS, *RECORDS)}
        waiting = {grid: count for grid, count in self.folder.session.get("waiting", {}).items() if count}
        return "\n".join([
            f"{sum(found[name] for name in RECORDS)} runs and {found[BENCHMARKS]} benchmarks in {self.folder.path}",
            f"failed: {', '.join(one['what'] for one in self.failed) or 'nothing'}",
            f"not begun: {', '.join(f'{count} of {grid}' for grid, count in waiting.items()) or 'nothing'}",
            f"translution card --import {self.folder.path} puts them into the results",
        ])

    def fail(self, what: str, error: str) -> None:
        """Note what went wrong, without where this project lies on the machine; the session goes on."""
        for folder in environment.FOLDERS:
            error = error.replace(f"{folder}{os.sep}", "")
        self.failed.append({"what": what, "error": error[-2000:]})
        self.folder.note(failed=self.failed)
        self.say(f"  {what}: FAILED: {error.strip().splitlines()[-1][:300] if error.strip() else 'without a word'}")


def folder_for(out: str, again: bool) -> Folder:
    """The folder that a session writes.

    Raises:
        ValueError: none is named, or it cannot be written, or `Folder` refuses it.
    """
    if not out:
        raise ValueError("out: got nothing, expected a folder for what is found (--out FOLDER)")
    require_writable(Path(out))
    return Folder(out, again)


def spoken(command: Sequence[str], seconds: float) -> tuple[list[str], str]:
    """The whole lines that a command prints within some seconds, and the end of what it complains of.

    It has a process group of its own, which ends with it: children that it leaves would keep the card.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True, env=surroundings())
        try:
            process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            errors.write(f"\nended after {seconds:.0f} s")
        finally:
            end_group(process)
        output.seek(0)
        errors.seek(0)
        return [line for line in output.read().split("\n")[:-1] if line.startswith("{")], errors.read()[-4000:]


def end_group(process: subprocess.Popen) -> None:
    """Kill what is left of a command and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def surroundings() -> Mapping[str, str]:
    """The environment of a child: it finds the library where this process found it."""
    paths = [*map(str, environment.FOLDERS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "TQDM_DISABLE": "1"}


def now() -> str:
    """The time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
