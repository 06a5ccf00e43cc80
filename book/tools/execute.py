"""Execute the book's notebooks and store them in a form that does not change when nothing changed.

    python book/tools/execute.py book/front/notation.ipynb     # execute and rewrite
    python book/tools/execute.py --check book/*/*.ipynb        # execute, compare with what is stored, write nothing
    python book/tools/execute.py --changed                     # those that changed; all, if the library did

A notebook runs in its own folder, as under nbval. Everything that differs between two runs of the same code is
removed or renumbered, so that a diff of a stored notebook shows what really changed.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from translution_runs.files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")
KEPT_CELL_METADATA = {"tags", "mystnb", "slideshow", "jupyter"}


def execute(notebook: NotebookNode, folder: Path, timeout: int = 600) -> None:
    """Run every cell in a fresh kernel; an error in a cell without the tag ``raises-exception`` is raised."""
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Bring an executed notebook into its stored form (in place)."""
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(name="python"))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:03d}"
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA and v})
        cell.source = cell.source.rstrip()
        if cell.cell_type != "code":
            continue
        if cell.source:
            count += 1
        cell.execution_count = count if cell.source else None
        cell.outputs = [normalise_output(output, cell.execution_count) for output in merge_streams(cell.outputs)]
    renumber_uuids(notebook)
    return notebook


def merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of the same stream: where a kernel flushes is chance."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last is not None and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def normalise_output(output: NotebookNode, count: int | None) -> NotebookNode:
    """Drop what belongs to one run: widget views that have a static face, paths in tracebacks, transient metadata."""
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]
    if output.output_type == "execute_result":
        output.execution_count = count
    if "data" in output:
        if WIDGET_VIEW in output.data:
            if "text/html" not in output.data:
                raise ValueError("a widget without a text/html face would be dead in the static page")
            del output.data[WIDGET_VIEW]
        output.metadata = NotebookNode()
    return output


def renumber_uuids(notebook: NotebookNode) -> None:
    """Replace random identifiers in outputs by running numbers, the same one by the same number."""
    seen: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        return seen.setdefault(match.group(), f"id-{len(seen) + 1:04d}")

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for mime, value in output.get("data", {}).items():
                if mime == "text/html" and isinstance(value, str):
                    output.data[mime] = UUID.sub(replace, value)


def read(path: Path) -> NotebookNode:
    """Return the notebook in a file.

    Raises:
        ValueError: there is none.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:       # nbformat has a dozen kinds for damaged files, bare KeyErrors among them
        text = str(error).strip() or "nothing more is known"
        raise ValueError(f"not a notebook ({type(error).__name__}: {text.splitlines()[0][:200]})") from None
    return notebook


def stored_form(path: Path, timeout: int) -> str:
    """Execute ``path`` and return the text that should be stored in it."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    execute(notebook, path.parent, timeout)
    normalise(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                print(f"{path.name}: {cell.id} writes to stderr: {output.text.strip()[:300]}", file=sys.stderr)
    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def process(path: Path, check: bool, timeout: int) -> bool:
    """Execute one notebook; write it, or compare it. True if all is well."""
    try:
        new = stored_form(path, timeout)
    except CellExecutionError as error:
        print(f"FAILED {path}\n{error}", file=sys.stderr)
        return False
    except (ValueError, DeadKernelError, CellTimeoutError) as error:
        print(f"FAILED {path}: {error}", file=sys.stderr)
        return False
    old = path.read_text(encoding="utf8")
    if check and new != old:
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), "stored", "executed", lineterm="", n=2)
        print(f"DIFFERS {path}", *(line[:200] for line in list(diff)[:40]), sep="\n", file=sys.stderr)
        return False
    if not check and new != old:
        write_atomically(path, lambda partial: partial.write_text(new, encoding="utf8"))
    print(f"{'same   ' if new == old else 'written'} {path}")
    return True


def changed() -> list[Path]:
    """The book's notebooks that differ from the last commit; all of them when the library does."""
    status = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [line[3:].split(" -> ")[-1].strip('"') for line in status.stdout.splitlines()]
    if any(name.startswith("translution_lib/") for name in names):
        return sorted((ROOT / "book").rglob("*.ipynb"))
    return [ROOT / n for n in sorted(names) if n.startswith("book/") and n.endswith(".ipynb") and (ROOT / n).exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    parser.add_argument("--changed", action="store_true", help="the notebooks that git sees as changed")
    parser.add_argument("--timeout", type=int, default=600, help="seconds allowed for one cell")
    options = parser.parse_args()
    if not options.notebooks and not options.changed:
        parser.error("name a notebook, or use --changed")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    paths = [path for path in options.notebooks if ".ipynb_checkpoints" not in path.parts]
    paths += changed() if options.changed else []
    print(f"to execute: {len(paths)} pages, a quarter of a minute to a minute each" if paths else "nothing to execute")
    for path in paths if len(paths) > 1 else []:
        print(f"  {path}")
    return 0 if all([process(path, options.check, options.timeout) for path in paths]) else 1


if __name__ == "__main__":
    sys.exit(main())
