"""The fused operator: scores, values and gradients by Triton kernels that store no projected pair.

It serves CUDA tensors in float32, float16 and bfloat16 where Triton is installed. Its kernels are tested in Triton's
interpreter. On an H100, in bfloat16, they gave the numbers of torch's loop up to rounding; they were not yet timed
alone. On a card "auto" takes them where they agree with the definition there and are the fastest form (module
``choice``); ``backend("triton")`` asks for them. Tensors of a processor need Triton's interpreter, which is slow and
for tests: ``TRITON_INTERPRET=1`` before the first import. Sums accumulate in float32, and equal inputs give equal bits.
Chapter "Making it fit".
"""

from functools import cache
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.backends.grouped import Pairs, alike
from translution_lib.backends.schedule import Schedule, schedule
from translution_lib.relations import Relations

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def require() -> None:
    """Refuse a machine that cannot run the kernels.

    Raises:
        RuntimeError: Triton is not installed, or there is neither a GPU nor the interpreter.
    """
    if not (_interpreted() or (_on_cards() and torch.cuda.is_available())):
        raise RuntimeError('backend("triton") needs Triton and an NVIDIA GPU, or TRITON_INTERPRET=1 set before the '
                           "first import")


def takes(*tensors: Tensor | None) -> bool:
    """Whether the fused form can serve these operands: one supported type, on one device that runs the kernels."""
    return alike(tensors, TYPES, (*["cuda"] * _on_cards(), *["cpu"] * _interpreted()))


@cache
def _kernels() -> ModuleType | None:
    try:
        from translution_lib.backends import fused_kernels
    except ImportError:
        return None
    return fused_kernels


def _on_cards() -> bool:
    return torch.version.hip is None and _kernels() is not None


def _interpreted() -> bool:
    kernels = _kernels()
    return kernels is not None and kernels.INTERPRETED


def scores(s: Float[Tensor, "n b c1"], t: Float[Tensor, "n b c2"], w_q: Tensor | None, w_k: Tensor | None,
           pairs: Pairs, heads: int, keep: bool = False) -> tuple:
    """Return q_ij · k_ji per head, b h n n, zero where masked; nothing is kept, since nothing is stored.

    Label: eq-fit-fused.
    """
    s, t, w_q, w_k = _contiguous(s, t, w_q, w_k)
    return (_scores(s, t, w_q, w_k, pairs.table, heads),)


