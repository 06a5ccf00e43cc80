"""Self-attention whose keys are carried to the space of the query before the inner product (RiemannFormer).

Source: seed 003, equations (1)–(22) and its appendix; chapter "RiemannFormer".
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional import transport as maps
from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_choice
from translution_lib.functional.rotary import frequencies
from translution_lib.mixers.attention import SelfAttention
from translution_lib.mixers.rotary import ANGLES, with_free_cls
from translution_lib.relations import Relations

METRICS = (None, "scalar", "pairs", "diagonal", "general")
SCHEDULES = (*maps.SCHEDULES, "constant")
FOCI = (None, "before", "after")


class Riemann(SelfAttention):
    """Self-attention with scores ⟨q_i, T_i T_j⁻¹ k_j⟩_{M_i} / √d; CLS is neither carried nor focused.

    Channels are dealt out to the axes of the grid in pairs, as :class:`~translution_lib.mixers.rotary.Rotary` does;
    places are numbered from one on every axis, as in the paper.

    Args:
        relations: a table with a grid of a axes. Its mask and its positions are read; clipping has no meaning here.
        dim, heads: channels and heads, as for :class:`SelfAttention`.
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
        options: ``absolute``, ``head_dim``, ``dropout``, ``output`` as for :class:`SelfAttention`.

    No token's factor leaves e^±40 (in float16 e^±3.5), so that scores are finite on texts of any length; up to there
    they follow the equation.

    Raises:
        ValueError: a table without a grid, an odd head dimension, fewer pairs of channels than axes, "blocks4" with a
            head dimension that is no multiple of four, unknown options.
    """

    def __init__(self, relations: Relations, dim: int, heads: int, *, transport: str = "rotation",
                 metric: str | None = "scalar", form: str = "inner", focus: str | None = None, angles: str = "fixed",
                 base: float = 10000.0, alpha: float | None = 0.1, schedule: str = "linear", **options) -> None:
        if relations.positions is None:
            raise ValueError(f"relations must have a grid: a transport needs positions, got {relations!r}")
        for name, value, known in (("transport", transport, maps.TRANSPORTS), ("metric", metric, METRICS),
                                   ("form", form, maps.FORMS), ("focus", focus, FOCI), ("angles", angles, ANGLES),
                                   ("schedule", schedule, SCHEDULES)):
            check_choice(name, value, known)
        super().__init__(relations, dim, heads, **options)
        self.transport, self.metric, self.form, self.focus = transport, metric, form, focus
        self.alpha, self.schedule = alpha, schedule
        self._places = relations.positions.double() + 1                                 # n a, on the CPU
        self._fixed = frequencies(self.head_dim, self._places.shape[1], base)           # a d/2, on the CPU
        if schedule == "constant" and metric == "general":
            raise ValueError("schedule must not be 'constant' for metric='general', whose axes turn with the place")
        if transport == "blocks4" and self.head_dim % 4:
            raise ValueError(f"head_dim must be a multiple of 4 for transport='blocks4', got {self.head_dim}")
        self._add_parameters(angles)

    def _add_parameters(self, angles: str) -> None:
        d, h, a = self.head_dim, self.heads, self._places.shape[1]
        maps.log_scale(torch.zeros(1), self.alpha)                                      # refuses a wrong α at once
        sizes = {"scalar": (h, a), "pairs": (h, d // 2), "diagonal": (h, d), "general": (h, d)}
        self.scale = nn.Parameter(torch.zeros(sizes[self.metric])) if self.metric else None
        widest = math.log(max(self.relations.shape or (1,)) / 2)
        self.log_sigma = nn.Parameter(torch.full((h,), widest)) if self.focus else None
        self.theta = self.generator = None
        if self.transport == "skew":
            self.generator = nn.Parameter(_rotation_generator(self._fixed).repeat(h, 1, 1, 1).to(self.query))
        elif angles == "learned" and self.transport != "none":
            self.theta = nn.Parameter(self._fixed.repeat(h, 1, 1).to(self.query))

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
        mine = self._channels(self.query)
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
        places, angles = self._exact(places, self.query), self._exact(self.angles, self.query)
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
        bound = min(maps.BOUND, math.log(torch.finfo(self.query.dtype).max) / 2 - 2)
        # The logarithm of the places is taken on the CPU, where they can be checked.
        return maps.half_logs(self._exact(self.exponents(places), log_s), log_s, bound)

    def exponents(self, places: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
        """Return the powers of s of tokens at the given places."""
        if self.schedule == "constant":
            return self._places.mean(0).expand_as(places)
        return maps.exponents(places, self.schedule)

    def frame(self, places: Float[Tensor, "n a"]) -> maps.Frame:
        """Return T, T⁻¹ and M of tokens at the given places, each (h or 1, n, d, d); equations (6), (7), (10), (16)."""
        return maps.frame(self.orthogonal(places), self.half_logs(places), self.metric == "general")

    def places(self, x: Tensor) -> Float[Tensor, "n a"]:
        """Return the places of the tokens of x that have one."""
        return self._places[: x.shape[1] - int(self.relations.cls)]

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys, b h n d, in the spaces of their tokens."""
        q, k = self.by_head(x, self.query, self.key)
        return q, k

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_iᵀ M_i T_i T_j⁻¹ k_j / √d, every key carried to every query; chapter "RiemannFormer"."""
        (q, k), cls = self.projected(x), int(self.relations.cls)
        at = maps.Frame(*(m.to(torch.promote_types(m.dtype, q.dtype)) for m in self.frame(self.places(x))))
        a = maps.transport_scores_definition(q[:, :, cls:].to(at.map), k[:, :, cls:].to(at.map), at, self.form).to(q)
        if cls:
            with_cls = torch.arange(x.shape[1], device=x.device) == 0
            a = torch.where(with_cls | with_cls[:, None], q @ k.mT, F.pad(a, (1, 0, 1, 0)))
        a = a / self.head_dim ** 0.5
        return a + self.focus_bias(x) if self.focus == "before" else a

    def focus_bias(self, x: Tensor) -> Float[Tensor, "h n n"]:
        """Return log λ of every pair, zero for pairs with CLS."""
        p, cls = self.places(x), int(self.relations.cls)
        return F.pad(self.offset_focus(p[:, None] - p), (cls, 0, cls, 0)).to(x.dtype)

    def offset_focus(self, delta: Float[Tensor, "*n a"]) -> Float[Tensor, "h *n"]:
        """Return log λ = −‖δ‖²/2σ² of offsets, one row per head."""
        if self.log_sigma is None:
            raise ValueError("focus must be 'before' or 'after' for locality focusing, got None")
        log_sigma = self._exact(self.log_sigma, self.query)
        return maps.log_attenuation(self._exact(delta, self.query), log_sigma.exp())

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij λ_ij v_j, equations (20) and (22); λ = 1 unless the focus comes after the softmax."""
        return super().values(alpha * self.focus_bias(x).exp() if self.focus == "after" else alpha, x)

    def gate(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n"]:
        """Return Z_i = Σ_j α_ij λ_ij, what focusing after the softmax leaves of a row's weight."""
        return (self.weights(x) * self.focus_bias(x).exp()).sum(-1)

    def carried(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return T_i⁻¹ q_i (T_iᵀ q_i for covectors) and T_j⁻¹ k_j, whose products are the scores times √d."""
        cls = int(self.relations.cls)
        places = self._places[: q.shape[2] - cls]
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

    def mix(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Carry queries and keys once per token and run torch's fused attention; a focus after it needs the weights."""
        q, k = self.carried(*self.projected(x))
        relations, root = self.relations_for(x), self.head_dim ** -0.5
        v, = self.by_head(x, self.value)
        if self.focus == "after":
            mask = relations.mask_needed(x.device)
            alpha = self.dropped(masked_softmax(q @ k.mT * root, mask)) * self.focus_bias(x).exp()
            return rearrange(alpha @ v, "b h n d -> b n (h d)")
        bias = None
        if self.focus == "before":
            bias = self.focus_bias(x).masked_fill(~relations.mask_on(x.device), -math.inf).to(q.dtype)
        mixed = self.fused(q, k, F.pad(v, (0, q.shape[-1] - self.head_dim)), bias, root)
        return rearrange(mixed[..., : self.head_dim], "b h n d -> b n (h d)")

    def learnt(self) -> dict[str, Tensor]:
        """Return what the layer learned beside matrices: s of heads and axes (or channels), σ of heads, in patches."""
        found = {} if self.scale is None else {"s": maps.log_scale(self.scale, self.alpha).exp()}
        return found if self.log_sigma is None else {**found, "sigma": self.log_sigma.exp()}

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return (f"{super().extra_repr()}, transport={self.transport!r}, metric={self.metric!r}, form={self.form!r}, "
                f"focus={self.focus!r}")


def _rotation_generator(angles: Float[Tensor, "a p"]) -> Float[Tensor, "a d d"]:
    """Return the skew matrices X with e^{tX} = the rotation blocks of these angles, one per axis."""
    plane = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64, device="cpu")
    return maps.block_diagonal(angles[..., None, None] * plane)
