"""The command `translution`: run the runs behind a table, see how they stand, and print the table.

Exit codes: 0, every run asked for has a record; 1, some have none; 2, wrong usage, and nothing was done; 130 and 143,
stopped by an interrupt or a request to end, with a checkpoint written.
"""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Annotated

import torch
import typer

from translution_runs.files import checkpoint_folder, lock_file
from translution_runs.grids import (
    Grid,
    Status,
    comparison,
    find,
    gather,
    grid_files,
    read_file,
    read_grid,
    report,
    status,
)
from translution_runs.grids.changes import parse_changes
from translution_runs.grids.execute import Failed, placed
from translution_runs.grids.execute import run as execute
from translution_runs.grids.plan import predict
from translution_runs.grids.status import DONE, FAILED
from translution_runs.grids.store import find_record, store_of
from translution_runs.kinds import AnyConfig, kind_named, kind_of
from translution_runs.lock import holder
from translution_runs.signals import Interrupted

app = typer.Typer(help="Run the experiments behind the tables of the book, and print the tables.", no_args_is_help=True,
                  add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
SOME_MISSING, WRONG_USAGE = 1, 2
DATA = ("tokens", "context", "train_samples", "test_samples", "train_tokens", "test_tokens", "held_out", "shift")
"""Parameters that decide what is read of a data set, or asked of it."""

GridName = Annotated[str, typer.Argument(help='a grid: "table-2", or 2 for the same, or the path of a .yaml file')]
Profile = Annotated[str, typer.Option(help='"smoke", "cpu" or "paper"')]
Rows = Annotated[list[str] | None, typer.Option("--row", help="only this row; may be given several times")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="only this method; may be given several times")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="only this seed; may be given several times")]
Device = Annotated[str, typer.Option(help='"cpu", "cuda" or "cuda:1"; by default the profile\'s')]
Changes = Annotated[list[str] | None, typer.Option("--set", help="name=value, a parameter of every run")]
Results = Annotated[str, typer.Option(help='folder of records; by default "results", for the smoke profile "runs"')]
DataRoot = Annotated[str, typer.Option(envvar="TRANSLUTION_DATA", help="folder with the data set")]


def say(text: str, err: bool = False) -> None:
    """Print a text; what would steer a terminal, or turn the order of its letters, is written out."""
    shown = "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
    typer.echo(shown, err=err)


@contextmanager
def usage() -> Iterator[None]:
    """Turn a ValueError into a message and the exit code of wrong usage."""
    try:
        yield
    except ValueError as error:
        say(f"Error: {error}", err=True)
        raise typer.Exit(WRONG_USAGE) from None


@app.callback()
def before(modules: Annotated[list[str] | None, typer.Option(
        "--import", help="a module that registers layers of your own in MIXERS; may be given several times")] = None,
        ) -> None:
    """Run the experiments behind the tables of the book, and print the tables."""
    if modules:
        sys.path.append(os.getcwd())
    for name in modules or ():
        try:
            import_module(name)
        except Exception as error:       # a module of one's own may raise anything
            say(f"Error: import: got {name!r}, which cannot be imported ({type(error).__name__}: {error})",
                       err=True)
            raise typer.Exit(WRONG_USAGE) from None
    if modules:
        os.environ.update(TRANSLUTION_IMPORT=",".join(modules), TRANSLUTION_IMPORT_FROM=os.getcwd())


def chosen(grid: str, profile: str, device: str = "", changes: Sequence[str] | None = None,
           rows: Sequence[str] | None = None, methods: Sequence[str] | None = None,
           seeds: Sequence[int] | None = None) -> Grid:
    """The runs that a command line names.

    Raises:
        ValueError: something in it is not known, or not allowed; the message lists the choices.
    """
    kind = kind_named(read_file(find(grid)).experiment)
    own = {**parse_changes(changes or (), kind), **({"device": device} if device else {})}
    return read_grid(grid, profile, own).select(rows or (), methods or (), seeds or ())


@app.command()
def run(grid: GridName, profile: Profile = "cpu", row: Rows = None, method: Methods = None, seed: Seeds = None,
        data_root: DataRoot = "", device: Device = "", changes: Changes = None, results: Results = "",
        dry_run: Annotated[bool, typer.Option(help="list the runs with predicted time and memory, and stop")] = False,
        scheduler: Annotated[str, typer.Option(help='spread over Dask: "local", or an address tcp://…')] = "",
        jobs: Annotated[int, typer.Option(help="worker processes of a local scheduler")] = 1) -> None:
    """Run what has no valid record yet; what was interrupted goes on from its checkpoint."""
    with usage():
        wanted = chosen(grid, profile, device, changes, row, method, seed)
        store = store_of(wanted, results)
        found = [status(config, store) for config in wanted.runs]
        if dry_run:
            say(report.plan(predict(found, store)))
            return
        address = check_scheduler(scheduler, jobs)
        left = [rooted(one, data_root) for one in found if one.state != DONE]
        check_machine([one.config for one in left], here=address is None)
        if address is None:
            check_data([one.config for one in left])
    say(f"{wanted.name}, profile {profile}: {report.tally(found)}; records in {store}")
    try:
        done = spread(left, store, address, jobs) if address is not None else one_by_one(left, store)
    finally:
        collect(wanted, store)
    now = [status(config, store) for config in wanted.runs]
    say(f"{report.tally(now)}\ntranslution table {grid} --profile {profile} prints the table")
    if not done:
        raise typer.Exit(SOME_MISSING)


