"""Tokens in a row, in memory or in a file that is read in parts, and windows of them to train on.

Chapter "Language models".
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Integer, UInt16
from torch import Tensor

from translution_runs.data import checksums
from translution_runs.data.counts import refuse_count, refuse_held_out
from translution_runs.data.residence import worth_moving
from translution_runs.data.tokenisers import Tokeniser
from translution_runs.files import write_atomically, write_json

PART = 1 << 24  # tokens of a file that are looked at together


@dataclass(frozen=True)
class TokenSet:
    """A split of a text as tokens.

    Attributes:
        tokens: n numbers below `vocabulary`.
        vocabulary: number of different tokens.
        name: the data set.
        split: "train", "validation" or "test".
        sha256: checksums of what was read, and of the tokeniser's files.
    """

    tokens: UInt16[np.ndarray, " n"]
    vocabulary: int
    name: str
    split: str
    sha256: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, where: slice) -> "TokenSet":
        """The tokens that stand there."""
        return replace(self, tokens=self.tokens[where])

    def first(self, count: int) -> "TokenSet":
        """The first `count` tokens; 0 means all of them.

        Raises:
            ValueError: `count` is negative or larger than the set.
        """
        refuse_count(count, len(self), f"the tokens of {self.name}'s {self.split} split")
        return self.part(slice(count or None))

    def parted(self, last: int) -> "tuple[TokenSet, TokenSet]":
        """All tokens but the last ones, and the `last` ones, whose split is called "held-out".

        Raises:
            ValueError: one of the two would be empty.
        """
        refuse_held_out(last, len(self), f"{self.name} has {len(self)} tokens in its {self.split} split")
        return self.part(slice(-last)), replace(self.part(slice(-last, None)), split="held-out")

    @property
    def device(self) -> torch.device:
        """Where the starts of windows are drawn."""
        return torch.device("cpu")

    def on(self, device: torch.device | str) -> "TokenSet":
        """The same tokens on a GPU; this set itself for any other device, or where they take too much."""
        return self.moved(device) if worth_moving(device, self.tokens.nbytes) else self

    def moved(self, device: torch.device | str) -> "MovedTokens":
        """The same tokens on a device, as bytes where they are few enough kinds, so that windows are cut there."""
        kind = np.uint8 if self.vocabulary <= 256 else np.int32
        table = torch.from_numpy(self.tokens.astype(kind)).to(device)
        return MovedTokens(self.tokens, self.vocabulary, self.name, self.split, self.sha256, table)

    def windows(self, start: Int64[Tensor, " b"], length: int) -> tuple[Int64[Tensor, "b n"], Int64[Tensor, "b n"]]:
        """Inputs and targets: `length` tokens from each start, and the same one token later.

        Raises:
            ValueError: a window that does not lie in the set.
        """
        last = len(self) - length - 1
        if length < 1 or start.numel() and not 0 <= int(start.min()) <= int(start.max()) <= last:
            raise ValueError(f"start: got {start.tolist()} with length {length}, expected a length from 1 and starts "
                             f"from 0 to {last}")
        rows = [torch.from_numpy(self.tokens[at:at + length + 1].astype(np.int64)) for at in start.tolist()]
        both = torch.stack(rows) if rows else torch.zeros(0, length + 1, dtype=torch.int64)
        return both[:, :-1], both[:, 1:]

    def draw(self, count: int, length: int, generator: torch.Generator | None = None) -> Int64[Tensor, " b"]:
        """Starts of `count` windows, uniform over all of this length."""
        if len(self) <= length:
            raise ValueError(f"length: got {length}, expected less than {len(self)}, the tokens of {self.name}'s "
                             f"{self.split} split")
        return torch.randint(len(self) - length, (count,), generator=generator)


@dataclass(frozen=True)
class MovedTokens(TokenSet):
    """A split of a text whose windows are cut on a device, in a few operations and without waiting for it.

    Attributes:
        table: `tokens` there.
    """

    table: Integer[Tensor, " n"]

    @property
    def device(self) -> torch.device:
        """Where the starts of windows are drawn, and the windows cut."""
        return self.table.device

    def part(self, where: slice) -> "MovedTokens":
        """The tokens that stand there, on the same device."""
        return replace(self, tokens=self.tokens[where], table=self.table[where])

    def windows(self, start: Int64[Tensor, " b"], length: int) -> tuple[Int64[Tensor, "b n"], Int64[Tensor, "b n"]]:
        """As those of a `TokenSet`; the starts are on the device, and nobody looks at them."""
        both = self.table[start[:, None] + torch.arange(length + 1, device=start.device)].long()
        return both[:, :-1], both[:, 1:]

    def draw(self, count: int, length: int, generator: torch.Generator | None = None) -> Int64[Tensor, " b"]:
        """The same numbers as those of a `TokenSet`, on the device."""
        return super().draw(count, length, generator).to(self.device)


def pack(documents: Iterable[str], tokeniser: Tokeniser, path: Path, about: Mapping[str, Any]) -> None:
    """Write the documents' tokens to `path`, each document followed by the tokeniser's end, as 16-bit numbers.

    The file appears whole or not at all, and beside it `<path>.json` with its checksum and `about`.
    """
    digest, count, written = hashlib.sha256(), 0, 0
    end = b"" if tokeniser.end is None else np.array([tokeniser.end], "<u2").tobytes()

    def write(partial: Path) -> None:
        nonlocal count, written
        with open(partial, "wb") as file:
            for document in documents:
                data = tokeniser.encode(document).astype("<u2").tobytes() + end
                digest.update(data)
                count, written = count + len(data) // 2, written + 1
                file.write(data)
        write_json(beside, {**about, "documents": written, "tokens": count, "sha256": digest.hexdigest()})

    own = path.with_name(f"{path.name}.{os.getpid()}")  # other processes may be packing the same text
    beside = own.with_name(own.name + ".json")
    try:
        write_atomically(own, write)
        os.replace(beside, path.with_name(path.name + ".json"))
        os.replace(own, path)
    finally:
        beside.unlink(missing_ok=True)
        own.unlink(missing_ok=True)


def read_pack(path: Path, vocabulary: int) -> tuple[UInt16[np.ndarray, " n"], dict[str, Any]]:
    """Tokens written by `pack`, left on the disk, and what stands beside them.

    Raises:
        FileNotFoundError: one of the two files is missing.
        ValueError: truncated, corrupted, not what `pack` writes, or a token that is not below `vocabulary`.
    """
    beside = path.with_name(path.name + ".json")
    for needed in (path, beside):
        if not needed.is_file():
            raise FileNotFoundError(f"{needed} is missing: remove {path.name} and {beside.name} to make them again")
    try:
        note = json.loads(beside.read_text(encoding="utf-8"))
        count, expected = int(note["tokens"]), str(note["sha256"])
        if not checksums.SHA256.fullmatch(expected):
            raise ValueError(f"sha256: got {expected[:80]!r}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{beside}: damaged ({error}); remove it and {path.name} to make them again") from None
    if path.stat().st_size != 2 * count:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, expected {2 * count}; remove it to make it again")
    checksums.refuse_other(checksums.digest(path), path.name, {path.name: expected}, path)
    tokens = np.memmap(path, "<u2", mode="r") if count else np.zeros(0, "<u2")
    largest = max((int(tokens[start:start + PART].max()) for start in range(0, count, PART)), default=0)
    if largest >= vocabulary:
        raise ValueError(f"{path}: the token {largest}, expected 0 to {vocabulary - 1}; remove it to make it again")
    return tokens, note
