"""What runs will take: memory counted on the meta device, time from records of the same model or a few steps here."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from translution_lib import cost
from translution_runs.baselines import Baseline
from translution_runs.costs import baseline_memory
from translution_runs.grids.status import DONE, Status
from translution_runs.kinds import IMAGES, AnyConfig, kind_of
from translution_runs.precision import forward
from translution_runs.reading import configured, places
from translution_runs.records import Record

Config = AnyConfig
STEPS = 3
"""So many steps are timed, after one that is not."""


@dataclass(frozen=True)
class Rate:
    """Seconds that one training example takes; None where nothing says so, and `source` says why."""

    seconds: float | None
    source: str


@dataclass(frozen=True)
class Prediction:
    """What a run will take.

    Attributes:
        status: the run, and what became of it so far.
        seconds: of training and testing, from the start; None where nothing says so.
        source: what the time is taken from.
        memory: the peak of a training step of one process.
    """

    status: Status
    seconds: float | None
    source: str
    memory: cost.Memory


def predict(found: Sequence[Status], store: str | Path) -> list[Prediction]:
    """The time and the memory of runs; models without a record are timed here, each once."""
    rates = recorded_rates(store)
    predictions = []
    for one in found:
        config = one.config
        key = same_speed(config)
        if key not in rates:
            rates[key] = measured_rate(config)
        rate = rates[key]
        seconds = None if rate.seconds is None else rate.seconds * images(config)
        predictions.append(Prediction(one, seconds, rate.source, step_memory(config)))
    return predictions


def remaining(predictions: Iterable[Prediction]) -> tuple[float, int]:
    """Seconds of the runs that are not done, and the number of those whose time nobody knows."""
    left = [one for one in predictions if one.status.state != DONE]
    return sum(one.seconds or 0.0 for one in left), sum(one.seconds is None for one in left)


def images(config: Config) -> float:
    """How many images, or windows of text, a run computes; a tested one counts as the forward part of a trained one."""
    return kind_of(config).work(config)


def same_speed(config: Config) -> tuple:
    """Runs of the same key take the same time for an example: same model, batch, device and precision."""
    names = ("mixer", "mixer_options", "sizes", "absolute_embedding", *kind_of(config).speed,
             "batch_size", "accumulate", "device", "precision", "compile", "processes", "threads")
    return tuple(getattr(config, name) for name in names)


def recorded_rates(store: str | Path) -> dict[tuple, Rate]:
    """Seconds an example of the models that have a record in the folder; the latest record counts."""
    records = sorted((one.record for one in places(store) if one.record), key=lambda record: record.date)
    return {same_speed(config): rate for record in records if (config := configured(record)) is not None
            for rate in [recorded_rate(record, config)]}


def recorded_rate(record: Record, config: Config) -> Rate:
    """Seconds of a training example, from a record."""
    kind = kind_of(config)
    trained = config.epochs * (record.data["train"].samples if kind is IMAGES else kind.examples(config, None))
    return Rate(record.seconds["train"] / trained, f"record on {record.device['model']}")


def measured_rate(config: Config) -> Rate:
    """Seconds of a training example in a few steps on this machine."""
    reason = obstacle(config)
    if reason:
        return Rate(None, reason)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    try:
        with torch.random.fork_rng():
            return Rate(timed_steps(config) / config.batch_size, f"{STEPS} steps here")
    finally:
        torch.set_num_threads(threads)


def obstacle(config: Config) -> str:
    """Why the steps of a configuration cannot be timed here; empty where they can."""
    if config.device != "cpu" and not torch.cuda.is_available():
        return "no GPU here"
    if config.processes > 1:
        return f"{config.processes} processes are not timed"
    if config.device == "cpu" and step_memory(config).total > 0.5 * physical_memory():
        return "a step would take more than half of the memory here"
    return ""


def timed_steps(config: Config) -> float:
    """Seconds of one step, the fastest of a few, on noise."""
    kind = kind_of(config)
    model = kind.build(config, {}).to(config.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    inputs, labels = kind.noise(config)
    return min([step_seconds(config, model, optimizer, inputs, labels) for _ in range(1 + STEPS)][1:])


def step_seconds(config: Config, model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor,
                 labels: torch.Tensor) -> float:
    """Seconds of one step, the device's work included."""
    started = perf_counter()
    loss, _ = kind_of(config).sums(forward(config, model, inputs), labels)
    (loss / len(labels)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if inputs.is_cuda:
        torch.cuda.synchronize(config.device)
    return perf_counter() - started


def step_memory(config: Config) -> cost.Memory:
    """The peak of a training step of one process; sharding is not counted.

    A baseline's is what one picture keeps, without the workspace of backward.
    """
    model = kind_of(config).skeleton(config)
    batch = -(-config.batch_size // (config.processes * config.accumulate))
    if isinstance(model, Baseline):
        return baseline_memory(config, batch)
    autocast = "bfloat16" if config.precision == "bfloat16" else None
    device = torch.device(config.device).type
    return cost.memory(model, batch, autocast=autocast, device=device, foreach=False)  # AdamW is fused


def physical_memory() -> int:
    """Bytes of this machine's memory; without an answer, as much as no step takes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
