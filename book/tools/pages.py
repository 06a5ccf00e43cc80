"""What the book's tools and tests read from its sources: pages, cells, labels, and where code and tests name these."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = "theorem|proposition|lemma|corollary"
PACKAGES = {"translution_lib": ROOT, "translution_runs": ROOT / "notebooks", "translution_book": ROOT / "book"}
LABEL = re.compile(r"(?<![\w#`-])(?:eq|thm)-[a-z0-9]+(?:-[a-z0-9]+)*")
LABEL_LINE = re.compile(r"^[ \t]*Label: ([^.]*)\.$", re.MULTILINE)
"""The last line of a docstring, or the last two: which equations and theorems this is."""
CHAPTERS = re.compile(r'\b[Cc]hapter(?:s\s+"[^"]+"(?:(?:,|,?\s+and)\s+"[^"]+")*|\s+"[^"]+")')


@dataclass(frozen=True)
class Page:
    """One page of the book: its name as in ``_toc.yml``, its file, and whether it is a numbered chapter."""

    name: str
    path: Path
    chapter: bool

    @property
    def is_notebook(self) -> bool:
        """Whether its source is a notebook."""
        return self.path.suffix == ".ipynb"

    @cached_property
    def notebook(self) -> nbformat.NotebookNode:
        """Its source."""
        return nbformat.read(self.path, as_version=4)

    @property
    def code_cells(self) -> list[nbformat.NotebookNode]:
        """The cells with code; none on a page in Markdown."""
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


@dataclass(frozen=True)
class Statement:
    """A labelled equation or theorem; the title is a theorem's own, or that of the section where an equation stands."""

    label: str
    title: str


def statements(text: str) -> list[Statement]:
    """What a page states, in its order."""
    heading = r"^#{1,4} (?P<heading>.*)$"
    claim = rf"\{{prf:(?:{CLAIMS})\}}[ \t]*(?P<title>[^\n]*)\n(?::(?!label)\w+:[^\n]*\n)*:label:[ \t]*(?P<claim>\S+)"
    equation = r"\$\$[ \t]*\((?P<equation>eq-[\w-]+)\)|:label:[ \t]*(?P<directive>eq-\S+)|\\label\{(?P<tex>eq-[^}]+)\}"
    found, section = [], ""
    for match in re.finditer(f"{heading}|{claim}|{equation}", text, flags=re.MULTILINE):
        if match["heading"]:
            section = match["heading"].strip()
        elif match["claim"]:
            found.append(Statement(match["claim"], match["title"].strip()))
        else:
            found.append(Statement(match["equation"] or match["directive"] or match["tex"], section))
    return found


@cache
def titles() -> dict[str, Page]:
    """The pages by their titles."""
    return {re.findall(r"^# (.*)$", page.text, flags=re.MULTILINE)[0].strip(): page for page in pages()}


def page_titled(words: str) -> Page:
    """The page with this title; words at its end may be missing, and a line may end in it.

    Raises:
        ValueError: no page, or several.
    """
    words = " ".join(words.split())
    begins = [title for title in titles() if re.match(rf"{re.escape(words)}(?!\w)", title)]
    found = [words] if words in begins else begins
    if len(found) != 1:
        raise ValueError(f"chapter must be the beginning of one page's title, got {words!r}, which {len(found)} have")
    return titles()[found[0]]


@cache
def identity_marks() -> dict[str, list[str]]:
    """Each label in a ``pytest.mark.identity`` below tests/, with the tests that carry it, as pytest names them."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            marks = [node for node in function.decorator_list if isinstance(node, ast.Call)]
            for mark in (node for node in marks if getattr(node.func, "attr", "") == "identity"):
                for argument in mark.args:
                    label = argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)
                    found.setdefault(str(label), []).append(f"{path.relative_to(ROOT)}::{function.name}")
    return found


@cache
def docstrings() -> dict[str, str]:
    """The docstring of everything in the packages that has one, by its full name."""
    found: dict[str, str] = {}
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            found |= dict(documented(ast.parse(path.read_text(encoding="utf8")), module))
    return found


def documented(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str) -> Iterator[tuple[str, str]]:
    """The name and the docstring of a module, class or function, and of what is defined in it."""
    if text := ast.get_docstring(node):
        yield name, text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from documented(child, f"{name}.{child.name}")


@cache
def labelled() -> dict[str, list[str]]:
    """Each label in the ``Label:`` line of a docstring, with the full names of what carries it."""
    found: dict[str, list[str]] = {}
    for name, text in docstrings().items():
        for line in LABEL_LINE.findall(text):
            for label in re.split(r",\s*", line):
                found.setdefault(label, []).append(name)
    return found


def directives(text: str, kind: str) -> list[str]:
    """The labels of exercises, or what solutions refer to, gated or not."""
    if kind == "exercise":
        return re.findall(r"\{exercise(?:-start)?\}[^\n]*\n(?::(?!label)\w+:[^\n]*\n)*:label:[ \t]*(\S+)", text)
    return re.findall(r"\{solution(?:-start)?\}[ \t]*(\S+)", text)
