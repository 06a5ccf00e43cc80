"""Seconds of a training example on a device, model by model, in a process of its own.

Reads lines of JSON with an experiment and the parameters of a run, and writes a line with the seconds for each: a model
that takes the process down with it takes no other's answer along.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from translution_runs.budget import operations
from translution_runs.grids.plan import images, same_speed, timed_steps
from translution_runs.kinds import AnyConfig, kind_named, kind_of

RATE = 20e12
"""Operations a second of a card of which nothing is known: a rate that small models reach."""


def measured(configs: Sequence[AnyConfig], seconds: float) -> dict[str, float]:
    """By `key`, the seconds that an example takes; models that fail, or for which no time is left, have none.

    Args:
        configs: runs; those of the same speed are timed once.
        seconds: for all of them together.
    """
    asked = list({key(config): config for config in configs}.values())
    text = "".join(json.dumps([kind_of(one).name, one.model_dump(mode="json")]) + "\n" for one in asked)
    found: dict[str, float] = {}
    with subprocess.Popen([sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        try:
            answers, _ = process.communicate(text, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            answers, _ = process.communicate()
    for config, line in zip(asked, (answers or "").splitlines(), strict=False):
        if (value := json.loads(line)) is not None:
            found[key(config)] = value
    return found


def key(config: AnyConfig) -> str:
    """The same for runs whose examples take the same time."""
    return repr(same_speed(config))


def seconds_of(config: AnyConfig, rates: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Predicted seconds of a run: by its model's rate, or by its operations at the pace of those that were timed.

    Args:
        config: the run.
        rates: seconds of an example, by `key`.
        known: for the same keys, operations of an example.
    """
    if (rate := rates.get(key(config))) is not None:
        return rate * images(config)
    paces = [rates[name] / known[name] for name in rates if known.get(name)]
    return operations(config) * (median(paces) if paces else 1 / RATE)


def operations_of_an_example(config: AnyConfig) -> float:
    """What one example of a run takes, by formula."""
    return operations(config) / images(config)


def main() -> None:
    """Answer line by line; the answer is on its way before the next model is built."""
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    for line in sys.stdin:
        experiment, parameters = json.loads(line)
        config = kind_named(experiment).config.of(parameters)
        try:
            answer = timed_steps(config) / config.batch_size
        except Exception:  # out of memory, or a model that this device does not take: it has no prediction
            answer = None
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
