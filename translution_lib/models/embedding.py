"""Embeddings of the places of tokens that a vision transformer adds once: learned, or sinusoids on a grid.

Source: Vaswani et al. (2017), section 3.5; the RiemannFormer paper, Table 1; chapter "RiemannFormer on CIFAR".
"""

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.rotary import frequencies, phases

EMBEDDINGS = ("learned", "sinusoidal")


def sinusoids(positions: Float[Tensor, "n a"], dim: int, base: float = 10000.0) -> Float[Tensor, "n c"]:
    """Return e(p) = (sin pθ_1, cos pθ_1, sin pθ_2, …).

    The angles θ are those of rotary attention with ``dim`` channels, dealt out to the axes in the same way, so that
    e(p + δ) = e(p) R(δ). On a line this is the sinusoidal embedding of "Attention is all you need".

    Args:
        positions: p, in steps of the grid.
        dim: channels of a token, even, with a pair for each axis.
        base: of the angles.

    Raises:
        ValueError: an odd dim, or fewer pairs of channels than axes.

    Label: eq-cifar-sinusoid.
    """
    if dim % 2 or dim < 2 * positions.shape[1]:
        raise ValueError(f"dim must be even and at least {2 * positions.shape[1]} for sinusoids on "
                         f"{positions.shape[1]} axes, got {dim}")
    phase = phases(positions.double(), frequencies(dim, positions.shape[1], base).to(positions.device))
    return torch.stack([phase.sin(), phase.cos()], -1).flatten(-2)
