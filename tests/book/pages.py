"""What the tests of the book read from its sources: pages, cells, labels, marks."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = "theorem|proposition|lemma|corollary"


@dataclass(frozen=True)
class Page:
    """One page of the book: its name as in ``_toc.yml``, its file, and whether it is a numbered chapter."""

    name: str
    path: Path
    chapter: bool

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == ".ipynb"

    @property
    def notebook(self) -> nbformat.NotebookNode:
        return nbformat.read(self.path, as_version=4)

    @property
    def code_cells(self) -> list[nbformat.NotebookNode]:
        cells = self.notebook.cells if self.is_notebook else []
        return [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]

    @property
    def text(self) -> str:
        """The prose: all Markdown cells, or the whole Markdown file."""
        if not self.is_notebook:
            return self.path.read_text(encoding="utf8")
        return "\n\n".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")


@cache
def pages() -> list[Page]:
    """The pages in reading order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    entries = [(toc["root"], False)]
    for part in toc["parts"]:
        entries += [(chapter["file"], bool(part.get("numbered"))) for chapter in part["chapters"]]
    return [Page(name, source(name), chapter) for name, chapter in entries]


def source(name: str) -> Path:
    """The file of a page that ``_toc.yml`` names without its suffix."""
    found = [path for suffix in (".ipynb", ".md") if (path := ROOT / f"{name}{suffix}").exists()]
    return found[0] if found else ROOT / name


def notebooks() -> list[Page]:
    return [page for page in pages() if page.is_notebook]


def chapters() -> list[Page]:
    return [page for page in pages() if page.chapter]


def by_name(page: Page) -> str:
    return page.name


def equations(text: str) -> list[str]:
    """The labels of displayed equations, in each of the ways in which MyST lets one write them."""
    dollar = re.findall(r"\$\$[ \t]*\(([A-Za-z][\w-]*)\)[ \t]*$", text, flags=re.MULTILINE)
    directive = re.findall(r"\{math\}[^\n]*\n:label:[ \t]*(\S+)", text)
    return dollar + directive + re.findall(r"\\label\{([^}]+)\}", text)


def claims(text: str) -> list[str | None]:
    """The labels of theorems, propositions, lemmas and corollaries; None for one without a label."""
    blocks = re.findall(rf"\{{prf:(?:{CLAIMS})\}}[^\n]*\n((?::\w+:[^\n]*\n)*)", text)
    labels = [re.search(r":label:[ \t]*(\S+)", options) for options in blocks]
    return [label.group(1) if label else None for label in labels]


def labels(text: str) -> list[str]:
    """Every label that states something and therefore has to be checked."""
    return equations(text) + [label for label in claims(text) if label]


def checked(cell_source: str) -> list[str]:
    """The labels named in a cell's ``# check:`` lines."""
    lines = re.findall(r"^[ \t]*# check:[ \t]*(.+)$", cell_source, flags=re.MULTILINE)
    return [label for line in lines for label in re.split(r"[,\s]+", line.strip()) if label]


def asserts(cell_source: str) -> bool:
    """Whether a cell asserts something: a statement or a call such as ``torch.testing.assert_close``."""
    code = re.sub(r"^[ \t]*[%!].*$", "", cell_source, flags=re.MULTILINE)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name.startswith("assert_"):
                return True
    return False


@cache
def identity_marks() -> dict[str, list[str]]:
    """Each label in a ``pytest.mark.identity`` below tests/, with the files that carry it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "identity"):
                continue
            for argument in node.args:
                label = argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)
                found.setdefault(str(label), []).append(path.name)
    return found


def directives(text: str, kind: str) -> list[str]:
    """The labels of exercises, or what solutions refer to, gated or not."""
    if kind == "exercise":
        return re.findall(r"\{exercise(?:-start)?\}[^\n]*\n(?::(?!label)\w+:[^\n]*\n)*:label:[ \t]*(\S+)", text)
    return re.findall(r"\{solution(?:-start)?\}[ \t]*(\S+)", text)