def scores_backward(grad: Float[Tensor, "b h n n"], s: Float[Tensor, "n b c1"], t: Float[Tensor, "n b c2"],
                    w_q: Tensor | None, w_k: Tensor | None, pairs: Pairs, heads: int, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`scores` by s, t, w_q and w_k."""
    table, (grad, s, t, w_q, w_k) = pairs.table, _contiguous(grad, s, t, w_q, w_k)
    ds, dt = _token_grad("query", grad, t, w_k, w_q, table), _token_grad("key", grad, s, w_q, w_k, table)
    dw_q = None if w_q is None else _weight_grad("query", grad, s, t, w_k, w_q, table)
    dw_k = None if w_k is None else _weight_grad("key", grad, t, s, w_q, w_k, table)
    return ds, dt, dw_q, dw_k


def values(alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "n b c"], w: Float[Tensor, "r c e"], pairs: Pairs,
           keep: bool = False) -> tuple:
    """Return Σ_j α_ij x_j W[r], the weights α per head: the gradient of scores by a side without a weight."""
    alpha, x, w = _contiguous(alpha, x, w)
    return (_token_grad("query", alpha, x, w, None, pairs.table),)


def values_backward(grad: Float[Tensor, "n b e"], alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "n b c"],
                    w: Float[Tensor, "r c e"], pairs: Pairs, *kept: Tensor) -> tuple:
    """Return the gradients of :func:`values` by α, x and w."""
    table, (grad, alpha, x, w) = pairs.table, _contiguous(grad, alpha, x, w)
    d_alpha = _scores(grad, x, None, w, table, alpha.shape[1])
    dx = _token_grad("key", alpha, grad, None, w, table)
    return d_alpha, dx, _weight_grad("key", alpha, x, grad, None, w, table)


def _scores(s: Tensor, t: Tensor, w_q: Tensor | None, w_k: Tensor | None, relations: Relations, heads: int) -> Tensor:
    n, b, width = *s.shape[:2], _width(s, w_q)
    out = (s.new_empty if relations.complete else s.new_zeros)(b, heads, n, n)
    rows = _rows(s)
    batch = _batch(relations, b, rows)
    plan = schedule(relations, "relation", rows // batch, s.device)
    blocks = -(-b // batch)
    _launch("scores_kernel", (len(plan.relation) * blocks * heads,), out, s, t, w_q, w_k, *plan.tables, b, n, blocks,
            C_Q=s.shape[-1], C_K=t.shape[-1],
            **_shape(max(s.shape[-1], t.shape[-1]), width, heads, rows, batch, s))
    return out


def _token_grad(owner: str, g: Tensor, x: Tensor, w: Tensor | None, w_own: Tensor | None,
                relations: Relations) -> Tensor:
    """Return the gradient by the tokens of one side, from numbers g per pair and the other side x with its weight w."""
    n, b, c, width, heads = *x.shape, _width(x, w), g.shape[1]
    d, own = width // heads, width if w_own is None else w_own.shape[1]
    block = _columns(d) if w_own is None else _owned_columns(own, w is not None, x)
    columns = heads * -(-d // block) if w_own is None else -(-own // block)
    rows = _owned_rows(n, b, columns, x)
    batch = min(rows, _power(b))
    plan, blocks = schedule(relations, owner, rows // batch, x.device), -(-b // batch)
    out = x.new_empty(n, b, own)
    shape = {"C": c, "BY_QUERY": owner == "query", **_shape(c, width, heads, rows, batch, x)}
    grid, tables = (len(plan.order) * blocks, columns), (*_owned(plan), b, n, blocks)
    if w_own is None:
        _launch("sums_kernel", grid, out, g, x, w, *tables, **shape)
    else:
        _launch("rows_kernel", grid, out, g, x, w, w_own, *tables, C_OWN=own, BC=block, **shape)
    return out


def _weight_grad(owner: str, g: Tensor, own: Tensor, x: Tensor, w: Tensor | None, w_own: Tensor,
                 relations: Relations) -> Tensor:
    """Return the gradient by the weight of the side ``own``; arguments otherwise as in :func:`_token_grad`."""
    n, b, c, (r, c_own, width), heads = *x.shape, w_own.shape, g.shape[1]
    rows = _rows(x)
    batch = _batch(relations, b, rows)
    plan, blocks = schedule(relations, "relation", rows // batch, x.device), -(-b // batch)
    block = _owned_columns(c_own, w is not None, x)
    grid = (r, heads * -(-(width // heads) // _columns(width // heads)), -(-c_own // block))
    splits = _splits(grid[0] * grid[1] * grid[2], len(plan.relation) * blocks, x)
    out = x.new_empty((splits, r, c_own, width), dtype=torch.float32 if splits > 1 else x.dtype)
    _launch("weights_kernel", (r * splits, *grid[1:]), out, g, own, x, w, *_owned(plan), b, n, blocks, r, splits, C=c,
            C_OWN=c_own, BY_QUERY=owner == "query", BC=block, **_shape(c, width, heads, rows, batch, x))
    return out[0] if splits == 1 else out.sum(0).to(x.dtype)


def _launch(name: str, grid: tuple, *args, **constants) -> None:
    if all(grid):
        with torch.cuda.device_of(args[0]):
            getattr(_kernels(), name)[grid](*args, **constants)


def _owned(plan: Schedule) -> tuple[Tensor, ...]:
    return *plan.tables, plan.first, plan.order


def _contiguous(*tensors: Tensor | None) -> list:
    return [t if t is None else t.contiguous() for t in tensors]


def _width(x: Tensor, w: Tensor | None) -> int:
    return x.shape[-1] if w is None else w.shape[-1]


def _shape(c: int, width: int, heads: int, rows: int, batch: int, x: Tensor) -> dict:
    """Return the constants that all kernels take: sizes, blocks and the precision of products."""
    exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return {"E": width, "D": width // heads, "H": heads, "BB": batch, "BM": rows, "BK": _depth(c, x),
            "BD": _columns(width // heads), "PRECISION": "ieee" if exact else "tf32", "UPCAST": _interpreted()}


# Blocks. A Hopper matrix instruction takes 64 rows and a multiple of 16 in depth, 128 bytes of shared memory is one
# swizzled line, and float32 accumulators of 128 × 256 are half the registers of a multiprocessor. The interpreter gets
# the smallest blocks that Triton allows, so that small shapes cross their edges.

def _power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _processors(x: Tensor) -> int:
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


def _rows(x: Tensor) -> int:
    """Rows of a tile of one relation."""
    return 16 if _interpreted() else 128 if x.element_size() == 2 else 64


def _batch(relations: Relations, b: int, rows: int) -> int:
    """Elements of the batch in a tile of one relation: those that leave the fewest rows of all tiles empty."""
    def tiles(batch: int) -> int:
        return int((-(-relations.sizes // (rows // batch))).sum()) * -(-b // batch)
    sizes = [rows >> k for k in range(rows.bit_length())]
    return relations._remember(("fused batch", b, rows), lambda: min(sizes, key=tiles))


def _owned_rows(n: int, b: int, columns: int, x: Tensor) -> int:
    """Rows of a tile that owns tokens: the most that still give every multiprocessor a program."""
    for rows in (_rows(x), 64, 32):
        batch = min(rows, _power(b))
        if -(-n // (rows // batch)) * -(-b // batch) * columns >= _processors(x):
            return min(rows, _rows(x))
    return 16


def _depth(c: int, x: Tensor) -> int:
    """Channels of the rows that one product takes."""
    return 16 if _interpreted() else min(128 // x.element_size(), max(16, _power(c)))


def _columns(d: int) -> int:
    """Columns of a head that one program projects at a time."""
    most = 16 if _interpreted() else 128 if d % 128 == 0 else 64
    return min(most, max(16, _power(d)))


def _owned_columns(c: int, projects: bool, x: Tensor) -> int:
    """Channels that a program owns: many where each further block of them projects the other side again."""
    wide = 256 if x.element_size() == 2 else 128
    most = 16 if _interpreted() else wide if projects else 128 if c % 128 == 0 else 64
    return min(most, max(16, _power(c)))


def _splits(programs: int, steps: int, x: Tensor) -> int:
    """Programs that share the steps of a relation, where a table has too few relations to fill the GPU."""
    return max(1, min(2 * _processors(x) // max(1, programs), steps, 16))
