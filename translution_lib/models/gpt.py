"""A causal language model with any mixer.

Source: the Translution paper, section 4.2 and appendix C; chapter "What it costs".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_sizes
from translution_lib.models.blocks import (
    ABSOLUTE,
    architecture,
    check_flag,
    joined_options,
    make_blocks,
    mixer_names,
    resized,
    run_blocks,
)
from translution_lib.relations import Relations, offsets
from translution_lib.sharing import bucketed

BEYOND = ("clip", "window")


@dataclass(frozen=True)
class GPTConfig:
    """Everything that determines a GPT; the fields are the arguments of :class:`GPT`."""

    vocabulary: int
    context: int
    dim: int
    depth: int
    heads: int
    ff: int
    mixer: tuple[str, ...]
    absolute: bool = False
    options: dict = field(default_factory=dict)
    checkpoint: bool = False
    reach: int | None = None
    beyond: str = "clip"
    bucket_offsets: int | None = None
    bucket_distance: int | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens at full length."""
        return self.context

    def relations(self) -> Relations:
        """Return the causal relation table that all layers share."""
        if self.reach is not None:
            clip, window = (self.reach - 1 if self.beyond == rule else None for rule in BEYOND)
            return offsets(self.context, causal=True, clip=clip, window=window)
        table = offsets(self.context, causal=True)
        return table if self.bucket_offsets is None else bucketed(
            table, self.bucket_offsets, max_distance=self.bucket_distance)


