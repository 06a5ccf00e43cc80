"""Attention by distance in linear time: sums over all keys where a pair's kernel value is that of a clipped distance.

The query has one kernel value ρ_r per distance r = 0 … k, and all keys at distance k or more share ρ_k. Numerator Σ_j
ρ_ij v_j and denominator Σ_j ρ_ij are returned as a pair. Each function comes as its definition, which holds one number
per pair, and in a fast form equal to it. Source: Horn et al. (2021), strategy 2, whose printed formula is the numerator
of ``window_sum``; chapter "Relative Performers".
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from translution_lib.functional.ball_sums import Balls, Line, weighted_sums

CORNERS = ("left", "right")
Sums = tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n"]]


def window_sum_definition(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], shape: tuple[int, ...], *,
                          cls: bool = False) -> Sums:
    """Σ_j ρ_ij v_j and Σ_j ρ_ij with ρ_ij = ρ_i,min(‖p_i − p_j‖₁, k), literally: one number per pair.

    Args:
        rho: kernel values of every query with the distances 0 … k; with ``cls`` one more column, last, for the pairs
            with CLS.
        v: values.
        shape: sides of the grid of the tokens, any number of dimensions.
        cls: token 0 is a CLS token without a position.

    Raises:
        ValueError: tokens that do not fill the grid, or no column.
    """
    _check(rho, v, prod(shape) + cls, 1 + cls)
    per_pair = kernel_per_pair(rho, window_columns(tuple(shape), rho.shape[-1] - 1 - cls, cls))
    return per_pair @ v, per_pair.sum(-1)


def window_sum(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], shape: tuple[int, ...], *,
               cls: bool = False) -> Sums:
    """Equal to :func:`window_sum_definition` by sums over balls; same arguments.

    O(k) additions per token and channel on a line and on a plane (k² on a grid of three axes), memory O(n e). It
    subtracts kernel values from each other: its error is that of the largest ρ_r of a query, read or not.

    Label: eq-relative-performers-balls, thm-relative-performers-recursion.
    """
    _check(rho, v, prod(shape) + cls, 1 + cls)
    return _around_cls(lambda r, u: _ball_form(r, u, tuple(shape)), rho, v, cls)


def window_sum_unfold(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], shape: tuple[int, ...], *,
                      cls: bool = False) -> Sums:
    """Equal to :func:`window_sum_definition` as Horn et al. (2021) writes it: the far value for all keys, mended in the
    window.

    The windows are squares of side 2k − 1, copied out for every query: for comparison.

    Label: eq-relative-performers-window, thm-relative-performers-window.
    """
    _check(rho, v, prod(shape) + cls, 1 + cls)
    return _around_cls(lambda r, u: _unfold_form(r, u, tuple(shape)), rho, v, cls)


def line_sum_definition(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], *, causal: bool = False,
                        cls: bool = False) -> Sums:
    """Σ_j ρ_ij v_j and Σ_j ρ_ij on a line, ρ_ij = ρ_i,clip(i − j, −k, k) with the sign of the offset, literally.

    Args:
        rho: kernel values of every query with δ = −k … k, query minus key; with ``causal`` δ = 0 … k, and keys after
            the query are left out; with ``cls`` one more column, last, for the pairs with CLS.
        v: values.
        causal: a query reads no later token.
        cls: token 0 is a CLS token without a position.

    Raises:
        ValueError: numbers of tokens or of columns that do not fit.
    """
    k = _reach(rho, v, causal, cls)
    per_pair = kernel_per_pair(rho, line_columns(v.shape[2] - cls, k, causal, cls))
    return per_pair @ v, per_pair.sum(-1)


def line_sum(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], *, causal: bool = False,
             cls: bool = False) -> Sums:
    """Equal to :func:`line_sum_definition` by shifted sums and two running sums; O(k) per token, memory O(n e).

    Label: eq-relative-performers-line, thm-relative-performers-line.
    """
    k = _reach(rho, v, causal, cls)
    return _around_cls(lambda r, u: _line_form(r, u, k, causal), rho, v, cls)


def window_columns(shape: tuple[int, ...], k: int, cls: bool = False) -> Int[Tensor, "n n"]:
    """Return the column of ρ that each pair reads: min(‖p_i − p_j‖₁, k), and k + 1 for the pairs with CLS."""
    p = _positions(shape)
    distance = (p[:, None] - p[None]).abs().sum(-1).clamp(max=k)
    return F.pad(distance, (1, 0, 1, 0), value=k + 1) if cls else distance


def corner_columns(shape: tuple[int, ...], k: int, corner: str) -> Int[Tensor, "n n"]:
    """Return the column of ρ that each pair reads where token 0, CLS, stands below a lower corner of a plane grid.

    CLS reads a token at distance r by the column min(r, k). Every token, and CLS itself, reads CLS as a far one.

    Label: eq-performers-corner.
    """
    place = torch.tensor([shape[0], 0 if corner == "left" else shape[1] - 1], device="cpu")
    columns = F.pad(window_columns(shape, k), (1, 0, 1, 0), value=k)
    columns[0, 1:] = (_positions(shape) - place).abs().sum(-1).clamp(max=k)
    return columns


def corner_sum(rho: Float[Tensor, "b h n r"], v: Float[Tensor, "b h n e"], shape: tuple[int, ...],
               corner: str) -> Sums:
    """Σ_j ρ_ij v_j and Σ_j ρ_ij by the columns of :func:`corner_columns`, in linear time; token 0 is CLS.

    Raises:
        ValueError: tokens that do not fill the grid, or no column.
    """
    _check(rho, v, prod(shape) + 1, 1)
    numerator, denominator = window_sum(rho[:, :, 1:], v[:, :, 1:], shape)
    far = rho[:, :, 1:, -1]
    reads = corner_columns(shape, rho.shape[-1] - 1, corner)[0].to(rho.device)
    own = rho[:, :, 0][..., reads]                                                   # b h n: what CLS reads
    return (torch.cat([(own[..., None] * v).sum(2, keepdim=True), numerator + far[..., None] * v[:, :, :1]], 2),
            torch.cat([own.sum(-1, keepdim=True), denominator + far], 2))


def line_columns(n: int, k: int, causal: bool = False, cls: bool = False) -> Int[Tensor, "n n"]:
    """Return the column of ρ that each pair reads: clip(i − j, −k, k) + k, and 2k + 1 for the pairs with CLS.

    With ``causal`` it is min(i − j, k), and −1 for a key after the query.
    """
    i = torch.arange(n, device="cpu")
    delta = i[:, None] - i
    if causal:
        return delta.clamp(-1, k)
    column = delta.clamp(-k, k) + k
    return F.pad(column, (1, 0, 1, 0), value=2 * k + 1) if cls else column


def kernel_per_pair(rho: Float[Tensor, "b h i r"], columns: Int[Tensor, "i n"]) -> Float[Tensor, "b h i n"]:
    """Gather ρ_ij from the kernel values of the queries; zero where the column is −1."""
    index = columns.to(rho.device).expand(*rho.shape[:2], -1, -1)
    return rho.gather(-1, index.clamp(min=0)).masked_fill(index < 0, 0)


def _ball_form(rho: Tensor, v: Tensor, shape: tuple[int, ...]) -> Sums:
    """ρ_k Σ_j v_j + Σ_{r<k} (ρ_r − ρ_{r+2}) E_r v, with ρ_{k+1} = ρ_k; the denominator likewise, with v = 1."""
    reach = min(rho.shape[-1] - 1, sum(side - 1 for side in shape))
    rho, v = _in_single_precision(rho[..., :reach + 1], v)
    gamma = rho[..., :reach] - torch.cat([rho[..., 2:], rho[..., -1:]], -1)[..., :reach]
    near = weighted_sums(gamma.transpose(1, 2), v.transpose(1, 2), Balls(shape, reach)).transpose(1, 2)
    numbers = _ball_sizes(shape, reach).to(rho)                                      # n k
    far = rho[..., -1]
    return (torch.addcmul(near, far[..., None], v.sum(2, keepdim=True)),
            far * v.shape[2] + torch.einsum("bhnr,nr->bhn", gamma, numbers))


def _line_form(rho: Tensor, v: Tensor, k: int, causal: bool) -> Sums:
    rho, v = _in_single_precision(rho, v)
    family = Line(v.shape[2], k, causal)
    numbers = _line_sizes(v.shape[2], k, causal).to(rho)                             # n r
    return (weighted_sums(rho.transpose(1, 2), v.transpose(1, 2), family).transpose(1, 2),
            torch.einsum("bhnr,nr->bhn", rho, numbers))


def _unfold_form(rho: Tensor, v: Tensor, shape: tuple[int, ...]) -> Sums:
    k = rho.shape[-1] - 1
    far, side = rho[..., -1], max(2 * k - 1, 0)
    steps = _positions((side,) * len(shape)) - (k - 1)
    inside = F.pad(rho[..., :-1] - far[..., None], (0, 1))                           # b h n k+1, the last is zero
    factors = inside[..., steps.abs().sum(-1).clamp(max=k).to(rho.device)]           # b h n windows
    windows, ones = (_windows(t, shape, k) for t in (v, torch.ones_like(v[:1, :1, :, :1])))
    return (far[..., None] * v.sum(2, keepdim=True) + torch.einsum("bhnw,bhnew->bhne", factors, windows),
            far * v.shape[2] + torch.einsum("bhnw,zynxw->bhn", factors, ones))


def _windows(v: Tensor, shape: tuple[int, ...], k: int) -> Tensor:
    """Copy the square of side 2k − 1 around every token, b h n e windows; zero outside the grid."""
    grid = F.pad(v.unflatten(2, shape).movedim(-1, 2), (k - 1, k - 1) * len(shape))  # b h e *shape
    for axis in range(len(shape)):
        grid = grid.unfold(3 + axis, 2 * k - 1, 1)
    return grid.flatten(3 + len(shape)).flatten(3, 2 + len(shape)).movedim(2, 3).contiguous()


def _around_cls(sums: Callable[[Tensor, Tensor], Sums], rho: Tensor, v: Tensor, cls: bool) -> Sums:
    """Add token 0: it is read, and reads, with the kernel value of the last column."""
    if not cls:
        return sums(rho, v)
    far = rho[..., -1:]                                                              # b h n 1
    numerator, denominator = sums(rho[:, :, 1:, :-1], v[:, :, 1:])
    own = far[:, :, :1]
    return (torch.cat([own * v.sum(2, keepdim=True), numerator + far[:, :, 1:] * v[:, :, :1]], 2),
            torch.cat([own[..., 0] * v.shape[2], denominator + far[:, :, 1:, 0]], 2))


def _in_single_precision(rho: Tensor, v: Tensor) -> list[Tensor]:
    """Half precision loses the small differences of large sums: compute in float32 or better."""
    dtype = torch.promote_types(torch.promote_types(rho.dtype, v.dtype), torch.float32)
    return [rho.to(dtype), v.to(dtype)]


@lru_cache(maxsize=64)
def _ball_sizes(shape: tuple[int, ...], k: int) -> Float[Tensor, "n r"]:
    """Return E_r 1 for r < k: how many tokens every query sees at the distances r, r − 2, …"""
    return _sizes(prod(shape), Balls(shape, k), k)


@lru_cache(maxsize=64)
def _line_sizes(n: int, k: int, causal: bool) -> Float[Tensor, "n r"]:
    """Return how many keys every query has at each clipped offset."""
    return _sizes(n, Line(n, k, causal), k + 1 if causal else 2 * k + 1)


@torch.inference_mode(False)
def _sizes(n: int, family: Balls | Line, count: int) -> Tensor:
    ones = torch.ones(1, n, 1, 1, dtype=torch.float64, device="cpu")
    picks = torch.eye(count, dtype=torch.float64, device="cpu")
    columns = [weighted_sums(pick.expand(1, n, 1, -1), ones, family) for pick in picks]
    return torch.cat(columns, -1)[0, :, 0] if columns else ones[0, :, 0, :0]


def _positions(shape: tuple[int, ...]) -> Int[Tensor, "n a"]:
    return torch.cartesian_prod(*(torch.arange(side, device="cpu") for side in shape)).view(-1, len(shape))


def _reach(rho: Tensor, v: Tensor, causal: bool, cls: bool) -> int:
    columns = rho.shape[-1] - cls
    k = columns - 1 if causal else columns // 2
    if causal and cls:
        raise ValueError("causal must be False with cls=True: a CLS token that reads the whole text sees the future")
    if k < 1 or not (causal or columns % 2):
        expected = "k + 1 ≥ 2" if causal else "2k + 1 ≥ 3"
        raise ValueError(f"rho must have {expected} columns for the offsets, got {columns}")
    _check(rho, v, v.shape[2], 1)
    return k


def _check(rho: Tensor, v: Tensor, n: int, columns: int) -> None:
    if rho.shape[:3] != v.shape[:3] or v.shape[2] != n:
        raise ValueError(f"rho and v must have the same batch and heads and {n} tokens, "
                         f"got {tuple(rho.shape)} and {tuple(v.shape)}")
    if rho.shape[-1] < columns:
        raise ValueError(f"rho must have at least {columns} columns, got {rho.shape[-1]}")
