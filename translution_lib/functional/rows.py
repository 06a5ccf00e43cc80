"""Pieces of the grouped products: what is done to the rows of a group, and what autograd needs around it."""

import torch
from torch import Tensor

from translution_lib.functional.checks import HALF_TYPES


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over relations accumulate."""
    return torch.float32 if dtype in HALF_TYPES else dtype


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


def looped(cls, info, in_dims, *args):
    """Run a function once per element of the mapped dimension; a custom function sees no batched tensor."""
    def element(k: int):
        return [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
    results = [cls.apply(*element(k)) for k in range(info.batch_size)]
    columns = list(zip(*results, strict=True))
    outputs = tuple(None if c[0] is None else torch.stack(c) for c in columns)
    return outputs, tuple(None if o is None else 0 for o in outputs)


def again(plain, ctx, grads, *fixed) -> list:
    """Differentiate the gradients of a plain form: second derivatives, from which higher ones follow."""
    grad, *inputs = ctx.saved_tensors
    present = [k for k, x in enumerate(inputs) if x is not None]

    def gradients(grad, *given):
        def of(*given):
            full = list(inputs)
            for k, x in zip(present, given, strict=True):
                full[k] = x
            return plain(*full, *fixed)
        return torch.func.vjp(of, *given)[1](grad)

    values = [inputs[k] for k in present]
    found = torch.func.vjp(gradients, grad, *values)[1](tuple(grads[k] for k in present))
    out = [None] * len(inputs)
    for k, g in zip(present, found[1:], strict=True):
        out[k] = g
    return [found[0], *out]


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