class GPT(nn.Module):
    """Causal language model: token embedding, a stack of blocks, two final norms, an untied linear read-out.

    Args:
        vocabulary: number of different tokens.
        context: longest text, in tokens; shorter texts use the same weights.
        dim, depth, heads, ff: see :class:`Architecture`.
        mixer: a name of ``MIXERS``, or one name per layer for a hybrid stack.
        absolute: whether a learned embedding of every place is added; by default only where a mixer is "absolute",
            "absolute-translution" or "performer-absolute".
        checkpoint: keep the input of every block alone while training, and compute the block again in backward: the
            same outputs and gradients, less memory, one more forward pass.
        reach: number of offsets that have parameters of their own; by default all of the context.
        beyond: what holds from the offset ``reach`` on: "clip" (the parameters of the offset reach − 1) or "window" (no
            token reads so far back).
        bucket_offsets: offsets share parameters by so many logarithmic buckets, T5's
            (:func:`~translution_lib.bucketed`); by default every offset has its own.
        bucket_distance: from here on all offsets share the last bucket; by default the context.
        options: options of the mixers by their names, for a hybrid stack: {"riemann": {"form": "inner"}}.
        flat: further options of the mixer, such as ``relative_dim=8``.

    Raises:
        ValueError: sizes that are not positive integers, an unknown mixer, a rule for offsets beyond a reach that is
            not given, or for buckets that are not, options that no layer knows or that two different layers of a
            hybrid stack share.

    Label: thm-language-unread, thm-language-bag, thm-language-same.
    """

    def __init__(self, vocabulary: int, context: int, dim: int, depth: int, heads: int, ff: int,
                 mixer: str | Sequence[str] = "translution", absolute: bool | None = None, checkpoint: bool = False,
                 reach: int | None = None, beyond: str = "clip", bucket_offsets: int | None = None,
                 bucket_distance: int | None = None, options: Mapping[str, Mapping] | None = None, **flat) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, context=context, dim=dim, depth=depth,
                    **({} if reach is None else {"reach": reach}))
        check_choice("beyond", beyond, BEYOND)
        check_flag("checkpoint", checkpoint)
        if reach is not None and bucket_offsets is not None:
            raise ValueError(f"bucket_offsets must be None where a reach is given, got {bucket_offsets}")
        if reach is None and beyond != "clip":
            raise ValueError(f"beyond must be 'clip' where no reach is given, got {beyond!r}")
        if bucket_offsets is None and bucket_distance is not None:
            raise ValueError(f"bucket_distance must be None where there are no buckets, got {bucket_distance}")
        if bucket_offsets is not None and bucket_distance is None:      # kept, so that a longer copy means the same
            bucket_distance = max(context, bucket_offsets // 2 + 1)
        names, options = mixer_names(mixer, depth), joined_options(options, flat)
        absolute = bool(ABSOLUTE.keys() & set(names)) if absolute is None else absolute
        self.config = GPTConfig(vocabulary, context, dim, depth, heads, ff, names, absolute, options, checkpoint,
                                reach, beyond, bucket_offsets, bucket_distance)
        self.relations = self.config.relations()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.randn(context, dim)) if absolute else None
        self.blocks = make_blocks(names, self.relations, dim, heads, ff, options)
        # The released model normalises twice before its read-out; the printed parameter counts include both.
        self.norm = nn.Sequential(nn.LayerNorm(dim), nn.LayerNorm(dim))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    @classmethod
    def named(cls, name: str, *, mixer: str | Sequence[str] = "translution", context: int = 160,
              vocabulary: int = 50257, **options) -> "GPT":
        """Return an architecture of Table 1: "A", "B" or "C"."""
        size = architecture(name)
        return cls(vocabulary, context, size.dim, size.depth, size.heads, size.ff, mixer, **options)

    def forward(self, tokens: Int[Tensor, "b n"], mask: Tensor | None = None) -> Float[Tensor, "b n vocabulary"]:
        """Return the logits of the next token at every place.

        ``mask`` is True where a token exists (b n), or where a query may attend to a key (b n n).
        """
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.config.context:
            raise ValueError(f"tokens must have the shape (batch, 1 to {self.config.context}), "
                             f"got {tuple(tokens.shape)}")
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position[: tokens.shape[1]]
        return self.head(self.norm(run_blocks(self.blocks, x, self.config.checkpoint, mask)))

    def resized(self, context: int, *, reach: int | None = None, beyond: str | None = None) -> "GPT":
        """Return a copy for texts of another length, with all that this model has learnt.

        What it knows by offset or place stays. A new offset starts with the parameters of the longest one that is
        known, a new place with those of the last; they are parameters of their own, unless a ``reach`` is given.

        Args:
            context: longest text of the copy, in tokens.
            reach: number of offsets with parameters of their own; by default as this model has it.
            beyond: what holds from there on, as in the constructor, with a ``reach`` alone.

        Raises:
            ValueError: what the constructor refuses, or a ``beyond`` without a ``reach``.
        """
        if reach is None and beyond is not None:
            raise ValueError(f"beyond must be None without a reach, got {beyond!r}")
        return resized(self, context=context, **({} if reach is None else {"reach": reach, "beyond": beyond or "clip"}))

    def step(self, tokens: Int[Tensor, "b m"], memory: Any = None) -> tuple[Float[Tensor, "b m vocabulary"], Any]:
        """Go on with a text: return the rows of :meth:`forward` of these next tokens, and the memory with them.

        Each layer computes the new rows alone, as far as it can (its own ``step`` says how). For evaluation: nothing
        is dropped.

        Args:
            tokens: the next ones, at first the beginning of the text.
            memory: what the step before returned; None at first.

        Raises:
            ValueError: no tokens, or more than the context holds with those before.
        """
        first, layers = (0, [None] * len(self.blocks)) if memory is None else memory
        n, longest = first + tokens.shape[-1], self.config.context
        if tokens.ndim != 2 or not first < n <= longest:
            raise ValueError(f"tokens must have the shape (batch, 1 to {longest - first}) after {first} others, "
                             f"got {tuple(tokens.shape)}")
        x, kept = self.embedding(tokens), []
        if self.position is not None:
            x = x + self.position[first:n]
        for block, old in zip(self.blocks, layers, strict=True):
            x, new = block.step(x, old)         # type: ignore[operator]
            kept.append(new)
        return self.head(self.norm(x)), (n, kept)

    @torch.no_grad()
    def generate(self, ids: Int[Tensor, "b n"], new_tokens: int, *, temperature: float | int = 1.0,
                 top_k: int | None = None, generator: torch.Generator | None = None) -> Int[Tensor, "b m"]:
        """Write on: append tokens, each drawn from softmax(logits / temperature), and compute no row twice.

        Args:
            ids: the beginning of each text, at least one token.
            new_tokens: how many to append. The last one is not read, so that n + new_tokens is at most context + 1.
            temperature: towards 0 the most probable token is drawn ever more often; 0 takes it.
            top_k: draw from the most probable tokens alone, so many; by default from all.
            generator: on any device; by default torch's own on the device of the model.

        Returns:
            the texts with what is appended, b × (n + new_tokens).

        Raises:
            ValueError: no token to begin with, ids that are not integers, more new tokens than the context holds, a
                temperature below 0, a top_k that is not an integer from 1, logits that are NaN.

        Label: thm-language-temperature.
        """
        _check_text(ids, new_tokens, self.config, temperature, top_k)
        written, new, memory = ids, ids, None
        with evaluating(self):
            for _ in range(new_tokens):
                logits, memory = self.step(new, memory)
                new = drawn(logits[:, -1], temperature, top_k, generator).to(ids)
                written = torch.cat([written, new], 1)
        return written


