"""General Translution as a layer: matrices made from K functions of the offset, W[δ] = Σ_k φ_k(δ) W_k.

Source: the Translution paper, appendix B; chapter "Continuous positions".
"""

from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_heads, check_tokens
from translution_lib.functional.general import differences, gaussians, lattice, mixture_translution
from translution_lib.functional.translution import (
    scores_definition,
    translution_scores,
    translution_values,
    values_definition,
)
from translution_lib.mixers.init import linear_bound, uniform
from translution_lib.mixers.mixer import Mixer, check_sizes
from translution_lib.mixers.positional import offset_count, offset_vectors
from translution_lib.mixers.translution import stepped
from translution_lib.relations import Relations
from translution_lib.resizing import carried, nearest_relations

KERNELS = ("mlp", "radial", "axes", "table")


class Basis(nn.Module):
    """K functions of the offset: δ (… m) -> φ(δ) (… k).

    Attributes:
        size: K.
    """

    size: int


class RadialBasis(Basis):
    """K Gaussian bells at fixed centres: δ (… m) -> φ(δ) (… k).

    Args:
        centres: the centres c_k, shape (k, m), in the units of the offsets.
        width: standard deviation of the bells, in the same units.
        radius: the functions see ‖δ‖ instead of δ, so that a rotation changes nothing; then m = 1.
    """

    def __init__(self, centres: Float[Tensor, "k m"], width: float | int, *, radius: bool = False) -> None:
        super().__init__()
        if centres.ndim != 2 or (radius and centres.shape[1] != 1):
            raise ValueError(f"centres must have the shape (k, {1 if radius else 'axes'}), got {tuple(centres.shape)}")
        if not width > 0:
            raise ValueError(f"width must be positive, got {width!r}")
        self.centres, self.width, self.radius, self.size = centres, float(width), radius, len(centres)

    def forward(self, delta: Tensor) -> Tensor:
        """Return the bells at every offset."""
        delta = delta.norm(dim=-1, keepdim=True) if self.radius else delta
        return gaussians(delta, self.centres.to(delta.device, delta.dtype), self.width)


class TableBasis(Basis):
    """One function per listed offset, 1 at it and 0 elsewhere: δ (… m) -> φ(δ) (… k)."""

    def __init__(self, offsets: Float[Tensor, "k m"]) -> None:
        super().__init__()
        self.offsets, self.size = offsets, len(offsets)

    def forward(self, delta: Tensor) -> Tensor:
        """Return a one-hot row where the offset is listed, and zeros where it is not."""
        return (delta[..., None, :] == self.offsets.to(delta.device, delta.dtype)).all(-1).to(delta.dtype)


class AxesBasis(Basis):
    """One function per axis and step along it, 1 where δ makes that step: W[δ] = Σ_a W_a[δ_a].

    Args:
        offsets: the offsets, shape (k, m); the steps of an axis are those that occur in its column.

    Label: eq-sharing-axes, thm-sharing-axes.
    """

    def __init__(self, offsets: Float[Tensor, "k m"]) -> None:
        super().__init__()
        self.steps = [TableBasis(column.unique()[:, None]) for column in offsets.T]
        self.size = sum(one.size for one in self.steps)

    def nearest(self, old: "AxesBasis") -> list[int]:
        """Return for each function that of another basis whose step along the same axis is nearest."""
        found, start = [], 0
        for mine, theirs in zip(self.steps, old.steps, strict=True):
            found += (start + (mine.offsets - theirs.offsets.T).abs().argmin(1)).tolist()
            start += theirs.size
        return found

    def forward(self, delta: Tensor) -> Tensor:
        """Return a one-hot row per axis, side by side."""
        return torch.cat([one(delta[..., axis, None]) for axis, one in enumerate(self.steps)], dim=-1)


