"""Whether the code still computes what the records say: a few training steps of one run of each kind, repeated.

A record stands for the numerics of the code that made it. `results/steps.txt` has the losses of the first steps of one
run for every kind of model that is on record, on random numbers in place of data, as that code computed them. Data are
held by their checksums, the rest of a run by its tests.
"""

from collections.abc import Container, Iterable, Mapping
from math import isfinite
from pathlib import Path

import torch
from tqdm import tqdm

from translution_runs.files import write_atomically
from translution_runs.kinds import AnyConfig, kind_of
from translution_runs.precision import forward
from translution_runs.reading import configured, read_records
from translution_runs.records import Record
from translution_runs.seeds import derive

FILE = "steps.txt"
TOLERANCES = (1e-5, 3e-5, 1e-4)
"""Of each step's loss, relative: processors add in other orders, and every step of AdamW makes more of it."""
KIND = ("model", "mixer", "mixer_options", "encoding", "absolute_embedding", "pool", "beyond")
"""The parameters that tell one kind of model from another."""


def losses(config: AnyConfig) -> list[float]:
    """Losses of the first steps of a run, on noise that its seed decides, by one thread."""
    kind, threads = kind_of(config), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(derive(config.seed, "weights"))
            model = kind.build(config, {}).train()
            torch.manual_seed(derive(config.seed, "noise"))
            inputs, labels = kind.noise(config)
            rate, decay = config.learning_rate, config.weight_decay
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
            return [one_step(config, model, optimizer, inputs, labels) for _ in TOLERANCES]
    finally:
        torch.set_num_threads(threads)


def one_step(config: AnyConfig, model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor,
             labels: torch.Tensor) -> float:
    """The mean loss before a step, which is taken."""
    loss = kind_of(config).sums(forward(config, model, inputs), labels)[0] / labels.numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def chosen(records: Iterable[Record], stored: Container[str] = ()) -> dict[str, AnyConfig]:
    """One run of each kind of model, by its name: the one that is stored, else the first by name."""
    found: dict[tuple, tuple[str, AnyConfig]] = {}
    for record in sorted(records, key=lambda record: (record.name not in stored, record.name)):
        if (config := configured(record)) is not None:
            kind = (record.experiment, *(getattr(config, name, None) for name in KIND))
            found.setdefault(kind, (record.name, config))
    return dict(found.values())


def known(results: str | Path) -> dict[str, list[float]]:
    """What is stored, by the name of the run; empty without a file."""
    path = Path(results) / FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(stored_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))


def stored_line(line: str, where: str) -> tuple[str, list[float]]:
    """The name and losses of a line.

    Raises:
        ValueError: no name with as many finite losses as there are steps.
    """
    name, *values = line.split() or [""]
    try:
        losses = [float(value) for value in values]
    except ValueError:
        losses = []
    if len(losses) != len(TOLERANCES) or not all(map(isfinite, losses)):
        raise ValueError(f"{where}: expected a run's name and {len(TOLERANCES)} losses")
    return name, losses


def repeated(results: str | Path, write: bool = False) -> dict[str, str]:
    """For the run that stands for each kind of model on record, what is wrong; an empty text where nothing is.

    Args:
        results: folder of the records.
        write: store the losses of kinds that have none yet; what is stored already stays.
    """
    stored, now = known(results), {}
    for name, config in tqdm(chosen(read_records(results), stored).items(), unit="model", disable=None):
        now[name] = losses(config)
    if write and not now.keys() <= stored.keys():
        lines = [f"{name} {' '.join(map(repr, values))}\n" for name, values in sorted({**now, **stored}.items())]
        text = "".join(lines)
        write_atomically(Path(results) / FILE, lambda partial: partial.write_text(text, encoding="utf-8"))
        stored = known(results)
    return {name: differs(name, values, stored) for name, values in now.items()}


def differs(name: str, values: list[float], stored: Mapping[str, list[float]]) -> str:
    """What is wrong with the losses of a run."""
    if name not in stored:
        return "no losses are stored"
    steps = enumerate(zip(values, stored[name], TOLERANCES, strict=True))
    far = [k for k, (a, b, tolerance) in steps if not abs(a - b) <= tolerance * abs(b)]
    return f"step {far[0] + 1}: loss {values[far[0]]:.9g}, stored {stored[name][far[0]]:.9g}" if far else ""
