"""The labels in docstrings: each is one of the book, and each of the book stands in one or in a list of exceptions."""

import re
from functools import cache

import pytest
import yaml
from pages import CHAPTERS, LABEL, LABEL_LINE, ROOT, docstrings, labelled, labels, page_titled, pages, statements

# What no docstring names, by the reason. It may only shrink: take out what gets code, and lower the numbers below.
WITHOUT_CODE = yaml.safe_load((ROOT / "tests/book/without_code.yaml").read_text(encoding="utf8"))
AT_MOST = {"mathematics": 49, "page": 5}


@cache
def book() -> set[str]:
    return {label for page in pages() for label in labels(page.text)}


def test_every_label_in_a_docstring_is_one_of_the_book():
    named = {label: name for name, text in docstrings().items() for label in LABEL.findall(text)}
    assert not {label: name for label, name in named.items() if label not in book()}


def test_a_label_line_is_the_last_and_lists_labels_alone():
    for name, text in docstrings().items():
        assert text.count("Label:") == len(LABEL_LINE.findall(text)) <= 1, name
        for line in LABEL_LINE.finditer(text):
            assert line.end() == len(text), name
            assert re.fullmatch(rf"{LABEL.pattern}(?:,\s{LABEL.pattern})*", re.sub(r"\s+", " ", line[1])), name
            assert text[line.start() - 2 : line.start()] == "\n\n", f"{name}: an empty line is missing"


def test_a_label_line_names_a_label_once():
    assert not [label for label, names in labelled().items() if len(names) != len(set(names))]


def test_every_label_stands_in_a_docstring_or_in_the_list():
    listed = [label for found in WITHOUT_CODE.values() for label in found]
    assert len(listed) == len(set(listed))
    assert not sorted(set(listed) & set(labelled())), "they have code: take them out of without_code.yaml"
    assert not sorted(book() - set(listed) - set(labelled())), "write them into a docstring: `Label: …`"
    assert not sorted(set(listed) - book()), "no page states them"


def test_the_list_of_labels_without_code_only_shrinks():
    assert {reason: len(found) for reason, found in WITHOUT_CODE.items()} == AT_MOST


def test_every_chapter_in_a_docstring_is_a_page():
    named = [(name, title) for name, text in docstrings().items()
             for found in CHAPTERS.findall(text) for title in re.findall(r'"([^"]+)"', found)]
    assert named
    for name, title in named:
        assert page_titled(title), name


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_index_has_every_label_of_a_page(page):
    assert sorted(found.label for found in statements(page.text)) == sorted(set(labels(page.text)))
