"""A transformer for clouds of points. Source: the Translution paper, appendix B; chapter "Continuous positions"."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_sizes
from translution_lib.functional.general import lattice
from translution_lib.mixers.general import Basis, MLPBasis, PointTranslution, RadialBasis
from translution_lib.models.blocks import check_flag

KERNELS = ("radial", "mlp", "none")


@dataclass(frozen=True)
class PointConfig:
    """Everything that determines a :class:`PointTransformer`; the fields are its arguments."""

    classes: int
    dim: int
    depth: int
    heads: int
    ff: int
    axes: int = 2
    features: int = 0
    kernel: str = "radial"
    absolute: bool = False
    centres: int = 5
    reach: float = 2.0
    functions: int = 8
    hidden: int = 32

    def basis(self) -> Basis:
        """Return the functions of the offset for one layer; "none" has the constant alone: self-attention."""
        if self.kernel == "radial":
            places = lattice([-self.reach] * self.axes, [self.reach] * self.axes, self.centres)
            return RadialBasis(places, 2 * self.reach / max(1, self.centres - 1))
        return MLPBasis(self.axes, self.functions if self.kernel == "mlp" else 1, self.hidden, self.reach)


class PointBlock(nn.Module):
    """Pre-norm block on points: x + mixer(LN x, p), then x + feed-forward(LN x)."""

    def __init__(self, basis: Basis, dim: int, heads: int, ff: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(dim), PointTranslution(basis, dim, heads)
        self.feed_forward = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim))

    def forward(self, x: Float[Tensor, "b n c"], positions: Float[Tensor, "b n m"],
                mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Mix the points, then transform each of them."""
        x = x + self.mixer(self.norm(x), positions, mask)
        return x + self.feed_forward(x)


class PointTransformer(nn.Module):
    """Classify clouds of points: General Translution blocks, the mean over the points, a linear read-out.

    Without ``absolute`` the logits depend on differences of positions alone.

    Args:
        classes: number of classes.
        dim, depth, heads, ff: channels, layers, heads, hidden channels of the feed-forward part.
        axes: coordinates of a position.
        features: channels that a point brings along; 0 gives every point the same learned features.
        kernel: "radial" (Gaussian bells on a grid of offsets), "mlp" (learned functions) or "none" (self-attention).
        absolute: whether a small network of the coordinates themselves is added to the features.
        centres, reach: bells per axis of the grid, which covers offsets from −reach to reach.
        functions, hidden: K and the hidden channels of the "mlp" kernel.

    Raises:
        ValueError: sizes that are not positive integers, an unknown kernel, a reach that is not positive.
    """

    def __init__(self, classes: int, dim: int, depth: int, heads: int, ff: int, *, axes: int = 2, features: int = 0,
                 kernel: str = "radial", absolute: bool = False, centres: int = 5, reach: float | int = 2.0,
                 functions: int = 8, hidden: int = 32) -> None:
        super().__init__()
        check_sizes(classes=classes, dim=dim, depth=depth, ff=ff, axes=axes, centres=centres, functions=functions)
        check_flag("absolute", absolute)
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")
        if isinstance(features, bool) or not isinstance(features, int) or features < 0:
            raise ValueError(f"features must be an integer ≥ 0, got {features!r}")
        if not reach > 0:
            raise ValueError(f"reach must be positive, got {reach!r}")
        self.config = PointConfig(classes, dim, depth, heads, ff, axes, features, kernel, absolute, centres,
                                  float(reach), functions, hidden)
        self.start = nn.Parameter(torch.randn(dim))
        self.features = nn.Linear(features, dim) if features else None
        self.place = (nn.Sequential(nn.Linear(axes, hidden), nn.GELU(), nn.Linear(hidden, dim))
                      if absolute else None)
        self.blocks = nn.ModuleList(PointBlock(self.config.basis(), dim, heads, ff) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def points(self, positions: Float[Tensor, "b n m"], features: Float[Tensor, "b n f"] | None = None,
               mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n c"]:
        """Return the features of every point after the last block."""
        self._check(positions, features, mask)
        x = self.start.expand(*positions.shape[:2], -1)
        if self.features is not None:
            x = x + self.features(features)
        if self.place is not None:
            x = x + self.place(positions)
        for block in self.blocks:
            x = block(x, positions, mask)
        return x

    def forward(self, positions: Float[Tensor, "b n m"], features: Float[Tensor, "b n f"] | None = None,
                mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b classes"]:
        """Return the logits of each cloud; ``mask`` is True where a point exists."""
        x = self.norm(self.points(positions, features, mask))
        if mask is None:
            return self.head(x.mean(dim=1))
        kept = mask[..., None]
        return self.head(x.masked_fill(~kept, 0).sum(1) / kept.sum(1))

    def _check(self, positions: Tensor, features: Tensor | None, mask: Tensor | None) -> None:
        axes, channels = self.config.axes, self.config.features
        if positions.ndim != 3 or positions.shape[2] != axes:
            raise ValueError(f"positions must have the shape (batch, points, {axes}), got {tuple(positions.shape)}")
        expected = (*positions.shape[:2], channels) if channels else None
        got = None if features is None else tuple(features.shape)
        if got != expected:
            raise ValueError(f"features must have the shape {expected}, got {got}")
        if mask is not None and (mask.shape != positions.shape[:2] or mask.dtype != torch.bool):
            raise ValueError(f"mask must be boolean with the shape {tuple(positions.shape[:2])}, "
                             f"got {mask.dtype} {tuple(mask.shape)}")
