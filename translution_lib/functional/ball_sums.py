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

GROUP = 2**18
"""How many values the samples have that a CPU works on at a time."""


class Balls:
    """The maps E_0 … E_{k−1} on a grid: v ↦ sums of v (``b *shape h e``), the longest axis moved behind the others.

    Label: eq-relative-performers-recursion.
    """

    def __init__(self, shape: tuple[int, ...], k: int) -> None:
        self.shape, self.k, self.count = shape, k, k
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

    def add_transposed(self, total: Tensor, gamma: Tensor, g: Tensor) -> None:
        """Add Σ_r E_rᵀ(γ_r g) to a total, by the same recursion run backwards (Clenshaw)."""
        older, newer = self._room(g), self._room(g)
        for r in reversed(range(self.k)):
            body = self._step(older, newer).addcmul_(g, gamma[..., r:r + 1])
            for offset in self.rings[r]:
                _add_moved(total, body, offset)
            older, newer = newer, older

    def _room(self, v: Tensor) -> Tensor:
        size = (*v.shape[:-3], v.shape[-3] + 2 * self.margin, *v.shape[-2:])
        return torch.zeros(size, dtype=v.dtype, device=v.device)

    def _step(self, older: Tensor, newer: Tensor) -> Tensor:
        """Overwrite ``older`` by X newer − older; return what lies on the grid."""
        length = older.shape[-3]
        older.narrow(-3, 0, 1).neg_()
        rest = older.narrow(-3, 1, length - 1)
        if torch.compiler.is_compiling():       # which takes no result in a part of a tensor
            rest.neg_().add_(newer.narrow(-3, 0, length - 1))
        else:
            torch.sub(newer.narrow(-3, 0, length - 1), rest, out=rest)
        older.narrow(-3, 0, length - 1).add_(newer.narrow(-3, 1, length - 1))
        return older.narrow(-3, self.margin, length - 2 * self.margin)


class Line:
    """Sums of a line of n tokens by δ = query − key: v_{i−δ} for −k < δ < k, and all with δ ≤ −k or δ ≥ k.

    Column 0 is δ = −k, the last one δ = k; with ``causal`` column 0 is δ = 0.
    """

    def __init__(self, n: int, k: int, causal: bool) -> None:
        self.n, self.k, self.count = n, k, k + 1 if causal else 2 * k + 1
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

    def add_transposed(self, total: Tensor, gamma: Tensor, g: Tensor) -> None:
        """Add Σ_δ E_δᵀ(γ_δ g) to a total: what a key gets back from the queries that read it."""
        for column, delta in self.columns:
            weighted = gamma[..., column:column + 1] * g
            source = weighted if abs(delta) < self.k else _running_sum(weighted, reverse=delta > 0)
            self._reached(total, -delta).add_(self._reached(source, delta))

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
    return family.restored(_Weighted.apply(family.moved(gamma), family.moved(v), family))


class _Sums(torch.autograd.Function):
    """A product of two tensors and the maps E_r that keeps the two alone; autograd would keep E_r v for every r.

    The gradients of each of the three kinds below are of these kinds again, so that backward has gradients too.
    """

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.family = inputs
        ctx.save_for_backward(*tensors)


class _Weighted(_Sums):
    """(γ, v) ↦ Σ_r γ_r(i) (E_r v)_i."""

    @staticmethod
    def forward(gamma: Tensor, v: Tensor, family: Balls | Line) -> Tensor:
        out = torch.zeros_like(v, memory_format=torch.contiguous_format)
        for here, factors, values in _groups(out, gamma, v):
            for r, start, term in family.terms(values):
                length = term.shape[-3]
                here.narrow(-3, start, length).addcmul_(term, factors.narrow(-3, start, length)[..., r:r + 1])
        return out

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gamma, v = ctx.saved_tensors
        return (_Dots.apply(g, v, ctx.family) if ctx.needs_input_grad[0] else None,
                _Transposed.apply(gamma, g, ctx.family) if ctx.needs_input_grad[1] else None, None)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _folded(_Weighted, info, in_dims, *args)


class _Dots(_Sums):
    """(g, v) ↦ g_i · (E_r v)_i for every r: what a factor γ_r(i) gets back."""

    @staticmethod
    def forward(g: Tensor, v: Tensor, family: Balls | Line) -> Tensor:
        out = g.new_zeros(*g.shape[:-1], family.count)
        for here, back, values in _groups(out, g, v):
            for r, start, term in family.terms(values):
                length = term.shape[-3]
                here.narrow(-3, start, length)[..., r] = (term * back.narrow(-3, start, length)).sum(-1)
        return out

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        g, v = ctx.saved_tensors
        return (_Weighted.apply(d, v, ctx.family) if ctx.needs_input_grad[0] else None,
                _Transposed.apply(d, g, ctx.family) if ctx.needs_input_grad[1] else None, None)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _folded(_Dots, info, in_dims, *args)


class _Transposed(_Sums):
    """(γ, g) ↦ Σ_r E_rᵀ(γ_r g): what a value gets back from the queries that read it."""

    @staticmethod
    def forward(gamma: Tensor, g: Tensor, family: Balls | Line) -> Tensor:
        out = torch.zeros_like(g, memory_format=torch.contiguous_format)
        for here, factors, back in _groups(out, gamma, g):
            family.add_transposed(here, factors, back)
        return out

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gamma, g = ctx.saved_tensors
        return (_Dots.apply(g, d, ctx.family) if ctx.needs_input_grad[0] else None,
                _Weighted.apply(gamma, d, ctx.family) if ctx.needs_input_grad[1] else None, None)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _folded(_Transposed, info, in_dims, *args)


def _groups(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Give the tensors a few samples at a time on a CPU: what a group needs stays in the cache and serves the next."""
    last = tensors[-1]
    step = max(1, GROUP // max(1, last[:1].numel())) if last.device.type == "cpu" else max(1, len(last))
    return zip(*(t.split(step) for t in tensors), strict=True)


def _folded(kind: type[_Sums], info, in_dims, *args) -> tuple[Tensor, int]:
    """Run on the mapped dimension as more samples of the batch, the first axis."""
    tensors = [x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
               for x, d in zip(args[:2], in_dims[:2], strict=True)]
    out = kind.apply(*(x.flatten(0, 1) for x in tensors), args[2])
    return out.unflatten(0, (info.batch_size, -1)), 0


def _add_moved(into: Tensor, v: Tensor, offset: tuple[int, ...]) -> None:
    """Add v moved by an offset along the axes 1, 2, …; what leaves the grid is lost."""
    for axis, step in enumerate(offset, start=1):
        length = v.shape[axis] - abs(step)
        into, v = into.narrow(axis, max(0, step), length), v.narrow(axis, max(0, -step), length)
    into.add_(v)


def _running_sum(v: Tensor, reverse: bool) -> Tensor:
    """Return the sums of the tokens up to each one along axis 1, or from each one on."""
    return v.flip(1).cumsum(1).flip(1) if reverse else v.cumsum(1)
