"""Convolution on tokens: a sum over kernel taps, on a grid of any number of dimensions, with zero padding.

A tap κ reads the token at p + κ. In the convention of the book, δ = query minus key, it sits at δ = −κ.
Source: the Translution paper, section 3.1; chapter "Convolution".
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.checks import check_tokens
from translution_lib.relations import Relations

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def taps(size: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (index, κ) for every tap of a kernel; an even side has its extra tap on the positive side, as in torch.

    Label: eq-conv-taps.
    """
    for index in product(*(range(k) for k in size)):
        yield index, tuple(i - (k - 1) // 2 for i, k in zip(index, size, strict=True))


def convolution_definition(x: Float[Tensor, "b n c"], kernel: Tensor, shape: Sequence[int]) -> Float[Tensor, "b n e"]:
    """Convolution, literally: f'_p = Σ_κ f_{p+κ} K[κ], tokens outside the grid count as zero.

    Args:
        x: features of the tokens of a grid, in row-major order.
        kernel: the matrices K, shape (k_1, …, k_d, c, e).
        shape: sides of the grid; their product is n.

    Raises:
        ValueError: a grid that does not hold n tokens, or a kernel of another dimension or channel number.

    Label: eq-conv-sum.
    """
    _check(x, kernel, shape)
    grid = x.unflatten(1, tuple(shape))
    out = grid.new_zeros(*grid.shape[:-1], kernel.shape[-1])
    for index, tap in taps(kernel.shape[:-2]):
        here, there = _overlap(shape, tap)
        out[(slice(None), *here)] += grid[(slice(None), *there)] @ kernel[index]
    return out.flatten(1, -2)


def convolution(x: Float[Tensor, "b n c"], kernel: Tensor, shape: Sequence[int]) -> Float[Tensor, "b n e"]:
    """Convolution through torch's kernels, one to three dimensions; equal to :func:`convolution_definition`.

    Label: eq-rel-linear, thm-conv-equivariance, thm-conv-depth.
    """
    _check(x, kernel, shape)
    if len(shape) not in CONV:
        return convolution_definition(x, kernel, shape)
    image, size = x.unflatten(1, tuple(shape)).movedim(-1, 1), kernel.shape[:-2]
    if any(k % 2 == 0 for k in size):          # torch would pad a copy too, and warn
        image = F.pad(image, [side for k in reversed(size) for side in ((k - 1) // 2, k // 2)])
        padding = [0] * len(size)
    else:
        padding = [k // 2 for k in size]
    out = CONV[len(shape)](image, kernel.movedim((-1, -2), (0, 1)), padding=padding)
    return out.movedim(1, -1).flatten(1, -2)


def relation_kernel(kernel: Tensor, relations: Relations) -> Float[Tensor, "r c e"]:
    """Return one matrix per relation: K[−δ] where the tap κ = −δ is on the kernel, zero elsewhere.

    Args:
        kernel: the matrices K, shape (k_1, …, k_d, c, e).
        relations: a table of offsets; its relations without an offset (those of a CLS token) get zero.

    Raises:
        ValueError: a kernel whose dimension is not that of the table's grid.

    Label: eq-notation-tap, eq-conv-pairs, thm-conv-blocks, eq-contains-weights, thm-contains-convolution.
    """
    dims = None if relations.shape is None else len(relations.shape)
    if kernel.ndim - 2 != dims:
        raise ValueError(f"kernel must have {dims} sides and two channel axes, got {tuple(kernel.shape)}")
    out = kernel.new_zeros(relations.count, *kernel.shape[-2:])
    for index, tap in taps(kernel.shape[:-2]):
        offset = tuple(-k for k in tap)
        if offset in relations.labels:
            out[relations.id_of(offset)] = kernel[index]
    return out


def _overlap(shape: Sequence[int], tap: Sequence[int]) -> tuple[list, list]:
    """Return the slices of the tokens p with p + κ in the grid, and of the tokens p + κ."""
    here = [slice(max(0, -k), max(0, min(size, size - k))) for size, k in zip(shape, tap, strict=True)]
    there = [slice(s.start + k, max(s.start + k, s.stop + k)) for s, k in zip(here, tap, strict=True)]
    empty = any(s.stop <= s.start for s in here)
    return ([slice(0, 0)] * len(here),) * 2 if empty else (here, there)


def _check(x: Tensor, kernel: Tensor, shape: Sequence[int]) -> None:
    check_tokens(x)
    if math.prod(shape) != x.shape[1]:
        raise ValueError(f"shape must hold the {x.shape[1]} tokens of x, got {tuple(shape)} with {math.prod(shape)}")
    if kernel.ndim != len(shape) + 2 or kernel.shape[-2] != x.shape[2]:
        expected = f"({', '.join(f'k{a + 1}' for a in range(len(shape)))}, {x.shape[2]}, any)"
        raise ValueError(f"kernel must have the shape {expected}, got {tuple(kernel.shape)}")


__all__ = ["convolution", "convolution_definition", "relation_kernel", "taps"]
