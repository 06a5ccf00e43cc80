"""The executed copy of a notebook beside a record: what a reader wants to see, and nothing about this machine."""

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from translution_runs.files import write_atomically

WIDGET = "application/vnd.jupyter.widget-view+json"


def keep(executed: Path, path: Path, places: Iterable[str]) -> None:
    """Move an executed notebook to `path`, without places of files, progress bars and papermill's own paths.

    Args:
        executed: papermill's output; it is removed.
        path: of the copy.
        places: names of the parameters that say where files lie.
    """
    notebook = nbformat.read(executed, 4)
    for cell in notebook.cells:
        clean(cell, places)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["papermill"] = {"version": notebook.metadata.get("papermill", {}).get("version", "")}
    text = nbformat.writes(notebook) + "\n"
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))
    executed.unlink()


def clean(cell: NotebookNode, places: Iterable[str]) -> None:
    """Take out of one cell what only this machine knows, or what only a kernel can show."""
    cell.metadata.pop("papermill", None)
    if "injected-parameters" in cell.metadata.get("tags", []):
        cell.source = "\n".join(re.sub(rf"^({'|'.join(places)}) = .*", r'\1 = ""  # not kept', line)
                                for line in cell.source.splitlines())
    if cell.cell_type == "code":
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
