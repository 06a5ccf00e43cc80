"""The dragged picture: what it says of a place, against a count over pixels and pairs of patches."""

import json
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from translution_book import figures
from translution_book.figures.placement import state

PICTURE = np.zeros((6, 6))
PICTURE[1:5, 2:4] = [[1, 0.5], [0.25, 0], [0, 1], [0.1, 0]]
RATES = {"one": np.array([[0.1, np.nan], [0.3, 0.4]]), "other": np.eye(2)}


def made(**options):
    return figures.placement(PICTURE, **({"alt": "A picture.", "canvas": 20, "patch": 4} | options))


def data_of(output):
    return json.loads(re.search(r'class="tl-data">(.*?)</script>', output.html)[1])


def offsets_of(queries):
    return [(a - c, b - d) for a, b in queries for c, d in product(range(5), repeat=2)]


@given(st.integers(0, 14), st.integers(0, 14))
def test_a_place_is_described_as_its_pixels_are(row, column):
    output = made(rates=RATES, start=(row, column))
    now = state(data_of(output), (row, column))
    ink = {((row + y) // 4, (column + x) // 4) for y, x in np.argwhere(PICTURE)}
    rows, columns = ({p[axis] for p in ink} for axis in (0, 1))
    touched = {(y, x) for y, x in product(range(5), repeat=2)
               if min(rows) <= y <= max(rows) and min(columns) <= x <= max(columns)}
    known = set(offsets_of({((7 + y) // 4, (7 + x) // 4) for y, x in product(range(6), repeat=2)}))
    assert now["hit"] == [p in touched for p in product(range(5), repeat=2)]
    met, within = set(offsets_of(touched)), {(a - c, b - d) for (a, b), (c, d) in product(touched, repeat=2)}
    for δ, (kind, opacity), dot in zip(product(range(-4, 5), repeat=2), now["paints"], now["dots"], strict=True):
        assert (opacity > 0.5) == (δ in met) and (kind == "new") == (δ in met - known) and dot == (δ in within)
        assert (opacity > 0) == (δ in met | known)
    new = np.mean([δ not in known for δ in offsets_of(touched)])
    phase = ((row - 7) % 4, (column - 7) % 4)
    edge = min(row, column, 14 - row, 14 - column)
    assert now["said"].startswith(f"Corner ({row}, {column}), phase {phase}, {edge} pixels from the edge")
    assert f"{len(rows)} by {len(columns)} patches" in now["said"]
    assert abs(float(re.search(r"(\d+) % of the pairs", now["said"])[1]) - 100 * new) <= 0.5
    cell = (row * 2 // 15, column * 2 // 15)
    expected = RATES["one"][cell]
    assert now["rates"]["one"] == (None if np.isnan(expected) else expected)
    assert output.alt.endswith(now["said"]) and f'translate({column} {row})' in output.html


def test_without_a_script_the_first_place_stands_and_without_rates_no_bar():
    output = made(rates=RATES)
    assert 'aria-label="A picture. Corner (7, 7), phase (0, 0), 7 pixels' in output.html
    assert output.html.count("tl-bar") == 2 + 1 and "10 %" in output.html  # two bars, and the script's word
    assert made().html.count("tl-bar") == 1 and "–" in made(rates=RATES, start=(0, 14)).html
    assert made().html == made().html and "http" not in made().html


@pytest.mark.parametrize("options, message", [
    ({"alt": " "}, "alt must say"),
    ({"patch": 3}, "patch must divide the canvas, 20, got 3"),
    ({"canvas": 4}, "picture must be a square with ink that fits a canvas of 4"),
    ({"start": (0, 15)}, r"start must be a row and a column from 0 to 14, got \(0, 15\)"),
    ({"rates": {"a": np.zeros((2, 3))}}, "rates must hold squares of one size"),
])
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_a_picture_without_ink_is_refused():
    with pytest.raises(ValueError, match="with ink"):
        figures.placement(np.zeros((3, 3)), alt="Nothing.", canvas=6, patch=3)
