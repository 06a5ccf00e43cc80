"""The grouped product in torch: pairs sorted by relation, and one product for each group of them, on any device.

All pairs of one relation multiply the same matrix. A relation whose pairs are those of another one with query and key
exchanged, such as the offsets δ and −δ, shares its gathered rows with it, and the two form one group. Where every
relation has one pair, as in Table 5's absolute ablation, N of them form a group: one batched product for a row of the
attention matrix in place of N small ones.

Two ways to the scores, chosen group by group: project both sides and multiply them channel by channel, or, with one
head and more rows than channels, go through the bilinear form M = Wq[r] Wk[r]ᵀ, one product instead of two. On CUDA
the sums over pairs are atomic, so that equal inputs may differ in their last bits; other forms are repeatable there.
Source: the Translution paper, eq. (1); the preprint, eq. (5); chapters "The operator" and "Making it fit".
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from translution_lib.backends.pages import in_large_pages
from translution_lib.relations import Relations

HALF_TYPES = (torch.float16, torch.bfloat16)


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


def takes(*tensors: Tensor | None) -> bool:
    """Whether this form can serve these operands: always."""
    return True


def scores(s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs, heads: int,
           keep: bool) -> tuple:
    """Return q_ij · k_ji per head, b h n n, and with ``keep`` the projected rows of each side that has a weight."""
    parts, kept = [], [pairs.room(x, w) if keep else None for x, w in ((s, w_q), (t, w_k))]
    columns = [*map(pairs.matrices, (w_q, w_k)), *map(pairs.by_group, kept)]
    for group, m_q, m_k, *room in zip(pairs.groups, *columns, strict=True):
        x_q, x_k = both(group, s, t)
        if not keep and bilinear(x_q, m_q, m_k, heads):
            q, k = torch.bmm(x_q, torch.bmm(m_q, m_k.mT)), x_k
        else:
            q, k = product(x_q, m_q, room[0]), product(x_k, m_k, room[1])
        parts.append(dot(q, k, group.count, heads))
    return pairs.place(torch.cat(parts)), *(x for x in kept if x is not None)


def scores_backward(grad: Tensor, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs,
                    heads: int, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`scores` by s, t, w_q and w_k."""
    ds, dt = (torch.zeros_like(x, dtype=wide(x.dtype)) for x in (s, t))
    dw_q, dw_k = (None if w is None else pairs.gradient(w) for w in (w_q, w_k))
    rest = iter(kept)
    made = [pairs.by_group(next(rest) if kept and w is not None else None) for w in (w_q, w_k)]
    columns = [*map(pairs.matrices, (w_q, w_k, dw_q, dw_k)), pairs.numbers(grad), *made]
    for group, m_q, m_k, dm_q, dm_k, g, q, k in zip(pairs.groups, *columns, strict=True):
        x_q, x_k = both(group, s, t)
        if not kept and bilinear(x_q, m_q, m_k, heads):
            dx_q, dx_k = _through_matrix(g, x_q, x_k, (m_q, m_k), (dm_q, dm_k))
        else:
            q = product(x_q, m_q) if q is None else q
            k = product(x_k, m_k) if k is None else k
            dx_q = through_side(dm_q, m_q, x_q, per_head(g, k))
            dx_k = through_side(dm_k, m_k, x_k, per_head(g, q))
        scatter(ds, group.queries, dx_q)
        scatter(dt, group.keys, dx_k)
    return ds.to(s.dtype), dt.to(t.dtype), dw_q, dw_k


def values(alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, keep: bool) -> tuple:
    """Return Σ_j α_ij x_j W[r], n b e, and with ``keep`` the projected rows of all pairs.

    With one head backward needs no values: the gradient of α_ij is x_j · (W[r] · gradient of f'_i).
    """
    out = x.new_zeros((*x.shape[:2], w.shape[-1]), dtype=wide(x.dtype))
    kept = pairs.room(x, w) if keep and alpha.shape[1] > 1 else None
    columns = pairs.matrices(w), pairs.numbers(alpha), pairs.by_group(kept)
    for group, matrix, a, room in zip(pairs.groups, *columns, strict=True):
        v = product(group.rows(x, group.keys), matrix, room)
        scatter(out, group.queries, per_head(a, v))
    return out.to(x.dtype), *([] if kept is None else [kept])


