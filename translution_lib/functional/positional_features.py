"""Sinusoidal positional features, and the maps that keep their inner products relative.

A shift of all positions turns the features by a rotation; the matrices that commute with it are made of blocks
(α, β; −β, α), one per length scale. Source: Horn et al. (2021), Lemma 1 and strategy 1; chapter "Relative Performers".
"""

import torch
from jaxtyping import Float
from torch import Tensor


def positional_features(positions: Tensor, omega: Float[Tensor, "a l"]) -> Float[Tensor, "n p"]:
    """φ(p) = [sin ω_al p_a, cos ω_al p_a] for every axis a and scale l, p = 2·a·l channels; in float32 or better.

    Args:
        positions: one row per token, shape (n, a), integers or not.
        omega: length scales ω, one row per axis, in radians per unit of position.

    Raises:
        ValueError: positions whose number of axes is not that of ω.
    """
    if positions.ndim != 2 or positions.shape[1] != omega.shape[0]:
        raise ValueError(f"positions must have the shape (tokens, {omega.shape[0]}), got {tuple(positions.shape)}")
    exact = torch.promote_types(omega.dtype, torch.float32)
    phase = positions.to(omega.device, exact)[..., None] * omega.to(exact)          # n a l
    return torch.stack([phase.sin(), phase.cos()], dim=-1).flatten(1)


def commuting_blocks(alpha: Float[Tensor, "*h s"], beta: Float[Tensor, "*h s"]) -> Float[Tensor, "*h p p"]:
    """Return W = blockdiag((α_s, β_s; −β_s, α_s)), the matrices of Lemma 1; p = 2·s.

    Label: thm-relative-performers-lemma, thm-relative-performers-scales, thm-relative-performers-factors.
    """
    first, second = torch.stack([alpha, beta], -1), torch.stack([-beta, alpha], -1)  # rows, … s 2
    blocks = torch.stack([first, second], -2)                                        # … s 2 2
    scales = torch.eye(alpha.shape[-1], dtype=alpha.dtype, device=alpha.device)
    return (scales[:, None, :, None] * blocks[..., :, :, None, :]).flatten(-4, -3).flatten(-2)


def through_blocks(phi: Float[Tensor, "*b p"], alpha: Float[Tensor, "*h s"],
                   beta: Float[Tensor, "*h s"]) -> Float[Tensor, "..."]:
    """Return φ W for the matrix of :func:`commuting_blocks` without forming it; leading axes are broadcast.

    A pair (sin, cos) becomes (α sin − β cos, β sin + α cos).

    Label: eq-relative-performers-score.
    """
    sin, cos = phi[..., 0::2], phi[..., 1::2]
    return torch.stack([alpha * sin - beta * cos, beta * sin + alpha * cos], dim=-1).flatten(-2)


def shift_rotation(tau: Float[Tensor, "a"], omega: Float[Tensor, "a l"]) -> Float[Tensor, "p p"]:
    """Return the matrix R_τ with φ(p − τ) = φ(p) R_τ: a rotation by ω τ in the plane of every scale.

    Label: thm-relative-performers-law.
    """
    phase = (tau[:, None] * omega).flatten()
    return commuting_blocks(phase.cos(), phase.sin())
