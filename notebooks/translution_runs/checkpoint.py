"""Checkpoints let a killed run go on; one that was damaged is never taken for one that is sound.

Chapter "From laptop to cluster".
"""

import hashlib
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from translution_runs.files import write_atomically

NAME = re.compile(r"step-(\d{8,})\.pt")


class Keeper:
    """Keeps the last checkpoints of one run in a folder.

    A checkpoint is `step-00001234.pt` with `step-00001234.pt.sha256` beside it, in the format of `sha256sum`. It
    counts from the moment when its checksum is there, which is written last; whatever a killed process leaves before
    that moment is no checkpoint.

    Args:
        folder: where they lie; made when the first is saved.
        fingerprint: of the run's parameters; checkpoints of other parameters are refused.
        minutes: a checkpoint is due when so many have passed since the last; 0 for not by the clock.
        steps: a checkpoint is due after every so many steps; 0 for not by their number.
        keep: how many stay.

    Raises:
        ValueError: a negative number, or `keep` below 1.
    """

    def __init__(
        self, folder: str | Path, fingerprint: str, *, minutes: float | int = 0, steps: int = 0, keep: int = 2
    ) -> None:
        if minutes < 0 or steps < 0 or keep < 1:
            raise ValueError(f"minutes, steps, keep: got {minutes}, {steps} and {keep}, expected at least 0, 0 and 1")
        self.folder, self.fingerprint = Path(folder), fingerprint
        self.minutes, self.steps, self.keep = minutes, steps, keep
        self._saved = monotonic()

    def due(self, step: int) -> bool:
        """Whether a checkpoint should follow step number `step`."""
        by_clock = self.minutes > 0 and monotonic() - self._saved >= 60 * self.minutes
        return by_clock or (self.steps > 0 and step % self.steps == 0)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the state after `step` steps, then remove all checkpoints but the last `keep`.

        Checkpoints of later steps go as well: a run that saves an earlier step has not gone on from them.

        Args:
            step: number of finished steps.
            state: tensors, numbers, strings, and lists and dictionaries of them.

        Raises:
            OSError: the disk is full or the folder cannot be written; the message names the file and the bytes. No
                part of the file stays, and the earlier checkpoints are as they were.
        """
        path, writer = self._path(step), Writer()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(path, writer, {"fingerprint": self.fingerprint, "step": step, "state": dict(state)})
        except OSError as error:
            with suppress(OSError):  # what prevented the one may prevent the other
                if not checksum(path).exists():
                    path.unlink()
            raise unwritten(path, writer.bytes, error) from error
        self._saved = monotonic()
        self._prune(step)
        return path

    def load(
        self, map_location: str | torch.device = "cpu", use: Callable[[dict[str, Any]], object] = dict
    ) -> tuple[int, dict[str, Any]] | None:
        """The newest sound checkpoint as its step and state, or None where there is none at all.

        Its checksum is compared first, and nothing but data is loaded (`weights_only`), so that a checkpoint cannot
        run code. One that is truncated, changed, of other parameters or not fit for use is passed over with a warning.

        Args:
            map_location: device for the tensors.
            use: puts a state where it belongs; one for which it raises does not fit, and the one before is tried.

        Raises:
            ValueError: there are checkpoints, but none is sound; the message says why and what to do.
        """
        refused = []
        for step in reversed(finished(self.folder)):
            path = self._path(step)
            try:
                state = self._read(path, step, map_location)
                used(use, state)
                return step, state
            except (Refused, OSError) as error:
                refused.append(f"{path.name}: {error}")
                warnings.warn(f"checkpoint refused: {path}: {error}", RuntimeWarning, stacklevel=2)
        if refused:
            raise ValueError(f"{self.folder}: no checkpoint can be used ({'; '.join(refused)}); remove the folder to "
                             "start anew, or choose another run_name")
        return None

    def clear(self) -> None:
        """Remove the folder with all checkpoints; nothing happens where there is none."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.pt"

    def _write(self, path: Path, writer: "Writer", content: Mapping[str, Any]) -> None:
        def write(partial: Path) -> None:
            writer.write_file(partial, content)
            checksum(path).unlink(missing_ok=True)  # of a former one of this step, which counts no longer

        write_atomically(path, write)
        line = f"{writer.digest.hexdigest()}  {path.name}\n"
        write_atomically(checksum(path), lambda partial: partial.write_text(line, encoding="ascii"))

    def _read(self, path: Path, step: int, map_location: str | torch.device) -> dict[str, Any]:
        if not path.is_file():
            raise Refused("not a file")
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum(path).read_text(encoding="ascii", errors="replace").split() != [found, path.name]:
            raise Refused("damaged: its checksum is not that of its .sha256 file")
        try:
            content = torch.load(path, map_location=map_location, weights_only=True)
            fingerprint, inside, state = content["fingerprint"], content["step"], dict(content["state"])
        except Exception as error:  # torch raises many kinds
            raise Refused(f"not a checkpoint ({type(error).__name__})") from error
        if fingerprint != self.fingerprint:
            raise Refused(f"of a run with other parameters (fingerprint {fingerprint}, here {self.fingerprint})")
        if inside != step:
            raise Refused(f"renamed: it holds step {inside}")
        return state

    def _prune(self, step: int) -> None:
        kept = {self._path(s).name for s in [s for s in finished(self.folder) if s <= step][-self.keep:]}
        for path in self.folder.glob("step-*"):
            if path.name.removesuffix(".sha256") not in kept:
                path.unlink(missing_ok=True)


def used(use: Callable[[dict[str, Any]], object], state: dict[str, Any]) -> None:
    """Use a state, whose checksum says that it is whole and not that it is of this model."""
    try:
        use(state)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Refused(f"does not fit: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


class Refused(Exception):
    """Why a file is not taken for a checkpoint of this run."""


class Writer:
    """A file that torch.save writes to: counts and digests the bytes, and goes on counting after a failure.

    torch's own writer dies of an error in the middle with a message about its archive; here the system's error is
    raised at the end, when the number of bytes is known.
    """

    def __init__(self) -> None:
        self.digest, self.bytes = hashlib.sha256(), 0
        self._error: OSError | None = None

    def write_file(self, path: Path, content: object) -> None:
        """Save `content` as the file `path`."""
        with open(path, "wb", buffering=0) as self._file:
            torch.save(content, self)  # type: ignore[arg-type]  # asks for no more than write and flush
        if self._error is not None:
            raise self._error

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`."""
        view = memoryview(data)
        self.digest.update(view)
        self.bytes += view.nbytes
        try:
            done = view.nbytes if self._error else 0
            while done < view.nbytes:  # an unbuffered file may take a part
                done += self._file.write(view[done:])
        except OSError as error:
            self._error = error
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back."""


def checksum(path: Path) -> Path:
    """The file beside a checkpoint that holds its sha256."""
    return path.with_name(path.name + ".sha256")


def finished(folder: str | Path) -> list[int]:
    """Steps of the checkpoints in `folder` that were written to the end, ascending; none is opened."""
    found = [(NAME.fullmatch(path.name), path) for path in Path(folder).glob("step-*.pt")]
    return sorted(int(match[1]) for match, path in found if match and checksum(path).is_file())


def unwritten(path: Path, size: int, error: OSError) -> OSError:
    """The error of a checkpoint that could not be written, naming the file and the bytes."""
    needed = f" of {size:,} bytes" if size else ""
    reason = f"{error.strerror or error}; earlier checkpoints are as they were"
    return OSError(error.errno, f"cannot write the checkpoint{needed}: {reason}", str(path))
