"""Parameters given on the command line as `name=value`."""

import json
from collections.abc import Sequence
from typing import Any, Literal, get_origin

from translution_runs.kinds import IMAGES, Kind

ELSEWHERE = {"seed": "--seed", "data_root": "--data-root", "results_dir": "--results", "device": "--device",
             "run_name": "the notebook, for a single run"}
"""Parameters that differ between the runs of a grid, or have an option of their own, by what sets them."""


def parse_changes(given: Sequence[str], kind: Kind = IMAGES) -> dict[str, Any]:
    """The parameters of texts such as "epochs=3", in the types of the configuration of this kind of experiment.

    Numbers and truth values are written as in JSON (`1e-3`, `true`). Whether a value is in its range is said by the
    configuration.

    Raises:
        ValueError: no `=`, an unknown name, one given twice, or one that is set otherwise.
    """
    changes: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        check(one, name, bool(equals), name in changes, kind)
        changes[name] = value if is_text(name, kind) else number(value)
    return changes


def check(one: str, name: str, equals: bool, twice: bool, kind: Kind) -> None:
    """Raise a ValueError unless the text sets a parameter that may be set."""
    free = ", ".join(sorted(set(kind.config.model_fields) - set(ELSEWHERE)))
    if not equals:
        raise ValueError(f"set: got {one!r}, expected name=value with a name of {free}")
    if name in ELSEWHERE:
        raise ValueError(f"set: {name} is set by {ELSEWHERE[name]}")
    if name not in kind.config.model_fields:
        raise ValueError(f"set: got {name!r}, no such parameter; expected one of {free}")
    if twice:
        raise ValueError(f"set: {name} is given twice")


def is_text(name: str, kind: Kind) -> bool:
    """Whether a parameter is a text."""
    annotation = kind.config.model_fields[name].annotation
    return annotation is str or get_origin(annotation) is Literal


def number(value: str) -> Any:
    """A number or a truth value; another text as it is, for the configuration to refuse."""
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return value
