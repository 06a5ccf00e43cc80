"""The grouped products as operators of torch, which a compiler takes as they are and does not look into.

Outside a compiled graph nothing passes here. A table of relations goes by its number. Source: chapter "Making it fit".
"""

from collections.abc import Callable

import torch
from torch import Tensor

from translution_lib.relations import TABLES, Relations

Product = Callable[..., Tensor]


def operator(name: str, product: Product, slopes: Callable[..., tuple],
             shape: Callable[..., tuple[int, ...]]) -> Product:
    """Return an operator that computes product(a, b, v, w, relations, heads) and its gradients.

    Args:
        name: of the operator.
        product: two tensors, two weights or None, a table and an integer -> a tensor.
        slopes: its gradients, from that of the result and the same arguments; None for a weight that is None.
        shape: the shape of the result, from the same arguments.
    """
    def run(a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, table: int, heads: int) -> Tensor:
        return product(a, b, v, w, TABLES[table], heads).contiguous()

    def back(g: Tensor, a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, table: int,
             heads: int) -> list[Tensor]:
        return [t.contiguous() for t in slopes(g, a, b, v, w, TABLES[table], heads) if t is not None]

    forward = torch.library.custom_op(f"translution_lib::{name}", run, mutates_args=())
    backward = torch.library.custom_op(f"translution_lib::{name}_gradients", back, mutates_args=())

    def fake(a, b, v, w, table, heads):
        return a.new_empty(shape(a, b, v, w, TABLES[table], heads))

    def fake_back(g, a, b, v, w, table, heads):
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (a, b, v, w) if t is not None]

    def keep(ctx, inputs, output):
        ctx.table, ctx.heads = inputs[4:]
        ctx.save_for_backward(*inputs[:4])

    def gradients(ctx, g):
        saved = ctx.saved_tensors
        found = iter(backward(g, *saved, ctx.table, ctx.heads))
        return (*(None if t is None else next(found) for t in saved), None, None)

    forward.register_fake(fake)
    backward.register_fake(fake_back)
    forward.register_autograd(gradients, setup_context=keep)

    def call(a: Tensor, b: Tensor, v: Tensor | None, w: Tensor | None, relations: Relations, heads: int) -> Tensor:
        return forward(a, b, v, w, relations.number, heads)

    return call
