"""Run records: written whole and last, with what a table needs to say where it is from.

A run writes a file of its own; `grids.gathering` makes a line of it, and `reading` finds either.
Chapter "From laptop to cluster".
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from math import exp, isclose, log
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import translution_lib
from translution_runs.configuration import Configuration
from translution_runs.files import unique, write_atomically

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MOST = 1 << 26  # bytes of one record; the largest on record has a hundredth of that
NEEDED = {"versions": ("torch",), "device": ("model", "threads"), "seconds": ("total",)}
"""What every record says, and tables read."""
SCHEMA_VERSION = 2  # raise it, and the record's, when the form changes


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Epoch(_Part):
    """One pass over the training images: the rate it used, and mean loss and accuracy of its steps."""

    number: int
    learning_rate: float
    loss: float
    accuracy: float = Field(ge=0, le=1)
    seconds: float


class Evaluation(_Part):
    """Test images in one placement: how many were right, with Wilson's interval, and the mean cross-entropy.

    `outcomes` says which were right, as `evaluation.pack` writes it; empty where the run did not keep them.
    """

    placement: str
    n: int
    correct: int
    accuracy: float
    interval: tuple[float, float]
    confidence: float
    loss: float
    outcomes: str = ""

    @model_validator(mode="after")
    def _possible(self) -> "Evaluation":
        low, high = self.interval
        if not (0 < self.n and 0 <= self.correct <= self.n and isclose(self.accuracy, self.correct / self.n)
                and 0 <= low <= self.accuracy <= high <= 1 and self.loss >= 0):
            raise ValueError(f"{self.correct} right of {self.n} are no accuracy of {self.accuracy} in {self.interval} "
                             f"with a loss of {self.loss}")
        if self.outcomes:
            answers = b64decode(self.outcomes, validate=True)
            if len(answers) != -(-self.n // 8) or int.from_bytes(answers).bit_count() != self.correct:
                raise ValueError(f"the outcomes are not {self.correct} right of {self.n}")
        return self


class TextEvaluation(_Part):
    """Test text in windows of one length: the mean loss of the next token, and how sure it is.

    Attributes:
        length: tokens of a window.
        tokens: how many were predicted, the same for all lengths.
        blocks: of successive tokens, which the error takes as independent.
        block: tokens of a block.
        loss: mean cross-entropy, in nats a token.
        error: its standard error, from the spread of the blocks' means.
        perplexity: exp(loss).
        perplexity_error: perplexity · error (delta method).
        interval: of the perplexity, exp(loss ± t · error), by Student's law.
        confidence: of the interval.
        bits_per_character: the loss in bits, over the characters that the predicted tokens stand for.
        accuracy: share of tokens whose most probable prediction was right.
        places: mean loss in successive quarters of a context, from the start of the windows to their end.
        losses: the mean loss of each block, in nats; none in records of before they were kept.
        how: the window lies "within" the context in training; or beyond it with an encoding that is "native" to any
            length, or by the rule "clip" or "window" of `lengths.how`.
    """

    length: int
    tokens: int
    blocks: int
    block: int
    loss: float
    error: float
    perplexity: float
    perplexity_error: float
    interval: tuple[float, float]
    confidence: float
    bits_per_character: float
    accuracy: float
    places: tuple[float, ...]
    how: str
    losses: tuple[float, ...] = ()

    @property
    def warm_bits(self) -> float:
        """Bits a token, the first quarter of every context left out: of the same tokens at each length."""
        return fmean(loss for k, loss in enumerate(self.places) if k % 4) / log(2)

    @model_validator(mode="after")
    def _possible(self) -> "TextEvaluation":
        low, high = self.interval
        if not (self.tokens > 0 and self.loss >= 0 and isclose(self.perplexity, exp(min(self.loss, 700)), rel_tol=1e-6)
                and low <= self.perplexity <= high and 0 <= self.accuracy <= 1):
            raise ValueError(f"a loss of {self.loss} over {self.tokens} tokens is no perplexity of {self.perplexity} "
                             f"in {self.interval} with an accuracy of {self.accuracy}")
        mean = fmean(self.losses or (self.loss,))
        if self.losses and not (len(self.losses) == self.blocks and isclose(mean, self.loss, rel_tol=1e-6)):
            raise ValueError(f"losses: {len(self.losses)} with the mean {mean} are not those of {self.blocks} blocks "
                             f"with a loss of {self.loss}")
        return self


class DataSource(_Part):
    """What was read: the number of images or tokens used, and checksums of the uncompressed content."""

    name: str
    split: str
    samples: int
    sha256: Mapping[str, str]


class Record(_Part):
    """A finished run.

    Attributes:
        schema_version: of this form.
        experiment: kind of experiment.
        name: of the run, and of its file.
        parameters: the configuration, without the places of files.
        seed: the run's.
        model: the model's own configuration.
        cost: parameters, and multiply–adds of one image or window of text, as the papers print them and in truth.
        evaluations: for each placement of the test images, and for each shift of those of one class.
        texts: for each length of the windows of a test text that the model reads.
        cannot: why, for each length that it does not read.
        sample: a text written by the model; empty where none was asked for.
        curve: the training, epoch by epoch.
        data: what was trained and tested on.
        versions: of Python and the packages.
        source: git commit of the library and whether it was changed since (`dirty`); None without git.
        device: kind, model and threads.
        seconds: of training, of evaluation and of the whole run, pauses between a kill and a resumption not counted.
        resumed: how often the training went on from a checkpoint.
        peak_memory: bytes, of the process and of the device's tensors.
        date: UTC, when the run ended.
        learnt: what single numbers of the layers have become, by layer and name, a line for each head (`learnt.py`).
    """

    schema_version: Literal[2] = 2
    experiment: str
    name: str = Field(pattern=NAME)
    parameters: Mapping[str, Any]
    seed: int
    model: Mapping[str, Any]
    cost: Mapping[str, int]
    evaluations: Mapping[str, Evaluation]
    texts: Mapping[str, TextEvaluation] = Field(default_factory=dict)
    cannot: Mapping[str, str] = Field(default_factory=dict)
    sample: str = ""
    curve: tuple[Epoch, ...]
    data: Mapping[str, DataSource]
    versions: Mapping[str, str]
    source: Mapping[str, Any] | None
    device: Mapping[str, Any]
    seconds: Mapping[str, float]
    resumed: int = Field(ge=0)
    peak_memory: Mapping[str, int | None]
    date: str
    learnt: Mapping[str, list[list[float]]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> "Record":
        for name, keys in NEEDED.items():
            if missing := [key for key in keys if key not in getattr(self, name)]:
                raise ValueError(f"{name}: has no {', '.join(missing)}")
        if self.parameters.get("seed", self.seed) != self.seed:
            raise ValueError(f"seed: got {self.seed}, and {self.parameters['seed']} among the parameters")
        return self

    def write(self, folder: str | Path) -> Path:
        """Write the record to `folder` as `<name>.json`: whole or not at all."""
        path = Path(folder) / f"{self.name}.json"
        text = json.dumps(self.content(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))
        return path

    def line(self) -> bytes:
        """The record as a line of a file of many."""
        text = json.dumps(self.content(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8") + b"\n"

    def content(self) -> dict[str, Any]:
        """What is written: all but the fields that a kind of experiment does not use."""
        unused = {name for name in ("texts", "cannot", "sample", "learnt") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=unused)


def problems(record: Record, config: Configuration) -> list[str]:
    """Why a record is not that of this configuration and this library; empty where it is.

    A record answers for the same parameters, the same version of the library, and data that are known by checksum.
    """
    reasons = differences(record, config)
    version = record.versions.get("translution_lib")
    if version != translution_lib.__version__:
        reasons.append(f"translution_lib: {version} in the record, {translution_lib.__version__} here")
    return reasons


def differences(record: Record, config: Configuration) -> list[str]:
    """The parameters in which a record is not of this configuration."""
    expected, defaults = config.parameters(), config.defaults()
    # The default of a parameter that was added since the record is what was done before.
    found = {**{name: defaults[name] for name in expected}, **record.parameters}
    names = sorted(name for name in {*expected, *found} - config.KEEPING
                   if expected.get(name, ...) != found.get(name, ...))
    return [f"{name}: {found.get(name, 'absent')!r} in the record, {expected.get(name, 'absent')!r} here"
               for name in names]


def read_record(path: str | Path) -> Record:
    """The record in a file of its own.

    Raises:
        ValueError: not a record of this schema; the message names the file.
    """
    path = Path(path)
    if path.stat().st_size > MOST:
        raise ValueError(f"{path}: {path.stat().st_size:,} bytes, more than a run record can have, {MOST:,}")
    return parse(path.read_bytes(), str(path))


def parse(content: str | bytes, where: str) -> Record:
    """The record that a file or a line holds.

    Raises:
        ValueError: not a record of this schema; the message begins with `where`.
    """
    try:
        record = Record.model_validate_json(content)
        json.loads(content, object_pairs_hook=unique)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"{where}: not a run record of schema {SCHEMA_VERSION}; {field}: {first['msg']}") from None
    except ValueError as error:
        raise ValueError(f"{where}: not a run record of schema {SCHEMA_VERSION}; {error}") from None
    return record
