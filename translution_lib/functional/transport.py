"""Transport of queries and keys between the spaces of their tokens, metrics, and locality focusing (RiemannFormer).

The paper's vectors are columns, and the matrices of this module act on columns, T_i x; for the rows of the library that
is ``x @ T.mT``. Source: the RiemannFormer paper, equations (1)–(22) and its appendix; chapter "RiemannFormer".
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from translution_lib.functional.checks import check_choice
from translution_lib.functional.rotary import turn

TRANSPORTS = ("rotation", "reflection", "blocks4", "skew", "none")
FORMS = ("inner", "covector")
SCHEDULES = ("linear", "log")
BOUND = 40.0
"""The largest |log s^(m/2)| of a token: products of two such factors stay finite in float32 and in bfloat16."""


class Frame(NamedTuple):
    """What a token's position gives: T, its inverse, and the metric M, each ``*h n d d``, acting on columns."""

    map: Tensor
    inverse: Tensor
    metric: Tensor


def rotation_block(angle: Float[Tensor, "*b"]) -> Float[Tensor, "*b 2 2"]:
    """Return the rotation by an angle, counterclockwise, as it acts on columns."""
    c, s = angle.cos(), angle.sin()
    return torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)


def reflection_block(angle: Float[Tensor, "*b"]) -> Float[Tensor, "*b 2 2"]:
    """Return the reflection about the axis at an angle, the RiemannFormer paper equation (15).

    Label: eq-riemann-reflection.
    """
    c, s = (2 * angle).cos(), (2 * angle).sin()
    return torch.stack([torch.stack([c, s], -1), torch.stack([s, -c], -1)], -2)


def block_diagonal(blocks: Float[Tensor, "*b p k k"]) -> Float[Tensor, "*b d d"]:
    """Put p blocks on the diagonal of one matrix."""
    p, k = blocks.shape[-3:-1]
    spread = torch.eye(p, dtype=blocks.dtype, device=blocks.device)
    return torch.einsum("...pij,pq->...piqj", blocks, spread).reshape(*blocks.shape[:-3], p * k, p * k)


def skew(matrix: Float[Tensor, "*b d d"]) -> Float[Tensor, "*b d d"]:
    """Return the skew-symmetric part, (W − Wᵀ) / 2."""
    return (matrix - matrix.mT) / 2


def reflecting(planes: int, kind: str) -> Bool[Tensor, "p"]:
    """Say which planes of a transport reflect: none, all, or in blocks of four every second one.

    Raises:
        ValueError: an unknown kind, or an odd number of planes for "blocks4".
    """
    check_choice("kind", kind, TRANSPORTS[:3])
    if kind == "blocks4" and planes % 2:
        raise ValueError(f"kind 'blocks4' takes planes in pairs, head_dim a multiple of 4, got {planes} planes")
    every = torch.arange(planes, device="cpu") % 2 == 1
    return {"rotation": every & False, "reflection": every | True, "blocks4": every}[kind]


def schedule_angles(positions: Float[Tensor, "n a"], angles: Float[Tensor, "*h a p"]) -> Float[Tensor, "*h n p"]:
    """Return the angles of every token and plane, t ↦ tθ summed over the axes."""
    # Sums of products, not a matrix product: autocast would round the angles to bfloat16.
    return (positions[:, :, None] * angles[..., None, :, :]).sum(-2)


def orthogonal(phase: Float[Tensor, "*h n p"], kind: str) -> Float[Tensor, "*h n d d"]:
    """Return the length-preserving factor of every token: blocks of equations (10), (16) or (17).

    Label: eq-riemann-blocks, eq-riemann-four.
    """
    flips = reflecting(phase.shape[-1], kind).to(phase.device)[:, None, None]
    return block_diagonal(torch.where(flips, reflection_block(phase), rotation_block(phase)))


def turned_back(x: Float[Tensor, "*b n d"], phase: Float[Tensor, "*h n p"], kind: str) -> Float[Tensor, "*b n d"]:
    """Multiply every token by the inverse of :func:`orthogonal`, without a matrix.

    A reflection is a rotation by twice the angle after the second channel of the plane has changed its sign.

    Label: thm-riemann-reflection.
    """
    flips = reflecting(phase.shape[-1], kind).to(phase.device)
    sign = torch.stack([torch.ones_like(flips, dtype=x.dtype), 1 - 2 * flips.to(x.dtype)], -1).flatten()
    angle = torch.where(flips, 2 * phase, -phase)
    return turn(x * sign, angle.cos(), angle.sin())


def log_scale(w: Tensor, alpha: float | None = 0.1) -> Tensor:
    """Return log s: s = e^w / (e^w + α), between 0 and 1, or s = e^w where α is None.

    Raises:
        ValueError: an α that is not above zero.
    """
    if alpha is None:
        return w
    if not alpha > 0:
        raise ValueError(f"alpha must be above zero or None, got {alpha!r}")
    return torch.nn.functional.logsigmoid(w - math.log(alpha))


