"""The overview figure: it counts what the library counts, and the README's copy is the library's."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from translution_book import figures
from translution_book.figures import story

from translution_lib import offsets

STORED = Path(__file__).parents[2] / "book" / "static" / "overview.svg"


def test_offsets_and_their_table_are_those_of_the_library():
    relations = offsets((story.SIDE, story.SIDE))
    assert list(relations.labels) == story.OFFSETS
    table = [[story.OFFSETS.index(story._difference(i, j)) for j in range(9)] for i in range(9)]
    assert table == relations.index.tolist()


def test_every_offset_has_a_colour_of_its_own():
    assert len({story._colour(d) for d in story.OFFSETS}) == 25


@pytest.mark.parametrize(("number", "matrices"), [(0, 9), (1, 3), (2, 75), (3, 3 + 4 + 75)])
def test_each_card_draws_its_matrices_and_the_printed_size_is_their_area(number, matrices):
    card = story._cards()[number]
    drawn = re.search(r'<g transform="translate\(0 157\)">(.*?)</g>', card)[1]
    sides = [(float(w), float(h)) for w, h in re.findall(r"h([\d.]+)v([\d.]+)h-", drawn)]
    area = sum(w * h for w, h in sides) / story.MATRIX**2 * story.CHANNELS**2
    printed = float(re.search(r"= ([\d.]+) M parameters", card)[1])
    assert len(sides) == matrices and printed == pytest.approx(area / 1e6, abs=0.006)


def test_the_convolution_has_a_cell_for_each_near_pair_and_a_dot_for_each_other():
    near = story._table(lambda d: story._cell(d) if d in story.NEAR else story._dot())
    assert near.count("h11.5v11.5") == 49 and near.count("h2.5v2.5") == 81 - 49


def test_the_readme_shows_the_figure_of_the_library():
    assert STORED.read_text(encoding="utf-8") == figures.overview_svg()


def test_the_file_stands_alone():
    root = ElementTree.fromstring(figures.overview_svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("aria-label") == story.ALT
    text = figures.overview_svg()
    assert text.count("http") == 1 and "var(" not in text


def test_in_the_page_every_drawing_has_a_name_and_follows_the_theme():
    output = figures.overview()
    assert output.html == figures.overview().html and output.alt == story.ALT
    names = re.findall(r'<svg role="img" aria-label="([^"]+)"', output.html)
    assert names[1:] == list(story.NAMES) and output.html.count("<svg") == 5
    assert output.html.count('fill="currentColor"') == 5 and "http" not in output.html
