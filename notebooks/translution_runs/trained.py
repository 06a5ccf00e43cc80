"""What the configurations of all experiments that train a model share: layers, sizes, the parts of a step, checks."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, field_validator

from translution_lib import models
from translution_lib.mixers import MIXERS
from translution_lib.models import Architecture
from translution_lib.models.blocks import without_numbers
from translution_runs.configuration import Configuration
from translution_runs.files import unique

# Modules with layers of a user's own, separated by commas: a process that this one starts imports them as well, from
# the folder where they were named.
if _folder := os.environ.get("TRANSLUTION_IMPORT_FROM"):
    sys.path.append(_folder)
for _module in filter(None, os.environ.get("TRANSLUTION_IMPORT", "").split(",")):
    import_module(_module)

# Beside the paper's A, B and C one for a run of seconds on a CPU.
ARCHITECTURES = {"tiny": Architecture(depth=2, dim=32, heads=2, ff=64), **models.ARCHITECTURES}

Positive = Annotated[int, Field(ge=1, le=1 << 31)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Width = Annotated[int, Field(ge=0, le=1 << 16)]
Layers = Annotated[int, Field(ge=0, le=1 << 8)]
_BUILT: set[str] = set()  # the models that could be built: a grid asks for the same one with many seeds and placements


class TrainedConfig(Configuration):
    """Parameters of a run that trains a model of mixing layers.

    An experiment names all its parameters itself, in the order of its notebook; those below are read here.
    """

    PLACES: ClassVar[frozenset[str]] = frozenset({"data_root", "results_dir"})
    KEEPING: ClassVar[frozenset[str]] = frozenset({"run_name", "checkpoint_minutes", "checkpoint_steps"})

    if TYPE_CHECKING:
        mixer: str
        mixer_options: str
        architecture: Any
        dim: int
        depth: int
        heads: int
        ff: int
        batch_size: int
        accumulate: int
        device: str
        processes: int
        strategy: Any

    @field_validator("mixer_options", check_fields=False)
    @classmethod
    def _spelt_alike(cls, text: str) -> str:
        """One spelling for the same options, whose names make the run's."""
        try:
            options = json.loads(text, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"mixer_options: got {text[:200]!r}, expected a JSON object ({error})") from error
        if not isinstance(options, dict):
            raise ValueError(f"mixer_options: got {text[:200]!r}, expected a JSON object such as {{}}")
        return json.dumps(options)

    def check_mixers(self) -> None:
        """Refuse unknown layers, and a number of them that is not the model's, with a ValueError."""
        unknown = sorted({name for name in self.mixers if name not in MIXERS})
        if unknown:
            raise ValueError(f"mixer: got {', '.join(map(repr, unknown))}, expected one of {', '.join(sorted(MIXERS))}")
        if len(self.mixers) not in (1, self.sizes.depth):
            depth = self.sizes.depth
            raise ValueError(f"mixer: got {len(self.mixers)} names, expected 1 or one for each of {depth} layers")

    def check_steps(self) -> None:
        """Refuse a step that cannot be divided as asked for, with a ValueError."""
        parts = self.processes * self.accumulate
        if parts > self.batch_size:
            raise ValueError(f"batch_size: got {self.batch_size}, expected at least {parts}, processes × accumulate")
        if self.strategy == "fsdp" and self.processes == 1:
            raise ValueError("strategy: got 'fsdp' for one process, expected 'ddp', or more processes")
        if ":" in self.device and self.processes > 1:
            raise ValueError(f"device: got {self.device!r} for {self.processes} processes, expected 'cuda' or 'cpu'")

    def check_built(self, who: str, arguments: Callable[[], dict[str, Any]], build: Callable[..., object]) -> None:
        """Build the model without its numbers, once, so that a wrong option shows before anything runs.

        Args:
            who: the model or its layers, in words.
            arguments: what it is built from.
            build: builds it from them. Of layers that are all alike one is built.

        Raises:
            ValueError: the model refuses its arguments.
        """
        try:
            given = arguments()
            if "depth" in given and isinstance(given.get("mixer"), str):
                given["depth"] = 1
            key = repr((type(self).__name__, who, given))
            if key not in _BUILT:
                with without_numbers():
                    build(**given)
        except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
            raise ValueError(f"the model cannot be built with {who}, mixer_options {self.options} and "
                             f"{self.sizes}: {error}") from error
        _BUILT.add(key)

    @property
    def mixers(self) -> list[str]:
        """The mixer's name, or one for each layer."""
        return [name.strip() for name in self.mixer.split(",")]

    @property
    def layers(self) -> str | list[str]:
        """The mixers as a model takes them: one name for all layers, or a list."""
        return self.mixers[0] if len(self.mixers) == 1 else self.mixers

    @property
    def mixer_part(self) -> str:
        """The mixers as a part of a file's name."""
        return self.mixer.replace(" ", "").replace(",", "+")

    @property
    def options(self) -> dict[str, Any]:
        """`mixer_options` as a dictionary."""
        return json.loads(self.mixer_options)

    @property
    def sizes(self) -> Architecture:
        """The architecture with what dim, depth, heads and ff replace."""
        own = {"dim": self.dim, "depth": self.depth, "heads": self.heads, "ff": self.ff}
        return replace(ARCHITECTURES[self.architecture], **{name: size for name, size in own.items() if size})
