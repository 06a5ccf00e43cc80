"""What every experiment's configuration does: checked once, then fixed.

Chapter "From laptop to cluster".
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

C = TypeVar("C", bound="Configuration")  # typing.Self is beyond the checker of annotations in the tests

# What can stand in a parameters cell; anything else in a notebook's namespace is code, not a parameter.
PLAIN = (str, int, float, bool, list, dict, tuple, set, type(None))
NOTEBOOK_NAMES = {"In", "Out"}  # IPython's own plain values


class Configuration(BaseModel):
    """Parameters of a run: named, typed, in their ranges, and unchangeable.

    Types are strict (no number where a string is meant) and unknown names are refused. A subclass names in `PLACES` the
    parameters that say where files lie, which no record shows, and in `KEEPING` those that decide how a run is kept
    (its name, how often it is saved); neither changes the result or the fingerprint.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    PLACES: ClassVar[frozenset[str]] = frozenset()
    KEEPING: ClassVar[frozenset[str]] = frozenset({"run_name"})

    @classmethod
    def of(cls: type[C], parameters: Mapping[str, Any]) -> C:
        """The configuration with these parameters, the others at their defaults.

        Raises:
            ValueError: one line for each parameter that is unknown, of the wrong type or out of range.
        """
        try:
            return cls.model_validate(dict(parameters))
        except ValidationError as error:
            lines = [describe(detail) for detail in error.errors()]
            raise ValueError("\n".join([f"{cls.__name__}: {len(lines)} wrong parameter(s)", *lines])) from None

    @classmethod
    def from_namespace(cls: type[C], namespace: Mapping[str, Any]) -> C:
        """The configuration that a notebook's parameters cell describes: pass `globals()` right after that cell.

        Every plain value (number, string, list, …) in the namespace counts as a parameter, so that a misspelt one is
        refused: papermill itself sets an unknown parameter with a mere warning.

        Raises:
            ValueError: as `of`; also when a parameter is absent from the namespace.
        """
        found = {name: value for name, value in namespace.items() if is_parameter(name, value)}
        missing = sorted(set(cls.model_fields) - set(namespace))
        if missing:
            raise ValueError(f"{cls.__name__}: the parameters cell does not set {', '.join(missing)}")
        return cls.of({**found, **{name: namespace[name] for name in cls.model_fields}})

    def parameters(self) -> dict[str, Any]:
        """The parameters that a record shows: all but the places."""
        return self.model_dump(exclude=set(self.PLACES))

    @classmethod
    @cache
    def defaults(cls) -> Mapping[str, Any]:
        """Every parameter at its default."""
        return cls.model_construct().model_dump()

    def changed(self) -> dict[str, Any]:
        """The parameters that are not at their defaults, the places among them."""
        defaults = self.defaults()
        return {name: value for name, value in self.model_dump().items() if value != defaults[name]}

    def chosen(self) -> dict[str, Any]:
        """The parameters that may change the result and are not at their defaults."""
        return {name: value for name, value in self.changed().items() if name not in self.PLACES | self.KEEPING}

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that differ when a parameter differs that may change the result.

        Parameters at their defaults do not count, so that one that is added later leaves the results of before valid.
        """
        return hashlib.sha256(json.dumps(self.chosen(), sort_keys=True).encode()).hexdigest()[:12]


def is_parameter(name: str, value: object) -> bool:
    """Whether a name in a notebook's namespace is a plain value that the reader set."""
    return isinstance(value, PLAIN) and not name.startswith("_") and name not in NOTEBOOK_NAMES


def describe(error: ErrorDetails) -> str:
    """One line that names the parameter, what came and what was expected."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"  {name}: no such parameter"
    if error["type"] == "value_error":  # raised by a validator, whose text names the parameter
        return f"  {error['ctx']['error']}"
    text = error["msg"][0].lower() + error["msg"][1:]
    hint = " (papermill: pass a string that looks like a number by -r)" if error["type"] == "string_type" else ""
    return f"  {name}: got {repr(error['input'])[:200]} ({type(error['input']).__name__}); {text}{hint}"
