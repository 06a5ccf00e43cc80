"""The grouped product by few batched products: relations of similar size share one, filled up with rows of zeros.

It serves any device and floating type, needs nothing but ``torch.bmm``, and its results are repeatable. Chapter "Making
it fit".
"""

import torch
from torch import Tensor

from translution_lib.functional.checks import HALF_TYPES, alike
from translution_lib.functional.layout import Chunk
from translution_lib.functional.stacked import Stacked

TYPES = (torch.float64, torch.float32, *HALF_TYPES)


def takes(*tensors: Tensor | None) -> bool:
    """Whether this form can serve these operands: of one floating type, on one processor or card, none empty."""
    return alike(tensors, TYPES, ("cpu", "cuda"))


def _product(chunk: Chunk, x: Tensor, m: Tensor) -> Tensor:
    out = x.new_empty(*x.shape[:2], m.shape[-1])
    for run in chunk.runs:
        torch.bmm(_rows(x, run), m[run.parts], out=_rows(out, run))
    return out


def _outer(chunk: Chunk, x: Tensor, y: Tensor) -> Tensor:
    out = x.new_empty(len(chunk.ends), x.shape[-1], y.shape[-1])
    for run in chunk.runs:
        torch.bmm(_rows(x, run).mT, _rows(y, run), out=out[run.parts])
    return out


def _rows(x: Tensor, run) -> Tensor:
    """The rows of the parts of a run, p m c."""
    return x[run.rows].view(run.size, -1, x.shape[-1])


_form = Stacked(_product, _outer, step=lambda batch: 1, uniform=True)
scores, scores_backward = _form.scores, _form.scores_backward
values, values_backward = _form.values, _form.values_backward
