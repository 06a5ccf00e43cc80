"""Every labelled equation and theorem is asserted in its page and held by a property test."""

from collections import Counter

import pytest
from pages import asserts, by_name, chapters, checked, claims, equations, identity_marks, labels, pages

# they derive nothing
CITES = {f"book/experiments/{name}" for name in ("verdict", "paper_size", "moving_digits", "photographs")}
each_page = pytest.mark.parametrize("page", pages(), ids=by_name)


def test_labels_are_unique_over_the_book():
    counts = Counter(label for page in pages() for label in labels(page.text))
    assert not [label for label, count in counts.items() if count > 1]


@each_page
def test_labels_say_what_they_name(page):
    assert not [label for label in equations(page.text) if not label.startswith("eq-")]
    assert not [label for label in claims(page.text) if not label or not label.startswith("thm-")]


@each_page
def test_every_label_is_asserted_in_its_page(page):
    in_cells = {label for cell in page.code_cells if asserts(cell.source) for label in checked(cell.source)}
    assert not sorted(set(labels(page.text)) - in_cells), "no cell `# check: <label>` with an assertion"


@each_page
def test_every_check_asserts_and_names_a_label_of_its_page(page):
    for cell in page.code_cells:
        if checked(cell.source):
            assert asserts(cell.source), f"{cell.id} checks nothing"
            assert not set(checked(cell.source)) - set(labels(page.text)), cell.id


@each_page
def test_every_label_has_a_property_test(page):
    assert not sorted(set(labels(page.text)) - set(identity_marks()))


def test_every_identity_mark_names_a_label_of_the_book():
    known = {label for page in pages() for label in labels(page.text)}
    assert not {label: files for label, files in identity_marks().items() if label not in known}


@pytest.mark.parametrize("page", [page for page in chapters() if page.name not in CITES], ids=by_name)
def test_a_chapter_asserts_at_least_five_identities(page):
    assert len(set(labels(page.text))) >= 5
