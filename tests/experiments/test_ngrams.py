"""Tables of n-grams: by hand, by loops, in windows, on the text of the records; what cannot be counted is refused."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from translution_runs import ngrams
from translution_runs.data.text import TEXTS
from translution_runs.grids import read_grid

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_by_hand():
    text = np.array([0, 1, 0, 1, 1, 0])  # after 0: 1 twice; after 1: 0 twice, 1 once
    one, two = ngrams.probabilities(text, np.array([0, 1, 1]), 2, (1, 2))
    assert one == pytest.approx([(3 + 2 / 2) / (6 + 2)] * 2)
    assert two == pytest.approx([(2 + 1 * 0.5) / (2 + 1), (1 + 2 * 0.5) / (3 + 2)])


def test_a_context_that_never_occurred_takes_the_smaller_table():
    train, test = np.array([0, 1, 0, 1, 2]), np.array([2, 2, 0, 1])
    one, two, three = ngrams.probabilities(train, test, 3, (1, 2, 3))
    assert two[0] == one[0] and three[0] == two[0]  # nothing follows 2
    assert three[1] == two[1] and three[2] == two[2]  # 22, 20


@pytest.mark.parametrize("n", range(1, 5))
def test_probabilities_sum_to_one(n):
    draw = np.random.default_rng(0)
    train, past = draw.integers(4, size=300), draw.integers(4, size=9)
    each = [ngrams.probabilities(train, np.append(past, c), 4, (n,))[0][-1] for c in range(4)]
    assert sum(each) == pytest.approx(1) and min(each) > 0


def test_in_a_window_the_past_begins_with_it():
    draw = np.random.default_rng(1)
    train, test = draw.integers(5, size=800), draw.integers(5, size=25)
    whole = ngrams.windowed(train, test, 5, (1, 3, 5), 6)
    for start in range(0, 24, 6):
        alone = ngrams.probabilities(train, test[start:start + 7], 5, (1, 3, 5))
        for mine, theirs in zip(whole, alone, strict=True):
            assert mine[start:start + 6] == pytest.approx(theirs)


@pytest.mark.parametrize(("train", "test", "orders", "said"), [
    ([0, 5], [0, 1], (1,), "train: got 2 tokens, expected two or more, each from 0 to 2"),
    ([0, 1], [0, -1], (1,), "test: got 2 tokens"),
    ([0, 1], [1], (1,), "test: got 1 tokens"),
    ([0, 1], [0, 1], (0, 1), r"orders: got \[0, 1\]"),
    ([0, 1], [0, 1], (), r"orders: got \[\]"),
    ([0, 1], [0, 1], (99,), r"orders: got \[99\]"),
])
def test_what_cannot_be_counted_is_refused(train, test, orders, said):
    with pytest.raises(ValueError, match=said):
        ngrams.probabilities(np.array(train), np.array(test), 3, orders)


def test_a_file_comes_back_and_a_damaged_one_is_refused_by_line(tmp_path):
    assert ngrams.read(tmp_path) == []
    one = ngrams.Count("text", "ab", 10, 5, 2, 0, 7, 1.5)
    path = ngrams.write([one, one], tmp_path)
    assert ngrams.read(tmp_path) == [one, one]
    text = path.read_text()
    for wrong in (text.replace("1.5", "x", 1), text.replace("1.5", "nan", 1), text.replace("1.5", "-1", 1),
                  text.replace("data,", "date,"), text.replace(",5,2,", ",0,2,", 1)):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"ngrams\.csv, line 2: "):
            ngrams.read(tmp_path)


def test_the_committed_counts_are_of_the_text_of_the_records():
    found = ngrams.read(RESULTS)
    config, tokens = read_grid("table-8").runs[0], sorted({one.tokens for one in found})
    assert {(one.order, one.window, one.tokens) for one in found} == {
        (n, w, t) for n in ngrams.ORDERS for w in (config.context, 0) for t in tokens}
    assert len(tokens) == len(ngrams.GRIDS) and tokens[0] == config.test_tokens - 1
    assert {one.sha256 for one in found} == set(TEXTS["tinyshakespeare"].sha256.values())
    for window, count in product((config.context, 0), tokens):
        losses = [one.loss for one in found if (one.window, one.tokens) == (window, count)]
        assert losses[:5] == sorted(losses[:5], reverse=True) and losses[0] < math.log(65)
        assert losses[5] > losses[4]  # contexts of five letters are too rare
    assert all(one.bits == pytest.approx(math.log2(one.perplexity)) for one in found)
