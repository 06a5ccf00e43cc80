"""Checkpoints that tests damage."""

from pathlib import Path

import torch
from translution_runs.checkpoint import Keeper


def state(step: int) -> dict:
    """What a training keeps: tensors, numbers, texts, in dictionaries and lists."""
    weights = torch.full((40, 40), float(step)) + torch.arange(40)
    return {"model": {"weight": weights, "seen": torch.tensor(step)}, "step": step, "sums": [0.1 * step, None],
            "optimizer": {"state": {0: {"exp_avg": weights.bfloat16()}}, "param_groups": [{"lr": 0.1}]}}


def assert_state(found: dict, step: int):
    torch.testing.assert_close(found, state(step), rtol=0, atol=0)


def keeper(folder: Path, **options) -> Keeper:
    return Keeper(folder / "run.checkpoints", "0123456789ab", **options)


def three(folder: Path) -> Keeper:
    """A keeper that has saved after 2, 4 and 6 steps and kept the last two."""
    kept = keeper(folder)
    for step in (2, 4, 6):
        kept.save(step, state(step))
    return kept


def last(folder: Path) -> Path:
    return folder / "run.checkpoints" / "step-00000006.pt"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "run.checkpoints").iterdir()}