def values_backward(grad: Tensor, alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`values` by α, x and w."""
    heads = alpha.shape[1]
    dx, dw, numbers = torch.zeros_like(x, dtype=wide(x.dtype)), pairs.gradient(w), []
    columns = pairs.matrices(w), pairs.matrices(dw), pairs.numbers(alpha), pairs.by_group(kept[0] if kept else None)
    for group, matrix, dm, a, v in zip(pairs.groups, *columns, strict=True):
        rows, g = group.rows(x, group.keys), group.rows(grad, group.queries)
        if heads == 1:
            d_rows = through_side(dm, matrix, per_head(a, rows), g)
            numbers.append(dot(d_rows, rows, group.count, 1))
            d_rows = per_head(a, d_rows)
        else:
            v = product(rows, matrix) if v is None else v
            numbers.append(dot(g, v, group.count, heads))
            d_rows = through_side(dm, matrix, rows, per_head(a, g))
        scatter(dx, group.keys, d_rows)
    return pairs.place(torch.cat(numbers)), dx.to(x.dtype), dw


def bilinear(x_q: Tensor, m_q: Tensor | None, m_k: Tensor | None, heads: int) -> bool:
    """Whether a group's scores go through M = Wq Wkᵀ; rows x_q (g m c), matrices g c e.

    It pays with one head, since every head has its own M; where q and k are at least as wide as the keys' tokens; and
    where a relation has more rows than these have channels, since M itself takes c² numbers a relation to make.
    """
    if heads != 1 or m_q is None or m_k is None:
        return False
    return x_q.shape[1] > m_k.shape[1] <= m_k.shape[2]


def both(group, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the queries and of the keys; they are gathered once where both come from the same tokens."""
    if t is not s:
        return group.rows(s, group.queries), group.rows(t, group.keys)
    rows = group.rows(s, group.tokens)
    return rows[:group.size], rows[-group.size:]


def _through_matrix(g, x_q, x_k, matrices, gradients):
    """Write the gradients of the matrices and return those of the rows, by a = x_q M x_kᵀ."""
    (m_q, m_k), (dm_q, dm_k) = matrices, gradients
    m, g_k = torch.bmm(m_q, m_k.mT), per_head(g, x_k)
    dm = torch.bmm(x_q.mT, g_k)
    write(dm_q, dm, m_k)
    write(dm_k, dm.mT, m_q)
    return torch.bmm(g_k, m.mT), per_head(g, torch.bmm(x_q, m))


def dot(a: Tensor, b: Tensor, pairs: int, heads: int) -> Tensor:
    """Return the inner product of two rows of every pair and sample per head, (g m e), (g m e) -> (g·p b h)."""
    g, m, e = a.shape
    return (a * b).view(pairs, g * m // pairs, heads, e // heads).sum(-1)


def per_head(g: Tensor, rows: Tensor) -> Tensor:
    """Multiply the channels of every head of rows (g m e) by that head's factor (g·p b h 1)."""
    return (rows.view(*g.shape[:3], rows.shape[-1] // g.shape[2]) * g).view(rows.shape)


def product(rows: Tensor, matrix: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return rows times matrices, g m e, in `out` if that is given; no matrix means the identity."""
    return rows if matrix is None else torch.bmm(rows, matrix, out=out)


def through_side(dm: Tensor | None, matrix: Tensor | None, rows: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of the rows where y = rows W, and write that of W; no matrix means the identity."""
    if matrix is None or dm is None:
        return dy
    write(dm, rows.mT, dy)
    return torch.bmm(dy, matrix.mT)


def write(dm: Tensor, a: Tensor, b: Tensor) -> None:
    """Write the product a b of matrices, one per relation of a group, to its place among the gradients.

    The matrices of two mirrored relations lie apart, and `torch.bmm` would write them by one call each.
    """
    if dm.is_contiguous():
        torch.bmm(a, b, out=dm)
    else:
        dm.copy_(torch.bmm(a, b))


def scatter(dx: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add rows (g m c) to the tokens of dx (n b c) that they belong to."""
    dx.index_add_(0, tokens, rows.view(tokens.shape[0], *dx.shape[1:]).to(dx.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over relations accumulate."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def alike(tensors: tuple[Tensor | None, ...], dtypes: tuple[torch.dtype, ...], devices: tuple[str, ...]) -> bool:
    """Whether tensors are plain, not empty, of one of these types and on one device of these kinds.

    The numbers of a plain tensor stand in memory as its strides say, with their own signs.
    """
    given = [t for t in tensors if t is not None]
    if not all(type(t) in (Tensor, Parameter) and t.numel() and not (t.is_neg() or t._is_zerotensor()) for t in given):
        return False
    one = len({(t.dtype, t.device) for t in given}) == 1
    return one and given[0].dtype in dtypes and given[0].device.type in devices
