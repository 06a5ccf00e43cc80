"""What the runner needs to know of texts: how they are read, cut into windows, and counted."""

from collections.abc import Iterator
from math import lcm
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from translution_lib.models import GPT
from translution_runs.data.text import load_text, tokeniser_of
from translution_runs.data.tokenisers import Tokeniser
from translution_runs.data.tokens import TokenSet
from translution_runs.images import FORWARD
from translution_runs.language_modelling import LanguageModellingConfig, build_model
from translution_runs.records import DataSource
from translution_runs.seeds import generator

Windows = tuple[Int64[Tensor, "b n"], Int64[Tensor, "b n"]]
NAMES = {"shakespeare": "tinyshakespeare"}
KINDS = {"characters": "characters", "gpt2": "byte-pairs"}
BLOCK = 1_024
"""A block of test text has at least so many tokens: shorter ones tell too much of their neighbours."""
LEAST_BLOCKS = 2


def load_sets(config: LanguageModellingConfig) -> dict[str, TokenSet]:
    """Training and test text as tokens.

    Raises:
        ValueError: files that are not what they should be, or a text too short for the configured windows.
        FileNotFoundError: a file is missing.
    """
    limits = {"train": config.train_tokens, "test": config.test_tokens}
    sets = {part: tokens.first(limits[part]) for part, tokens in whole_sets(config).items()}
    if len(sets["train"]) <= config.context:
        raise ValueError(f"context: got {config.context}, expected less than {len(sets['train'])}, the tokens of the "
                         "training text")
    judged(config, sets["test"])  # said before hours of training
    return sets


def whole_sets(config: LanguageModellingConfig) -> dict[str, TokenSet]:
    """Both texts, or the two parts of the training text of a run that never reads the other."""
    if not config.held_out:
        return {part: load_split(config, split) for part, split in config.splits.items()}
    return dict(zip(("train", "test"), load_split(config, config.splits["train"]).parted(config.held_out), strict=True))


def load_split(config: LanguageModellingConfig, split: str) -> TokenSet:
    """One split of the configured text."""
    return load_text(NAMES.get(config.data, config.data), split, config.data_root, KINDS[config.tokens],
                     vocabulary(config), config.data_source)


def vocabulary(config: LanguageModellingConfig) -> Path:
    """The folder with GPT-2's byte pairs."""
    return Path(config.data_root) / "gpt2"


def tokeniser(config: LanguageModellingConfig) -> Tokeniser:
    """What turns the configured text into tokens, and tokens into text."""
    name = NAMES.get(config.data, config.data)
    return tokeniser_of(name, config.splits["test"], config.data_root, KINDS[config.tokens], vocabulary(config))


def block_of(config: LanguageModellingConfig) -> int:
    """Tokens of a block: whole windows of every tested length, and no less than `BLOCK`."""
    whole = lcm(*(length for length, _ in config.lengths.values()))
    return whole * -(-BLOCK // whole)


def judged(config: LanguageModellingConfig, tokens: TokenSet) -> int:
    """How many tokens of a test text are predicted: all whole blocks, the same tokens for every length.

    Raises:
        ValueError: fewer than two blocks, which say nothing of their spread.
    """
    block = block_of(config)
    blocks = (len(tokens) - 1) // block
    if blocks < LEAST_BLOCKS:
        raise ValueError(f"test_contexts: got {config.test_contexts!r} contexts of {config.context} tokens, expected "
                         f"a test text of {LEAST_BLOCKS * block + 1:,} tokens for them, got {len(tokens):,}")
    return blocks * block


def build(config: LanguageModellingConfig, sets: dict[str, TokenSet]) -> GPT:
    """The model, with a token for each of the vocabulary of the text that was read."""
    return build_model(config, sets["train"].vocabulary if sets else None)


def examples(config: LanguageModellingConfig, tokens: TokenSet | None) -> int:
    """How many windows an epoch has, whatever the text."""
    return config.steps * config.batch_size


class EpochWindows:
    """The steps of one epoch: which windows follows from the seed and the epoch's number.

    Args:
        config: the run's parameters.
        tokens: the training text.
        epoch: from 0.
    """

    def __init__(self, config: LanguageModellingConfig, tokens: TokenSet, epoch: int) -> None:
        self.config, self.tokens = config, tokens
        stream = generator(config.seed, "windows", epoch)
        self.steps = tokens.draw(examples(config, tokens), config.context, stream).split(config.batch_size)

    def __len__(self) -> int:
        return len(self.steps)

    def parts(self, step: int, rank: int = 0, world: int = 1) -> Iterator[Windows]:
        """The parts of a step that process `rank` of `world` goes through one after the other; some may be empty."""
        each = self.config.accumulate
        for start in self.steps[step].tensor_split(world * each)[rank * each:(rank + 1) * each]:
            yield self.batch(start)

    def batch(self, start: Int64[Tensor, " b"]) -> Windows:
        """Inputs and targets of the windows that begin there, on the configured device."""
        inputs, targets = self.tokens.windows(start, self.config.context)
        return inputs.to(self.config.device), targets.to(self.config.device)


def sums(logits: Float[Tensor, "b n v"], targets: Int64[Tensor, "b n"]) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of a window's tokens, and share of them that is right, each summed over the windows."""
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.shape[1]
    return loss, (logits.argmax(-1) == targets).sum() / targets.shape[1]


def describe(tokens: TokenSet) -> DataSource:
    """What a record says about a split."""
    return DataSource(name=tokens.name, split=tokens.split, samples=len(tokens), sha256=dict(tokens.sha256))


def work(config: LanguageModellingConfig) -> float:
    """How many windows of a context a run computes, a tested one counted as the forward part of a trained one.

    A test text of unknown length counts as a tenth of a million tokens.
    """
    tested = (config.test_tokens or config.held_out or 100_000) / config.context
    return config.epochs * config.steps * config.batch_size + FORWARD * len(config.lengths) * tested


def noise(config: LanguageModellingConfig) -> Windows:
    """A batch that takes as long as a real one."""
    both = torch.randint(config.vocabulary, (2, config.batch_size, config.context), device=config.device)
    return both[0], both[1]
