"""One run: its notebook executed by papermill, the record, and the executed copy beside it.

Chapter "From laptop to cluster".
"""

import os
import signal
import sys
from pathlib import Path

from tqdm import tqdm

from translution_runs import lock
from translution_runs.checkpoint import finished
from translution_runs.files import checkpoint_folder, lock_file, require_writable
from translution_runs.grids.files import home
from translution_runs.grids.status import recorded
from translution_runs.kinds import IMAGES, AnyConfig, Kind, kind_of
from translution_runs.reading import find
from translution_runs.records import Record
from translution_runs.signals import Interrupted

Config = AnyConfig


class Failed(RuntimeError):
    """A run whose notebook ended with an error; the message names the error and the copy that shows it."""


def run(
    config: Config, notebook: str | Path | None = None, store: str | Path | None = None, *, progress: bool = True
) -> Record:
    """Run a configuration in its notebook unless a valid record is there, and return the record.

    The executed notebook is kept as `<name>.ipynb` beside the record, and as `<name>.failed.ipynb` where it did not
    come to its end. INT and TERM are handed to the kernel, whose training writes a checkpoint; the next call goes on.

    Args:
        config: the run.
        notebook: the experiment's; by default that of the repository.
        store: folder of the record, `config.results_dir` by default.
        progress: show a bar of the training's steps, on a terminal.

    Raises:
        ValueError: another process is at this run, its record is damaged, the folder cannot be written, or no notebook.
        Failed: an error in the notebook, or no record at its end.
        Interrupted: a signal came; `exit_code` is what a shell expects.
    """
    config = placed(config, store)
    folder, name = Path(config.results_dir), config.name
    if (record := valid_record(config, folder)) is not None:
        return record
    if (damaged := find(folder, name)) is not None:
        damaged.read()
    require_writable(folder)
    if holder := lock.holder(lock_file(folder, name)):
        raise ValueError(f"{name}: is being run by {holder}")
    executed, failed = folder / f"{name}.running.ipynb", folder / f"{name}.failed.ipynb"
    try:
        papermill(config, notebook_path(notebook, kind_of(config)), executed, progress)
    except BaseException:
        keep(config, executed, failed)
        raise
    keep(config, executed, folder / f"{name}.ipynb")
    failed.unlink(missing_ok=True)
    if (found := find(folder, name)) is None:
        raise Failed(f"{name}: the notebook came to its end without a record")
    return found.read()


def placed(config: Config, store: str | Path | None) -> Config:
    """The configuration with whole paths, so that it means the same in every working folder."""
    root = os.path.abspath(config.data_root) if config.data_root else ""
    folder = os.path.abspath(store or config.results_dir)
    return type(config).of({**config.model_dump(), "results_dir": folder, "data_root": root})


def valid_record(config: Config, folder: Path) -> Record | None:
    """The record of this very configuration and library, if it is in the folder."""
    found = recorded(config, folder)
    return found.record if found is not None else None


def notebook_path(notebook: str | Path | None, kind: Kind = IMAGES) -> Path:
    """The notebook to run: the given one, or that of the kind of experiment.

    Raises:
        ValueError: there is none.
    """
    path = Path(notebook) if notebook is not None else home() / "notebooks" / kind.notebook
    if not path.is_file():
        raise ValueError(f"notebook: got {str(path)!r}, which is no file")
    return path


def papermill(config: Config, notebook: Path, executed: Path, progress: bool) -> None:
    """Execute the notebook, with its errors as this module's."""
    from papermill import PapermillExecutionError, execute_notebook  # slow to import, and needed here alone

    from translution_runs.grids.kernel import ENGINE, START_SECONDS, relayed

    with relayed() as relay, tqdm(desc=config.name, unit="step", disable=None if progress else True,
                                  file=sys.stderr, leave=False) as bar:
        try:
            execute_notebook(notebook, executed, config.changed(), engine_name=ENGINE, progress_bar=False,
                             start_timeout=START_SECONDS, relay=relay, bar=bar)
        except PapermillExecutionError as error:
            raise_for(config, error.ename, str(error.evalue), relay.requested)
        except RuntimeError as error:  # a kernel that died, or never came up
            raise_for(config, type(error).__name__, f"{error}; out of memory, or killed from outside", relay.requested)


def raise_for(config: Config, kind: str, text: str, requested: int) -> None:
    """Raise what an error in the notebook means: Interrupted after a signal, Failed otherwise."""
    if requested or kind == Interrupted.__name__:  # the system may tell the kernel alone
        steps = finished(checkpoint_folder(Path(config.results_dir), config.name))
        raise Interrupted(requested or signal.SIGTERM, steps[-1] if steps else 0) from None
    raise Failed(f"{config.name}: {kind}: {text}\n  executed so far: {config.name}.failed.ipynb") from None


def keep(config: Config, executed: Path, path: Path) -> None:
    """Keep what was executed, if anything was."""
    from translution_runs.grids import copies

    if executed.exists():
        copies.keep(executed, path, config.PLACES)
