"""Files that are whole or absent."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then move it there in one step.

    A reader sees the old file or the new one, never a part. Where `write` fails, nothing of it stays. What a killed
    process leaves is `<name>.partial`, which the next attempt replaces.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        synchronise(partial)  # on the disk before the name is
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    synchronise(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, whole or not at all; the folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads(object_pairs_hook=…)`: an object in which no name stands twice, where Python takes the last.

    Raises:
        ValueError: one does.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in content if names.count(name) > 1)!r} stands there twice")
    return content


def lock_file(folder: Path, name: str) -> Path:
    """The lock of the run `name`, beside its record."""
    return folder / f"{name}.lock"


def checkpoint_folder(folder: Path, name: str) -> Path:
    """The checkpoints of the run `name`, beside its record."""
    return folder / f"{name}.checkpoints"


def synchronise(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows keeps the names of a folder by itself, and opens none
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_writable(folder: Path) -> None:
    """Make `folder` and prove that a file can be written there.

    Raises:
        ValueError: it cannot; said before a run has computed for hours.
    """
    probe = folder / f".writable.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        what = f"cannot write into {str(folder)!r} ({error.strerror})"
        raise ValueError(f"results_dir: {what}; choose another folder") from error
