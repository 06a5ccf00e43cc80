"""The order in which a GPU kernel walks through the pairs of a table, without a Python loop over relations.

A *step* is a few pairs of one relation, one per *slot*; the rows of the matrix product that it stands for are its slots
times a stretch of the batch. A *tile* is a list of steps that one program runs, and owns its results: the steps of a
relation (weight gradients), or those of a few consecutive queries or keys (sums over pairs). Since every result has
one owner, nothing is added atomically and every run gives the same numbers. Chapter "What it costs".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from translution_lib.relations import Relations


@dataclass(frozen=True)
class Schedule:
    """The steps of a table in the order of their tiles; all tensors are int32 on one device.

    Attributes:
        relation: relation of every step, (steps,).
        query: queries of every step, (steps, slots); −1 where a slot is empty.
        key: keys, likewise.
        first: first step of every tile, (tiles + 1,).
        order: the tiles, the longest first, so that no long one starts last, (tiles,).
    """

    relation: Tensor
    query: Tensor
    key: Tensor
    first: Tensor
    order: Tensor

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Relation, queries and keys of the steps."""
        return self.relation, self.query, self.key


def schedule(relations: Relations, owner: str, slots: int, device: torch.device) -> Schedule:
    """Return the schedule whose tiles are owned by a "relation", or by ``slots`` successive "query" or "key" tokens.

    The result is kept in the table.
    """
    key = ("schedule", owner, slots, str(device))
    return relations._remember(key, lambda: _make(relations, owner, slots, device))


def _make(relations: Relations, owner: str, slots: int, device: torch.device) -> Schedule:
    r = torch.arange(relations.count, device="cpu").repeat_interleave(relations.sizes)
    i, j = relations.sorted_pairs
    if owner == "relation":
        rank = torch.arange(len(r), device="cpu") - (relations.sizes.cumsum(0) - relations.sizes)[r]
        tile, turn, slot, tiles = r, rank // slots, rank % slots, relations.count
    else:
        own = i if owner == "query" else j
        tile, turn, slot, tiles = own // slots, _occurrence(own * relations.count + r), own % slots, \
            -(-relations.n // slots)
    turns = int(turn.max()) + 1
    names, step = torch.unique((tile * relations.count + r) * turns + turn, return_inverse=True)
    sizes = torch.bincount(names // (turns * relations.count), minlength=tiles)
    first = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    query, key = (_table(tokens, step, slot, (len(names), slots)) for tokens in (i, j))
    parts = names // turns % relations.count, query, key, first, sizes.argsort(descending=True, stable=True)
    return Schedule(*(t.to(device, torch.int32) for t in parts))


def _table(tokens: Tensor, step: Tensor, slot: Tensor, shape: tuple[int, int]) -> Tensor:
    """Write the token of every pair to its step and slot."""
    return torch.full(shape, -1, device="cpu").index_put((step, slot), tokens)


def _occurrence(ids: Tensor) -> Tensor:
    """Return how often the id of every entry stands before it."""
    order = torch.argsort(ids, stable=True)
    _, counts = torch.unique_consecutive(ids[order], return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(ids).index_copy_(0, order, torch.arange(len(ids), device="cpu") - starts)
