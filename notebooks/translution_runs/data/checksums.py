"""Checksums of files: compared with a published one, or recorded on arrival and refused when they change.

The lock file `translution.sha256` beside the data has the form of `sha256sum`, so that `sha256sum -c` can check it.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from translution_runs.files import write_atomically

LOCK = "translution.sha256"
SURROGATES = range(0xD800, 0xE000)
"""What Python puts in place of the bytes of a file name that is not UTF-8."""
SHA256 = re.compile(r"[0-9a-f]{64}")
LINE = re.compile(rf"({SHA256.pattern})  (\S.*)")


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file in hexadecimal, read in parts.

    Raises:
        ValueError: it is no file but, say, a pipe, which nobody may ever write to.
    """
    refuse_pipe(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def refuse_pipe(path: Path) -> None:
    """Raise a ValueError for what is there and is no file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a file")


def refuse_other(found: str, name: str, known: Mapping[str, str], where: Path) -> None:
    """Compare the checksum `found` with the one of `name` in `known`.

    Raises:
        ValueError: it is the checksum of another file of `known` (mislabelled), or of none (truncated or corrupted).
    """
    if found == known[name]:
        return
    for other, checksum in known.items():
        if found == checksum:
            raise ValueError(f"{where}: mislabelled, this is the content of {other}")
    kind = {32: "md5", 64: "sha256"}[len(known[name])]
    raise ValueError(f"{where}: truncated or corrupted, its {kind} is {found}, expected {known[name]}; copy it again")


def read_lock(folder: Path) -> dict[str, str]:
    """The checksums recorded in `folder` by file name; empty without a lock file.

    Raises:
        ValueError: the lock file itself is damaged.
    """
    path = folder / LOCK
    if not path.exists():
        return {}
    refuse_pipe(path)
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    restore = "restore it, or remove the file to record the data again"
    if text and not text.endswith("\n"):
        raise ValueError(f"{path}: its last line has no end, so it was cut; {restore}")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = LINE.fullmatch(line)
        if is_foreign(line) or not match or LINE.search(match[2]):
            raise ValueError(f"{path}: line {number} is not 'sha256  name'; {restore}")
        if found.setdefault(match[2], match[1]) != match[1]:
            raise ValueError(f"{path}: line {number} gives {match[2]} a second checksum; {restore}")
    return found


def refuse_changed(folder: Path, name: str, checksum: str) -> bool:
    """Compare the sha256 of `name` with the recorded one; whether there is one.

    Raises:
        ValueError: another checksum was recorded, or the lock file is damaged.
    """
    recorded = read_lock(folder).get(name)
    if recorded not in (None, checksum):
        raise ValueError(f"{folder / name}: changed since it was first read, the sha256 was {recorded} and is "
                         f"{checksum}; restore the file, or remove its line from {folder / LOCK}")
    return recorded is not None


def keep(folder: Path, name: str, checksum: str) -> None:
    """Record the sha256 of `name` when it is met first; afterwards refuse another (`refuse_changed`).

    A folder that cannot be written gives a warning: a later change would go unnoticed.
    """
    if not refuse_changed(folder, name, checksum):
        write(folder, name, checksum)


def forget(folder: Path, name: str) -> None:
    """Take back what was recorded of `name`, which has turned out not to be right; a repaired file is then accepted."""
    with suppress(OSError, ValueError):  # nothing can be written, or the lock is damaged, which its next reader says
        lines = [f"{checksum}  {other}\n" for other, checksum in read_lock(folder).items() if other != name]
        write_atomically(folder / LOCK, lambda partial: partial.write_text("".join(lines), encoding="utf-8"))


def is_foreign(text: str) -> bool:
    """Whether a text came of bytes that are not UTF-8."""
    return any(ord(letter) in SURROGATES for letter in text)


def refuse_name(where: Path | str) -> None:
    """Raise a ValueError for a name that does not fit into a line of text."""
    name = str(where)
    if name.splitlines() != [name] or is_foreign(name):
        raise ValueError(f"{name!r}: a name with a line break, or one that is not UTF-8; rename it")
    if LINE.search(name):   # the list would seem to have two lines in one
        raise ValueError(f"{name!r}: a name that holds a checksum and another name; rename it")


def write(folder: Path, name: str, checksum: str) -> None:
    """Append one line to the lock file; one write, so that two processes do not mix their lines."""
    refuse_name(name)
    refuse_pipe(folder / LOCK)
    try:
        with open(folder / LOCK, "a", encoding="utf-8") as file:
            file.write(f"{checksum}  {name}\n")
    except OSError as error:
        warnings.warn(f"{folder / LOCK}: cannot be written ({error.strerror}), so a later change of {name} would not "
                      "be noticed", stacklevel=3)
