"""A session's folder comes home: all of it is checked, then all of it is put into the results, or nothing is."""

import io
import json
import re
import tarfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any

from translution_runs import environment
from translution_runs.card.folder import BENCHMARKS, RECORDS, SESSION, lines, read_session
from translution_runs.files import write_json
from translution_runs.grids.gathering import gather
from translution_runs.kinds import kind_named
from translution_runs.records import NAME, Record, parse

COMMIT = re.compile(r"[0-9a-f]{7,64}")
BENCHMARK_FIELDS = {"benchmark": str, "status": str, "rows": list, "parameters": dict, "processor": str, "source": dict}


@dataclass
class Brought:
    """What a folder holds, checked.

    Attributes:
        session: what `card.json` says.
        records: by experiment and grid.
        benchmarks: by name.
    """

    session: dict[str, Any]
    records: dict[tuple[str, str], list[Record]] = field(default_factory=lambda: defaultdict(list))
    benchmarks: dict[str, dict[str, Any]] = field(default_factory=dict)


def bring_home(folder: str | Path, results: str | Path = "results") -> Brought:
    """Check a session's folder and put its records and benchmarks into `results`.

    What was put there before stays: a record that is there already is left as it is, so that a second import changes
    nothing, and one that was interrupted is completed by another.

    Args:
        folder: what `translution card` wrote.
        results: folder of the records.

    Raises:
        ValueError: no such folder, a damaged file, a record that contradicts itself or its name, or files of the
            library that are not those of the commit they name, a rehearsal beside other results; the message says
            where, and nothing was written.
    """
    brought, results = read(folder), Path(results)
    if brought.session.get("rehearsal") and not only_rehearsed(results):
        raise ValueError(f"folder: holds a rehearsal, whose numbers mean nothing, and {results} has other records; "
                         "expected a session on a card, or a new folder for the results")
    check_source(brought)
    write_json(results / "benchmarks" / SESSION, brought.session)  # first: it says whose the others are
    for (experiment, grid), records in brought.records.items():
        gather(results / experiment, grid, records)
    for name, record in brought.benchmarks.items():
        write_json(results / "benchmarks" / f"{name}.json", record)
    return brought


def only_rehearsed(results: Path) -> bool:
    """Whether a folder of results has nothing but what a rehearsal brought."""
    session = results / "benchmarks" / SESSION
    try:
        return json.loads(session.read_text(encoding="utf-8"))["rehearsal"] is True
    except FileNotFoundError:
        return not results.exists() or not any(results.iterdir())
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def read(folder: str | Path) -> Brought:
    """The content of a folder, every line checked."""
    brought = Brought(read_session(folder))
    grids = brought.session.get("grids", {})
    if not isinstance(grids, dict) or not all(isinstance(one, str) and re.fullmatch(NAME, one) and len(one) <= 200
                                              for one in grids.values()):
        raise ValueError(f"{Path(folder) / SESSION}: grids: expected the name of a grid for each run")
    for name in RECORDS:
        for number, line in lines(folder, name):
            record = checked(line, f"{Path(folder) / name}, line {number}")
            if record.name not in grids:
                raise ValueError(f"{Path(folder) / name}, line {number}: {record.name} is no run of the session")
            before = brought.records[record.experiment, grids[record.name]]
            if any(one.name == record.name and one != record for one in before):
                raise ValueError(f"{Path(folder) / name}, line {number}: {record.name} stands there twice, with "
                                 "different results")
            before.append(record)
    for number, line in lines(folder, BENCHMARKS):
        where = f"{Path(folder) / BENCHMARKS}, line {number}"
        name, found = benchmark(line, where)
        if brought.benchmarks.setdefault(name, found) != found:
            raise ValueError(f"{where}: the benchmark {name} stands there twice, with different results")
    return brought


def checked(line: str, where: str) -> Record:
    """The record of a line, which has to agree with itself."""
    record = parse(line, where)
    try:
        config = kind_named(record.experiment).config.of(record.parameters)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    reasons = [what for what, wrong in contradictions(record, config).items() if wrong]
    if reasons:
        raise ValueError(f"{where}: {record.name}: {'; '.join(reasons)}")
    return record


def contradictions(record: Record, config: Any) -> dict[str, bool]:
    """What cannot be true of a finished run, and whether it is said here."""
    images = record.evaluations.values()
    return {
        f"its name should be {config.name}": record.name != config.name,
        f"its curve should have {config.epochs} epochs": len(record.curve) != config.epochs,
        "more images right than there are": any(not 0 <= one.correct <= one.n for one in images),
        "an accuracy that is not right / tested": any(one.n and one.accuracy != one.correct / one.n for one in images),
        "no result": not (record.evaluations or record.texts),
        f"its seed should be {config.seed}": record.seed != config.seed,
    }


def benchmark(line: str, where: str) -> tuple[str, dict[str, Any]]:
    """Name and record of a benchmark's line."""
    try:
        content = json.loads(line)
        name, record = content["name"], content["record"]
    except (json.JSONDecodeError, RecursionError, TypeError, KeyError) as error:
        raise ValueError(f"{where}: no benchmark ({type(error).__name__}: {error})") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: no benchmark; its record is {type(record).__name__} in place of names with values")
    wrong = [key for key, kind in BENCHMARK_FIELDS.items() if not isinstance(record.get(key), kind)]
    if wrong or not isinstance(name, str) or not name.replace("-", "").isalnum() or f"{name}.json" == SESSION:
        raise ValueError(f"{where}: no benchmark; {', '.join(wrong) or 'its name'} is missing or of another form")
    return name, record


def check_source(brought: Brought) -> None:
    """Refuse records of a library that is not that of the commit they name."""
    if brought.session.get("rehearsal"):
        return
    commits = [(record.source or {}).get("commit") for records in brought.records.values() for record in records]
    commits += [record["source"].get("commit") for record in brought.benchmarks.values()]
    source = brought.session.get("source")
    for commit in commits or [source.get("commit") if isinstance(source, dict) else None]:
        if commit is None:
            raise ValueError("source: records without a commit; expected TRANSLUTION_COMMIT to name it there")
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):  # git would take it for an option
            raise ValueError(f"source: got the commit {str(commit)[:40]!r}, expected 7 to 64 hexadecimal digits")
        if brought.session.get("library") != digest_of(commit):
            raise ValueError(f"source: the library there was not that of commit {commit[:10]}, which it names")


def digest_of(commit: str) -> str:
    """`environment.digest` of the library as a commit has it.

    Raises:
        ValueError: git does not know the commit.
    """
    files: dict[str, bytes] = {}
    for package in environment.PACKAGES:
        try:
            packed = run(["git", "-C", str(package.parent), "archive", commit, package.name], capture_output=True,
                         check=True).stdout
        except (OSError, CalledProcessError):
            raise ValueError(f"source: commit {commit[:10]} is not known here") from None
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            files |= {one.name: content.read() for one in archive if (content := archive.extractfile(one)) is not None}
    return environment.digest_of_files(files)
