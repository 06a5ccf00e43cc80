"""The pairs of a table as rows of few large products: relations side by side, each filled up with rows of zeros.

A *part* is a relation's stretch of rows, or a piece of it where that would be too large. A *chunk* is the parts that
are built at once; their sizes keep every tensor of a chunk below a bound. An empty row reads a row of zeros that is put
behind the tokens, so that it adds nothing even where a token holds infinities. Sums over the pairs of a token gather
their rows in a fixed order, so that equal inputs give equal bits. All sizes are known before the first number is:
nothing here waits for the device. Chapter "Making it fit".
"""

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from translution_lib.backends.grouped import wide
from translution_lib.relations import Relations

SAVES = 16
"""A further size of parts must save one row in so many, or it is not worth its launches."""


class Part(NamedTuple):
    """Some pairs of one relation: the first in the order of ``sorted_pairs``, how many, and how many rows they take."""

    relation: int
    first: int
    pairs: int
    rows: int


class Run(NamedTuple):
    """Successive parts of equal size: their rows and their matrices in a chunk, and how many they are."""

    rows: slice
    parts: slice
    size: int


@dataclass(frozen=True)
class Chunk:
    """Parts that are built at once; the tensors lie on one device, and n or n² names the row of zeros."""

    relations: slice | Tensor
    cut: bool               # whether it is a piece of a relation, whose other pieces are chunks too
    runs: list[Run]
    ends: Tensor            # the row behind every part, int32
    queries: Tensor         # of every row
    keys: Tensor
    flat: Tensor            # place i·n + j of every row
    by_query: tuple[Tensor, Tensor]     # the rows of every token, one token after the other, and where they begin
    by_key: tuple[Tensor, Tensor]

    def matrices(self, w: Tensor | None) -> Tensor | None:
        """Return the matrices of the parts, p c e, from a weight r c e."""
        if w is None:
            return None
        if isinstance(self.relations, slice):
            return w[self.relations].contiguous()
        return w.index_select(0, self.relations)

    def write(self, dw: Tensor, parts: Tensor) -> None:
        """Put the gradients of the parts at their relations; pieces of one relation are added."""
        if isinstance(self.relations, Tensor):
            dw.index_copy_(0, self.relations, parts.to(dw.dtype))
        elif self.cut:
            dw[self.relations] += parts
        else:
            dw[self.relations] = parts


@dataclass(frozen=True)
class Layout:
    """All pairs of a table, chunk by chunk."""

    chunks: list[Chunk]
    inverse: Tensor         # the row of every place i·n + j among those of all chunks; behind the last where masked
    relations: Relations
    absent: Tensor          # relations without a pair

    def gradient(self, w: Tensor) -> Tensor:
        """Return room for the gradient of w: zeros where nothing is written, and wide where pieces are added."""
        if any(chunk.cut for chunk in self.chunks):
            return torch.zeros_like(w, dtype=wide(w.dtype))
        return torch.empty_like(w).index_fill_(0, self.absent, 0)

    def place(self, numbers: list[Tensor]) -> Tensor:
        """Put the numbers of all rows (rows b h, chunk by chunk) at their places, b h n n; zero elsewhere."""
        n, zero = self.relations.n, numbers[0].new_zeros(1, *numbers[0].shape[1:])
        table = torch.cat([*numbers, zero]).index_select(0, self.inverse)
        return table.unflatten(0, (n, n)).permute(2, 3, 0, 1).contiguous()


