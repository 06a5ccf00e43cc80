"""Scores, values and all their gradients from products of stacked rows: the forms :data:`padded`, :data:`grouped_mm`.

A form brings two products: rows times the matrix of their part, and the products of two stacks of rows, part by part,
from which the gradients of the matrices come. Projected pairs are computed again in backward, sums over parts and over
pairs accumulate wide, and results are repeatable. Source: the Translution paper, eq. (1); chapter "Making it fit".
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor
from torch.nn import functional as F

from translution_lib.backends.grouped import HALF_TYPES, Pairs, alike, dot, per_head
from translution_lib.backends.layout import Chunk, Layout, add_rows, layout, numbers_of, with_zeros

MOST_BYTES = 2**28
"""No tensor that is built for a chunk of pairs, or for its matrices, is larger; several of them live at one time."""


@dataclass(frozen=True)
class Stacked:
    """A form that stacks its rows.

    Attributes:
        takes: whether it can serve these operands.
        product: from a chunk, rows (m b c) and matrices (p c e), every row times its part's matrix, m b e.
        outer: from a chunk and two stacks of rows (m b c, m b e), Σ xᵀ y over the rows of every part, p c e.
        step: from the batch, what the rows of a part are a multiple of.
        uniform: whether parts are filled up to few common sizes.
    """

    takes: Callable[..., bool]
    product: Callable[[Chunk, Tensor, Tensor], Tensor]
    outer: Callable[[Chunk, Tensor, Tensor], Tensor]
    step: Callable[[int], int]
    uniform: bool

    def scores(self, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs, heads: int,
               keep: bool = False) -> tuple:
        """Return q_ij · k_ji per head, b h n n, zero where masked; nothing is kept."""
        plan = self._layout(pairs, (s, t), (w_q, w_k))
        numbers, (s, t) = [], _both(s, t)
        for chunk in plan.chunks:
            q = self._project(chunk, s.index_select(0, chunk.queries), chunk.matrices(w_q))
            k = self._project(chunk, t.index_select(0, chunk.keys), chunk.matrices(w_k))
            numbers.append(dot(q, k, len(q), heads))
        return (plan.place(numbers),)

    def scores_backward(self, grad: Tensor, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None,
                        pairs: Pairs, heads: int, *kept: Tensor) -> tuple:
        """Return the gradients of :meth:`scores` by s, t, w_q and w_k."""
        plan, dtype = self._layout(pairs, (s, t), (w_q, w_k)), s.dtype
        dw_q, dw_k = (None if w is None else plan.gradient(w) for w in (w_q, w_k))
        ds: Tensor | None = None
        dt: Tensor | None = None
        grad, (s, t) = numbers_of(grad), _both(s, t)
        for chunk in plan.chunks:
            g = grad.index_select(0, chunk.flat).unsqueeze(-1)
            x_q, x_k = s.index_select(0, chunk.queries), t.index_select(0, chunk.keys)
            m_q, m_k = chunk.matrices(w_q), chunk.matrices(w_k)
            dq, dk = per_head(g, self._project(chunk, x_k, m_k)), per_head(g, self._project(chunk, x_q, m_q))
            ds = add_rows(ds, self._through(chunk, x_q, m_q, dq, dw_q), chunk.by_query)
            dt = add_rows(dt, self._through(chunk, x_k, m_k, dk, dw_k), chunk.by_key)
        return tuple(_narrow(x, dtype) for x in (ds, dt, dw_q, dw_k))

    def values(self, alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, keep: bool = False) -> tuple:
        """Return Σ_j α_ij x_j W[r], n b e; nothing is kept."""
        plan, dtype = self._layout(pairs, (x,), (w,)), x.dtype
        out: Tensor | None = None
        alpha, x = numbers_of(alpha), with_zeros(x)
        for chunk in plan.chunks:
            v = self._project(chunk, x.index_select(0, chunk.keys), chunk.matrices(w))
            out = add_rows(out, per_head(alpha.index_select(0, chunk.flat).unsqueeze(-1), v), chunk.by_query)
        return (_narrow(out, dtype),)

    def values_backward(self, grad: Tensor, alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, *kept: Tensor) -> tuple:
        """Return the gradients of :meth:`values` by α, x and w."""
        plan, heads, dtype = self._layout(pairs, (x,), (w,)), alpha.shape[1], x.dtype
        dx: Tensor | None = None
        dw, numbers = plan.gradient(w), []
        grad, alpha, x = with_zeros(grad), numbers_of(alpha), with_zeros(x)
        for chunk in plan.chunks:
            rows, g, m = x.index_select(0, chunk.keys), grad.index_select(0, chunk.queries), chunk.matrices(w)
            numbers.append(dot(g, self._project(chunk, rows, m), len(g), heads))
            dv = per_head(alpha.index_select(0, chunk.flat).unsqueeze(-1), g)
            dx = add_rows(dx, self._through(chunk, rows, m, dv, dw), chunk.by_key)
        return plan.place(numbers), _narrow(dx, dtype), dw.to(dtype)

    def _layout(self, pairs: Pairs, sides: tuple, weights: tuple) -> Layout:
        """Return the layout whose chunks stay below the bound; sizes in powers of two, so that few layouts are made."""
        x, given = sides[0], [w for w in weights if w is not None]
        wide, size, b = max(t.shape[-1] for t in (*sides, *given)), x.element_size(), x.shape[1]
        step = self.step(b)
        rows = max(step, _power(MOST_BYTES // (b * wide * size), 2 * pairs.table.n**2))
        matrix = max((w[0].numel() for w in given), default=1)
        parts = _power(MOST_BYTES // (matrix * size), 2 * pairs.table.count)
        return layout(pairs.table, x.device, rows, parts, step, self.uniform)

    def _project(self, chunk: Chunk, rows: Tensor, matrices: Tensor | None) -> Tensor:
        return rows if matrices is None else self.product(chunk, rows, matrices)

    def _through(self, chunk: Chunk, rows: Tensor, matrices: Tensor | None, dy: Tensor, dw: Tensor | None) -> Tensor:
        """Return the gradient of the rows where y = rows W, and write that of W; no matrix means the identity."""
        if matrices is None or dw is None:
            return dy
        chunk.write(dw, self.outer(chunk, rows, dy))
        return self.product(chunk, dy, matrices.mT)


def _narrow(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _both(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sides with a row of zeros, made once where they are the same tokens."""
    longer = with_zeros(s)
    return longer, longer if t is s else with_zeros(t)


