"""The pairs of a relation table, grouped by the matrices that they multiply.

All pairs of one relation multiply the same matrix. A relation whose pairs are those of another one with query and key
exchanged, such as the offsets δ and −δ, shares its gathered rows with it, and the two form one group.
Source: seed 000, eq. (1); chapters "The operator" and "Making it fit".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from translution_lib.relations import Relations


@dataclass(frozen=True)
class Group:
    """One relation, or two whose pairs are each other's with query and key exchanged.

    The tokens are those of the queries, then of the keys, then (for two relations) of the queries again: the first g of
    the g + 1 stretches are the queries of the g relations, the last g their keys.
    """

    relations: slice
    size: int               # g
    tokens: Tensor          # (g + 1)·p

    @property
    def queries(self) -> Tensor:
        """The query of every pair, g·p."""
        return self.tokens[:-(len(self.tokens) // (self.size + 1))]

    @property
    def keys(self) -> Tensor:
        """The key of every pair, g·p."""
        return self.tokens[len(self.tokens) // (self.size + 1):]

    def rows(self, x: Tensor) -> Tensor:
        """Gather the group's tokens of x (n b c) as rows of matrices, (g + 1) m c with m = p·b."""
        return x.index_select(0, self.tokens).view(self.size + 1, -1, x.shape[-1])

    def weight(self, w: Tensor) -> Tensor:
        """Return the matrices of the relations as a view, g c e."""
        return w[self.relations]


@dataclass(frozen=True)
class Pairs:
    """The unmasked pairs of a table on one device, group by group."""

    groups: list
    flat: Tensor            # place i·n + j of every pair
    sizes: list             # pairs in each group
    absent: list            # relations without a pair
    table: Relations        # whose pairs they are

    def gradient(self, w: Tensor) -> Tensor:
        """Return room for the gradient of w: each group writes its own matrices, the others are zero."""
        dw = torch.empty_like(w)
        dw[self.absent] = 0
        return dw

    def place(self, numbers: Tensor) -> Tensor:
        """Put numbers per pair (p b h) at their places, b h n n; zero elsewhere."""
        n = self.table.n
        table = numbers.new_zeros(n * n, *numbers.shape[1:]).index_copy(0, self.flat, numbers)
        return table.unflatten(0, (n, n)).permute(2, 3, 0, 1).contiguous()

    def take(self, table: Tensor) -> Tensor:
        """Return the numbers of the pairs of a table b h n n, (p b h)."""
        return table.permute(2, 3, 0, 1).flatten(0, 1).index_select(0, self.flat)


def pairs_on(relations: Relations, device: torch.device) -> Pairs:
    """Return the grouped pairs of a table on a device; the result is kept in the table."""
    return relations._remember(("pairs", str(device)), lambda: _make_pairs(relations, device))


def _make_pairs(relations: Relations, device: torch.device) -> Pairs:
    sizes, n = relations.sizes.tolist(), relations.n
    tokens = dict(enumerate(zip(*(t.split(sizes) for t in relations.sorted_pairs), strict=True)))
    groups, flat = [], []
    for r, (i, j) in tokens.items():
        partner = _partner(relations, r, i, j)
        if not len(i) or partner < r:
            continue                        # no pairs, or done with its partner
        two = partner > r
        ids = slice(r, partner + 1, partner - r) if two else slice(r, r + 1)
        groups.append(Group(ids, 1 + two, torch.cat([i, j, i] if two else [i, j]).to(device)))
        flat += [i * n + j, j * n + i] if two else [i * n + j]
    sizes_of_groups = [g.size * len(g.tokens) // (g.size + 1) for g in groups]
    absent = [r for r, size in enumerate(sizes) if not size]
    return Pairs(groups, torch.cat(flat).to(device), sizes_of_groups, absent, relations)


def _partner(relations: Relations, r: int, i: Tensor, j: Tensor) -> int:
    """Return the relation whose pairs are those of r with query and key exchanged; r itself if there is none."""
    ids = relations.index[j, i]
    other = int(ids[0]) if len(i) else r
    exchanged = other >= 0 and bool((ids == other).all()) and int(relations.sizes[other]) == len(i)
    return other if exchanged else r
