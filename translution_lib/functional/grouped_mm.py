"""The grouped product by ``torch.nn.functional.grouped_mm``: one call for the products of all relations of a chunk.

It serves bfloat16 where torch has a kernel that does not ask the host for the sizes, cards of compute capability 9 and
10, and the CPU for tests. The kernel reads rows of whole 16 bytes, so channels are multiples of 8; every group has a
multiple of 16 rows and none is empty, since both have given wrong gradients or hung. The gradients of the matrices are
explicit products and not autograd's. Chapter "Making it fit".
"""

from math import gcd

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from translution_lib.functional.checks import alike
from translution_lib.functional.layout import Chunk
from translution_lib.functional.stacked import Stacked

ROWS = 16
"""The rows of every group are a multiple of it."""
CHANNELS = 8
"""The channels of every operand are: 16 bytes of bfloat16."""


def takes(*tensors: Tensor | None) -> bool:
    """Whether this form can serve these operands: bfloat16, on the CPU or a card with the kernel, channels that fit."""
    if not alike(tensors, (torch.bfloat16,), ("cpu", "cuda")):
        return False
    rows = [t for t in tensors if t is not None and t.ndim == 3]
    return all(map(_fits, rows)) and (not rows[0].is_cuda or _on_card(rows[0]))


def _fits(t: Tensor) -> bool:
    return t.shape[-1] % CHANNELS == 0 and t.data_ptr() % (CHANNELS * t.element_size()) == 0


def _on_card(x: Tensor) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(x.device)[0] in (9, 10)


def _product(chunk: Chunk, x: Tensor, m: Tensor) -> Tensor:
    return grouped_mm(x.flatten(0, 1), m, offs=_ends(chunk, x)).view(*x.shape[:2], m.shape[-1])


def _outer(chunk: Chunk, x: Tensor, y: Tensor) -> Tensor:
    return grouped_mm(x.flatten(0, 1).mT, y.flatten(0, 1), offs=_ends(chunk, x))


def _ends(chunk: Chunk, x: Tensor) -> Tensor:
    return chunk.ends * x.shape[1]


_form = Stacked(_product, _outer, step=lambda batch: ROWS // gcd(ROWS, batch), uniform=False)
scores, scores_backward = _form.scores, _form.scores_backward
values, values_backward = _form.values, _form.values_backward
