"""Sinusoidal positional features, and the maps that keep their inner products relative.

A shift of all positions turns the features by a rotation; the matrices that commute with it are made of blocks
(c, s; −s, c), one per length scale. Source: Horn et al. (2021), Lemma 1 and strategy 1; chapter "Relative Performers".
"""

import torch
from jaxtyping import Float
from torch import Tensor


def positional_features(positions: Tensor, theta: Float[Tensor, "a l"]) -> Float[Tensor, "n p"]:
    """u(p) = [sin θ_al p_a, cos θ_al p_a] for every axis a and scale l, p = 2·a·l channels; in float32 or better.

    Args:
        positions: one row per token, shape (n, a), integers or not.
        theta: length scales θ, one row per axis, in radians per unit of position.

    Raises:
        ValueError: positions whose number of axes is not that of θ.
    """
    if positions.ndim != 2 or positions.shape[1] != theta.shape[0]:
        raise ValueError(f"positions must have the shape (tokens, {theta.shape[0]}), got {tuple(positions.shape)}")
    exact = torch.promote_types(theta.dtype, torch.float32)
    phase = positions.to(theta.device, exact)[..., None] * theta.to(exact)          # n a l
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1)


def commuting_blocks(c: Float[Tensor, "*h s"], s: Float[Tensor, "*h s"]) -> Float[Tensor, "*h p p"]:
    """Return M = blockdiag((c, s; −s, c)) with a block for each scale, the matrices of Lemma 1; p = 2·s.

    Label: thm-relative-performers-lemma, thm-relative-performers-scales, thm-relative-performers-factors.
    """
    first, second = torch.stack([c, s], -1), torch.stack([-s, c], -1)              # rows, … s 2
    blocks = torch.stack([first, second], -2)                                        # … s 2 2
    scales = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
    return (scales[:, None, :, None] * blocks[..., :, :, None, :]).flatten(-4, -3).flatten(-2)


def through_blocks(u: Float[Tensor, "*b p"], c: Float[Tensor, "*h s"],
                   s: Float[Tensor, "*h s"]) -> Float[Tensor, "..."]:
    """Return u M for the matrix of :func:`commuting_blocks` without forming it; leading axes are broadcast.

    A pair (sin, cos) becomes (c sin − s cos, s sin + c cos).

    Label: eq-relative-performers-score.
    """
    sin, cos = u[..., 0::2], u[..., 1::2]
    return torch.stack([c * sin - s * cos, s * sin + c * cos], dim=-1).flatten(-2)


def shift_rotation(tau: Float[Tensor, "a"], theta: Float[Tensor, "a l"]) -> Float[Tensor, "p p"]:
    """Return the matrix R with u(p − τ) = u(p) R: a rotation by θ τ in the plane of every scale.

    The chapter moves tokens by +τ; its R_τ is this matrix for −τ.

    Label: thm-relative-performers-law.
    """
    phase = (tau[:, None] * theta).flatten()
    return commuting_blocks(phase.cos(), phase.sin())
