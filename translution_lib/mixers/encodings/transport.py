"""Keys are carried to the space of the query before the inner product (RiemannFormer).

Source: the RiemannFormer paper, equations (1)–(22) and its appendix; chapter "RiemannFormer".
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional import transport as maps
from translution_lib.functional.checks import check_choice
from translution_lib.functional.rotary import frequencies
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.mixers.encodings.rotary import ANGLES, with_free_cls
from translution_lib.relations import Relations

METRICS = (None, "scalar", "pairs", "diagonal", "general")
SCHEDULES = (*maps.SCHEDULES, "constant")
FOCI = (None, "before", "after")


class Transport(Encoding):
    """Scores ⟨q_i, T_i T_j⁻¹ k_j⟩_{M_i} / √d; CLS is neither carried nor focused.

    Channels are dealt out to the axes of the grid in pairs, as :class:`~translution_lib.Rotary` does;
    places are numbered from one on every axis, as in the paper.

    The positions of the relation table are read; clipping has no meaning here.

    Args:
        transport: the orthogonal factor of T: blocks that turn ("rotation"), that reflect ("reflection"), 4×4 blocks of
            one of each ("blocks4"), e^{tX} with a full learned skew matrix X per axis ("skew"), or the identity
            ("none": the metric and the focus alone).
        metric: None (s = 1), "scalar" (one s per head and axis), "pairs" (one per plane), "diagonal" (one per channel),
            "general" (one per channel, with axes that turn with the token, as in the paper's appendix).
        form: "inner", the product in the metric of the query; or "covector", which drops the metric.
        focus: locality focusing λ = exp(−‖δ‖²/2σ²) with a learned σ per head: None, "after" softmax as the paper has
            it, or "before" it, as the bias log λ.
        angles: "fixed", or "learned" (h, a, d/2), starting at the fixed ones; "skew" always learns, "none" has none.
        base: base of the fixed frequencies.
        alpha: α of s = e^w / (e^w + α) in (0, 1); None lets s = e^w exceed one. The parameter w starts at zero.
        schedule: power of s at place m: m ("linear"), ln m ("log"), or the mean place of the table at every place
            ("constant": a learned temperature that knows no place).

    No token's factor leaves e^±40 (in float16 e^±3.5), so that scores are finite on texts of any length; up to there
    they follow the equation.

    Raises:
        ValueError: a table without a grid, an odd head dimension, fewer pairs of channels than axes, "blocks4" with a
            head dimension that is no multiple of four, unknown options.

    Label: thm-riemann-gate, eq-riemann-appendix, thm-riemann-rope, thm-riemann-temperature, thm-riemann-only,
    thm-riemann-value, eq-cifar-general, thm-cifar-temperature, thm-cifar-reflection, eq-cifar-parameters.
    """

    by_rows = True
    like: Tensor

    def __init__(self, *, transport: str = "rotation", metric: str | None = "scalar", form: str = "inner",
                 focus: str | None = None, angles: str = "fixed", base: float = 10000.0, alpha: float | None = 0.1,
                 schedule: str = "linear") -> None:
        super().__init__()
        for name, value, known in (("transport", transport, maps.TRANSPORTS), ("metric", metric, METRICS),
                                   ("form", form, maps.FORMS), ("focus", focus, FOCI), ("angles", angles, ANGLES),
                                   ("schedule", schedule, SCHEDULES)):
            check_choice(name, value, known)
        if schedule == "constant" and metric == "general":
            raise ValueError("schedule must not be 'constant' for metric='general', whose axes turn with the place")
        self.transport, self.metric, self.form, self.focus = transport, metric, form, focus
        self.alpha, self.schedule, self.base, self.learned = alpha, schedule, base, angles == "learned"

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Make parameters and tables."""
        if relations.positions is None:
            raise ValueError(f"relations must have a grid: a transport needs positions, got {relations!r}")
        self.heads, self.head_dim, self.cls = heads, head_dim, int(relations.cls)
        self._places = relations.positions.double() + 1                                 # n a, on the CPU
        self._mean = self._places.mean(0)
        self._fixed = frequencies(head_dim, self._places.shape[1], self.base)           # a d/2, on the CPU
        if self.transport == "blocks4" and head_dim % 4:
            raise ValueError(f"head_dim must be a multiple of 4 for transport='blocks4', got {head_dim}")
        self.register_buffer("like", torch.empty(0), persistent=False)
        self._add_parameters(max(relations.shape or (1,)))

    def resized(self, old: Relations, new: Relations, dim: int, heads: int, head_dim: int) -> "Transport":
        """Return a copy for another table; the temperature of a "constant" schedule stays that of this one."""
        part = cast(Transport, super().resized(old, new, dim, heads, head_dim))
        part._mean = self._mean
        return part

    def _add_parameters(self, longest: int) -> None:
        d, h, a = self.head_dim, self.heads, self._places.shape[1]
        maps.log_scale(torch.zeros(1, device="cpu"), self.alpha)                        # refuses a wrong α at once
        sizes = {"scalar": (h, a), "pairs": (h, d // 2), "diagonal": (h, d), "general": (h, d)}
        self.scale = nn.Parameter(torch.zeros(sizes[self.metric])) if self.metric else None
        widest = math.log(longest / 2)
        self.log_sigma = nn.Parameter(torch.full((h,), widest)) if self.focus else None
        self.theta = self.generator = None
        if self.transport == "skew":
            self.generator = nn.Parameter(_rotation_generator(self._fixed).repeat(h, 1, 1, 1).to(self.like))
        elif self.learned and self.transport != "none":
            self.theta = nn.Parameter(self._fixed.repeat(h, 1, 1).to(self.like))

    @property
    def angles(self) -> Tensor:
        """Angles θ per axis and plane, the fixed table (a, d/2) in float64 or the learned ones, (h, a, d/2)."""
        return self._fixed if self.theta is None else self.theta

    def skew(self) -> Float[Tensor, "h a d d"]:
        """Return X of every axis: skew-symmetric, and zero outside the axis's own channels."""
        if self.generator is None:
            raise ValueError(f"transport must be 'skew' for a skew matrix, got {self.transport!r}")
        mine = self._channels(self.generator)
        return maps.skew(self.generator) * mine[:, :, None] * mine[:, None]

    def log_scale(self) -> Float[Tensor, "_ a d"]:
        """Return log s per axis and channel; zero for the channels of another axis and without a metric."""
        mine = self._channels(self.like)
        if self.scale is None:
            return torch.zeros_like(mine)[None]
        log_s = maps.log_scale(self.scale.to(mine), self.alpha)
        if self.metric == "scalar":
            return log_s[..., None] * mine
        return (log_s.repeat_interleave(2, -1) if self.metric == "pairs" else log_s)[:, None] * mine

    def _channels(self, like: Tensor) -> Float[Tensor, "a d"]:
        """Return 1 where a channel belongs to an axis, else 0, in float32 or better."""
        return self._exact(self._fixed.gt(0), like).repeat_interleave(2, -1)

    def _exact(self, table: Tensor, like: Tensor) -> Tensor:
        return table.to(like.device, torch.promote_types(like.dtype, torch.float32))

    def phases(self, places: Float[Tensor, "n a"]) -> Tensor:
        """Return the angles of tokens at the given places, (n, d/2) or (h, n, d/2)."""
        places, angles = self._exact(places, self.like), self._exact(self.angles, self.like)
        if self.transport == "none":
            return torch.zeros_like(maps.schedule_angles(places, angles))
        return maps.schedule_angles(places, -angles if self.metric == "general" else angles)

    def orthogonal(self, places: Float[Tensor, "n a"]) -> Float[Tensor, "*h n d d"]:
        """Return the orthogonal factors O of tokens at the given places; the appendix of the paper turns them back."""
        if self.transport != "skew":
            kind = "rotation" if self.transport == "none" else self.transport
            return maps.orthogonal(self.phases(places), kind)
        x, sign = self.skew(), -1 if self.metric == "general" else 1
        steps = self._exact(places, x)
        return torch.matrix_exp(sign * (steps[:, :, None, None] * x.to(steps)[:, None]).sum(-3))

    def half_logs(self, places: Float[Tensor, "n a"]) -> Float[Tensor, "_ n d"]:
        """Return log s^(m/2) of tokens at the given places, per channel."""
        log_s = self.log_scale()
        bound = min(maps.BOUND, math.log(torch.finfo(self.like.dtype).max) / 2 - 2)
        # The logarithm of the places is taken on the CPU, where they can be checked.
        return maps.half_logs(self._exact(self.exponents(places), log_s), log_s, bound)

    def exponents(self, places: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
        """Return the powers of s of tokens at the given places."""
        if self.schedule == "constant":
            return self._mean.expand_as(places)
        return maps.exponents(places, self.schedule)

    def frame(self, places: Float[Tensor, "n a"]) -> maps.Frame:
        """Return T, T⁻¹ and M of tokens at the given places, each (h or 1, n, d, d); equations (6), (7), (10), (16)."""
        return maps.frame(self.orthogonal(places), self.half_logs(places), self.metric == "general")

    def places(self, n: int) -> Float[Tensor, "n a"]:
        """Return the places of those of the first n tokens that have one."""
        return self._places[: n - self.cls]

    def queries_keys_definition(self, q: Float[Tensor, "b h n n d"], k: Float[Tensor, "b h n n d"],
                                where: Relations) -> tuple[Tensor, Tensor]:
        """Return q_i and M_i T_i T_j⁻¹ k_j, every key carried to every query; chapter "RiemannFormer"."""
        at = maps.Frame(*(m.to(torch.promote_types(m.dtype, q.dtype)) for m in self.frame(self.places(where.n))))
        inside = k[:, :, self.cls:, self.cls:, :, None].to(at.map)
        moved = at.map[..., :, None, :, :] @ (at.inverse[..., None, :, :, :] @ inside)
        if self.form == "inner":
            moved = at.metric[..., :, None, :, :] @ moved
        k = k.to(moved.dtype)
        if self.cls:
            with_cls = torch.arange(where.n, device=k.device) == 0
            apart = (with_cls | with_cls[:, None])[..., None]
            return q, torch.where(apart, k, F.pad(moved[..., 0], (0, 0, 1, 0, 1, 0))).to(q)
        return q, moved[..., 0].to(q)

    def focus_bias(self, n: int, first: int = 0) -> Float[Tensor, "h i n"]:
        """Return log λ of every pair of the first n tokens, or of the queries from ``first``; zero with CLS."""
        p = self.places(n)
        return F.pad(self.offset_focus(p[first:, None] - p), (self.cls, 0, self.cls, 0))

    def bias(self, q: Float[Tensor, "b h n d"], where: Relations) -> Tensor | None:
        """Return log λ where the focus comes before the softmax."""
        return self.focus_bias(where.n, where.first).to(q.dtype) if self.focus == "before" else None

    def passed(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Float[Tensor, "b h i n"]:
        """Return α_ij λ_ij, equations (20) and (22); λ = 1 unless the focus comes after the softmax."""
        return alpha * self.focus_bias(where.n, where.first).to(alpha.dtype).exp()

    def changes(self, method: str) -> bool:
        """A focus that does not come after the softmax leaves the weights alone."""
        return super().changes(method) and (method != "passed" or self.focus == "after")

    def offset_focus(self, delta: Float[Tensor, "*n a"]) -> Float[Tensor, "h *n"]:
        """Return log λ = −‖δ‖²/2σ² of offsets, one row per head."""
        if self.log_sigma is None:
            raise ValueError("focus must be 'before' or 'after' for locality focusing, got None")
        log_sigma = self._exact(self.log_sigma, self.like)
        return maps.log_attenuation(self._exact(delta, self.like), log_sigma.exp())

    def queries_keys(self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"],
                     where: Relations) -> tuple[Tensor, Tensor]:
        """Return T_i⁻¹ q_i (T_iᵀ q_i for covectors) and T_j⁻¹ k_j."""
        cls, places = self.cls, self.places(where.n)[where.first:]
        halves = self.half_logs(places)
        to_common = self._to_common(places, q)
        q_there = to_common(q[:, :, cls:], (halves if self.form == "inner" else -halves).exp().to(q))
        k_there = to_common(k[:, :, cls:], halves.exp().to(k))
        if not cls:
            return q_there, k_there
        q_there, k_there = (torch.cat([y[:, :, :1], z], dim=2) for y, z in ((q, q_there), (k, k_there)))
        return with_free_cls(q, k, q_there, k_there)

    def _to_common(self, places: Tensor, like: Tensor):
        """Return the map (x, diagonal) -> O⁻¹ (diagonal · x), or diagonal · O⁻¹ x for the general metric."""
        if self.transport == "none":
            return lambda x, s: s * x
        if self.transport == "skew":
            turns = self.orthogonal(places).to(like)
            # One product per head and token for all samples: no copy of the maps for each of them.
            back = lambda x: torch.einsum("hnij,bhni->bhnj", turns, x)  # noqa: E731
        else:
            phase = self.phases(places)
            back = lambda x: maps.turned_back(x, phase, self.transport)  # noqa: E731
        return (lambda x, s: s * back(x)) if self.metric == "general" else (lambda x, s: back(s * x))

    def learnt(self) -> dict[str, Tensor]:
        """Return what the layer learned beside matrices: s of heads and axes (or channels), σ of heads, in patches."""
        found = {} if self.scale is None else {"s": maps.log_scale(self.scale, self.alpha).exp()}
        return found if self.log_sigma is None else {**found, "sigma": self.log_sigma.exp()}

    def extra_repr(self) -> str:
        """Name the options."""
        return (f"transport={self.transport!r}, metric={self.metric!r}, form={self.form!r}, "
                f"focus={self.focus!r}")


def _rotation_generator(angles: Float[Tensor, "a p"]) -> Float[Tensor, "a d d"]:
    """Return the skew matrices X with e^{tX} = the rotation blocks of these angles, one per axis."""
    plane = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    return maps.block_diagonal(angles[..., None, None] * plane)
