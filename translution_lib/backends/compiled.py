"""The grouped product in C, for processors: one loop over the relations where torch makes some seventy calls a group.

It serves float32 tensors of the CPU. ``compiled.c`` is compiled on first use, in seconds, with the system's own C
compiler (gcc or clang, with OpenMP); nothing is compiled, looked for or loaded before (module ``library``). Sums are
those of the grouped product in another order, and equal inputs and equally many threads (``torch.set_num_threads``)
give equal bits. Each thread adds to a copy of its own of what has a row for each token, n·b·c numbers. A relation stays
with one thread: where one has most of the pairs, the others wait.
Chapter "Making it fit".
"""

import ctypes
import heapq

import torch
from torch import Tensor

from translution_lib.backends import library
from translution_lib.backends.grouped import Pairs, alike


def require() -> None:
    """Refuse a machine that cannot run the library.

    Raises:
        RuntimeError: as :func:`translution_lib.backends.library.load` says.
    """
    library.load()


def takes(*tensors: Tensor | None) -> bool:
    """Whether the compiled form can serve these operands: float32 and on the CPU, none empty."""
    return alike(tensors, (torch.float32,), ("cpu",))


class _Plan(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_ssize_t) for name in ("n", "batch", "heads", "threads")),
                *((name, ctypes.c_void_p) for name in ("relation", "start", "query", "key", "order", "part"))]


class _Side(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_void_p) for name in ("x", "w", "kept", "dx", "dw")),
                *((name, ctypes.c_ssize_t) for name in ("c", "e", "queries"))]


def scores(s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs, heads: int,
           keep: bool) -> tuple:
    """Return q_ij · k_ji per head, b h n n, and with ``keep`` the projected rows of each side that has a weight."""
    table = s.new_zeros(s.shape[1], heads, pairs.table.n, pairs.table.n)
    kept = [pairs.room(x, w) if keep else None for x, w in ((s, w_q), (t, w_k))]
    sides = [_side(x, w, y, queries) for x, w, y, queries in zip((s, t), (w_q, w_k), kept, (True, False), strict=True)]
    _call("scores", _threads(pairs), heads, pairs, sides, table)
    return table, *(y for y in kept if y is not None)


def scores_backward(grad: Tensor, s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs,
                    heads: int, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`scores` by s, t, w_q and w_k."""
    threads = _threads(pairs)
    ds, dt = (_shared(x, x.shape[-1], threads) for x in (s, t))
    dw_q, dw_k = (None if w is None else pairs.gradient(w.contiguous()) for w in (w_q, w_k))
    rest = iter(kept)
    y_q, y_k = (next(rest) if kept and w is not None else None for w in (w_q, w_k))
    sides = [_side(s, w_q, y_q, True, ds, dw_q), _side(t, w_k, y_k, False, dt, dw_k)]
    _call("scores_back", threads, heads, pairs, sides, grad.contiguous())
    return ds.sum(0), dt.sum(0), dw_q, dw_k


def values(alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, keep: bool) -> tuple:
    """Return Σ_j α_ij x_j W[r], n b e, and with ``keep`` the projected rows of all pairs."""
    threads = _threads(pairs)
    out = _shared(x, w.shape[-1], threads)
    kept = pairs.room(x, w) if keep else None
    sides = [_side(x, w, kept, False), _side(out[0], None, None, True, out)]
    _call("values", threads, alpha.shape[1], pairs, sides, alpha.contiguous())
    return out.sum(0), *([] if kept is None else [kept])


def values_backward(grad: Tensor, alpha: Tensor, x: Tensor, w: Tensor, pairs: Pairs, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`values` by α, x and w."""
    threads = _threads(pairs)
    d_alpha, dx, dw = x.new_zeros(alpha.shape), _shared(x, x.shape[-1], threads), pairs.gradient(w.contiguous())
    sides = [_side(x, w, kept[0] if kept else None, False, dx, dw), _side(grad, None, None, True)]
    _call("values_back", threads, alpha.shape[1], pairs, sides, alpha.contiguous(), d_alpha)
    return d_alpha, dx.sum(0), dw


def _threads(pairs: Pairs) -> int:
    """Return how many threads have something to do."""
    return min(torch.get_num_threads(), sum(group.size for group in pairs.groups))


def _shared(x: Tensor, width: int, threads: int) -> Tensor:
    """Return zeros for every thread, n b width each: what the threads add up is summed when all are done."""
    return x.new_zeros(threads, *x.shape[:2], width)


def _side(x: Tensor, w: Tensor | None, kept: Tensor | None, queries: bool, dx: Tensor | None = None,
          dw: Tensor | None = None) -> tuple:
    """Return the fields of a side in C, its arrays as tensors; what is kept and the gradients are dense already."""
    width = x.shape[-1] if w is None else w.shape[-1]
    return x.contiguous(), None if w is None else w.contiguous(), kept, dx, dw, x.shape[-1], width, queries


def _call(name: str, threads: int, heads: int, pairs: Pairs, sides: list[tuple], *tables: Tensor) -> None:
    """Call a function of the library; every tensor whose address it gets is held by an argument here."""
    loaded, x = library.load(), sides[0][0]
    _check(heads, pairs, sides, tables)
    arrays = pairs.table._remember(("compiled", threads), lambda: _arrays(pairs, threads))
    plan = _Plan(pairs.table.n, x.shape[1], heads, threads, *(a.data_ptr() for a in arrays))
    both = [_Side(*(None if t is None else t.data_ptr() for t in side[:5]), *side[5:]) for side in sides]
    room = x.new_empty(threads, loaded.translution_room(*map(ctypes.byref, both)))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*tables, room)]
    getattr(loaded, f"translution_{name}")(ctypes.byref(plan), *map(ctypes.byref, both), *pointers)


def _check(heads: int, pairs: Pairs, sides: list[tuple], tables: tuple[Tensor, ...]) -> None:
    """Refuse what does not fit together: C has no sizes but those that it is told."""
    n, b, width = pairs.table.n, sides[0][0].shape[1], sides[0][6]
    fits = width % heads == 0 and all(table.shape == (b, heads, n, n) for table in tables)
    for x, w, *_, c, e, _ in sides:
        fits = fits and x.shape == (n, b, c) and e == width and (w is None or w.shape == (pairs.table.count, c, e))
    if not fits:
        shapes = [tuple(t.shape) for t in (*(t for side in sides for t in side[:2] if t is not None), *tables)]
        raise ValueError(f"operands must fit a table of {n} tokens and {pairs.table.count} relations, and {heads} "
                         f"heads; got rows, weights and tables of the shapes {shapes}")


def _arrays(pairs: Pairs, threads: int) -> list[Tensor]:
    """Return the arrays of a plan: the largest relations are dealt first, each to the thread that has least to do."""
    relation, sizes = [], []
    for group in pairs.groups:
        relation += range(pairs.table.count)[group.relations]
        sizes += [group.pairs] * group.size
    parts: list[list[int]] = [[] for _ in range(threads)]
    loads = [(0, t) for t in range(threads)]
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        load, t = loads[0]
        parts[t].append(k)
        heapq.heapreplace(loads, (load + sizes[k], t))
    tokens = [torch.cat([getattr(group, side) for group in pairs.groups]) for side in ("queries", "keys")]
    starts, ends = (torch.tensor([0, *counts]).cumsum(0) for counts in (sizes, map(len, parts)))
    order = torch.tensor([k for part in parts for k in part])
    return [a.to(torch.int32) for a in (torch.tensor(relation), starts, *tokens, order, ends)]
