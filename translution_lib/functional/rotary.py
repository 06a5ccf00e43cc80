"""Rotations of queries and keys: pairs of channels turn with the position (RoPE).

Row vectors multiply from the left, so a pair (u, v) turns by φ to (u, v) R(φ) = (u cos φ − v sin φ, u sin φ + v cos φ).
Source: Su et al. (2024); the Translution paper, appendix E.6; chapter "Rotations".
"""

from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.checks import check_choice

LAYOUTS = ("interleaved", "half")


def frequencies(head_dim: int, axes: int = 1, base: float = 10000.0) -> Float[Tensor, "a p"]:
    """Return the angles θ per unit of position, one row per axis and one column per pair of channels, in float64.

    The p = head_dim / 2 pairs are dealt out to the axes in consecutive blocks, the first axes take what is left over.
    Pair m of an axis with n pairs has θ = base^(−m/n); in one dimension that is base^(−2m/head_dim).
    Elsewhere the row is zero: an axial pair turns with one coordinate only.

    Raises:
        ValueError: an odd head_dim, fewer pairs than axes, a base that is not above zero.

    Label: eq-rotations-frequencies, eq-rotations-axial, thm-rotations-blind, thm-language-angles.
    """
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be an even integer ≥ 2: channels turn in pairs, got {head_dim!r}")
    if isinstance(axes, bool) or not isinstance(axes, int) or not 1 <= axes <= head_dim // 2:
        raise ValueError(f"axes must be from 1 to head_dim / 2 = {head_dim // 2}, a pair for each, got {axes!r}")
    if isinstance(base, bool) or not isinstance(base, Real) or not base > 0:
        raise ValueError(f"base must be a number above zero, got {base!r}")
    whole, rest = divmod(head_dim // 2, axes)
    blocks = []
    for axis in range(axes):
        n = whole + (axis < rest)
        blocks.append(float(base) ** (-torch.arange(n, dtype=torch.float64, device="cpu") / n))
    return torch.block_diag(*blocks)


def rotate(x: Float[Tensor, "*b n d"], positions: Tensor, angles: Float[Tensor, "*h a p"],
           layout: str = "interleaved") -> Float[Tensor, "*b n d"]:
    """Turn the channels of every token by its position: x_i R(p_i).

    Args:
        x: queries or keys.
        positions: p, one row per token, shape (n, a), integers or not.
        angles: θ per axis and pair, as :func:`frequencies` gives them, or one such table per head before ``n``.
        layout: which channels form pair m: "interleaved" (2m, 2m + 1) or "half" (m, m + d/2).

    Raises:
        ValueError: an odd d, shapes that do not fit, an unknown layout.

    Label: eq-rotations-rope, thm-rotations-decay.
    """
    if positions.ndim != 2 or positions.shape != (x.shape[-2], angles.shape[-2]):
        raise ValueError(f"positions must have the shape (tokens, axes) = {(x.shape[-2], angles.shape[-2])}, "
                         f"got {tuple(positions.shape)}")
    phase = phases(positions, angles)
    return turn(x, phase.cos(), phase.sin(), layout)


def rotation(offset: Tensor, angles: Float[Tensor, "*h a p"], layout: str = "interleaved") -> Tensor:
    """Return the matrices R(δ) that act on row vectors, one per row of ``offset``: shape ``(*h, m, d, d)``.

    Label: eq-rotations-plane, eq-rotations-cosines, eq-rotations-mean, thm-rotations-sign.
    """
    phase = phases(offset, angles)[..., None, :]
    eye = torch.eye(2 * angles.shape[-1], dtype=phase.dtype, device=phase.device)
    return turn(eye.expand(*phase.shape[:-2], -1, -1), phase.cos(), phase.sin(), layout)


def phases(positions: Tensor, angles: Float[Tensor, "*h a p"]) -> Float[Tensor, "*h n p"]:
    """Return the angle of every token and pair, φ = p θ; in float32 or better."""
    exact = torch.promote_types(angles.dtype, torch.float32)
    return positions.to(angles.device, exact) @ angles.to(exact)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "interleaved") -> Tensor:
    """Turn every pair of channels of x (…, d) by the angle with this cosine and sine (…, d/2); the type of x stays."""
    check_choice("layout", layout, LAYOUTS)
    if x.shape[-1] != 2 * cos.shape[-1]:
        raise ValueError(f"x must have {2 * cos.shape[-1]} channels, two per angle, got {x.shape[-1]}")
    cos, sin = cos.to(x), sin.to(x)
    u, v = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, dim=-1)
    pair = (u * cos - v * sin, u * sin + v * cos)
    return torch.stack(pair, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(pair, dim=-1)


def half_order(head_dim: int) -> Tensor:
    """Return the permutation π with x_half = x_interleaved[…, π]: first the even channels, then the odd ones.

    Label: eq-rotations-half.
    """
    return torch.cat([torch.arange(start, head_dim, 2, device="cpu") for start in (0, 1)])
