"""Build the book as HTML from the stored outputs; no notebook is executed.

    python book/tools/build.py                                  # the whole book, strictly: a warning is an error
    python book/tools/build.py --only book/front/notation.ipynb --out DIR   # one page in the real theme, leniently

The strict build starts from nothing: an incremental one can pass although a page is broken.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def jupyter_book(*arguments: str) -> int:
    """Run jupyter-book with the interpreter that runs this file."""
    program = "from jupyter_book.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT).returncode


def build_all(out: Path) -> int:
    """Build every page of ``_toc.yml`` into ``out/_build/html``; the exit status of the build."""
    shutil.rmtree(out / "_build", ignore_errors=True)
    return jupyter_book("build", ".", "-W", "-n", "--keep-going", "--path-output", str(out))


def build_one(page: Path, out: Path) -> int:
    """Build one page alone. References to other pages stay unresolved, which is only a warning here."""
    name = page.resolve().relative_to(ROOT).with_suffix("").as_posix()
    shutil.rmtree(out / "_build", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        toc = Path(folder) / "_toc.yml"
        chapters: list[dict[str, str]] = [{"file": "book/back/bibliography"}]
        toc.write_text(yaml.safe_dump({"format": "jb-book", "root": name, "chapters": chapters}))
        return jupyter_book("build", ".", "--toc", str(toc), "--path-output", str(out), "-n", "--keep-going")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=Path, metavar="PAGE", help="build this page alone, for a quick look")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder for _build/html (default: the repository)")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    status = build_one(options.only, out) if options.only else build_all(out)
    if status == 0:
        print(f"\nThe book is at {out / '_build' / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