def with_zeros(x: Tensor) -> Tensor:
    """Put a row of zeros behind the last, which rows without a pair read."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


def numbers_of(table: Tensor) -> Tensor:
    """Return the numbers of a table b h n n place by place, (n² + 1) b h, the last ones zero."""
    return with_zeros(table.permute(2, 3, 0, 1).flatten(0, 1))


def add_rows(total: Tensor | None, rows: Tensor, owners: tuple[Tensor, Tensor]) -> Tensor:
    """Add to n b c the sum of every token's rows (m b c); in one order, whatever the device.

    ``torch.embedding_bag`` sums the rows of a list without a copy of them, wide inside, and needs no atomic addition.
    """
    order, starts = owners
    part = torch.embedding_bag(rows.flatten(1), order, starts, False, 0, False, None, True)[0].unflatten(
        1, rows.shape[1:])
    return part if total is None else total.to(wide(part.dtype)) + part


def layout(relations: Relations, device: torch.device, rows: int, parts: int, step: int, uniform: bool) -> Layout:
    """Return the layout of a table; it is kept in the table.

    Args:
        relations: the table.
        device: where its tensors lie.
        rows: the most rows of a chunk, a multiple of ``step``; one row is a pair of all samples.
        parts: the most parts of a chunk.
        step: the rows of every part are a multiple of it.
        uniform: fill parts up to few common sizes and sort them by size, else each only to the next step.
    """
    key = ("layout", str(device), rows, parts, step, uniform)
    return relations._remember(key, lambda: _make(relations, device, rows, parts, step, uniform))


def _make(relations: Relations, device: torch.device, rows: int, parts: int, step: int, uniform: bool) -> Layout:
    cut, whole = _parts(relations, rows, step)
    if uniform:
        sizes = common_sizes([part.rows for part in whole])
        whole = sorted((part._replace(rows=sizes[part.rows]) for part in whole), key=lambda part: -part.rows)
    lists = [[part] for part in cut] + _filled(whole, rows, parts)
    inverse = torch.full((relations.n**2 + 1,), -1, device="cpu")
    chunks, made, tokens = [], 0, relations.sorted_pairs
    for k, members in enumerate(lists):
        chunk = _chunk(relations.n, tokens, members, k < len(cut))
        inverse[chunk.flat] = made + torch.arange(len(chunk.flat), device="cpu")
        made += len(chunk.flat)
        chunks.append(_on(chunk, device))
    inverse = inverse[:-1]
    absent = (relations.sizes == 0).nonzero().flatten()
    return Layout(chunks, inverse.where(inverse >= 0, made).to(device), relations, absent.to(device))


def _parts(relations: Relations, rows: int, step: int) -> tuple[list[Part], list[Part]]:
    """Return the pieces of relations with too many rows, and all other relations, each with at least one pair."""
    cut, whole, first = [], [], 0
    for r, size in enumerate(relations.sizes.tolist()):
        pieces = [Part(r, first + k, min(rows, size - k), -(-min(rows, size - k) // step) * step)
                  for k in range(0, size, rows)]
        if len(pieces) > 1:
            cut += pieces
        else:
            whole += pieces
        first += size
    return cut, whole


def common_sizes(sizes: list[int]) -> dict[int, int]:
    """Return the size to which each of these is filled up: the least rows, where a size costs a share of all rows.

    Every size goes up to the end of its stretch of the sorted sizes; a dynamic programme finds the stretches.
    """
    each, counts = torch.tensor(sizes, dtype=torch.long, device="cpu").unique(return_counts=True)
    price = float((each * counts).sum()) / SAVES
    before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])     # how many are smaller than each
    best, start = torch.zeros(len(each) + 1, dtype=torch.double, device="cpu"), [0]
    for end in range(1, len(each) + 1):
        costs = best[:end] + price + each[end - 1] * (before[end] - before[:end])
        start.append(int(costs.argmin()))
        best[end] = costs[start[end]]
    found, end, known = {}, len(each), each.tolist()
    while end:
        found.update(dict.fromkeys(known[start[end]:end], known[end - 1]))
        end = start[end]
    return found


def _filled(parts: list[Part], rows: int, most: int) -> list[list[Part]]:
    """Return the parts in lists that are as long as the bounds allow; one part stands alone if it is above them."""
    lists: list[list[Part]] = []
    room = 0
    for part in parts:
        if not lists or part.rows > room or len(lists[-1]) == most:
            lists.append([])
            room = rows
        lists[-1].append(part)
        room -= part.rows
    return lists


def _chunk(n: int, tokens: tuple[Tensor, Tensor], parts: list[Part], cut: bool) -> Chunk:
    ids, first, pairs, sizes = (torch.tensor(column, device="cpu") for column in zip(*parts, strict=True))
    ends = sizes.cumsum(0)
    part = torch.arange(len(parts), device="cpu").repeat_interleave(sizes)
    rank = torch.arange(len(part), device="cpu") - (ends - sizes)[part]
    filled = rank < pairs[part]
    pair = torch.where(filled, first[part] + rank, 0)
    i, j = (side[pair] for side in tokens)
    queries, keys, flat = (torch.where(filled, t, none) for t, none in ((i, n), (j, n), (i * n + j, n * n)))
    names = slice(int(ids[0]), int(ids[-1]) + 1) if bool((ids.diff() == 1).all()) else ids
    return Chunk(names, cut, _runs(parts), ends.to(torch.int32), queries, keys, flat, _owners(queries, n),
                 _owners(keys, n))


def _runs(parts: list[Part]) -> list[Run]:
    runs, row, place = [], 0, 0
    for rows, equal in groupby(part.rows for part in parts):
        size = len(list(equal))
        runs.append(Run(slice(row, row + size * rows), slice(place, place + size), size))
        row, place = row + size * rows, place + size
    return runs


def _owners(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the rows of every token below n, and where each token's begin, with the end of the last."""
    counts = torch.bincount(tokens, minlength=n + 1)[:n]
    order = torch.argsort(tokens, stable=True)[:int(counts.sum())]
    return order, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _on(chunk: Chunk, device: torch.device) -> Chunk:
    def moved(x):
        return tuple(map(moved, x)) if isinstance(x, tuple) else x.to(device) if isinstance(x, Tensor) else x
    return Chunk(*(moved(getattr(chunk, name)) for name in Chunk.__dataclass_fields__))
