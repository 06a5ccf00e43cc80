"""Queries and keys turn with the position (RoPE).

Source: Su et al. (2024); the Translution paper, appendix E.6 and Tables 4 and 8; chapter "Rotations".
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.checks import check_choice
from translution_lib.functional.rotary import LAYOUTS, frequencies, phases, turn
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.relations import Relations

ANGLES = ("fixed", "learned")
CLS_TOKENS = ("free", "origin")


class Rotary(Encoding):
    """Scores q_i R(p_i − p_j) k_jᵀ / √d: no parameters, or h·a·d/2 learned angles.

    The positions of the relation table are read; clipping has no meaning here.

    Args:
        base: base of the fixed frequencies, see :func:`~translution_lib.functional.rotary.frequencies`; with more axes
            than one they are axial.
        angles: "fixed", or "learned": one table (a, d/2) per head, which starts at the fixed one and may mix the axes.
        layout: which channels form a pair: "interleaved" (2m, 2m + 1) or "half" (m, m + d/2).
        cls_token: "free": a pair with CLS is not turned at all, so that its score depends on no position. "origin":
            the CLS token is not turned but the others are, as if CLS stood at position zero; the usual code.

    Raises:
        ValueError: unknown options; for a layer, a table without a grid, an odd head dimension, fewer pairs of channels
            than axes.

    Label: eq-rotations-score, thm-rotations-cls, thm-rotations-translution, thm-rotations-limits.
    """

    by_rows = True
    cos: Tensor
    sin: Tensor

    def __init__(self, *, base: float = 10000.0, angles: str = "fixed", layout: str = "interleaved",
                 cls_token: str = "free") -> None:
        super().__init__()
        for name, value, known in (("angles", angles, ANGLES), ("layout", layout, LAYOUTS),
                                   ("cls_token", cls_token, CLS_TOKENS)):
            check_choice(name, value, known)
        self.base, self.learned, self.layout, self.cls_token = base, angles == "learned", layout, cls_token

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Make the tables of angles."""
        if relations.positions is None:
            raise ValueError(f"relations must have a grid: a rotation needs positions, got {relations!r}")
        self.relations = relations
        # The tables stay on the CPU in double precision; what the layer computes with is made from them.
        self._fixed = frequencies(head_dim, relations.positions.shape[1], self.base)
        self._positions = F.pad(relations.positions, (0, 0, int(relations.cls), 0)).double()
        self._phases = phases(self._positions, self._fixed)
        like = torch.empty(0)
        self.theta = nn.Parameter(self._fixed.repeat(heads, 1, 1).to(like)) if self.learned else None
        for name in ("cos", "sin"):
            self.register_buffer(name, like, persistent=False)
        self._fixed_waves()

    @torch.inference_mode(False)
    def _fixed_waves(self) -> tuple[Tensor, Tensor]:
        """Round the tables to the type that the layer has now, on its device, and keep them; an export keeps none."""
        cos, sin = self._phases.cos().to(self.cos), self._phases.sin().to(self.sin)
        if not torch.compiler.is_exporting():
            self.cos, self.sin, self._made = cos, sin, cos
        return cos, sin

    @property
    def angles(self) -> Tensor:
        """Angles θ per axis and pair, the fixed table (a, d/2) in float64 or the learned ones, (h, a, d/2)."""
        return self._fixed if self.theta is None else self.theta

    def waves(self, n: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles of the first n tokens, from one of them on.

        They have the shape (n, d/2), or (h, n, d/2) where angles are learned.
        """
        if self.theta is None:
            # Another tensor was cast, moved or emptied since: none is rounded twice.
            cos, sin = (self.cos, self.sin) if self.cos is self._made else self._fixed_waves()
            return cos[first:n], sin[first:n]
        exact = self.theta.to(torch.promote_types(self.theta.dtype, torch.float32))
        places = self.relations.on(("turned places",), lambda: self._positions, exact)
        phase = phases(places[first:n], exact)
        return phase.cos(), phase.sin()

    def queries_keys(self, q: Float[Tensor, "b h n d"], k: Float[Tensor, "b h n d"],
                     where: Relations) -> tuple[Tensor, Tensor]:
        """Return q_i R(p_i) and k_j R(p_j), with what a free CLS needs."""
        cos, sin = self.waves(where.n, where.first)
        q_turned, k_turned = turn(q, cos, sin, self.layout), turn(k, cos, sin, self.layout)
        if not where.cls or self.cls_token == "origin":
            return q_turned, k_turned
        return with_free_cls(q, k, q_turned, k_turned)

    def queries_keys_definition(self, q: Float[Tensor, "b h n n d"], k: Float[Tensor, "b h n n d"],
                                where: Relations) -> tuple[Tensor, Tensor]:
        """q_i R(p_i − p_j), one rotation per pair; chapter "Rotations", eq-rotations-score."""
        angles, p = self.angles.to(torch.promote_types(q.dtype, torch.float32)), self._positions[: where.n]
        delta = p[:, None] - p[None]                                            # δ_ij                n n a
        if where.cls and self.cls_token == "free":
            delta[0], delta[:, 0] = 0, 0
        phase = phases(delta.flatten(0, 1), angles.to(q.device)).unflatten(-2, delta.shape[:2])
        return turn(q, phase.cos(), phase.sin(), self.layout), k

    def extra_repr(self) -> str:
        """Name the options."""
        return f"angles={'learned' if self.learned else 'fixed'!r}, layout={self.layout!r}"


def with_free_cls(q: Tensor, k: Tensor, q_turned: Tensor, k_turned: Tensor) -> tuple[Tensor, Tensor]:
    """Append two channels to turned queries and keys (b h n d) so that pairs with token 0 score as if nothing turned.

    Token 0 itself must not be turned. What its pairs lack is [i = 0] r_j + [j = 0] c_i.
    """
    row = (k - k_turned) @ q[:, :, :1].mT           # r_j = q_0 k_j − q_0 k'_j                       b h n 1
    column = (q - q_turned) @ k[:, :, :1].mT        # c_i = q_i k_0 − q'_i k_0                       b h n 1
    is_cls = torch.zeros_like(row)
    is_cls[:, :, 0] = 1
    return torch.cat([q_turned, is_cls, column], dim=-1), torch.cat([k_turned, row, is_cls], dim=-1)
