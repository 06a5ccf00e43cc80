"""The pairs of a relation table, grouped by the matrices that they multiply.

All pairs of one relation multiply the same matrix. A relation whose pairs are those of another one with query and key
exchanged, such as the offsets δ and −δ, shares its gathered rows with it, and the two form one group. Where every
relation has one pair, as in Table 5's absolute ablation, N of them form a group: one batched product for a row of the
attention matrix in place of N small ones.
Source: the Translution paper, eq. (1); chapters "The operator" and "Making it fit".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from translution_lib.functional.pages import in_large_pages
from translution_lib.relations import Relations


@dataclass(frozen=True)
class Group:
    """Relations with equally many pairs each, which one batched product serves.

    The tokens are those of the queries of all relations, then those of the keys. Where two relations are each other's
    with query and key exchanged, the stretch that both halves share stands once: queries, keys, queries again.

    Label: eq-fit-mirror, thm-fit-mirror.
    """

    relations: slice
    size: int               # g
    pairs: int              # p, of each relation
    tokens: Tensor          # 2·g·p, or 3·p for two that share
    queries: Tensor         # the query of every pair, g·p: a view of the tokens, as the keys are
    keys: Tensor            # the key of every pair, g·p

    @property
    def count(self) -> int:
        """Pairs of all relations, g·p."""
        return self.size * self.pairs

    @staticmethod
    def of(relations: slice, size: int, pairs: int, tokens: Tensor) -> "Group":
        """Return a group by its relations, how many they are, the pairs of each of them, and the tokens."""
        return Group(relations, size, pairs, tokens, tokens[:size * pairs], tokens[-size * pairs:])

    def rows(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Gather tokens of x (n b c) as rows of matrices, s m c with m = p·b and s stretches of p tokens."""
        return x.index_select(0, tokens).view(tokens.shape[0] // self.pairs, self.pairs * x.shape[1], x.shape[-1])


@dataclass(frozen=True)
class Pairs:
    """The unmasked pairs of a table on one device, group by group.

    Label: eq-fit-causal.
    """

    groups: list
    flat: Tensor            # place i·n + j of every pair
    sizes: list             # pairs in each group
    absent: Tensor          # relations without a pair
    table: Relations        # whose pairs they are

    def gradient(self, w: Tensor) -> Tensor:
        """Return room for the gradient of w: each group writes its own matrices, the others are zero."""
        return in_large_pages(torch.empty_like(w)).index_fill_(0, self.absent, 0)

    def room(self, x: Tensor, w: Tensor | None) -> Tensor | None:
        """Return room for what w makes of x (n b c) for every pair, p b e; None without a weight.

        One block goes back to the system as one; a block for each group would leave holes too small for a gradient.
        """
        return None if w is None else in_large_pages(x.new_empty(len(self.flat), x.shape[1], w.shape[-1]))

    def matrices(self, w: Tensor | None) -> list:
        """Return the matrices of w (r c e) as a view for every group, g c e; None for each without a weight."""
        return [None if w is None else w[group.relations] for group in self.groups]

    def numbers(self, table: Tensor) -> tuple:
        """Return the numbers of a table b h n n for every group, g·p b h 1."""
        return self.take(table).unsqueeze(-1).split(self.sizes)

    def by_group(self, rows: Tensor | None) -> list:
        """Return the rows of all pairs (p b e) as a view for every group, g m e; None for each if there are none."""
        if rows is None:
            return [None] * len(self.groups)
        parts = zip(self.groups, rows.split(self.sizes), strict=True)
        return [part.view(group.size, group.pairs * rows.shape[1], rows.shape[2]) for group, part in parts]

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
    sizes = relations.sizes.tolist()
    tokens = dict(enumerate(zip(*(t.split(sizes) for t in relations.sorted_pairs), strict=True)))
    if set(sizes) == {1}:
        groups = [_stack(range(r, min(r + relations.n, len(sizes))), tokens)
                  for r in range(0, len(sizes), relations.n)]
    else:
        groups = [group for r in tokens for group in _mirrored(relations, r, tokens)]
    groups = [Group.of(g.relations, g.size, g.pairs, g.tokens.to(device)) for g in groups]
    flat = torch.cat([g.queries * relations.n + g.keys for g in groups])
    absent = (relations.sizes == 0).nonzero().flatten().to(device)
    return Pairs(groups, flat, [g.count for g in groups], absent, relations)


def _stack(ids: range, tokens: dict) -> Group:
    """Put relations of one pair each side by side."""
    i, j = (torch.cat(side) for side in zip(*(tokens[r] for r in ids), strict=True))
    return Group.of(slice(ids.start, ids.stop), len(ids), 1, torch.cat([i, j]))


def _mirrored(relations: Relations, r: int, tokens: dict) -> list[Group]:
    """Return the group of a relation and its partner; none if there are no pairs, or the partner has brought it."""
    i, j = tokens[r]
    partner = _partner(relations, r, i, j)
    if not len(i) or partner < r:
        return []
    two = partner > r
    ids = slice(r, partner + 1, partner - r) if two else slice(r, r + 1)
    return [Group.of(ids, 1 + two, len(i), torch.cat([i, j, i] if two else [i, j]))]


def _partner(relations: Relations, r: int, i: Tensor, j: Tensor) -> int:
    """Return the relation whose pairs are those of r with query and key exchanged; r itself if there is none."""
    ids = relations.index[j, i]
    other = int(ids[0]) if len(i) else r
    exchanged = other >= 0 and bool((ids == other).all()) and int(relations.sizes[other]) == len(i)
    return other if exchanged else r
