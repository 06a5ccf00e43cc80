"""Where records lie: in a file of their own when a run ends, and after gathering as lines of their grid's file.

A file is parsed once, and again when it has changed. What is damaged is found by its name where the damage leaves one;
otherwise it may be any run that has no record, so that nothing is run again because its file is damaged.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import translution_lib
from translution_runs.kinds import AnyConfig, kind_named
from translution_runs.records import MOST, Record, parse

LINES = ".jsonl"
MANY = 16  # a file of lines may have so often the bytes of the largest record
NAME = re.compile(r'\{[^{}]*?"name"\s*:\s*"([^"\\\ufffd]+)"')  # the first level's: data sets have names, too
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Place:
    """Where one record lies, or what should be one.

    Attributes:
        path: the file.
        line: its number in a file of lines, from 1; 0 in a file of its own.
        name: of the run; empty where the damage has taken it.
        record: None where it is damaged.
        fault: what is wrong, with file and line; empty where nothing is.
    """

    path: Path
    line: int
    name: str
    record: Record | None
    fault: str = ""

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}, line {self.line}" if self.line else str(self.path)

    def read(self) -> Record:
        """The record.

        Raises:
            ValueError: it is damaged; the message says where, and what is wrong.
        """
        if self.record is None:
            raise ValueError(self.fault)
        return self.record


def find(folder: str | Path, name: str) -> Place | None:
    """Where the record of a run lies in `folder`: its own file first, then a line; None where there is none.

    A damaged line without a name may be that of any run that is not found otherwise.
    """
    own = loose(Path(folder) / f"{name}.json")  # before the lines: gathering writes these before it removes that
    return own or (lines := lines_of(folder)).get(name) or lines.get("")


def places(folder: str | Path) -> list[Place]:
    """All records in one folder."""
    own = [loose(path) for path in Path(folder).glob("*.json")]
    return list({**lines_of(folder), **{one.name: one for one in own if one is not None}}.values())


def all_places(folder: str | Path) -> list[Place]:
    """Those of `folder` and of the folders in it, in the order of folders and names, without those of benchmarks."""
    found = [one for parent in folders(Path(folder)) for one in places(parent)]
    return sorted(found, key=lambda one: one.path.parent / f"{one.name}.json")


def folders(top: Path) -> Iterator[Path]:
    """`top` and the folders in it but those of benchmarks, links followed, each place once."""
    seen = set()
    for parent, inside, _ in os.walk(top, followlinks=True):
        inside[:] = [name for name in inside if name != "benchmarks"]
        if (place := os.path.realpath(parent)) in seen:
            inside.clear()
            continue
        seen.add(place)
        yield Path(parent)


def read_records(folder: str | Path) -> list[Record]:
    """All records of experiments in `folder` and the folders in it, in the order of folders and names.

    Folders named "benchmarks" hold records of another kind and are left out.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a file or a line that is not a record.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"folder: {str(folder)!r} is not a folder of run records")
    return [one.read() for one in all_places(folder)]


def loose(path: Path) -> Place | None:
    """The record in a file of its own; None without the file."""
    try:
        return parsed(path, stamp(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Place(path, 0, path.stem, None, f"{path}: cannot be read ({error.strerror})")


def lines_of(folder: str | Path) -> Mapping[str, Place]:
    """By name, the lines of all grids in a folder; under the empty name a damaged one without a name."""
    files = sorted(Path(folder).glob(f"*{LINES}"))
    try:
        return merged(tuple((path, stamp(path)) for path in files))
    except OSError as error:
        path = Path(error.filename)
        return {"": Place(path, 0, "", None, f"{path}: cannot be read ({error.strerror})")}


def stamp(path: Path) -> Stamp:
    """What changes when a file does: every writer replaces the whole file.

    Raises:
        OSError: there is none, or something else, such as a pipe, which nobody may ever write to.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a file", str(path))
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=4096)
def parsed(path: Path, of: Stamp) -> Place:
    """The content of a loose file."""
    if of[1] > MOST:
        return Place(path, 0, path.stem, None, f"{path}: {of[1]:,} bytes, more than a run record can have, {MOST:,}")
    return place(path, 0, path.read_bytes(), path.stem)


@lru_cache(maxsize=64)
def merged(files: tuple[tuple[Path, Stamp], ...]) -> Mapping[str, Place]:
    """By name, the lines of several files; a run stands once, or twice the same within one file."""
    found: dict[str, Place] = {}
    for path, of in files:
        for one in parsed_lines(path, of):
            before = found.setdefault(one.name, one)
            if one.name and (before.path != one.path or before.record != one.record):
                fault = f"{before.where}: {one.name} is also in {one.where}; expected one of them"
                found[one.name] = Place(before.path, before.line, one.name, None, before.fault or one.fault or fault)
    return found


@lru_cache(maxsize=256)
def parsed_lines(path: Path, of: Stamp) -> tuple[Place, ...]:
    """The lines of a file. A last one without its end of line is cut, and so may be others after it."""
    if of[1] > MANY * MOST:
        return (Place(path, 0, "", None, f"{path}: {of[1]:,} bytes, more than is read, {MANY * MOST:,}"),)
    *whole, rest = path.read_bytes().split(b"\n")
    found = [place(path, number, line) for number, line in enumerate(whole, 1)]
    if rest:
        number = len(found) + 1
        found.append(Place(path, number, "", None, f"{path}, line {number}: the file ends within this line"))
    return tuple(found)


def place(path: Path, line: int, content: bytes, name: str = "") -> Place:
    """What one file or line holds; `name` is a file's own, a line says its name itself."""
    at = Place(path, line, "", None).where
    try:
        record = parse(content, at)
    except ValueError as error:
        said = NAME.match(content.decode("utf-8", errors="replace"))
        return Place(path, line, name or (said[1] if said else ""), None, str(error))
    expected = name or true_name(record)
    if record.name != expected:  # a line is then found by no name: neither is known to be the right one
        return Place(path, line, name, None, f"{at}: name: got {record.name!r}, expected {expected!r}")
    return Place(path, line, record.name, record)


def true_name(record: Record) -> str:
    """What the parameters of a record call it; its own name where another version of the library made it."""
    config = configured(record) if record.versions.get("translution_lib") == translution_lib.__version__ else None
    return config.name if config is not None else record.name


def configured(record: Record) -> AnyConfig | None:
    """The configuration of a record; None where this version has other parameters."""
    try:
        return kind_named(record.experiment).config.of(record.parameters)
    except ValueError:
        return None
