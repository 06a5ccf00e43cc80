"""Gated positional attention: content and position each make their own weights, and a gate mixes them.

Source: the Translution paper, appendix E.5 (ConViT), printed and original form; chapter "Scalars and gates".
"""

import math
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.checks import check_choice
from translution_lib.mixers.encodings.encoding import Encoding
from translution_lib.mixers.positional import offset_vectors, per_pair
from translution_lib.relations import Relations

FORMS = ("printed", "original")


class PositionalGate(Encoding):
    """Weights (1 − σ(λ)) softmax(q_i·k_j / √d) + σ(λ) softmax(u·r[δ]), one λ and one u per head.

    The rows of both parts sum to one, so the mixture needs no further normalisation. Pairs with CLS have u·r = 0.

    Args:
        form: "original" is ConViT's r[δ] = (‖δ‖², δ₁, …, δ_d): a head can attend to a chosen neighbour. "printed"
            knows the distance ‖δ‖ alone; u holds one free number per distance, the richest reading of the formula.
        locality: how sharply "original" is centred at first: its score is −locality·‖δ − centre‖² up to a constant.

    Raises:
        ValueError: an unknown form, a locality that is not a number ≥ 0; for a layer, a table without offsets.

    Label: eq-scalars-gate, eq-scalars-centre, thm-scalars-neighbour, thm-scalars-distance, thm-scalars-gate.
    """

    by_rows = True
    position_weight: nn.Parameter
    gate: nn.Parameter

    def __init__(self, *, form: str = "original", locality: float = 1.0) -> None:
        super().__init__()
        check_choice("form", form, FORMS)
        if not (isinstance(locality, (int, float)) and 0 <= locality < math.inf):
            raise ValueError(f"locality must be a number ≥ 0, got {locality!r}")
        self.form, self.locality = form, locality

    def start(self, relations: Relations, dim: int, heads: int, head_dim: int) -> None:
        """Draw u; the first heads of "original" look at neighbours."""
        # A plain tensor on the CPU, neither a parameter nor a buffer: the relation table determines it.
        self.relations = relations
        self.encoding = position_encoding(relations, self.form)  # m r
        self.position_weight = nn.Parameter(0.02 * torch.randn(heads, self.encoding.shape[1]))  # u
        self.gate = nn.Parameter(torch.ones(heads))  # λ
        if self.form == "original":
            local = _local_weights(relations, heads, self.locality)
            with torch.no_grad():
                self.position_weight[: len(local)] = local.to(self.position_weight)

    def entries(self, old: Relations, new: Relations) -> dict[str, tuple[int, Tensor]]:
        """A number for every distance of the printed form."""
        if self.form == "original":
            return {}
        known, wanted = (distances(table).unique().sqrt() for table in (old, new))
        return {"position_weight": (1, (wanted[:, None] - known).abs().argmin(1))}

    def offset_scores(self) -> Float[Tensor, "h m"]:
        """Return u·r[δ]: the position score of each head and offset."""
        return self.position_weight @ self.relations.on(("gate", self.form), lambda: self.encoding, self.gate).T

    def position_weights(self, relations: Relations) -> Float[Tensor, "h i n"]:
        """Return β_ij = softmax_j u·r[δ]: the weights that do not look at the content."""
        mask = relations.mask_needed(self.gate.device)
        return masked_softmax(per_pair(self.offset_scores(), relations)[None], mask)[0]

    def weights(self, alpha: Float[Tensor, "b h i n"], where: Relations) -> Float[Tensor, "b h i n"]:
        """Return (1 − σ(λ)) α_ij + σ(λ) β_ij."""
        sigma = self.gate.sigmoid()[:, None, None]
        return (1 - sigma) * alpha + sigma * self.position_weights(where)

    def mixed(self, y: Float[Tensor, "b h i d"], v: Float[Tensor, "b h n d"],
              where: Relations) -> Float[Tensor, "b h i d"]:
        """Return what these weights make of the values: β is the same for the whole batch."""
        position = self.position_weights(where).to(v.dtype) @ v
        sigma = self.gate.sigmoid()[:, None, None].to(v.dtype)
        return (1 - sigma) * y + sigma * position

    def extra_repr(self) -> str:
        """Name the form."""
        return f"form={self.form!r}"


def position_encoding(relations: Relations, form: str) -> Float[Tensor, "m r"]:
    """Return r[δ] of every offset: (‖δ‖², δ) for "original", a unit vector per distinct distance for "printed"."""
    squares = distances(relations)
    if form == "original":
        return torch.cat([squares[:, None], offset_vectors(relations).double()], dim=1)
    _, which = squares.unique(return_inverse=True)
    return F.one_hot(which).double()


def distances(relations: Relations) -> Float[Tensor, "m"]:
    """Return ‖δ‖² of every offset."""
    return offset_vectors(relations).double().square().sum(dim=1)


def _local_weights(relations: Relations, heads: int, locality: float) -> Float[Tensor, "k r"]:
    """Return u = locality·(−1, 2c) for as many heads as a cube of centres c needs; the others have none.

    Then u·r[δ] = locality·(‖c‖² − ‖δ − c‖²). In a causal table the centres lie in the past, otherwise around zero.
    """
    dimensions = len(relations.labels[0])
    side = max(k for k in range(1, heads + 1) if k**dimensions <= heads)
    first = 0.0 if relations.causal else -(side - 1) / 2
    centres = torch.tensor(list(product([first + k for k in range(side)], repeat=dimensions)), device="cpu")
    return locality * torch.cat([-torch.ones(len(centres), 1, device="cpu"), 2 * centres], dim=1)
