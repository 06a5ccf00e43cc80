"""Parameters given on the command line as `name=value`."""

import json
from collections.abc import Sequence
from typing import Any, Literal, get_origin

from translution_lib.experiments.image_classification import ImageClassificationConfig

FIELDS = ImageClassificationConfig.model_fields
ELSEWHERE = {"seed": "--seed", "data_root": "--data-root", "results_dir": "--results", "device": "--device",
             "run_name": "the notebook, for a single run"}
"""Parameters that differ between the runs of a grid, or have an option of their own, by what sets them."""


def parse_changes(given: Sequence[str]) -> dict[str, Any]:
    """The parameters of texts such as "epochs=3", in the types of the configuration.

    Numbers and truth values are written as in JSON (`1e-3`, `true`). Whether a value is in its range is said by the
    configuration.

    Raises:
        ValueError: no `=`, an unknown name, one given twice, or one that is set otherwise.
    """
    changes: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        check(one, name, bool(equals), name in changes)
        changes[name] = value if is_text(name) else number(value)
    return changes


def check(one: str, name: str, equals: bool, twice: bool) -> None:
    """Raise a ValueError unless the text sets a parameter that may be set."""
    free = ", ".join(sorted(set(FIELDS) - set(ELSEWHERE)))
    if not equals:
        raise ValueError(f"set: got {one!r}, expected name=value with a name of {free}")
    if name in ELSEWHERE:
        raise ValueError(f"set: {name} is set by {ELSEWHERE[name]}")
    if name not in FIELDS:
        raise ValueError(f"set: got {name!r}, no such parameter; expected one of {free}")
    if twice:
        raise ValueError(f"set: {name} is given twice")


def is_text(name: str) -> bool:
    """Whether a parameter is a text."""
    kind = FIELDS[name].annotation
    return kind is str or get_origin(kind) is Literal


def number(value: str) -> Any:
    """A number or a truth value; another text as it is, for the configuration to refuse."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
