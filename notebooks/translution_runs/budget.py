"""What runs cost on a cluster: operations and GPU-hours, how often to save, and how long a list of runs lasts.

All of it is prediction from formulas; operations of a baseline, or of a layer without a formula, are counted. Chapter
"From laptop to cluster" derives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, inf, log1p, sqrt

from translution_lib import cost
from translution_lib.models import GPTConfig, ViTConfig
from translution_runs.baselines.baseline import BaselineConfig
from translution_runs.costs import baseline_macs
from translution_runs.grids.plan import images
from translution_runs.kinds import AnyConfig, kind_of

ModelConfig = ViTConfig | GPTConfig | BaselineConfig

PASSES = 3
"""A training step in forward runs: forward, and two products of the same size for each in backward."""


def model_of(config: AnyConfig) -> ModelConfig:
    """The configuration of a run's model, which is not given any numbers."""
    found: ModelConfig = kind_of(config).skeleton(config).config
    return found


def operations(config: AnyConfig, model: ModelConfig | None = None) -> float:
    """Floating-point operations of a run, a multiply–add counted as two.

    By formula where there is one; those of a baseline's forward run are counted.

    Args:
        config: the run.
        model: of the run, where the caller has it.

    Label: eq-cluster-hours.
    """
    model = model or model_of(config)
    macs = baseline_macs(config) if isinstance(model, BaselineConfig) else cost.macs_products(model)
    return 2.0 * PASSES * macs * images(config)


def hours(config: AnyConfig, rate: float, model: ModelConfig | None = None) -> float:
    """GPU-hours of a run on devices that sustain ``rate`` operations a second.

    Raises:
        ValueError: a rate that is not positive.
    """
    require_positive(rate=rate)
    return operations(config, model) / rate / 3600


def pictures_per_second(rate: float, reading: float, model: ViTConfig) -> float:
    """How many pictures a second a training takes that reads ahead: the slower part decides.

    Args:
        rate: operations a second that the devices sustain together.
        reading: pictures a second that all workers read together.
        model: what is trained.

    Raises:
        ValueError: a rate that is not positive.

    Label: eq-imagenet-pipeline.
    """
    require_positive(rate=rate, reading=reading)
    return min(reading, rate / (2.0 * PASSES * cost.macs_products(model)))


def expected_time(interval: float, save: float, between: float, restart: float = 0.0) -> float:
    """Mean time until a piece of work is done and saved, where kills come at random.

    All times are in one unit.

    Args:
        interval: work between two checkpoints.
        save: time that a checkpoint takes.
        between: mean time between two kills, which are independent of each other and of the work.
        restart: time from a kill until the work goes on.

    Raises:
        ValueError: an interval or mean time that is not positive, a negative duration.

    Label: eq-cluster-time.
    """
    require_positive(interval=interval, between=between)
    if min(save, restart) < 0:
        raise ValueError(f"save, restart: got {save} and {restart}, expected durations from 0 up")
    return (between + restart) * expm1((interval + save) / between)


def best_interval(save: float, between: float) -> float:
    """The work between two checkpoints that loses least time.

    Raises:
        ValueError: a time that is not positive.

    Label: thm-cluster-interval.
    """
    require_positive(save=save, between=between)
    low, high = 0.0, min(1.0, sqrt(2 * save / between))  # in units of `between`; Young's formula is the upper end
    while low < (middle := (low + high) / 2) < high:
        rest = middle + log1p(-middle) + save / between
        low, high = (middle, high) if rest > 0 else (low, middle)
    return between * high


@dataclass(frozen=True)
class Placed:
    """A run on a worker: which run, which worker, when it starts, and how long it takes."""

    run: int
    worker: int
    start: float
    duration: float

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.duration


def schedule(durations: Sequence[float], workers: int) -> list[Placed]:
    """Each run in turn on the worker that is free first, as the scheduler hands them out.

    Raises:
        ValueError: no worker, a negative duration.

    Label: thm-cluster-makespan.
    """
    if workers < 1 or min(durations, default=0) < 0:
        raise ValueError(f"workers, durations: got {workers} and {min(durations, default=0)}, expected ≥ 1 and ≥ 0")
    free, placed = [0.0] * workers, []
    for run, duration in enumerate(durations):
        worker = min(range(workers), key=free.__getitem__)
        placed.append(Placed(run, worker, free[worker], duration))
        free[worker] += duration
    return placed


def makespan(placed: Sequence[Placed]) -> float:
    """When the last run ends."""
    return max((one.end for one in placed), default=0.0)


def require_positive(**values: float) -> None:
    """Raise a ValueError for what is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{name}: got {value}, expected a finite number above 0")
