"""Sphinx extension: docstrings link to the chapters, equations and theorems that they name, and these to the code."""

import inspect
import re
from typing import Any

from docutils import nodes
from pages import CHAPTERS, LABEL, LABEL_LINE, Page, identity_marks, labelled, page_titled, statements, titles
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

TESTS = "tests/identities/"


class LabelIndex(SphinxDirective):
    """Every labelled equation and theorem, page by page: number, label, title, code and test."""

    def run(self) -> list[nodes.Node]:
        """Write the entries in Markdown and let the page's parser read them."""
        sections = [section(title, page) for title, page in titles().items() if statements(page.text)]
        return self.parse_text_to_nodes("\n\n".join(sections), allow_section_headings=True)


def section(title: str, page: Page) -> str:
    """The entries of a page under its title, in Markdown."""
    heading = f"## {{doc}}`{title} </{page.name}>`\n\n{{.label-index}}"
    return "\n".join([heading, *(entry(s.label, s.title) for s in statements(page.text))])


def entry(label: str, title: str) -> str:
    """One item of the list."""
    role = "eq" if label.startswith("eq-") else "prf:ref"
    lines = [f"- {{{role}}}`{label}` `{label}` {title}"]
    if names := labelled().get(label):
        lines.append("Code: " + ", ".join(f"{{py:obj}}`{short(name)} <{name}>`" for name in names))
    lines.append("Test: " + ", ".join(f"`{test.removeprefix(TESTS)}`" for test in identity_marks()[label]))
    return "\\\n  ".join(lines)


def short(name: str) -> str:
    """The name within its package."""
    return name.partition(".")[2]


def link_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make links of the chapters and labels in a docstring; a class has at least its module's chapters."""
    aliases(app.env)[real_name(obj)] = name
    text = "\n".join(lines)
    if what == "class" and not CHAPTERS.search(text):
        text += "".join(f"\n\nSee c{found[1:]}." for found in CHAPTERS.findall(module_docstring(obj))[:1])
    text = LABEL_LINE.sub(lambda match: f"In the book: {match[1]}.", text)
    text = CHAPTERS.sub(lambda match: re.sub(r'"([^"]+)"', chapter_link, match[0]), text)
    text = re.sub(rf"\(({LABEL.pattern})\)", r"\1", text)  # the number of an equation brings its own brackets
    lines[:] = LABEL.sub(label_link, text).split("\n")


def module_docstring(obj: object) -> str:
    """The docstring of the module in which something is defined."""
    return inspect.getdoc(inspect.getmodule(obj)) or ""


def chapter_link(match: re.Match[str]) -> str:
    return f":doc:`{match[1]} </{page_titled(match[1]).name}>`"


def label_link(match: re.Match[str]) -> str:
    return f":eq:`{match[0]}`" if match[0].startswith("eq-") else f":prf:ref:`{match[0]}`"


def real_name(obj: Any) -> str:
    """The module and the name under which something is defined, wherever the API page documents it."""
    obj = getattr(obj, "fget", None) or getattr(obj, "func", None) or obj
    return f"{getattr(obj, '__module__', '')}.{getattr(obj, '__qualname__', '')}"


def aliases(env: BuildEnvironment) -> dict[str, str]:
    """By the name of a definition, the name under which the API page documents it."""
    if not hasattr(env, "book_aliases"):
        env.book_aliases = {}  # type: ignore[attr-defined]
    return env.book_aliases  # type: ignore[attr-defined]


def link_definition(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Resolve a reference to a definition that the API page documents under another name."""
    name = aliases(env).get(node.get("reftarget", "")) if node.get("refdomain") == "py" else None
    if name is None:
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("label-index", LabelIndex)
    app.connect("autodoc-process-docstring", link_docstring)
    app.connect("missing-reference", link_definition)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
