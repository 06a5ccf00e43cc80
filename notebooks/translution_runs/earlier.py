"""Runs that were made before those on record, with another recipe: their accuracies, kept in a file of a few columns.

Chapter "Performers under shifts".
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from translution_runs.grids.tables import binomial_error
from translution_runs.verdicts import LEAST, TRAINED, Effect, Estimate, Sample

CLASSES = 10
COLUMNS = ("grid", "row", "column", "seed", "run", "commit", "learning_rate", "epochs", "train_images", "test_images",
           "train_accuracy", "placement", "n", "correct")
Key = tuple[str, str, str, str]
"""Grid, row, column and placement of the test images."""


@dataclass(frozen=True)
class Earlier:
    """One run at one placement of the test images.

    Attributes:
        run: its name.
        commit: of the code that made it.
        recipe: rate, epochs, images trained on and tested on.
        train_accuracy: in the last epoch.
        n: images tested.
        correct: of them right.
    """

    run: str
    commit: str
    recipe: tuple[str, str, str, str]
    train_accuracy: float
    n: int
    correct: int


def read(path: str | Path) -> Mapping[Key, list[Earlier]]:
    """By grid, row, column and placement, the runs of a file; empty without a file.

    Raises:
        ValueError: a line that is none; the message names file and line.
    """
    path, found = Path(path), defaultdict(list)
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            try:
                if set(line) != set(COLUMNS) or None in line.values():
                    raise ValueError(f"expected the columns {', '.join(COLUMNS)}")
                one = Earlier(line["run"], line["commit"],
                              (line["learning_rate"], line["epochs"], line["train_images"], line["test_images"]),
                              float(line["train_accuracy"]), int(line["n"]), int(line["correct"]))
                if not (0 <= one.correct <= one.n and one.n > 0 and 0 <= one.train_accuracy <= 1):
                    raise ValueError(f"{one.correct} right of {one.n}, {one.train_accuracy} of those trained on")
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            found[line["grid"], line["row"], line["column"], line["placement"]].append(one)
    return dict(found)


def effect(runs: list[Earlier]) -> Effect | None:
    """Their accuracy as verdicts take it, in points, with the binomial error of the test images; None without runs."""
    if not runs:
        return None
    accuracies = [one.correct / one.n for one in runs]
    sample = Sample(tuple(100 * accuracy for accuracy in accuracies), runs=tuple(one.run for one in runs),
                    test_error=binomial_error([one.n for one in runs], accuracies),
                    trained=all(one.train_accuracy >= TRAINED / CLASSES for one in runs))
    return Effect(((1.0, sample),))


def deviations(found: Effect) -> Estimate:
    """Mean and the standard deviation of a sum of single runs, which the rule of an earlier edition went by.

    Raises:
        ValueError: fewer seeds than a verdict asks for.
    """
    if found.seeds < LEAST:
        raise ValueError(f"found: got {found.seeds} seeds, expected at least {LEAST}")
    spread = sum(variance * len(values) for (variance, _), values in zip(found.variances, found.by_runs, strict=True))
    return Estimate(found.mean, sqrt(spread), found.seeds)