_writing: WeakKeyDictionary = WeakKeyDictionary()   # models that write: how many threads, and their parts in training
_lock = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model and its parts in evaluation mode; when the last thread leaves, each is put back into its own."""
    with _lock:
        threads, training = _writing.get(model) or (0, [part for part in model.modules() if part.training])
        _writing[model] = threads + 1, training
        model.eval()
    try:
        yield
    finally:
        with _lock:
            threads, training = _writing.pop(model)
            if threads > 1:
                _writing[model] = threads - 1, training
            else:
                for part in training:
                    part.training = True


def drawn(logits: Float[Tensor, "b v"], temperature: float | int, top_k: int | None,
          generator: torch.Generator | None = None) -> Int[Tensor, "b 1"]:
    """Return a token for each row, from softmax(logits / temperature) in double precision."""
    highest = logits.amax(-1, keepdim=True)         # NaN where one is among them
    if not bool(highest.isfinite().all()):
        raise ValueError("the model's logits are not numbers: NaN or infinity is among its weights, or came of them")
    if not temperature:
        return logits.argmax(-1, keepdim=True)
    logits = (logits.double() - highest) / temperature                          # the largest is 0: none overflows
    if top_k is not None and top_k < logits.shape[1]:
        values, kept = logits.topk(top_k)                                       # so many, also among equals
        logits = torch.full_like(logits, -math.inf).scatter(-1, kept, values)
    weights = logits.softmax(-1)
    return torch.multinomial(weights if generator is None else weights.to(generator.device), 1, generator=generator)


def _check_text(ids: Tensor, new_tokens: int, config: GPTConfig, temperature: float | int, top_k: int | None) -> None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64) or ids.ndim != 2 or not ids.shape[1]:
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be int32 or int64 of the shape (batch, at least 1), got {got}")
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocabulary:
        raise ValueError(f"ids must be from 0 to {config.vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}")
    context = config.context
    room = context + 1 - ids.shape[1]
    if not (isinstance(new_tokens, Integral) and 0 <= new_tokens <= room) or isinstance(new_tokens, bool):
        raise ValueError(f"new_tokens must be an integer from 0 to {room}, since {ids.shape[1]} tokens of a context of "
                         f"{context} are there, got {new_tokens!r}")
    if not (isinstance(temperature, Real) and 0 <= temperature < math.inf):
        raise ValueError(f"temperature must be a number ≥ 0, got {temperature!r}")
    if top_k is not None:
        check_sizes(top_k=top_k)
