"""Sphinx extension: a page carries only what it uses. Scripts, style rules, icons and markup that no page needs go.

The themes serve every book: 1,900 rules for icons, the icons as a script and as fonts, a search index on each page.
What stays is decided by what the built pages and their scripts say, so a new icon or class needs no change here.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tinycss2
from fontTools import subset
from sphinx.application import Sphinx

SCRIPT = r'<script[^>]*src="[^"]*{}[^"]*"></script>\s*'
ICON_SCRIPT = re.compile(SCRIPT.format(r"scripts/fontawesome\.js"))     # the font draws the icons
SEARCH = re.compile(SCRIPT.format(r"(?:searchtools|language_data|searchindex)\.js"))    # the search has its own page
# Names, punctuation and space have the colour of plain code; a signature's words need no marks inside it.
PLAIN = re.compile(r'<span class="(?:n|p|w|pre|sig-paren)">([^<]*)</span>')
CODE = re.compile(r"<pre>.*?</pre>|<dt class=\"sig .*?</dt>", re.DOTALL)
# One name for many boxes of a page is no name; a list without a list's items is no list.
NAMELESS = re.compile(r' id="(?:proof|exercise|solution)-content"| role="doc-biblioentry"|(?<=<div) role="list"'
                      r'|(?<=class="proof admonition") id="proof"')
WORD = re.compile(r"[A-Za-z_][\w-]*")


def without_marks(code: re.Match[str]) -> str:
    """The code without spans that change nothing; twice, for one within the other."""
    return PLAIN.sub(r"\1", PLAIN.sub(r"\1", code[0]))


def lighten_page(file: Path) -> set[str]:
    """Write the page without what it doesn't need; the classes that it has."""
    text = ICON_SCRIPT.sub("", file.read_text(encoding="utf8"))
    if file.name != "search.html":
        text = SEARCH.sub("", text)
    file.write_text(CODE.sub(without_marks, NAMELESS.sub("", text)), encoding="utf8")
    return {name for names in re.findall(r'class="([^"]*)"', text) for name in names.split()}


def classes(selector: list[Any]) -> set[str]:
    """The classes that an element must have for a selector; those inside ``:not(…)`` and its kind don't count."""
    return {name.value for dot, name in zip(selector, selector[1:], strict=False)
            if dot.type == "literal" and dot.value == "." and name.type == "ident"}


def selectors(prelude: Iterable[Any]) -> list[list[Any]]:
    """A rule's selectors, which commas separate."""
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def used_rules(rules: Iterable[Any], words: set[str]) -> str:
    """The rules, and their selectors, that can apply where only these classes exist."""
    kept = []
    for rule in rules:
        if rule.type == "qualified-rule":
            wanted = [tinycss2.serialize(one).strip() for one in selectors(rule.prelude) if classes(one) <= words]
            if wanted:
                kept.append(f"{','.join(wanted)}{{{tinycss2.serialize(rule.content).strip()}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports"):
            inner = used_rules(tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True), words)
            if inner:
                kept.append(f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inner}}}")
        else:
            kept.append(rule.serialize())
    return "\n".join(kept)


def lighten_styles(static: Path, words: set[str]) -> set[int]:
    """Write every style sheet without the rules that no page can use; the code points of icons that are left."""
    icons = set()
    for file in static.rglob("*.css"):
        rules = tinycss2.parse_stylesheet(file.read_text(encoding="utf8"), skip_comments=True, skip_whitespace=True)
        text = used_rules(rules, words)
        file.write_text(re.sub(r"(fa-\w+-\d+)\.woff2(\W+format\W+)woff2", r"\1.woff\2woff", text), encoding="utf8")
        icons |= {int(code, 16) for code in re.findall(r'"\\(f[0-9a-f]{3})"', text)}
        icons |= {ord(letter) for letter in re.findall("[\ue000-\uf8ff]", text)}
    return icons


def lighten_fonts(static: Path, icons: set[int]) -> None:
    """Keep of the icons' fonts what the style sheets name."""
    for file in static.rglob("fa-*.ttf"):
        options = subset.Options(flavor="woff", notdef_outline=True)
        font = subset.load_font(str(file), options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=icons)
        subsetter.subset(font)
        subset.save_font(font, str(file.with_suffix(".woff")), options)
        file.with_suffix(".woff2").unlink(missing_ok=True)
        file.unlink()


def lighten(app: Sphinx, exception: Exception | None) -> None:
    """Take from the finished book what its pages don't use."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for file in (out / "_static" / "scripts").glob("fontawesome.js*"):
        file.unlink()
    words = set().union(*(lighten_page(file) for file in out.rglob("*.html")))
    for file in out.glob("_static/**/*.js"):
        words |= set(WORD.findall(file.read_text(encoding="utf8")))
    lighten_fonts(out / "_static", lighten_styles(out / "_static", words))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", lighten, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
