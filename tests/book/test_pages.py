"""The bars that every page has to clear, read from its source and its stored outputs."""

import re
from collections import Counter

import nbformat
import pytest
from pages import ROOT, by_name, chapters, directives, notebooks, pages

EXEMPT = {"nbval-ignore-output", "nbval-skip"}
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
WIDEST = 84  # characters of code that fit beside both lists of contents: see book.css
MACHINE_PATH = re.compile(r"(?<![\w.:/\-])/(?:home|root|tmp|Users|work|mnt|private|opt)/\w|site-packages|C:\\\\Users")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|lorem ipsum)\b", re.IGNORECASE)

each_page = pytest.mark.parametrize("page", pages(), ids=by_name)
each_notebook = pytest.mark.parametrize("page", notebooks(), ids=by_name)
each_chapter = pytest.mark.parametrize("page", chapters(), ids=by_name)


def outputs(page):
    return [(cell, output) for cell in page.code_cells for output in cell.outputs]


def test_the_table_of_contents_lists_every_page_once_and_nothing_else():
    listed = [page.name for page in pages()]
    files = [*(ROOT / "book").rglob("*.ipynb"), *(ROOT / "book").rglob("*.md")]
    names = [p.relative_to(ROOT).with_suffix("").as_posix() for p in files if ".ipynb_checkpoints" not in p.parts]
    assert sorted(listed) == sorted(names)


@each_notebook
def test_every_code_cell_was_executed_in_order(page):
    assert [cell.execution_count for cell in page.code_cells] == list(range(1, len(page.code_cells) + 1))


@each_notebook
def test_no_output_is_an_error_or_a_warning(page):
    for cell, output in outputs(page):
        allowed = "raises-exception" in cell.metadata.get("tags", [])
        assert output.output_type != "error" or allowed, f"{cell.id}: {output.get('evalue')}"
        assert output.get("name") != "stderr", f"{cell.id} writes to stderr: {output.text}"


@each_notebook
def test_at_most_one_cell_in_twenty_is_exempt_from_comparison(page):
    exempt = [cell.id for cell in page.code_cells if EXEMPT & set(cell.metadata.get("tags", []))]
    assert len(exempt) <= 0.05 * len(page.code_cells), exempt


@each_notebook
def test_exemptions_are_tags_and_not_comments(page):
    marker = re.compile(r"#\s*(NBVAL_|PYTEST_VALIDATE_)")
    assert not [cell.id for cell in page.code_cells if marker.search(cell.source)]


@each_notebook
def test_the_code_that_a_reader_sees_fits_its_page(page):
    shown = [cell for cell in page.code_cells if not FOLDED & set(cell.metadata.get("tags", []))]
    assert not [line for cell in shown for line in cell.source.splitlines() if len(line) > WIDEST]


@each_notebook
def test_no_output_escapes_comparison(page):
    """Bitmaps and widget views are never compared, and a widget is dead in the static page."""
    kinds = {mime for _, output in outputs(page) for mime in output.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "text/latex", "text/markdown", "image/svg+xml"}


@each_notebook
def test_the_notebook_is_in_its_stored_form(page):
    from execute import normalise

    stored = page.path.read_text(encoding="utf8")
    again = nbformat.writes(normalise(nbformat.reads(stored, as_version=4))).rstrip("\n") + "\n"
    assert stored == again, "run `make execute`"


@each_page
def test_no_path_of_a_machine_and_no_unfinished_mark(page):
    text = page.path.read_text(encoding="utf8")
    for pattern in (MACHINE_PATH, UNFINISHED):
        match = pattern.search(text)
        assert match is None, text[max(0, match.start() - 60) : match.end() + 60]


@each_page
def test_every_exercise_has_a_solution_and_every_solution_an_exercise(page):
    exercises, solutions = directives(page.text, "exercise"), directives(page.text, "solution")
    assert Counter(exercises) == Counter(solutions)
    for kind in ("exercise", "solution"):
        assert page.text.count(f"{{{kind}-start}}") == page.text.count(f"{{{kind}-end}}")


@each_chapter
def test_a_chapter_has_exercises_and_a_figure_that_moves(page):
    assert len(directives(page.text, "exercise")) >= 5
    html = "".join(output.data.get("text/html", "") for _, output in outputs(page) if "data" in output)
    assert "tl-interactive" in html
    assert html.count("<figure") >= 3


@each_chapter
def test_a_chapter_says_what_it_needs_and_what_to_keep(page):
    assert "You need" in page.text
    assert ":class: keep" in page.text or "What to keep" in page.text
