"""Performers with relative positions: strategy 1 (positional features) and strategy 2 (vectors by distance).

Source: Horn et al. (2021), section 2.3; chapter "Relative Performers".
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_sizes
from translution_lib.functional.feature_states import positive_kernel
from translution_lib.functional.linear_attention import denominators, kernel_weights
from translution_lib.functional.positional_features import positional_features, through_blocks
from translution_lib.functional.random_features import stabilised
from translution_lib.functional.rotary import frequencies
from translution_lib.functional.running_states import continued
from translution_lib.functional.window_sum import (
    CORNERS,
    corner_columns,
    corner_sum,
    kernel_per_pair,
    line_columns,
    line_sum,
    window_columns,
    window_sum,
)
from translution_lib.mixers.init import linear
from translution_lib.mixers.mixer import longer
from translution_lib.mixers.performer import Performer, existing, no_autocast
from translution_lib.relations import Relations


class PerformerS1(Performer):
    """Strategy 1: queries and keys get positional features before the feature map.

    a_ij = (q_i k_jᵀ + u(p_i) M u(p_j)ᵀ) / √d with M made of blocks (c, s; −s, c): a bias that depends on the offset,
    Σ c cos θδ + s sin θδ over axes and scales (eq-relative-performers-score). CLS has zero positional features.

    Args:
        relations: a table with a grid of a axes, without a mask or the full causal one.
        dim, heads: channels and heads, as for :class:`Performer`.
        length_scales: number of learned θ per axis, shared by the heads; each head has its own c and s.
        base: the scales start at base^(−s / length_scales), as those of sinusoidal embeddings do.
        options: those of :class:`Performer`.

    Raises:
        ValueError: a table without a grid, or sizes that are not positive integers.

    Label: eq-relative-performers-bias, eq-relative-performers-price.
    """

    by_relation = ()

    def __init__(self, relations: Relations, dim: int, heads: int, *, length_scales: int = 4, base: float = 10000.0,
                 **options) -> None:
        check_sizes(length_scales=length_scales)
        super().__init__(relations, dim, heads, **options)
        axes = len(grid_of(relations))
        scales = frequencies(2 * length_scales, 1, base).repeat(axes, 1)
        self.scales = nn.Parameter(scales.to(self.query.weight))                            # a l
        self.blocks = nn.Parameter(torch.randn(2, heads, axes * length_scales))      # c, s
        self.start_features(self.head_dim + 2 * axes * length_scales)

    def serves(self, relations: Relations) -> None:
        """Refuse a table without a grid too."""
        grid_of(relations)
        super().serves(relations)

    def positional(self, where: Relations) -> Float[Tensor, "n p"]:
        """Return u of the places of a table's queries; zero for CLS."""
        cls, positions = int(self.relations.cls), self.relations.positions
        assert positions is not None
        exact = self.scales.to(torch.promote_types(self.scales.dtype, torch.float32))
        there = self.relations.on(("positions",), lambda: positions, exact)
        return F.pad(positional_features(there[where.first: where.n - cls], exact), (0, 0, cls, 0))

    def projected(self, x: Float[Tensor, "b n c"], where: Relations | None = None) -> tuple[Tensor, Tensor]:
        """Return queries [q, u M] and keys [k, u], b h n (d + 2·a·l), scaled as those of a Performer."""
        q, k = super().projected(x, where)
        u = self.positional(where or self.relations_for(x))
        c, s = self.blocks.to(u)[:, :, None]
        placed = through_blocks(u, c, s), u.expand(self.heads, -1, -1)               # h n p
        q_placed, k_placed = ((p * self.head_dim ** -0.25).to(q.dtype).expand(x.shape[0], -1, -1, -1) for p in placed)
        return torch.cat([q, q_placed], -1), torch.cat([k, k_placed], -1)

    step = Performer.step


