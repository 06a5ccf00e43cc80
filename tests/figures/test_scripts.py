"""The scripts of the figures: every name is declared once and read, and each figure takes the parts alone it needs."""

import re
import shutil
import subprocess

import pytest
from javascript import Source, nodes
from translution_book.figures.script import FOLDER, parts, script

FILES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.js"))}
SOURCES = {name: Source(text) for name, text in FILES.items()}
FIGURES = [name for name, source in SOURCES.items() if source.names & {"figure"}]
BROWSER = set("Array Boolean Infinity JSON Math Number Object Option Set String addEventListener decodeURIComponent "
              "document location matchMedia setTimeout".split())  # fmt: skip
each_file = pytest.mark.parametrize("name", FILES)
each_figure = pytest.mark.parametrize("name", FIGURES)


def test_every_figure_that_moves_has_its_file():
    used = {name for path in FOLDER.parent.glob("*.py")
            for name in re.findall(r'\bscript\("(\w+)"', path.read_text(encoding="utf-8"))}  # fmt: skip
    assert used == set(FIGURES) and len(used) == 13


@each_file
def test_syntax_and_names_are_in_order(name):
    assert SOURCES[name].faults == []
    assert max(map(len, FILES[name].splitlines())) <= 120
    assert "</" + "script" not in FILES[name] and "<!--" not in FILES[name] and FILES[name].endswith("}\n")


@each_figure
def test_a_figure_takes_what_it_reads_and_no_more(name):
    files = parts(name)
    assert files[0] == "start" and len(set(files)) == len(files)
    declared = [key for file in files for key in SOURCES[file].names]
    assert len(set(declared)) == len(declared), "two files declare the same name"
    missing = set().union(*(SOURCES[file].missing for file in files))
    assert missing - set(declared) <= BROWSER
    for part in files[1:-1]:
        readers = set().union(*(SOURCES[file].missing for file in files if file != part))
        assert readers & SOURCES[part].names, f"nothing of {part} is read"


def test_every_function_of_a_part_is_read_somewhere():
    for part in set(FILES) - set(FIGURES):
        others = set().union(*(source.missing for name, source in SOURCES.items() if name != part))
        inside = {key for key in SOURCES[part].names if len(re.findall(rf"\b{key}\b", FILES[part])) > 1}
        assert SOURCES[part].names - others - inside - {"start"} == set()


@pytest.mark.parametrize(("text", "fault"), [
    ("function f( {", "ERROR"),
    ("const f = () => { return 1;", "}"),
    ("var x = 1;", "variable_declaration"),
    ("function f() { const x = 1; }", "x is never read"),
    ("function f() { let x = 1; x = 2; }", "x is never read"),
    ("function f(a, b) { return a; }", "b is never read"),
    ("const f = ([a, {b: c, d}]) => a + d;", "c is never read"),
    ("function f() { for (const a of [1]) f(); }", "a is never read"),
    ("function f(a) { return b => { const a = b; return a; }; }", "a is declared twice"),
    ("const a = 1; function f() { return f; } const f = a;", "f is declared twice"),
])  # fmt: skip
def test_what_is_wrong_is_found(text, fault):
    assert any(found.endswith(fault) for found in Source(text).faults), Source(text).faults


@pytest.mark.parametrize(("text", "missing"), [
    ("const f = a => a.b + c;", {"c"}),
    ("const f = () => ({a, b: 1});", {"a"}),
    ("const f = ({a: b = c}) => `${b} ${d}`;", {"c", "d"}),
    ("function f() { { const a = 1; f(a); } return a; }", {"a"}),
    ("function f() { [f.a, b] = [1, 2]; }", {"b"}),
    ("const f = (a, _) => { for (let k = 0; k < a; k++) f(k); };", set()),
    ("function f(a) { return g(a); } function g(b) { return f(b); }", set()),
])  # fmt: skip
def test_undeclared_names_are_found(text, missing):
    assert Source(text).missing == missing and Source(text).faults == []


@each_figure
def test_node_reads_what_the_page_gets(name, tmp_path):
    if not shutil.which("node"):
        pytest.skip("no node on the path: the scripts were read by tree-sitter alone")
    code = re.search(r"<script>(.*)</script>", script(name, "tl0", {}), re.S)[1]
    (tmp_path / "figure.js").write_text(code, encoding="utf-8")
    done = subprocess.run(["node", "--check", tmp_path / "figure.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@each_figure
def test_what_a_page_gets_is_one_line_that_still_means_the_same(name):
    """A missing semicolon, which the end of a line forgives, would join two statements."""
    code = re.search(r"<script>(.*)</script>", script(name, "tl0", {}))[1]
    assert "//" not in code and len(code) < 17_000
    whole = "".join(FILES[file] for file in parts(name))
    assert _kinds(code)[1:] == _kinds(f'(()=>{{"use strict";{whole}start("tl0",figure)}})()')[1:]


def _kinds(text):
    return [node.type for node in nodes(text) if node.type not in ("comment", "\n", "automatic_semicolon")]