def exponents(positions: Tensor, schedule: str = "linear", base: float = math.e) -> Tensor:
    """Return the power of s at each position: m, or log_β m for long sequences, where s^(log_β m) = m^(log_β s).

    Raises:
        ValueError: an unknown schedule; a base not above one; a position below 1 with "log": log 0 does not exist, so
            tokens are numbered from one.

    Label: eq-riemann-log.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if schedule == "linear":
        return positions
    if not base > 1:
        raise ValueError(f"base must be above one, got {base!r}")
    if bool((positions < 1).any()):
        raise ValueError(f"positions must be ≥ 1 for schedule='log', got {float(positions.min()):g}")
    return positions.log() / math.log(base)


def half_logs(powers: Float[Tensor, "n a"], log_s: Float[Tensor, "*h a d"],
              bound: float = BOUND) -> Float[Tensor, "*h n d"]:
    """Return log s^(m/2) per token and channel, summed over the axes and kept within ±``bound``."""
    return ((powers[:, :, None] * log_s[..., None, :, :]).sum(-2) / 2).clamp(-bound, bound)


def frame(turns: Float[Tensor, "*h n d d"], halves: Float[Tensor, "*b n d"], turning: bool = False) -> Frame:
    """Return T, T⁻¹ and M of every token from its orthogonal factor O and its log s^(m/2), so that Tᵀ M T = 1.

    Args:
        turns: O, one matrix per token.
        halves: logarithms of the diagonal of S^(m/2).
        turning: False: M = S^m and T = S^(−m/2) O, the order that suits equations (6) and (7). True: the axes of the
            metric turn with the token, M = O S^m Oᵀ and T = O S^(−m/2), as in the appendix of the RiemannFormer paper.

    Label: eq-riemann-isometry, eq-riemann-common, eq-riemann-metric, thm-riemann-isometry, thm-riemann-diagonal.
    """
    s = halves.exp()
    if turning:
        return Frame(turns / s[..., None, :], s[..., None] * turns.mT, (turns * s.square()[..., None, :]) @ turns.mT)
    return Frame(turns / s[..., None], turns.mT * s[..., None, :], torch.diag_embed(s.square()))


def transport_scores_definition(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], at: Frame,
                                form: str = "inner") -> Float[Tensor, "b h n n"]:
    """Carry every key to every query, T_m T_n⁻¹ k_n, and take the product there; equation (9), unscaled.

    Args:
        q: queries.
        k: keys.
        at: the frames of the n tokens.
        form: "inner": the inner product of the metric at the query, q_mᵀ M_m T_m T_n⁻¹ k_n. "covector": the query is
            taken as a covector, q_mᵀ T_m T_n⁻¹ k_n.

    Raises:
        ValueError: an unknown form.

    Label: eq-riemann-transport, eq-riemann-product.
    """
    check_choice("form", form, FORMS)
    common = at.inverse @ k[..., None]                                              # T_n⁻¹ k_n        b h n d 1
    moved = at.map[..., :, None, :, :] @ common[..., None, :, :, :]                 # T_m T_n⁻¹ k_n  b h m n d 1
    if form == "inner":
        moved = at.metric[..., :, None, :, :] @ moved
    return (q[..., None, :] * moved[..., 0]).sum(-1)


def transport_scores(q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"], at: Frame,
                     form: str = "inner") -> Float[Tensor, "b h n n"]:
    """⟨T_m⁻¹ q_m, T_n⁻¹ k_n⟩, or ⟨T_mᵀ q_m, T_n⁻¹ k_n⟩ for covectors: the definition with one map per token.

    Label: eq-riemann-score, thm-riemann-absolute, thm-riemann-covector.
    """
    check_choice("form", form, FORMS)
    here = at.inverse if form == "inner" else at.map.mT
    return (here @ q[..., None])[..., 0] @ (at.inverse @ k[..., None])[..., 0].mT


def log_attenuation(delta: Float[Tensor, "*n a"], sigma: Float[Tensor, "*h"],
                    shape: Float[Tensor, "a a"] | None = None) -> Tensor:
    """Return log λ = −‖δ‖_A² / 2σ² of the offsets δ, ``*h *n``; A is ``shape``, by default the identity.

    Source: the RiemannFormer paper, below equation (21).

    Label: eq-riemann-focus.
    """
    square = (delta.square() if shape is None else delta * (delta @ shape)).sum(-1)
    return -square / (2 * sigma.square().reshape(*sigma.shape, *[1] * square.ndim))


__all__ = ["BOUND", "FORMS", "SCHEDULES", "TRANSPORTS", "Frame", "block_diagonal", "exponents", "frame", "half_logs",
           "log_attenuation", "log_scale", "orthogonal", "reflecting", "reflection_block", "rotation_block",
           "schedule_angles", "skew", "transport_scores", "transport_scores_definition", "turned_back"]
