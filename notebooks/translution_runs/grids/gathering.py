"""Gathering: records that lie loose, a file each, become lines of their grid's file; a kill anywhere loses nothing.

A line is on the disk before the loose file goes, and readers look for the loose file first. Gathering again completes
what was begun.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from translution_runs import lock
from translution_runs.files import lock_file, write_atomically
from translution_runs.grids.files import PROFILES, grid_files, read_file
from translution_runs.grids.grid import read_grid
from translution_runs.kinds import AnyConfig, kind_named, kind_of
from translution_runs.reading import LINES, Place, find, lines_of, loose, true_name
from translution_runs.records import Record, differences

PATIENCE = 60.0
"""Seconds that one process waits for another which gathers in the same folder."""


def gather(
    folder: str | Path, grid: str, records: Iterable[Record | str], grids: str | Path | None = None,
) -> list[Path]:
    """Move records into the files of their grids, `<grid>.jsonl`: a line each, sorted by name.

    A record goes where a line of its name is; else to the first grid, by file name, that lists its run in profile
    "cpu", else in any profile; else to `grid`. A record of the same parameters that was made again replaces the line.
    One process at a time gathers in a folder. A run that is at work keeps its loose file until the next gathering.

    Args:
        folder: of the records of one kind of experiment, such as results/image-classification.
        grid: name of the grid that was run.
        records: names of runs whose records are in `folder`, or records from elsewhere.
        grids: folder of the grid files; notebooks/grids by default.

    Returns:
        The files that have changed.

    Raises:
        ValueError: a name without a record, a damaged file, a record whose name has other parameters in `folder`, or
            another process that gathers without end; nothing was written then.
        OSError: the folder cannot be written.
    """
    folder, wanted = Path(folder), list(records)
    if not grid or Path(grid).name != grid:
        raise ValueError(f"grid: got {grid!r}, expected the name of a grid")
    if all(gathered(folder, one) for one in wanted):
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder / ".gathering.lock", PATIENCE):
        new = {record.name: record for record in (meant(folder, one) for one in wanted)}
        lines = sound_lines(folder)
        elsewhere = {one.name for one in wanted if isinstance(one, Record)}
        configs = {name: agreeing(folder, record, lines.get(name), name in elsewhere) for name, record in new.items()}
        homes = {**listed(configs, grid, grids), **{name: one.path.stem for name, one in lines.items()}}
        changed = [write(folder / f"{home}{LINES}", [new[name] for name in sorted(new) if homes[name] == home], lines)
                   for home in sorted({homes[name] for name in new})]
        for record in new.values():
            remove(folder, record)
    return [path for path in changed if path is not None]


def gathered(folder: Path, one: Record | str) -> bool:
    """Whether a record is a line already, with nothing left to do."""
    found = find(folder, one if isinstance(one, str) else one.name)
    if found is None or not found.line or found.record is None:
        return False
    return isinstance(one, str) or found.record == one


def meant(folder: Path, one: Record | str) -> Record:
    """A record, or that of a name."""
    if isinstance(one, Record):
        return one
    found = find(folder, one)
    if found is None:
        raise ValueError(f"records: got {one!r}, which has no record in {str(folder)!r}")
    return found.read()


def sound_lines(folder: Path) -> Mapping[str, Place]:
    """All lines by name, if none is damaged: a file is not written again around a hole."""
    lines = lines_of(folder)
    for one in lines.values():
        one.read()
    return lines


def agreeing(folder: Path, record: Record, line: Place | None, elsewhere: bool) -> AnyConfig:
    """The configuration of a record, if what has its name in the folder is of the same run.

    A record from elsewhere must not pass over a loose one. One of the folder may: it has been made again since it was
    read, and `remove` leaves the newer file.
    """
    config = kind_named(record.experiment).config.of(record.parameters)
    own = loose(folder / f"{record.name}.json")
    for other in filter(None, (own, line)):
        if reasons := differences(other.read(), config):
            raise ValueError(f"records: {other.where}: {record.name} has other parameters; {'; '.join(reasons)}")
    if record.name != true_name(record):
        raise ValueError(f"records: name: got {record.name!r}, expected {true_name(record)!r}")
    if elsewhere and own is not None and own.record != record:
        raise ValueError(f"records: {own.where}: a loose record of the same run; gather it first, or remove it")
    return config


def listed(configs: Mapping[str, AnyConfig], grid: str, grids: str | Path | None) -> dict[str, str]:
    """By name of a run, the grid whose file is to have it."""
    left, found = {config.fingerprint(): name for name, config in configs.items()}, dict.fromkeys(configs, grid)
    files: Mapping[str, Path] = {}
    with suppress(ValueError):  # no folder of grids, as where the library is installed alone
        files = grid_files(grids)
    kinds = {kind_of(config).name for config in configs.values()}
    known = {path: file for path in files.values() if grid in files and (file := read_file(path)).experiment in kinds}
    for profile in dict.fromkeys(("cpu", *PROFILES)):
        for path in (path for path, file in known.items() if profile in file.profiles):
            if not left:
                return found
            for config in read_grid(path, profile).runs:
                if (name := left.pop(config.fingerprint(), None)) is not None:
                    found[name] = path.stem
    return found


def write(path: Path, records: Sequence[Record], lines: Mapping[str, Place]) -> Path | None:
    """Put records into a file of lines; None where they are there, and it stays as it is."""
    if all(one.name in lines and lines[one.name].record == one for one in records):
        return None
    old = path.read_bytes().split(b"\n") if path.exists() else []
    kept = {name: old[one.line - 1] + b"\n" for name, one in lines.items() if one.path == path}  # byte by byte
    whole = {**kept, **{record.name: record.line() for record in records}}
    content = b"".join(whole[name] for name in sorted(whole))
    write_atomically(path, lambda partial: partial.write_bytes(content))
    return path


def remove(folder: Path, record: Record) -> None:
    """Remove the loose file of a record that is a line now, unless its run is being made again."""
    path = folder / f"{record.name}.json"
    if not path.exists():
        return
    with suppress(ValueError), lock.hold(lock_file(folder, record.name)):
        own = loose(path)
        if own is not None and own.record == record:
            path.unlink()
