"""Attention with random features: the Performer, whose time and memory grow with the number of tokens alone.

Source: Choromanski et al. (2021); Horn et al. (2021), section 2.1; chapter "Random features".
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from translution_lib.functional.checks import check_choice, check_sizes
from translution_lib.functional.feature_states import positive_attention
from translution_lib.functional.linear_attention import kernel_weights, linear_attention
from translution_lib.functional.random_features import (
    DRAWS,
    FEATURES,
    draw_features,
    positive,
    stabilised,
    trigonometric,
)
from translution_lib.functional.running_states import causal_attention, continued
from translution_lib.mixers.attention import Attention
from translution_lib.mixers.encodings import Absolute
from translution_lib.relations import Relations


class Performer(Attention):
    """Self-attention with exp(q_i k_jᵀ / √d) estimated by φ(q_i) φ(k_j)ᵀ; no position of its own.

    Args:
        relations: a table without a mask, or the full causal one.
        dim, heads: channels and heads, as for :class:`Attention`.
        features: "positive" (FAVOR+) or "trigonometric", whose estimates can be negative.
        draw: "orthogonal" or independent ("gaussian") draws ω.
        num_features: number m of draws, shared by the heads; by default ⌊d ln d⌋, at least 1.
        redraw_interval: a new ω after this many forward passes in training mode; None keeps the first. Evaluation
            never redraws. The counter is saved with ω. A block that a checkpoint runs again uses the ω of that moment:
            with a redraw between its forward pass and its backward pass, the gradients mix two draws. Let every
            backward pass follow its own forward pass, as a usual training loop does.
        absolute: whether a learned embedding of places is added to the input.
        options: ``head_dim``, ``output`` as for :class:`Attention`.

    Raises:
        ValueError: any other mask, an unknown name, sizes that are not positive integers, a dropout above zero.
    """

    by_relation = ()
    omega: Tensor
    forwards: Tensor

    def __init__(self, relations: Relations, dim: int, heads: int, *, features: str = "positive",
                 draw: str = "orthogonal", num_features: int | None = None, redraw_interval: int | None = None,
                 absolute: bool = False, **options) -> None:
        check_choice("features", features, FEATURES)
        check_choice("draw", draw, DRAWS)
        given = {"num_features": num_features, "redraw_interval": redraw_interval}
        check_sizes(**{name: size for name, size in given.items() if size is not None})
        super().__init__(relations, dim, heads, [Absolute()] * absolute, **options)
        if self.dropout:
            raise ValueError(f"dropout must be 0: the attention weights are never formed, got {self.dropout!r}")
        self.features, self.draw, self.num_features, self.redraw_interval = (
            features, draw, num_features, redraw_interval)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        self.register_buffer("omega", None)
        self.start_features(self.head_dim)

    def serves(self, relations: Relations) -> None:
        """Refuse a mask that is no sum over all keys or over the past ones."""
        if not (relations.complete or relations.all_past):
            raise ValueError(f"relations must allow all pairs, or all with j ≤ i: no other mask is a sum over all keys "
                             f"or over the past ones, got {relations!r}")

    def start_features(self, score_dim: int) -> None:
        """Draw ω for queries and keys with this many channels; a subclass that appends channels calls it again."""
        self.score_dim = score_dim
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Replace ω by a new draw, from torch's default generator.

        The tensor is new: a graph that was built with the old draw keeps it.
        """
        m = self.num_features or max(1, int(self.score_dim * math.log(self.score_dim)))
        like = self.query.weight if self.omega is None else self.omega
        self.omega = draw_features(self.draw, m, self.score_dim).to(like)

    def projected(self, x: Float[Tensor, "b n c"], where: Relations | None = None) -> tuple[Tensor, Tensor]:
        """Return queries and keys, b h n score_dim, scaled so that the score is their plain product: q_i k_jᵀ."""
        q, k = (t * self.head_dim ** -0.25 for t in self.by_head(x, self.query, self.key, where=where))
        return q, k

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the exact a_ij = q_i k_jᵀ / √d, whose exponential the features estimate."""
        q, k = self.projected(x)
        return q @ k.mT

    def precise(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors in float32 or better: an exponential of half-precision products is not worth summing."""
        return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]

    def kernel(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the estimate of exp(a_ij), φ(q_i) φ(k_j)ᵀ, without the stabiliser."""
        q, k = self.projected(x)
        with no_autocast(x):
            q, k, omega = self.precise(q, k, self.omega)
            fq, fk = self.plain_features(omega, q, k)
            return fq @ fk.mT

    def plain_features(self, omega: Tensor, *vectors: Tensor) -> list[Tensor]:
        """Return the features of each tensor of vectors, without the stabiliser."""
        feature = positive if self.features == "positive" else trigonometric
        return [feature(t, omega) for t in vectors]

    def features_of(self, x: Float[Tensor, "b n c"]) -> tuple[Tensor, Tensor]:
        """Return the stabilised features of queries and keys, b h n f, in float32 or better."""
        q, k = self.projected(x)
        with no_autocast(x):
            q, k, omega = self.precise(q, k, self.omega)
            return stabilised(q, k, omega, self.features)

    no_pairs = ": the pairs are never formed"

    def weights(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
        """Return the estimated weights φ(q_i) φ(k_j)ᵀ / Σ_l φ(q_i) φ(k_l)ᵀ; masked pairs are exactly zero."""
        fq, fk = self.features_of(x)
        with no_autocast(x):
            kernel = fq @ fk.mT if mask is None else (fq @ fk.mT).masked_fill(~mask[:, None], 0)
            return kernel_weights(kernel, self.relations_for(x).mask_needed(x.device)).to(x.dtype)

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Sum over the keys first, once for all queries: never n × n."""
        q, k = self.projected(x)
        v, = self.by_head(x, self.value)
        with no_autocast(x):
            q, k, u, omega = self.precise(q, k, v, self.omega)
            mixed = self.attended(q, k, u, omega, self.relations_for(x).complete, existing(mask))
        return rearrange(mixed.to(v.dtype), "b h n d -> b n (h d)")

    def attended(self, q: Tensor, k: Tensor, v: Tensor, omega: Tensor, complete: bool,
                 keys: Bool[Tensor, "b n"] | None = None) -> Tensor:
        """Return the mixed values of all heads, b h n d.

        Positive features are never all there, unless keys miss or a program is exported.
        """
        if torch.compiler.is_exporting() and keys is None and not complete:
            return continued(q, k, v, omega, self.features)[0]
        if not torch.compiler.is_exporting() and self.features == "positive" and keys is None:
            return (positive_attention if complete else causal_attention)(q, k, v, omega)
        fq, fk = stabilised(q, k, omega, self.features)
        fk = fk if keys is None else fk.masked_fill(~keys[:, None, :, None], 0)
        return linear_attention(fq, fk, v, causal=not complete)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds one state, as large after many tokens as after one."""
        first, state = (0, None) if memory is None else memory
        where = self.relations.rows(first, first + x.shape[1])
        q, k = self.projected(x, where)
        v, = self.by_head(x, self.value, where=where)
        with no_autocast(x):
            q, k, u, omega = self.precise(q, k, v, self.omega)
            mixed, state = continued(q, k, u, omega, self.features, state)
        return self.output(rearrange(mixed.to(v.dtype), "b h n d -> b n (h d)")), (where.n, state)

    @property
    def steady(self) -> bool:
        """As every layer's; a layer that redraws counts its forward passes and decides by their number."""
        return super().steady and self.redraw_interval is None

    def forward(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Mix the tokens; while training, first redraw ω if it is time."""
        if self.training and self.redraw_interval is not None and not recomputing():
            if self.forwards and self.forwards % self.redraw_interval == 0:
                self.redraw()
            self.forwards += 1
        return super().forward(x, mask)

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"{super().extra_repr()}, features={self.features!r}, draw={self.draw!r}, m={len(self.omega)}"


def existing(mask: Bool[Tensor, "b m n"] | None) -> Bool[Tensor, "b n"] | None:
    """Return which keys a sample has, from what its queries may read: the last one reads all of them."""
    return None if mask is None else mask[:, -1]


def no_autocast(x: Tensor) -> AbstractContextManager:
    """Switch autocast off on the device of x, if it is on."""
    device = "cpu" if x.is_meta else x.device.type      # where there are no numbers, the processor's autocast rules
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def recomputing() -> bool:
    """Return whether a checkpoint runs a block again: then backward is under way, and a forward is no new one.

    torch.utils.checkpoint asks the same private function. Without it, no forward counts as a repetition.
    """
    running = getattr(torch._C, "_current_graph_task_id", None)
    return running is not None and running() != -1