def _power(size: int, most: int) -> int:
    """Return the largest power of two that is not above a size, at least 1; of large sizes the first not below most."""
    return 1 << min(max(1, size).bit_length() - 1, (most - 1).bit_length())


def _padded_product(chunk: Chunk, x: Tensor, m: Tensor) -> Tensor:
    out = x.new_empty(*x.shape[:2], m.shape[-1])
    for run in chunk.runs:
        torch.bmm(_rows(x, run), m[run.parts], out=_rows(out, run))
    return out


def _padded_outer(chunk: Chunk, x: Tensor, y: Tensor) -> Tensor:
    out = x.new_empty(len(chunk.ends), x.shape[-1], y.shape[-1])
    for run in chunk.runs:
        torch.bmm(_rows(x, run).mT, _rows(y, run), out=out[run.parts])
    return out


def _rows(x: Tensor, run) -> Tensor:
    """The rows of the parts of a run, p m c."""
    return x[run.rows].view(run.size, -1, x.shape[-1])


def _padded_takes(*tensors: Tensor | None) -> bool:
    return alike(tensors, (torch.float64, torch.float32, *HALF_TYPES), ("cpu", "cuda"))


padded = Stacked(_padded_takes, _padded_product, _padded_outer, step=lambda batch: 1, uniform=True)
"""Few batched products: relations of similar size share one, filled up with rows of zeros. It serves any device and
floating type, and needs nothing but ``torch.bmm``."""

ROWS = 16
"""The rows of every group of :data:`grouped_mm` are a multiple of it."""
CHANNELS = 8
"""The channels of every operand of it are: 16 bytes of bfloat16."""


def _mm_takes(*tensors: Tensor | None) -> bool:
    if not alike(tensors, (torch.bfloat16,), ("cpu", "cuda")):
        return False
    rows = [t for t in tensors if t is not None and t.ndim == 3]
    return all(map(_fits, rows)) and (not rows[0].is_cuda or _on_card(rows[0]))


def _fits(t: Tensor) -> bool:
    return t.shape[-1] % CHANNELS == 0 and t.data_ptr() % (CHANNELS * t.element_size()) == 0


def _on_card(x: Tensor) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(x.device)[0] in (9, 10)


def _mm_product(chunk: Chunk, x: Tensor, m: Tensor) -> Tensor:
    return F.grouped_mm(x.flatten(0, 1), m, offs=_ends(chunk, x)).view(*x.shape[:2], m.shape[-1])


def _mm_outer(chunk: Chunk, x: Tensor, y: Tensor) -> Tensor:
    return F.grouped_mm(x.flatten(0, 1).mT, y.flatten(0, 1), offs=_ends(chunk, x))


def _ends(chunk: Chunk, x: Tensor) -> Tensor:
    return chunk.ends * x.shape[1]


grouped_mm = Stacked(_mm_takes, _mm_product, _mm_outer, step=lambda batch: ROWS // gcd(ROWS, batch), uniform=False)
"""One call of ``torch.nn.functional.grouped_mm`` for the products of all relations of a chunk. It serves bfloat16 where
torch has a kernel that does not ask the host for the sizes, cards of compute capability 9 and 10, and the CPU for
tests. The kernel reads rows of whole 16 bytes, so channels are multiples of 8; every group has a multiple of 16 rows
and none is empty, since both have given wrong gradients or hung."""
