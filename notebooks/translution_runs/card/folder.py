"""The folder that a session on a card writes: few files, each whole at every moment, none too large to bring home."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from translution_runs.files import write_json

SESSION, BENCHMARKS, LOG = "card.json", "benchmarks.jsonl", "log.txt"
RECORDS = ("image-classification.jsonl", "language-modelling.jsonl")
FILES = (SESSION, BENCHMARKS, *RECORDS, LOG)
MOST = 16 * 2**20
"""Bytes of a file: more is refused where such folders are carried from machine to machine."""


class Folder:
    """Where a session writes.

    `card.json` says how far the session is; a line of the others is one benchmark or one finished run, behind its
    sha256. A line counts when its newline is there: what a kill leaves of one is passed over, and cut off before the
    next is added.

    Args:
        path: of the folder; made if it is not there.
        again: go on in a folder that has a session already.

    Raises:
        ValueError: the folder holds a session and ``again`` is not set, or the session in it cannot be read.
    """

    def __init__(self, path: str | Path, again: bool = False) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        found = [name for name in FILES if (self.path / name).exists()]
        if found and not again:
            raise ValueError(f"out: {str(path)!r} holds a session already ({', '.join(found)}); "
                             "expected an empty folder, or --continue")
        self.session: dict[str, Any] = read_session(self.path) if SESSION in found else {}

    def note(self, **facts: Any) -> None:
        """Add facts to `card.json`."""
        self.session.update(facts)
        self.session["sha256"] = seal(self.session)
        write_json(self.path / SESSION, self.session)

    def add(self, name: str, line: str) -> None:
        """Add a line to a file, on the disk before this returns.

        Raises:
            ValueError: a text of several lines.
            OSError: the file would become too large, or cannot be written.
        """
        if "\n" in line:
            raise ValueError(f"line: got a text of {line.count(chr(10)) + 1} lines, expected one")
        path, data = self.path / name, f"{digest(line)}  {line}\n".encode()
        with open(path, "ab+") as file:
            whole = whole_bytes(file)
            if whole + len(data) > MOST:
                raise OSError(f"{name}: would grow to {whole + len(data):,} bytes, expected at most {MOST:,}")
            file.truncate(whole)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def say(self, text: str) -> None:
        """Add a line to the log; the log never stops a session."""
        with suppress(OSError), open(self.path / LOG, "a", encoding="utf-8") as file:
            if file.tell() < MOST - len(text) - 1:
                file.write(" ".join(text.split()) + "\n")


def digest(text: str) -> str:
    """The sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def seal(session: Mapping[str, Any]) -> str:
    """The sha256 of a session without its seal."""
    return digest(json.dumps({name: session[name] for name in session if name != "sha256"}, sort_keys=True))


def whole_bytes(file: Any) -> int:
    """Up to where an open file consists of whole lines."""
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def lines(folder: str | Path, name: str) -> Iterator[tuple[int, str]]:
    """The whole lines of a file and their numbers from 1; none where there is no file.

    Raises:
        ValueError: a line that is not what was written; the message names file and line.
    """
    path = Path(folder) / name
    for number, data in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else (), 1):
        given, _, line = data.decode("utf-8", errors="replace").partition("  ")
        if digest(line) != given:
            raise ValueError(f"{path}, line {number}: damaged, its sha256 is another")
        yield number, line


def read_session(folder: str | Path) -> dict[str, Any]:
    """What `card.json` says.

    Raises:
        ValueError: no such file, or none that a session has written.
    """
    path = Path(folder) / SESSION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"folder: {str(folder)!r} has no {SESSION}; expected a folder that `translution card` wrote"
                         ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({error})") from None
    if not isinstance(found, dict) or found.get("form") != 1:
        raise ValueError(f"{path}: not a session of form 1")
    if found.get("sha256") != seal(found):
        raise ValueError(f"{path}: damaged, its sha256 is another")
    return found
