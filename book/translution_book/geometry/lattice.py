"""Transport on a grid: every step along an axis applies that axis's matrix to a column vector.

Chapter "Tangent spaces, metrics, parallel transport".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def along(moves: Sequence[int], steps: Float[Tensor, "a d d"]) -> Float[Tensor, "d d"]:
    """Return the matrix that carries a column vector along the moves; the first move acts first, so it stands right.

    Args:
        moves: 1 … a for a step up axis 1 … a, −1 … −a for a step down.
        steps: the invertible matrix of a step up each axis.

    Raises:
        ValueError: a move that is no axis.

    Label: thm-transport-grid.
    """
    total = torch.eye(steps.shape[-1], dtype=steps.dtype, device=steps.device)
    for move in moves:
        if isinstance(move, bool) or not isinstance(move, int) or not 1 <= abs(move) <= len(steps):
            raise ValueError(f"moves must be ±1 … ±{len(steps)}, one axis each, got {move!r}")
        step = steps[abs(move) - 1]
        total = step @ total if move > 0 else torch.linalg.solve(step, total)
    return total


def plaquette(u_x: Float[Tensor, "d d"], u_y: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """Return U₂⁻¹ U₁⁻¹ U₂ U₁, the transport around one square of the grid, for U₁ = u_x and U₂ = u_y.

    Label: eq-transport-plaquette.
    """
    return along([1, 2, -1, -2], torch.stack([u_x, u_y]))
