"""Tables of counts as a baseline of language models: how surprised is a text by its last n − 1 tokens alone?

`python -m translution_runs.ngrams FOLDER` counts the texts of the grids `table-8` and `longer-text`, tested on a part
and on the whole of one text, and writes `results/ngrams.csv`, which the chapter shows: its pages have no text at hand.

Chapter "Language models".
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from math import exp, log
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float, Int64

from translution_runs.files import write_atomically
from translution_runs.language_modelling import LanguageModellingConfig
from translution_runs.texts import judged, load_sets

FILE = "ngrams.csv"
ORDERS = (1, 2, 3, 4, 5, 6)
GRIDS = ("table-8", "longer-text")
Train = Int64[np.ndarray, " m"]
Test = Int64[np.ndarray, " t"]
Next = Float[np.ndarray, " t-1"]
"""One number for each token of the test text behind the first."""


@dataclass(frozen=True)
class Count:
    """What a table of n-grams reaches on a test text.

    Attributes:
        data: name of the text.
        sha256: of its file.
        train_tokens: that were counted.
        tokens: of the test text that were predicted.
        order: n; a token is predicted from the n − 1 before it, and 1 is a bag of tokens.
        window: how many tokens the test text is cut into; a prediction uses those of its window alone; 0 for one piece.
        numbers: of the table: n-grams that occur.
        loss: mean surprise of a token, in nats.
    """

    data: str
    sha256: str
    train_tokens: int
    tokens: int
    order: int
    window: int
    numbers: int
    loss: float

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return exp(self.loss)

    @property
    def bits(self) -> float:
        """A token."""
        return self.loss / log(2)


def probabilities(train: Train, test: Test, vocabulary: int, orders: Sequence[int] = ORDERS) -> list[Next]:
    """By order, the probability that each table up to this order gives to the tokens of `test` behind the first.

    A table of n-grams has for the context h of n − 1 tokens the counts N(h c), their sum N(h), and T(h) different
    tokens c. Witten and Bell give p_n(c | h) = (N(h c) + T(h) p_{n−1}(c | h')) / (N(h) + T(h)), where h' lacks the
    first token of h; p_0 is even. A context that never occurred says nothing: p_n is p_{n−1}. Where the test text has
    fewer than n − 1 tokens before, p_n is p_{n−1} too.

    Raises:
        ValueError: tokens outside the vocabulary, too few of them, or orders that are no numbers from 1 on.

    Label: eq-language-ngrams.
    """
    for name, text in (("train", train), ("test", test)):
        if len(text) < 2 or text.min() < 0 or text.max() >= vocabulary:
            raise ValueError(f"{name}: got {len(text)} tokens, expected two or more, each from 0 to {vocabulary - 1}")
    highest = max(orders, default=0)
    if min(orders, default=0) < 1 or vocabulary ** highest > np.iinfo(np.int64).max:
        raise ValueError(f"orders: got {list(orders)}, expected whole numbers from 1 on, with at most 2^63 n-grams")
    p = np.full(len(test) - 1, 1 / vocabulary)
    found = []
    for n in range(1, highest + 1):
        grams, times = np.unique(codes(train, n, vocabulary), return_counts=True)
        before, first, kinds = np.unique(grams // vocabulary, return_index=True, return_counts=True)
        total = np.add.reduceat(times, first)  # N(h); kinds is T(h)
        mine = codes(test, n, vocabulary)[n == 1:]  # one for each token that has n − 1 before it
        seen, context = looked_up(grams, times, mine), mine // vocabulary
        sums, different = looked_up(before, total, context), looked_up(before, kinds, context)
        tail = p[len(p) - len(mine):]
        mixed = (seen + different * tail) / np.maximum(sums + different, 1)
        p = np.concatenate([p[:len(p) - len(mine)], np.where(sums > 0, mixed, tail)])
        found.append(p)
    return [found[n - 1] for n in orders]


def codes(text: Test, n: int, vocabulary: int) -> Int64[np.ndarray, " _"]:
    """Each n successive tokens as one number."""
    code = np.zeros(max(len(text) - n + 1, 0), np.int64)
    for k in range(n):
        code = code * vocabulary + text[k:len(text) - n + 1 + k]
    return code


def looked_up(keys: Int64[np.ndarray, " k"], values: Int64[np.ndarray, " k"], wanted: Test) -> Test:
    """The value of each wanted key, 0 for those that are not there; the keys are sorted."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def count(config: LanguageModellingConfig, orders: Sequence[int] = ORDERS) -> list[Count]:
    """The tables on the text of a run, on the tokens that the run predicts: in its windows, and in one piece.

    Raises:
        ValueError: the text is not what it should be.
        FileNotFoundError: it is missing.
    """
    sets = load_sets(config)
    number = judged(config, sets["test"])
    train, test = (sets[part].tokens.astype(np.int64) for part in ("train", "test"))
    test, size = test[:number + 1], sets["train"].vocabulary
    digest = next(value for name, value in sets["test"].sha256.items() if name.endswith(".txt"))
    made = []
    for window in (config.context, 0):
        found = windowed(train, test, size, orders, window) if window else probabilities(train, test, size, orders)
        for n, p in zip(orders, found, strict=True):
            loss = float(-np.log(p).mean())
            numbers = len(np.unique(codes(train, n, size)))
            made.append(Count(sets["test"].name, digest, len(train), number, n, window, numbers, loss))
    return made


def windowed(train: Train, test: Test, vocabulary: int, orders: Sequence[int], window: int) -> list[Next]:
    """`probabilities` where a token may be predicted from those of its own window alone.

    The token at place t of a window has t + 1 before it; a higher table gives there what the table of t + 2 gives.
    """
    tables = probabilities(train, test, vocabulary, range(1, max(orders) + 1))
    place = np.arange(len(test) - 1) % window
    return [np.choose(np.minimum(place + 2, n) - 1, tables[:n]) for n in orders]


def write(found: Iterable[Count], results: str | Path) -> Path:
    """Write what was counted to the folder of records."""
    out, path = StringIO(), Path(results) / FILE
    table = csv.DictWriter(out, [one.name for one in fields(Count)], lineterminator="\n")
    table.writeheader()
    table.writerows(map(asdict, found))
    write_atomically(path, lambda partial: partial.write_text(out.getvalue(), encoding="utf-8"))
    return path


def read(results: str | Path) -> list[Count]:
    """What was counted; empty without a file.

    Raises:
        ValueError: a line that is none of these; the message names file and line.
    """
    path = Path(results) / FILE
    if not path.is_file():
        return []
    kinds: Mapping[str, type] = {one.name: {"str": str, "int": int, "float": float}[str(getattr(
        one.type, "__name__", one.type))] for one in fields(Count)}
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            try:
                one = Count(**{name: kind(line[name]) for name, kind in kinds.items()})
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if one.order < 1 or one.tokens < 1 or not 0 <= one.loss < log(1e9):
                raise ValueError(f"{path}, line {number}: order {one.order} with a loss of {one.loss} nats over "
                                 f"{one.tokens} tokens")
            found.append(one)
    return found


def main(data_root: Annotated[str, typer.Argument(help="folder that holds text/tinyshakespeare.txt")],
         results: Annotated[str, typer.Option(help="folder of records")] = "results") -> None:
    """Count the n-grams of the texts of `GRIDS` and write what they reach."""
    from translution_runs.grids import read_grid

    found = []
    for name in GRIDS:
        config = read_grid(name, changes={"data_root": data_root}).runs[0]
        assert isinstance(config, LanguageModellingConfig)
        found += count(config)
    for one in found:
        where = f"{one.tokens:,} tokens " + (f"in windows of {one.window}" if one.window else "in one piece")
        typer.echo(f"{one.order}-grams, {where}: perplexity {one.perplexity:.2f}, {one.bits:.3f} bits")
    typer.echo(str(write(found, results)))


if __name__ == "__main__":
    typer.run(main)
