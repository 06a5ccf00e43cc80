"""One run of an experiment, from its parameters to its record.

Chapter "From laptop to cluster".
"""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from translution_runs import environment
from translution_runs.checkpoint import Keeper
from translution_runs.costs import costs
from translution_runs.data.tokenisers import Tokeniser
from translution_runs.files import checkpoint_folder, lock_file, require_writable
from translution_runs.kinds import AnyConfig, Kind, kind_of
from translution_runs.language_modelling import LanguageModellingConfig
from translution_runs.learnt import learnt
from translution_runs.lock import hold
from translution_runs.processes import train_in_processes
from translution_runs.reading import find
from translution_runs.records import Epoch, Evaluation, Record, TextEvaluation
from translution_runs.seeds import derive
from translution_runs.texts import tokeniser
from translution_runs.training import train

HELD: dict[tuple[Path, int], ExitStack] = {}
"""Locks of the runs that this process has begun, by file and thread."""


@dataclass
class Run:
    """A run: `begin`, then `load`, `build`, `train`, `evaluate`, `finish`, in this order, each once.

    The notebook takes these steps one by one and draws in between; `Run.begin(config).complete()` takes them all.
    From `begin` to `finish` it holds the lock `<name>.lock` beside its record, so that no other process runs the same;
    the lock is freed by the system where the process ends before, and passes on where the same thread begins anew.
    """

    config: AnyConfig
    folder: Path
    source: dict[str, Any] | None  # the commit, looked up at the start: the files may change while a run lasts
    started: float = field(default_factory=perf_counter)
    sets: dict[str, Any] = field(default_factory=dict)
    curve: list[Epoch] = field(default_factory=list)
    resumed: int = 0
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    texts: dict[str, TextEvaluation] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    sample: str = ""
    evaluation_seconds: float = 0.0
    model: Any = None

    @classmethod
    def begin(cls, config: AnyConfig) -> "Run":
        """Check what depends on the machine, before anything is computed.

        Raises:
            ValueError: no such device, a folder that cannot be written, a record of the same name made with other
                parameters, or another process that is at this run.
        """
        if config.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device: got {config.device!r}, but torch finds no GPU; expected 'cpu'")
        folder = Path(config.results_dir)
        require_writable(folder)
        refuse_other(config, folder)
        take(lock_file(folder, config.name))
        if config.threads:
            torch.set_num_threads(config.threads)
        return cls(config, folder, environment.commit())

    @property
    def kind(self) -> Kind:
        """The kind of experiment."""
        return kind_of(self.config)

    @property
    def tokeniser(self) -> Tokeniser:
        """Of the run's text: `encode` and `decode`.

        Raises:
            ValueError: a run that reads no text.
        """
        if not isinstance(self.config, LanguageModellingConfig):
            raise ValueError(f"tokeniser: a run of {self.kind.name} has none, expected one of language modelling")
        return tokeniser(self.config)

    @property
    def keeper(self) -> Keeper:
        """Of the checkpoints, in a folder beside the record."""
        config = self.config
        return Keeper(checkpoint_folder(self.folder, config.name), config.fingerprint(),
                      minutes=config.checkpoint_minutes, steps=config.checkpoint_steps)

    def load(self) -> dict[str, Any]:
        """What is trained and tested on, by "train" and "test", read and checked.

        Raises:
            ValueError: data that are not what they should be, or that do not serve what is configured.
        """
        self.sets = self.kind.load(self.config)
        return self.sets

    def build(self) -> Any:
        """The model, its initial weights decided by the seed alone."""
        torch.manual_seed(derive(self.config.seed, "weights"))
        self.model = self.kind.build(self.config, self.sets).to(self.config.device)
        return self.model

    @property
    def costs(self) -> dict[str, int]:
        """Parameters, and multiply–adds of one image or window of text, as the papers count them and all of them."""
        return costs(self.config, self._built())

    def train(self, after_epoch: Callable[[Epoch], None] | None = None) -> list[Epoch]:
        """Train, or go on training where a killed run stopped."""
        if self.config.processes > 1:
            done = train_in_processes(self.config, self._built(), self.keeper, after_epoch)
        else:
            done = train(self.config, self._built(), self.sets["train"], self.keeper, after_epoch)
        self.curve, self.resumed = done.epochs, done.resumed
        return self.curve

    def evaluate(self) -> dict[str, Any]:
        """Test images in each placement, or a test text in windows of each length."""
        start, model = perf_counter(), self._built()
        for name, found in self.kind.measure(self.config, model, self.sets["test"]).items():
            setattr(self, name, found)
        self.evaluation_seconds = perf_counter() - start
        return {**self.evaluations, **self.texts}

    def finish(self) -> Record:
        """Write the record, then remove the checkpoints and free the lock."""
        record = self.record()
        record.write(self.folder)
        self.keeper.clear()
        free(lock_file(self.folder, self.config.name))
        return record

    def complete(self) -> Record:
        """All steps."""
        self.load()
        self.build()
        self.train()
        self.evaluate()
        return self.finish()

    def record(self) -> Record:
        """What there is to say about the finished run."""
        config, model = self.config, self._built()
        return Record(
            experiment=self.kind.name, name=config.name, parameters=config.parameters(), seed=config.seed,
            model=json.loads(json.dumps(asdict(model.config))), cost=self.costs,
            evaluations=self.evaluations, texts=self.texts, cannot=self.cannot, sample=self.sample,
            curve=tuple(self.curve), data={part: self.kind.describe(one) for part, one in self.sets.items()},
            versions=environment.versions(), source=self.source, device=environment.device(config.device),
            seconds=self._seconds(), resumed=self.resumed, peak_memory=environment.peak_memory(config.device),
            date=datetime.now(UTC).isoformat(timespec="seconds"), learnt=learnt(model),
        )

    def _seconds(self) -> dict[str, float]:
        training = sum(epoch.seconds for epoch in self.curve)
        here = perf_counter() - self.started
        # A resumed run knows of the time before the kill by its epochs only.
        total = max(here, training + self.evaluation_seconds) if self.resumed else here
        return {"train": training, "evaluation": self.evaluation_seconds, "total": total}

    def _built(self) -> Any:
        if self.model is None:
            raise RuntimeError("call build() first")
        return self.model


def take(lock: Path) -> None:
    """Hold a lock until `free`, also where this thread holds it from an earlier beginning."""
    free(lock)
    stack = ExitStack()
    stack.enter_context(hold(lock))
    HELD[lock, threading.get_ident()] = stack


def free(lock: Path) -> None:
    """Give a lock back where this thread holds it."""
    if (stack := HELD.pop((lock, threading.get_ident()), None)) is not None:
        stack.close()


def refuse_other(config: AnyConfig, folder: Path) -> None:
    """Raise a ValueError rather than replace another run's record, or a damaged one; the same run may be repeated."""
    found = find(folder, config.name)
    if found is None:
        return
    other = type(config).of(found.read().parameters)
    if other.fingerprint() != config.fingerprint():
        where = Path(found.where).name
        raise ValueError(f"run_name: {where} records a run with other parameters; choose another run_name")
