"""Sphinx extension: the search page finds equations, theorems and exercises by number, which Sphinx's search drops."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

LIST, SCRIPT = "number_list.js", "numbers.js"
TITLE = re.compile(r"<title>(.*?)(?: &#8212;|</title>)", re.DOTALL)
EQUATION = re.compile(r'<span class="eqno">\(([\w.]+)\)<a class="headerlink" href="#([^"]+)"')
STATEMENT = re.compile(r'<div class="(?:proof|exercise)[^"]*" id="([^"]+)">\s*<p class="admonition-title">'
                       r'<span class="caption-number">(\w+ [\w.]+) ?</span>(.*?)</p>', re.DOTALL)


def numbered(page: Path, root: Path) -> list[list[str]]:
    """What a built page numbers: name with number, address, and where or what it is."""
    text = page.read_text(encoding="utf-8")
    title = TITLE.search(text)
    address, chapter = page.relative_to(root).as_posix(), plain(title[1]) if title else ""
    equations = [[f"Equation ({number})", f"{address}#{anchor}", chapter] for number, anchor in EQUATION.findall(text)]
    statements = [[name, f"{address}#{anchor}", " ".join(filter(None, (plain(about), "in", chapter)))]
                  for anchor, name, about in STATEMENT.findall(text)]
    return equations + statements


def plain(html: str) -> str:
    """The text of a piece of HTML, without the brackets of a title."""
    return unescape(re.sub(r"<[^>]*>", "", html)).strip().removeprefix("(").removesuffix(")")


def write_list(app: Sphinx, exception: Exception | None) -> None:
    """Write what all pages number, as a script: a page that is opened as a file may not read another file."""
    if exception is None and app.builder.format == "html":
        root = Path(app.outdir)
        found = [entry for page in sorted(root.glob("book/**/*.html")) for entry in numbered(page, root)]
        content = f"const NUMBERED = {json.dumps(found, ensure_ascii=False)};\n"
        (root / "_static" / LIST).write_text(content, encoding="utf-8")


def add_scripts(app: Sphinx, page: str, *_: object) -> None:
    """Only the search page loads the list."""
    if page == "search":
        for name in (LIST, SCRIPT):
            app.add_js_file(name, loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", write_list)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
