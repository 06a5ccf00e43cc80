"""Scalar biases: one number per head and offset is added to the score.

Swin's table, T5's buckets and ALiBi's slopes are three makers of the same table b (heads × offsets).
Source: the Translution paper, appendix E.5; chapter "Scalars and gates".
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice, check_sizes
from translution_lib.functional.transport import log_attenuation
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.mixers.positional import offset_count, per_pair
from translution_lib.relations import Relations
from translution_lib.resizing import nearest_relations
from translution_lib.sharing import t5_buckets

BIASES = ("table", "t5", "alibi")
STARTS = ("small", "window")


class ScalarBias(Encoding):
    """A bias per head and offset: a_ij = q_i·k_j / √d + b[δ]. Pairs with CLS get no bias.

    Args:
        bias: who makes b (h × offsets). "table" learns every entry (Swin, CoAtNet); "t5" learns one entry per bucket
            of a signed distance (one dimension only); "alibi" is −slope·‖δ‖ with fixed slopes and no parameter.
        start: where the table of "table" starts: "small" (normal, deviation 0.02), or "window", log λ = −‖δ‖²/2σ² with
            σ half the longest side: RiemannFormer's locality focusing before it learns.
        num_buckets: rows of the table of "t5".
        max_distance: distance from which "t5" puts all offsets into the last bucket.

    Raises:
        ValueError: an unknown bias, a window for another bias than "table"; for a layer, a table without offsets, "t5"
            in several dimensions, or buckets that do not fit.

    Label: eq-scalars-bias, eq-scalars-parameters, thm-scalars-ratio, thm-scalars-limit, thm-scalars-layer,
    thm-cifar-window.
    """

    by_rows = True
    table: nn.Parameter | None
    like: Tensor

    def __init__(self, *, bias: str = "table", start: str = "small", num_buckets: int = 32,
                 max_distance: int = 128) -> None:
        super().__init__()
        check_choice("bias", bias, BIASES)
        check_choice("start", start, STARTS)
        if start == "window" and bias != "table":
            raise ValueError(f"start must be 'small' for bias={bias!r}, got 'window'")
        self.maker, self.begin, self.num_buckets, self.max_distance = bias, start, num_buckets, max_distance

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Draw the table."""
        self.relations, self.heads, rows = relations, heads, offset_count(relations)
        # Plain tensors on the CPU, neither parameters nor buffers: the relation table determines them.
        delta = torch.tensor(relations.labels[:rows], device="cpu")  # m dimensions
        self.distance = delta.double().norm(dim=1)
        if self.maker == "t5":
            if delta.shape[1] != 1:
                raise ValueError(f'relations must have one dimension for bias="t5", got shape {relations.shape}')
            self.bucket = t5_buckets(delta[:, 0], self.num_buckets, self.max_distance, relations.causal)
            rows = self.num_buckets
        self.register_buffer("like", torch.empty(0), persistent=False)
        self.table = None if self.maker == "alibi" else nn.Parameter(0.02 * torch.randn(heads, rows))
        if self.begin == "window":
            self._start_as_window(max(relations.shape or (1,)) / 2)

    def _start_as_window(self, sigma: float) -> None:
        """Put log λ into the table; the numbers drawn for it are drawn all the same, so that those after stay."""
        with torch.no_grad():
            window = log_attenuation(self.distance[:, None], self.distance.new_tensor(sigma))
            self.offset_bias().copy_(window.expand(self.heads, -1))

    def offset_bias(self) -> Float[Tensor, "h m"]:
        """Return b: one number per head and offset, in the order of the ids."""
        if self.table is None:
            return self.relations.on(("alibi", self.heads), self._alibi, self.like)
        if self.maker == "table":
            return self.table
        device = self.table.device
        key = ("t5", self.num_buckets, self.max_distance, str(device))
        return self.table[:, self.relations._remember(key, lambda: self.bucket.to(device))]

    def _alibi(self) -> Float[Tensor, "h m"]:
        return -torch.outer(alibi_slopes(self.heads), self.distance)

    def entries(self, old: Relations, new: Relations) -> dict[str, tuple[int, Tensor]]:
        """A column of a learned table for every offset."""
        return {"table": (1, nearest_relations(old, new)[: offset_count(new)])} if self.maker == "table" else {}

    def bias(self, q: Float[Tensor, "b h i d"], where: Relations) -> Float[Tensor, "h i n"]:
        """b[δ]."""
        return per_pair(self.offset_bias(), where)

    def learnt(self) -> dict[str, Tensor]:
        """Return the learned bias by distance: per head the mean over the offsets of each length, shortest first."""
        if self.table is None:
            return {}
        lengths, which = self.distance.round(decimals=9).unique(return_inverse=True)
        sums = torch.zeros(self.heads, len(lengths), device=self.table.device, dtype=torch.float64)
        which = which.to(self.table.device)
        return {"bias by distance": sums.index_add(1, which, self.offset_bias().double()) / which.bincount()}

    def extra_repr(self) -> str:
        """Name the maker."""
        return f"bias={self.maker!r}"


def alibi_slopes(heads: int) -> Float[Tensor, "h"]:
    """Return ALiBi's slopes: 2^(−8k/h) for k = 1 … h where h is a power of two.

    For another h: the slopes of the power of two below, then every other slope of the power above.

    Label: eq-scalars-alibi.
    """
    check_sizes(heads=heads)
    power = 2 ** (heads.bit_length() - 1)
    exponents = [k / power for k in range(1, power + 1)] + [(k - 0.5) / power for k in range(1, heads - power + 1)]
    return torch.tensor([2.0 ** (-8 * e) for e in exponents], dtype=torch.float64, device="cpu")


__all__ = ["BIASES", "ScalarBias", "alibi_slopes", "t5_buckets"]
