"""A text that needs no file: sentences of a small grammar, drawn from seeded numbers.

Every sentence names somebody, what they do and to what, and says name and thing again: "ada sees the owl and ada hears
the owl." Four words are drawn, uniformly; all else follows, so that the entropy of the text is known. A model that
looks back to the first name and the first thing reaches it, one that cannot is left with the sentences' draws.
"""

import hashlib
from math import log
from random import Random

from translution_runs.data.sources import refuse_split

NAMES = ("ada", "ben", "cleo", "dan", "eva", "finn", "gus", "hana")
VERBS = ("sees", "hears", "likes", "finds")
THINGS = ("owl", "fox", "hare", "moth", "seal", "toad", "wren", "crow")
SENTENCES = {"train": 800, "validation": 200}
SEEDS = {"train": 1, "validation": 2}
PATTERN = "{name} {first} the {thing} and {name} {second} the {thing}.\n"


def text(split: str) -> str:
    """The sentences of "train" or "validation", the same on every machine.

    Raises:
        ValueError: another split.
    """
    refuse_split(split, SENTENCES)
    stream = Random(SEEDS[split])
    return "".join(sentence(stream) for _ in range(SENTENCES[split]))


def sentence(stream: Random) -> str:
    """One sentence; it takes four numbers from the stream."""
    name, first, thing, second = (words[int(stream.random() * len(words))] for words in (NAMES, VERBS, THINGS, VERBS))
    return PATTERN.format(name=name, first=first, thing=thing, second=second)


def entropy() -> float:
    """Nats per character: what four draws are worth, over the mean length of a sentence.

    Sentences are independent and can be told apart, so that this is the entropy rate of an endless text (renewal
    theorem), and no model has a smaller expected loss.

    Label: thm-language-floor.
    """
    fixed = len(PATTERN.format(name="", first="", thing="", second=""))
    length = fixed + 2 * mean_length(NAMES) + 2 * mean_length(VERBS) + 2 * mean_length(THINGS)
    return (log(len(NAMES)) + 2 * log(len(VERBS)) + log(len(THINGS))) / length


def mean_length(words: tuple[str, ...]) -> float:
    """Mean number of characters of a word."""
    return sum(map(len, words)) / len(words)


def checksum(split: str) -> dict[str, str]:
    """The sha256 of a split's text, under its name."""
    return {f"grammar-{split}": hashlib.sha256(text(split).encode()).hexdigest()}