def collect(wanted: Grid, store: Path) -> None:
    """Gather the records of a grid, as far as there are; where that fails, they stay as they are."""
    try:
        found = [status(config, store) for config in wanted.runs]
        gather(store, wanted.name, [one.config.name for one in found if one.state == DONE])
        for one in found:
            # A kill between record and checkpoints may have left these; a run that is made again has its own.
            if one.state == DONE and not holder(lock_file(store, one.config.name)):
                shutil.rmtree(checkpoint_folder(store, one.config.name), ignore_errors=True)
    except (ValueError, OSError) as error:
        say(f"records in {store} are not gathered: {error}", err=True)


def one_by_one(left: Sequence[Status], store: Path) -> bool:
    """Run one after the other in this process; whether each has its record in the end."""
    outcomes = [attempt(one.config, store, f"[{k} of {len(left)}]") for k, one in enumerate(left, 1)]
    return all(outcomes)


def attempt(config: AnyConfig, store: Path, number: str) -> bool:
    """One run; an error is printed and stops no other run."""
    say(f"{number} {config.name}")
    try:
        record = execute(config, store=store)
    except (Interrupted, KeyboardInterrupt) as stopped:
        say(f"{stopped}\nto go on: {shlex.join(['translution', *sys.argv[1:]])}", err=True)
        raise typer.Exit(stopped.exit_code if isinstance(stopped, Interrupted) else 130) from None
    except (Failed, ValueError, OSError) as error:
        say(f"  {type(error).__name__}: {error}", err=True)
        return False
    say(f"  {report.outcome(record)} in {report.duration(record.seconds['total'])}")
    return True


def spread(left: Sequence[Status], store: Path, address: str, jobs: int) -> bool:
    """Run on a Dask cluster; whether each has its record in the end."""
    from translution_runs.scheduler import run_all  # slow to import

    outcomes = run_all([one.config for one in left], store, address=address or None, workers=jobs)
    for one in outcomes:
        if one.state == FAILED:
            say(f"{one.config.name}: {one.error}", err=True)
    return all(one.state != FAILED for one in outcomes)


def check_scheduler(scheduler: str, jobs: int) -> str | None:
    """The address of a scheduler, "" for one on this machine, None for no scheduler.

    Raises:
        ValueError: neither "local" nor an address, or no worker.
    """
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, expected at least 1")
    if scheduler in ("", "local"):
        return "" if scheduler or jobs > 1 else None
    if not scheduler.startswith(("tcp://", "tls://")):
        raise ValueError(f"scheduler: got {scheduler!r}, expected 'local' or an address such as tcp://host:8786")
    return scheduler


def rooted(one: Status, data_root: str) -> Status:
    """The run with the folder of its data."""
    own = {**one.config.model_dump(), "data_root": data_root}
    return replace(one, config=placed(type(one.config).of(own), None))


def check_machine(configs: Sequence[AnyConfig], here: bool) -> None:
    """Refuse what would fail in every run: no data, or no GPU.

    Raises:
        ValueError: the message says what is missing.
    """
    need = sorted({config.data for config in configs
                   if config.data not in kind_of(config).embedded and config.data_source == "folder"})
    root = configs[0].data_root if configs else ""
    if need and not root:
        raise ValueError(f"data_root: got nothing, expected the folder with {', '.join(need)} (--data-root FOLDER)")
    if need and here and not Path(root).is_dir():
        raise ValueError(f"data_root: got {root!r}, which is no folder")
    if here and any(config.device != "cpu" for config in configs) and not torch.cuda.is_available():
        raise ValueError("device: these runs ask for a GPU, and torch finds none; choose --profile cpu or --device cpu")


def check_data(configs: Sequence[AnyConfig]) -> None:
    """Read the data of all runs once, before the first begins.

    Raises:
        ValueError: a file is missing, or not what it should be; the message names it.
    """
    known = set()
    for config in configs:
        kind = kind_of(config)
        data = kind.name, config.data, config.data_source, config.data_root, *(getattr(config, name, "")
                                                                              for name in DATA)
        if data not in known:
            known.add(data)
            try:
                kind.load(config)
            except (OSError, ImportError) as error:
                raise ValueError(f"{config.data}: {error}") from error


