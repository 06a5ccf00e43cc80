"""The text that needs no file: its entropy by listing all sentences, and its place among the other texts."""

from collections import Counter
from itertools import product
from math import log

import pytest
from translution_runs.data import grammar
from translution_runs.data.text import load_text, tokeniser_of


def test_the_entropy_is_that_of_all_sentences():
    words = product(grammar.NAMES, grammar.VERBS, grammar.THINGS, grammar.VERBS)
    every = [grammar.PATTERN.format(name=n, first=a, thing=t, second=b) for n, a, t, b in words]
    assert len(set(every)) == len(every) and not any(one != two and two.startswith(one) for one in every[:40]
                                                     for two in every)
    assert grammar.entropy() == pytest.approx(log(len(every)) / (sum(map(len, every)) / len(every)))


def test_the_sentences_are_drawn_evenly_and_are_the_same_everywhere():
    counts = Counter(line.split()[0] for line in grammar.text("train").splitlines())
    assert set(counts) == set(grammar.NAMES) and min(counts.values()) > 60
    assert grammar.text("validation").count("\n") == 200
    found = load_text("grammar", "train")
    assert found.sha256["grammar-train"] == "48a2def9fd36807af9d0f869cca9db79060e67728bcec0fb5eae76c9ad308beb"
    assert found.vocabulary == load_text("grammar", "validation").vocabulary == 24
    assert tokeniser_of("grammar", "train").decode(found.tokens) == grammar.text("train")


def test_wrong_splits_and_counts_are_refused():
    with pytest.raises(ValueError, match="split: got 'test', expected one of"):
        load_text("grammar", "test")
    with pytest.raises(ValueError, match="split: got 'test', expected one of"):
        grammar.text("test")
    with pytest.raises(ValueError, match="kind: got 'words'"):
        tokeniser_of("grammar", "train", kind="words")
    with pytest.raises(ValueError, match="count: got -1, expected 0"):
        load_text("grammar").first(-1)
    assert len(load_text("grammar").first(7)) == 7
