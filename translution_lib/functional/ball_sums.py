"""Sums of values over all tokens near a query, for many radii at once and without a copy of any neighbourhood.

E_r sums the tokens whose L1 distance from the query is r, r − 2, r − 4, …; the ball of radius r is E_r + E_{r−1}. The
rings of all radii have the generating function Π_axes (1 − t²) / (1 − tX + t²), X = one step forth plus one step back,
so E_r = X E_{r−1} − E_{r−2} + (ring of radius r in the other axes): a few additions take E_{r−1} to E_r.
Source: chapter "Relative Performers", eq-relative-performers-recursion.
"""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor


class Balls:
    """The maps E_0 … E_{k−1} on a grid: v ↦ sums of v (b *shape h e), with the longest axis moved behind the others."""

    def __init__(self, shape: tuple[int, ...], k: int) -> None:
        self.shape, self.k = shape, k
        self.axis = max(range(len(shape)), key=lambda a: (shape[a], a))
        others = [side for a, side in enumerate(shape) if a != self.axis]
        # What leaves the margin at one step would need more than the k − 1 steps to come back to the grid.
        self.margin = max(0, (k - 1) // 2)
        reach = [range(-min(side, k) + 1, min(side, k)) for side in others]
        self.rings: list[list[tuple[int, ...]]] = [[] for _ in range(k)]
        for offset in product(*reach):
            if sum(map(abs, offset)) < k:
                self.rings[sum(map(abs, offset))].append(offset)

    def moved(self, x: Tensor) -> Tensor:
        """Split the tokens of x (b n h e) into the grid and move the long axis behind the others; a view."""
        return x.unflatten(1, self.shape).movedim(1 + self.axis, len(self.shape))

    def restored(self, x: Tensor) -> Tensor:
        """Undo :meth:`moved`."""
        return x.movedim(len(self.shape), 1 + self.axis).flatten(1, len(self.shape))

    def terms(self, v: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Give (r, 0, E_r v) for r = 0 … k − 1; each is overwritten two steps later."""
        older, newer = self._room(v), self._room(v)
        for r, ring in enumerate(self.rings):
            body = self._step(older, newer)
            for offset in ring:
                _add_moved(body, v, offset)
            older, newer = newer, older
            yield r, 0, body

    def transposed(self, gamma: Tensor, g: Tensor) -> Tensor:
        """Return Σ_r E_rᵀ(γ_r g) by the same recursion run backwards (Clenshaw)."""
        older, newer, total = self._room(g), self._room(g), torch.zeros_like(g)
        for r in reversed(range(self.k)):
            body = self._step(older, newer).addcmul_(g, gamma[..., r:r + 1])
            for offset in self.rings[r]:
                _add_moved(total, body, offset)
            older, newer = newer, older
        return total

    def _room(self, v: Tensor) -> Tensor:
        size = (*v.shape[:-3], v.shape[-3] + 2 * self.margin, *v.shape[-2:])
        return torch.zeros(size, dtype=v.dtype, device=v.device)

    def _step(self, older: Tensor, newer: Tensor) -> Tensor:
        """Overwrite ``older`` by X newer − older; return what lies on the grid."""
        length = older.shape[-3]
        older.narrow(-3, 0, 1).neg_()
        rest = older.narrow(-3, 1, length - 1)
        torch.sub(newer.narrow(-3, 0, length - 1), rest, out=rest)
        older.narrow(-3, 0, length - 1).add_(newer.narrow(-3, 1, length - 1))
        return older.narrow(-3, self.margin, length - 2 * self.margin)


class Line:
    """The sums of a line of n tokens by δ = query − key: v_{i−δ} for |δ| < k, all tokens with δ ≤ −k, all with δ ≥ k.

    Column 0 is δ = −k, the last one δ = k; with ``causal`` column 0 is δ = 0.
    """

    def __init__(self, n: int, k: int, causal: bool) -> None:
        self.n, self.k = n, k
        self.columns = [(c, d) for c, d in enumerate(range(0 if causal else -k, k + 1)) if abs(d) < n]

    def moved(self, x: Tensor) -> Tensor:
        """Return x (b n h e): the tokens are a line already."""
        return x

    restored = moved

    def terms(self, v: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Give (column, first query, its sum for this query and the following ones)."""
        for column, delta in self.columns:
            source = v if abs(delta) < self.k else _running_sum(v, reverse=delta < 0)
            yield column, max(0, delta), self._reached(source, -delta)

    def transposed(self, gamma: Tensor, g: Tensor) -> Tensor:
        """Return Σ_δ E_δᵀ(γ_δ g): what a key gets back from the queries that read it."""
        total = torch.zeros_like(g)
        for column, delta in self.columns:
            weighted = gamma[..., column:column + 1] * g
            source = weighted if abs(delta) < self.k else _running_sum(weighted, reverse=delta > 0)
            self._reached(total, -delta).add_(self._reached(source, delta))
        return total

    def _reached(self, x: Tensor, delta: int) -> Tensor:
        """Return the tokens i of x for which i − δ is on the line."""
        return x.narrow(-3, max(0, delta), self.n - abs(delta))


def weighted_sums(gamma: Tensor, v: Tensor, family: Balls | Line) -> Tensor:
    """Return Σ_r γ_r(i) (E_r v)_i for the maps E_r of a family, b n h e, in O(n e) memory, forward and backward.

    Args:
        gamma: one factor per query and map, b n h r.
        v: values, b n h e.
        family: who computes E_r v, and the transposed maps for the gradient.
    """
    return family.restored(_WeightedSums.apply(family.moved(gamma), family.moved(v), family))


class _WeightedSums(torch.autograd.Function):
    """Autograd would keep E_r v for every r; this keeps γ and v and computes the sums again in backward."""

    @staticmethod
    def forward(ctx, gamma: Tensor, v: Tensor, family: Balls | Line) -> Tensor:
        ctx.family = family
        ctx.save_for_backward(gamma, v)
        out = torch.zeros_like(v, memory_format=torch.contiguous_format)
        for r, start, term in family.terms(v):
            length = term.shape[-3]
            out.narrow(-3, start, length).addcmul_(term, gamma.narrow(-3, start, length)[..., r:r + 1])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gamma, v), g = ctx.saved_tensors, g.contiguous()
        d_gamma = _gradient_of_factors(gamma, v, g, ctx.family) if ctx.needs_input_grad[0] else None
        d_v = ctx.family.transposed(gamma, g) if ctx.needs_input_grad[1] else None
        return d_gamma, d_v, None


def _gradient_of_factors(gamma: Tensor, v: Tensor, g: Tensor, family: Balls | Line) -> Tensor:
    """Return g_i · (E_r v)_i for every r."""
    out = torch.zeros_like(gamma)
    for r, start, term in family.terms(v):
        length = term.shape[-3]
        out.narrow(-3, start, length)[..., r] = (term * g.narrow(-3, start, length)).sum(-1)
    return out


def _add_moved(into: Tensor, v: Tensor, offset: tuple[int, ...]) -> None:
    """Add v moved by an offset along the axes 1, 2, …; what leaves the grid is lost."""
    for axis, step in enumerate(offset, start=1):
        length = v.shape[axis] - abs(step)
        into, v = into.narrow(axis, max(0, step), length), v.narrow(axis, max(0, -step), length)
    into.add_(v)


def _running_sum(v: Tensor, reverse: bool) -> Tensor:
    """Return the sums of the tokens up to each one along axis 1, or from each one on."""
    return v.flip(1).cumsum(1).flip(1) if reverse else v.cumsum(1)