class PerformerS2(Performer):
    """Strategy 2: the first half of the heads reads content, the other half distances.

    A head of the second half has scores q_i w_rᵀ / √d with one learned vector per clipped L1 distance r = 0 … clip,
    and random features of them; its sums run over balls (eq-relative-performers-balls). A pair with CLS has the vector
    zero, or with ``corner`` that of its distance. Only the content heads have keys. The kernel values of a query are
    comparable numbers of one floating-point type: where a vector that this query does not read has a kernel value
    millions of times those that it reads (a small grid, the first words of a text, CLS), their digits are lost.

    Args:
        relations: a table with a grid, without a mask or the full causal one.
        dim, heads: channels and an even number of heads.
        clip: distance k ≥ 1 from which all keys share one vector.
        corner: CLS stands below the "left" or the "right" end of the grid's last row, on the left in the authors' code:
            it reads the pixels near that corner by their distance, and is far for all of them. None: it has no place.
        signed: one dimension only: a vector per offset −k … k instead of per distance. A causal table has the offsets
            0 … k either way.
        options: those of :class:`Performer`.

    Raises:
        ValueError: an odd number of heads, a table without a grid, a clip below 1, signed in several dimensions, a
            corner without a CLS token or on a grid that has not two axes.

    Label: thm-relative-performers-blind, eq-performers-mirror, thm-performers-mirror.
    """

    by_relation = ()

    def __init__(self, relations: Relations, dim: int, heads: int, *, clip: int = 6, signed: bool = False,
                 corner: str | None = None, **options) -> None:
        shape = grid_of(relations)
        check_sizes(clip=clip, heads=heads)
        if heads % 2:
            raise ValueError(f"heads must be even: one half reads content, the other distances, got {heads}")
        if signed and len(shape) > 1:
            raise ValueError(f"signed must be False on a grid of several axes: an offset has no one sign there, "
                             f"got shape {shape}")
        if corner is not None:
            check_choice("corner", corner, CORNERS)
            if not relations.cls or len(shape) != 2:
                raise ValueError(f"corner needs a CLS token and a grid of two axes, got {relations!r}")
        super().__init__(relations, dim, heads, **options)
        self.clip, self.signed, self.corner = clip, signed or relations.causal, corner
        rows = 2 * clip + 1 if signed and not relations.causal else clip + 1
        self.key = linear(dim, self.inner // 2, self.qkv_bias)
        self.distances = nn.Parameter(torch.randn(rows, self.head_dim))              # w, shared by the heads

    def serves(self, relations: Relations) -> None:
        """Refuse a table that does not have all cells of a grid too."""
        grid_of(relations)
        super().serves(relations)
        if not relations.whole:
            raise ValueError(f"relations must have all cells of a grid: sums run over balls of it, got {relations!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides of the grid."""
        return grid_of(self.relations)

    def columns(self, n: int) -> Int[Tensor, "n n"]:
        """Return the row of :meth:`vectors` that each pair reads; −1 for a masked pair."""
        rel = self.relations.for_length(n)
        if self.signed:
            return line_columns(n - rel.cls, self.clip, rel.causal, rel.cls)
        if self.corner is not None:
            return corner_columns(self.shape, self.clip, self.corner)
        return window_columns(self.shape, self.clip, rel.cls)

    def vectors(self, n: int) -> Float[Tensor, "r d"]:
        """Return w, with a last row of zeros for the pairs with CLS, scaled as keys are.

        A vector whose distance no pair of n tokens has is replaced by the nearest one in use: the stabiliser takes the
        largest feature of all rows, and one that nobody reads must not push the others below the smallest number.
        """
        w: Tensor = self.distances
        reach = n - 1 if self.relations.causal else sum(self.shape) - len(self.shape)
        after = max(0, self.clip - reach)
        before = after if len(w) > self.clip + 1 else 0
        used = w[before:len(w) - after]
        if after:
            used = torch.cat([used[:1].expand(before, -1), used, used[-1:].expand(after, -1)])
        return F.pad(used * self.head_dim ** -0.25, (0, 0, 0, int(self.relations.cls and self.corner is None)))

    def halves(self, x: Float[Tensor, "b n c"],
               where: Relations | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys of the content heads, and queries and vectors of the distance heads, b h/2 n d."""
        q, k = self.projected(x, where)     # queries of all heads, keys of the content heads
        content, distance = q.chunk(2, dim=1)
        n = x.shape[1] if where is None else where.n
        return content, k, distance, self.vectors(n).to(distance.dtype).expand(self.heads // 2, -1, -1)

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_i k_jᵀ / √d in the content heads, q_i w_rᵀ / √d in the others, r the row of the pair."""
        q, k, q_distance, w = self.halves(x)
        return torch.cat([q @ k.mT, kernel_per_pair(q_distance @ w.mT, self.columns(x.shape[1]))], 1)

    def kernel(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the estimates of exp(a_ij) without the stabiliser; zero for a masked pair of a distance head."""
        halves = self.halves(x)
        with no_autocast(x):
            *parts, omega = self.precise(*halves, self.omega)
            q, k, q_distance, w = self.plain_features(omega, *parts)
            return torch.cat([q @ k.mT, kernel_per_pair(q_distance @ w.mT, self.columns(x.shape[1]))], 1)

    def features_by_half(self, x: Float[Tensor, "b n c"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the stabilised features of the content heads, and ρ of the distance heads, b h/2 n r."""
        halves = self.halves(x)
        with no_autocast(x):
            q, k, q_distance, w, omega = self.precise(*halves, self.omega)
            fq, fk = stabilised(q, k, omega, self.features)
            f_distance, f_w = stabilised(q_distance, w, omega, self.features)
            return fq, fk, f_distance @ f_w.mT

    def distance_kernel(self, q: Tensor, w: Tensor, omega: Tensor) -> Tensor:
        """Return ρ of the distance heads, b h/2 n r, up to a factor for each query, which the denominator takes out."""
        if self.features == "positive" and not torch.compiler.is_exporting():
            return positive_kernel(q, w, omega)
        fq, fw = stabilised(q, w, omega, self.features)
        return fq @ fw.mT

    def features_of(self, x: Float[Tensor, "b n c"]) -> tuple[Tensor, Tensor]:
        """Return the features of queries and keys of the content heads, b h/2 n f: the others have no keys."""
        fq, fk, _ = self.features_by_half(x)
        return fq, fk

    def weights(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
        """Return the estimated weights, one number per pair; masked pairs are exactly zero."""
        fq, fk, rho = self.features_by_half(x)
        with no_autocast(x):
            content, distance = fq @ fk.mT, kernel_per_pair(rho, self.columns(x.shape[1]))
            if mask is not None:
                content, distance = (kernel.masked_fill(~mask[:, None], 0) for kernel in (content, distance))
            content = kernel_weights(content, self.relations_for(x).mask_needed(x.device))
            distance = kernel_weights(distance)
        return torch.cat([content, distance], 1).to(x.dtype)

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Sum over the keys in linear time in both halves: never n × n."""
        relations, halves = self.relations_for(x), self.halves(x)
        v, = self.by_head(x, self.value)
        with no_autocast(x):
            q, k, q_distance, w, omega, u = self.precise(*halves, self.omega, v)
            v_content, v_distance = u.chunk(2, dim=1)
            keys = existing(mask)
            content = self.attended(q, k, v_content, omega, relations.complete, keys)
            rho = self.distance_kernel(q_distance, w, omega)
            if keys is not None:    # a channel of ones, zero where no token is, sums what there is to divide by
                v_distance = F.pad(v_distance, (0, 1), value=1.0).masked_fill(~keys[:, None, :, None], 0)
            sums, total = self.sums_by_distance(rho, v_distance)
            if keys is not None:
                sums, total = sums[..., :-1], sums[..., -1]
            mixed = torch.cat([content, sums / denominators(total)[..., None]], 1)
        return rearrange(mixed.to(v.dtype), "b h n d -> b n (h d)")

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the state of the content heads and all values of the others.

        A distance head reads its row by the definition, one number for each key.
        """
        state, values = (None, None) if memory is None else memory
        first = 0 if values is None else values.shape[2]
        where = self.relations.rows(first, first + x.shape[1])
        halves, (v,) = self.halves(x, where), self.by_head(x, self.value, where=where)
        with no_autocast(x):
            q, k, q_distance, w, omega, u = self.precise(*halves, self.omega, v)
            content, state = continued(q, k, u.chunk(2, dim=1)[0], omega, self.features, state)
            values = longer(values, u.chunk(2, dim=1)[1])
            behind = (torch.arange(first, where.n)[:, None] - torch.arange(where.n)).clamp(-1, self.clip)
            alpha = kernel_weights(kernel_per_pair(self.distance_kernel(q_distance, w, omega), behind))
            mixed = torch.cat([content, alpha @ values], 1)
        return self.output(rearrange(mixed.to(v.dtype), "b h n d -> b n (h d)")), (state, values)

    def sums_by_distance(self, rho: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ_j ρ_ij v_j and Σ_j ρ_ij in linear time; an exported program, of any batch, forms the pairs."""
        if torch.compiler.is_exporting():
            pairs = kernel_per_pair(rho, self.columns(v.shape[2]))
            return pairs @ v, pairs.sum(-1)
        relations = self.relations.for_length(v.shape[2])
        if self.signed:
            return line_sum(rho, v, causal=relations.causal, cls=relations.cls)
        if self.corner is not None:
            return corner_sum(rho, v, self.shape, self.corner)
        return window_sum(rho, v, self.shape, cls=relations.cls)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, clip={self.clip}, signed={self.signed}"


def grid_of(relations: Relations) -> tuple[int, ...]:
    """Return the sides of the grid, or refuse a table whose tokens have no positions."""
    if relations.shape is None:
        raise ValueError(f"relations must have a grid: a distance needs positions, got {relations!r}")
    return relations.shape
