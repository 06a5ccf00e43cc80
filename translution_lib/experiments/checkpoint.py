"""A checkpoint lets a killed run go on where its last whole epoch ended."""

from pathlib import Path
from typing import Any

import torch

from translution_lib.experiments.files import write_atomically


def save(path: Path, fingerprint: str, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, lists and dictionaries of them) for the run `fingerprint`."""
    write_atomically(path, lambda partial: torch.save({"fingerprint": fingerprint, "state": state}, partial))


def load(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """The state in `path`, or None where there is no such file.

    Nothing but data is loaded (`weights_only`), so that a checkpoint cannot run code.

    Raises:
        ValueError: the file is not a checkpoint, or that of a run with other parameters.
    """
    if not path.exists():
        return None
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        found, state = stored["fingerprint"], stored["state"]
    except Exception as error:  # torch raises many kinds for a damaged file
        kind = type(error).__name__
        raise ValueError(f"{path.name}: not a readable checkpoint ({kind}); remove it to start anew") from error
    if found != fingerprint:
        raise ValueError(f"{path.name}: a checkpoint of other parameters; remove it or choose another run_name")
    return dict(state)