@app.command("status")
def print_status(grid: Annotated[str, typer.Argument(help="a grid; all of them where none is given")] = "",
                 profile: Profile = "cpu", device: Device = "", changes: Changes = None, results: Results = "") -> None:
    """Print which runs are done, running, interrupted, failed, invalid and why, or missing."""
    with usage():
        if grid:
            wanted = chosen(grid, profile, device, changes)
            store = store_of(wanted, results)
            say(report.states([status(config, store) for config in wanted.runs]))
            return
        for name in grid_files():
            if profile not in read_file(find(name)).profiles:
                say(f"{name}: has no profile {profile}")
                continue
            wanted = chosen(name, profile, device, changes)
            found = [status(config, store_of(wanted, results)) for config in wanted.runs]
            say(f"{name}: {report.tally(found)}")


@app.command("table")
def print_table(grid: GridName, profile: Profile = "cpu", device: Device = "", changes: Changes = None,
                results: Results = "",
                markdown: Annotated[bool, typer.Option(help="print the table in Markdown")] = False,
                runs: Annotated[bool, typer.Option(help="name the runs behind it, a line each")] = False) -> None:
    """Print a table: ours, with mean, spread and number of seeds, beside the printed numbers."""
    with usage():
        wanted = chosen(grid, profile, device, changes)
        made = comparison(wanted, store_of(wanted, results))
    made = made if runs else replace(made, provenance=())
    say(made.markdown() if markdown else report.text(made))


@app.command("record")
def print_record(run: Annotated[str, typer.Argument(help="name of a run, its beginning, or the path of its record")],
                 results: Annotated[str, typer.Option(help='folder of records: "results" and "runs"')] = "",
                 ) -> None:
    """Print everything that the record of a run says."""
    with usage():
        found = find_record(run, results)
        say(report.record(found.read()))
    copy = found.path.with_name(f"{found.name}.ipynb")
    say(f"\nrecord: {found.where}\nexecuted notebook: {copy if copy.exists() else 'none'}")


@app.command()
def repeat(results: Annotated[str, typer.Option(help="folder of records")] = "results",
           write: Annotated[bool, typer.Option(help="store the losses of kinds of models that have none")] = False,
           ) -> None:
    """Repeat a few steps of one run of each kind of model on record, to see that the code still computes the same."""
    from translution_runs.repeat import repeated

    with usage():
        if not Path(results).is_dir():
            raise ValueError(f"results: {results!r} is not a folder of run records")
        found = repeated(results, write)
    for name, fault in found.items():
        if fault:
            say(f"{name}: {fault}")
    wrong = sum(map(bool, found.values()))
    say(f"{len(found)} kinds of models: {wrong or 'none'} computed otherwise than on record")
    if wrong:
        raise typer.Exit(SOME_MISSING)


@app.command()
def card(minutes: Annotated[float, typer.Option(help="how long the session may take")] = 25.0,
         out: Annotated[str, typer.Option(help="folder for what is found")] = "",
         data_root: DataRoot = "", results: Results = "results",
         again: Annotated[bool, typer.Option("--continue", help="go on where an earlier session ended")] = False,
         authors: Annotated[str, typer.Option(help="folder of the authors' code, whose layer is timed too")] = "",
         plan: Annotated[str, typer.Option(help="what to do; by default notebooks/card.yaml")] = "",
         device: Annotated[str, typer.Option(help='"cuda", or "cpu" for a plan at tiny sizes')] = "cuda",
         rehearse: Annotated[bool, typer.Option(help="all of it on the processor, at tiny sizes")] = False,
         bring: Annotated[str, typer.Option("--import", help="check a session's folder and put it into records")] = "",
         ) -> None:
    """Make the most of a graphics card that is at hand for half an hour; or bring home what was found there."""
    from translution_runs.card.home import bring_home
    from translution_runs.card.plan import read_plan, rehearsal
    from translution_runs.card.session import Session, folder_for

    with usage():
        if not 0 <= minutes < inf:
            raise ValueError(f"minutes: got {minutes}, expected a number from 0")
        if bring:
            brought = bring_home(bring, results or "results")
            say(report.brought(brought))
            return
        chosen_plan = rehearsal(read_plan(plan or None)) if rehearse else read_plan(plan or None)
        session = Session(chosen_plan, folder_for(out, again), minutes, "cpu" if rehearse else device, data_root,
                          Path(results), again, authors)
    try:
        session.run()
    except Interrupted as stopped:
        raise typer.Exit(stopped.exit_code) from None
    say(session.summary())


def main() -> None:
    """The command. Where what it prints finds no room, it says so in one line, if it still can."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)     # for what Python would still write at its end
        sys.stderr.write(f"Error: the output cannot be written ({error.strerror})\n")
        sys.exit(SOME_MISSING)


if __name__ == "__main__":
    main()