class MLPBasis(Basis):
    """K learned functions: the constant 1 and the K − 1 outputs of a network with one hidden layer.

    Args:
        axes: coordinates m of an offset.
        functions: K; with one function nothing depends on the offset, which is self-attention.
        hidden: channels of the hidden layer.
        scale: what the offsets are divided by first, so that they are of the order of one.
    """

    def __init__(self, axes: int, functions: int, hidden: int = 32, scale: float | int = 1.0) -> None:
        super().__init__()
        check_sizes(axes=axes, functions=functions, hidden=hidden)
        self.size, self.scale = functions, scale
        learned = functions > 1
        self.network = (nn.Sequential(nn.Linear(axes, hidden), nn.GELU(), nn.Linear(hidden, functions - 1))
                        if learned else None)

    def forward(self, delta: Tensor) -> Tensor:
        """Return the functions at every offset."""
        one = torch.ones_like(delta[..., :1])
        return one if self.network is None else torch.cat([one, self.network(delta / self.scale)], dim=-1)


class GeneralTranslution(Mixer):
    """Translution whose table of matrices is made by K functions of the offset, on the offsets of a relation table.

    The three roles of a CLS token carry no offset and keep a matrix of their own each.

    Args:
        relations: a table of offsets; its labels are the offsets.
        dim, heads: channels and heads, as for :class:`Mixer`.
        kernel: "mlp" (learned functions), "radial" (Gaussian bells on a regular grid), "axes" (a sum over the axes: one
            function per axis and step along it) or "table" (one function per offset: :class:`Translution`).
        functions: K of the "mlp" kernel, the constant included.
        hidden: hidden channels of the "mlp" kernel.
        centres: bells per axis of the "radial" kernel.
        width: standard deviation of the bells, in tokens; by default the distance of neighbouring centres.
        options: ``head_dim``, ``dropout``, ``output`` as for :class:`Mixer`.

    Raises:
        ValueError: an unknown kernel, sizes that are not positive integers, a table without offsets.
    """

    by_relation = ()
    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter

    def __init__(self, relations: Relations, dim: int, heads: int, *, kernel: str = "mlp", functions: int = 8,
                 hidden: int = 32, centres: int = 5, width: float | int | None = None, **options) -> None:
        super().__init__(relations, dim, heads, **options)
        if self.qkv_bias:
            raise ValueError("qkv_bias must be False: every matrix of this layer depends on the relation")
        check_choice("kernel", kernel, KERNELS)
        check_sizes(centres=centres)
        self.kernel, m = kernel, offset_count(relations)
        self.basis = _basis(relations, kernel, functions, hidden, centres, width)
        size = (m if self.basis is None else self.basis.size) + relations.count - m
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(uniform((size, dim, self.inner), linear_bound(dim))))

    def serves(self, relations: Relations) -> None:
        """Refuse a table without offsets."""
        offset_count(relations)

    def resized(self, relations: Relations) -> "GeneralTranslution":
        """Return a copy for another table: the same functions of the offset; "axes" gains steps like the nearest."""
        layer = cast(GeneralTranslution, super().resized(relations))
        ids, axes = nearest_relations(self.relations, relations), []
        m, roles = offset_count(self.relations), ids[offset_count(relations):]
        if isinstance(self.basis, AxesBasis):
            layer.basis = AxesBasis(offset_vectors(relations).double())
            axes = layer.basis.nearest(self.basis)
        size = m if self.basis is None else self.basis.size
        kept = ids[: offset_count(relations)] if self.basis is None else axes or torch.arange(size, device="cpu")
        entries = torch.cat([torch.as_tensor(kept), roles - m + size])
        tables = {id(table): carried(table, entries) for table in (self.query, self.key, self.value)}
        layer.query, layer.key, layer.value = (tables[id(table)] for table in (self.query, self.key, self.value))
        return layer

    def functions(self) -> Float[Tensor, "r k"]:
        """Return φ_k of every relation: of its offset, or one-hot for a role of the CLS token."""
        rows = self.relations.count - offset_count(self.relations)
        delta = self.relations.on(("offsets",), lambda: offset_vectors(self.relations), self.query)
        eye = partial(torch.eye, dtype=delta.dtype, device=delta.device)
        phi = eye(len(delta)) if self.basis is None else self.basis(delta)
        return torch.block_diag(phi, eye(rows)) if rows else phi

    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query, key and value matrices of all relations, r c e each: W[δ] = Σ_k φ_k(δ) W_k."""
        if self.basis is None:
            return self.query, self.key, self.value
        phi = self.functions()
        query, key, value = (torch.einsum("rk,kce->rce", phi, w) for w in (self.query, self.key, self.value))
        return query, key, value

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_ij·k_ji / √d with q_ij = f_i W^q[δ], k_ji = f_j W^k[−δ]."""
        query, key, _ = self.tables()
        return scores_definition(x, query, key, self.relations_for(x), self.heads)

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij v_ij with v_ij = f_j W^v[δ]."""
        return values_definition(alpha, x, self.tables()[2], self.relations_for(x))

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Make the tables once, then run Translution's grouped products."""
        query, key, value = self.tables()
        relations = self.relations_for(x)
        alpha = translution_scores(x, query, key, relations, self.heads, mask).softmax(dim=-1)
        return translution_values(self.dropped(alpha), x, value, relations)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the tokens, and the matrices, which are made once a text."""
        tables, before = (self.tables(), None) if memory is None else memory
        y, kept = stepped(self, x, tables, before)
        return y, (tables, kept)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, kernel={self.kernel!r}"


class PointTranslution(nn.Module):
    """General Translution on points: features (b n c) at continuous positions (b n m) -> features (b n c).

    Args:
        basis: the functions of the offset.
        dim: channels C of the points.
        heads: number of heads, divides dim.

    Raises:
        ValueError: sizes that are not positive integers, heads that do not divide dim.
    """

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter

    def __init__(self, basis: Basis, dim: int, heads: int = 1) -> None:
        super().__init__()
        check_sizes(dim=dim)
        check_heads(heads, dim)
        self.basis, self.dim, self.heads = basis, dim, heads
        for name in ("query", "key", "value"):
            setattr(self, name, nn.Parameter(uniform((basis.size, dim, dim), linear_bound(dim))))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b n c"], positions: Float[Tensor, "b n m"],
                mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Mix the points; ``mask`` is True where a point exists (b n) or where a pair may attend (b n n)."""
        check_tokens(x)
        if x.shape[2] != self.dim:
            raise ValueError(f"x has {x.shape[2]} channels, expected dim = {self.dim}")
        if positions.ndim != 3 or positions.shape[:2] != x.shape[:2]:
            raise ValueError(f"positions must have the shape ({x.shape[0]}, {x.shape[1]}, axes), "
                             f"got {tuple(positions.shape)}")
        phi = self.basis(differences(positions))
        return self.output(mixture_translution(x, phi, self.query, self.key, self.value, self.heads, mask))


def _basis(relations: Relations, kernel: str, functions: int, hidden: int, centres: int,
           width: float | int | None) -> Basis | None:
    """Return the functions of the offset for a table; None for "table", whose functions are one-hot."""
    if kernel == "table":
        return None
    labels = relations.labels[: offset_count(relations)]
    low, high = ([float(f(axis)) for axis in zip(*labels, strict=True)] for f in (min, max))
    reach = max(high) or 1.0
    if kernel == "axes":
        return AxesBasis(torch.tensor(labels, dtype=torch.float64, device="cpu"))
    if kernel == "mlp":
        return MLPBasis(len(low), functions, hidden, scale=reach)
    places = lattice(low, high, centres)
    spacing = max(b - a for a, b in zip(low, high, strict=True)) / max(1, centres - 1)
    return RadialBasis(places, (spacing or 1.0) if width is None else width)
