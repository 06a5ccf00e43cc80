"""Pieces of the grouped products: what is done to the rows of a group, and what autograd needs around it."""

import torch
from torch import Tensor

from translution_lib.functional.checks import HALF_TYPES
from translution_lib.functional.groups import Group


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums over relations accumulate."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def dot(a: Tensor, b: Tensor, heads: int) -> Tensor:
    """Return the inner product of two rows per head, (g m e), (g m e) -> (g m h)."""
    return (a * b).unflatten(-1, (heads, -1)).sum(-1)


def per_head(g: Tensor, rows: Tensor) -> Tensor:
    """Multiply the channels of every head of rows (g m e) by that head's factor (g m h)."""
    return (rows.unflatten(-1, (g.shape[-1], -1)) * g.unsqueeze(-1)).flatten(-2)


def product(rows: Tensor, w: Tensor | None, group: Group, out: Tensor | None = None) -> Tensor:
    """Return rows times the group's matrices, g m e, in `out` if that is given; no weight means the identity."""
    return rows if w is None else torch.bmm(rows, group.weight(w), out=out)


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


def through_side(dw: Tensor | None, w: Tensor | None, group: Group, rows: Tensor, dy: Tensor) -> Tensor:
    """Return the gradient of the rows where y = rows W, and write that of W; no weight means the identity."""
    if w is None or dw is None:
        return dy
    torch.bmm(rows.mT, dy, out=group.weight(dw))
    return torch.bmm(dy, group.weight(w).mT)


def scatter(dx: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add rows (g m c) to the tokens of dx (n b c) that they belong to."""
    dx.index_add_(0, tokens, rows.view(-1, *dx.shape[1:]).to(dx.dtype))
