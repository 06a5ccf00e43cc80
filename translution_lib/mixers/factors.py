"""The heads of a layer as factors: what a relative encoding has to say to become a Translution layer.

A head of the book's relative encodings has bilinear scores and linear values once a constant channel stands beside the
features. It is then given by three tables of matrices, ``query``, ``key`` and ``value``. Source: chapter "The taxonomy
theorem".
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.shared_maps import Weight
from translution_lib.mixers.mixer import Mixer
from translution_lib.relations import Relations


class NoTranslution(ValueError):
    """No Translution layer computes the function of a layer; the message names the obstruction and its theorem.

    Label: thm-taxonomy-absolute, thm-taxonomy-causal, thm-taxonomy-gate.
    """

    def __init__(self, layer: object, obstruction: str, theorem: str) -> None:
        super().__init__(f'{type(layer).__name__} is no Translution layer: {obstruction} '
                         f'(chapter "The taxonomy theorem", {theorem})')
        self.obstruction, self.theorem = obstruction, theorem


class Star(NamedTuple):
    """The six tables of form (★) per relation and head; a table that does not depend on the relation has r = 1.

    a_ij = f_i A[δ] f_jᵀ + f_i b[δ]ᵀ + c[δ] f_jᵀ + d[δ] and v_ij = f_j B[δ] + r[δ], shapes A ``r h c c``, b and c
    ``r h c``, d ``r h``, B ``r h c e``, r ``r h e``. The output of a layer is the sum over its heads.
    """

    A: Tensor
    b: Tensor
    c: Tensor
    d: Tensor
    B: Tensor
    r: Tensor


@dataclass(frozen=True)
class Factors:
    """Heads with a_ij = (f_i query[δ])·(f_j key[δ]), unscaled, and v_ij = f_j value[δ].

    Attributes:
        relations: the table at which the three are read.
        query: shape (r, h, c, k); r is the number of relations, or 1 where all pairs share.
        key: shape as that of query.
        value: shape (r, h, c, v).
        up: shape (h·v, e): what the channels of all heads give to the layer, before its output map.
        constant: whether the last of the c channels is a constant 1 that was appended to the features.
    """

    relations: Relations
    query: Float[Tensor, "_ h c k"]
    key: Float[Tensor, "_ h c k"]
    value: Float[Tensor, "_ h c v"]
    up: Float[Tensor, "hv e"]
    constant: bool = False

    def with_constant(self) -> "Factors":
        """Append a constant channel, which nothing reads yet."""
        rows: dict[str, Any] = {name: F.pad(getattr(self, name), (0, 0, 0, 1)) for name in ("query", "key", "value")}
        return replace(self, **rows, constant=True)

    def with_rows(self, query: Tensor | None = None, key: Tensor | None = None,
                  value: Tensor | None = None) -> "Factors":
        """Let a constant channel add vectors to queries, keys or values: a row each, (r or 1, h, k or v)."""
        wide = self if self.constant else self.with_constant()
        given = {"query": query, "key": key, "value": value}
        rows: dict[str, Any] = {name: _add_row(getattr(wide, name), row) for name, row in given.items()
                                if row is not None}
        return replace(wide, **rows)

    def refined(self, table: Float[Tensor, "r *e"], coarse: Relations) -> Tensor:
        """Return a table of the relations of a coarser table for those of these heads."""
        return table if coarse is self.relations else _finer(table, coarse, self.relations)

    def with_bias(self, bias: Float[Tensor, "r h"]) -> "Factors":
        """Add a number to the score of every pair of a relation: a constant channel and one more score channel.

        Label: thm-scalars-dimension, thm-taxonomy-dimension.
        """
        wide = self if self.constant else self.with_constant()
        return wide.with_channels(_on_constant(wide, bias), _on_constant(wide, torch.ones_like(bias[:1])))

    def with_channels(self, query: Float[Tensor, "_ h c m"], key: Float[Tensor, "_ h c m"]) -> "Factors":
        """Add channels to queries and keys: their product is added to the scores."""
        return replace(self, query=_beside(self.query, query), key=_beside(self.key, key))

    def beside(self, other: "Factors") -> "Factors":
        """Add the scores and the values of another layer's heads, head by head, before the softmax."""
        wide = self.with_channels(other.query, other.key)
        h = self.value.shape[1]
        up = torch.cat([rearrange(heads.up, "(h v) e -> h v e", h=h) for heads in (self, other)], dim=1)
        return replace(wide, value=_beside(self.value, other.value), up=rearrange(up, "h v e -> (h v) e"))

    def turned(self, turn: Float[Tensor, "r _ k k"]) -> "Factors":
        """Multiply the queries by one matrix per relation: the rotations R[δ] of a rotary encoding."""
        return replace(self, query=self.query @ turn)

    def on(self, relations: Relations) -> "Factors":
        """Read the same tables at a finer table of the same pairs, which tells more of them apart.

        Label: eq-rel-tying.
        """
        finer: dict[str, Any] = {name: _finer(table, self.relations, relations) if table.shape[0] > 1 else table
                                 for name, table in (("query", self.query), ("key", self.key), ("value", self.value))}
        return replace(self, relations=relations, **finer)

    def star(self) -> Star:
        """Return the six tables of form (★).

        Label: eq-taxonomy-matrix.
        """
        score = self.query @ self.key.mT                                             # r h c c
        value = self.value @ rearrange(self.up, "(h v) e -> h v e", h=self.value.shape[1])
        if not self.constant:
            score, value = F.pad(score, (0, 1, 0, 1)), F.pad(value, (0, 0, 0, 1))
        return Star(score[..., :-1, :-1], score[..., :-1, -1], score[..., -1, :-1], score[..., -1, -1],
                    value[..., :-1, :], value[..., -1, :])


def plain(layer: Mixer) -> Factors:
    """Return the factors of a layer's own query, key and value; their biases are rows of the constant channel.

    Raises:
        NoTranslution: a layer that adds an absolute embedding to its input.
    """
    if getattr(layer, "position", None) is not None:
        raise NoTranslution(layer, "an absolute embedding makes scores depend on the places of two tokens, not on "
                            "their offset alone", "thm-taxonomy-absolute")
    query, key, value = (by_head(w, layer.heads) for w in layer.matrices)
    heads = Factors(layer.relations, query, key, value, _identity(layer.inner, value))
    rows = {name: _bias(getattr(layer, name), layer.heads) for name in ("query", "key", "value")}
    heads = heads.with_rows(**rows) if layer.qkv_bias else heads
    return replace(heads, query=heads.query / math.sqrt(layer.head_dim))


def _bias(w: Weight, heads: int) -> Float[Tensor, "1 h d"] | None:
    """Return the bias of a shared map, head by head."""
    return rearrange(w.bias, "(h d) -> 1 h d", h=heads) if isinstance(w, nn.Linear) and w.bias is not None else None


def by_head(weight: Tensor, heads: int) -> Float[Tensor, "_ h c d"]:
    """Cut a weight (c, h·d) or (r, c, h·d) into heads; the first axis of the result is 1 or r."""
    weight = weight.detach()
    return rearrange(weight if weight.ndim == 3 else weight[None], "r c (h d) -> r h c d", h=heads)


def for_relations(table: Tensor, relations: Relations) -> Tensor:
    """Give a table of offsets (m, …) zero rows for the relations of a CLS token: (r, …)."""
    table = table.detach()
    return torch.cat([table, table.new_zeros(relations.count - table.shape[0], *table.shape[1:])])


def _identity(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _finer(table: Tensor, coarse: Relations, fine: Relations) -> Tensor:
    """Return the entries of a coarser table's relations for those of a finer one of the same pairs.

    Raises:
        ValueError: the other is not finer: one of its relations has pairs of two that have different entries.
    """
    pairs, ids = fine.mask, torch.zeros(fine.count, dtype=torch.long, device="cpu")
    met, held = torch.stack([fine.index[pairs], coarse.index[pairs]]).unique(dim=1)
    ids[met] = held
    other = ids[met] != held
    if not torch.equal(table[held[other].to(table.device)], table[ids[met[other]].to(table.device)]):
        raise ValueError("relations must tell apart what the coarser table does: a relation has pairs of two")
    return table[ids.to(table.device)]


def _add_row(matrix: Tensor, row: Tensor) -> Tensor:
    """Add to the row of the constant in every matrix (r h c d); tables of 1 and of r matrices go together."""
    r = max(matrix.shape[0], row.shape[0])
    last = (matrix[:, :, -1:] + row.detach()[:, :, None]).expand(r, -1, -1, -1)
    return torch.cat([matrix[:, :, :-1].expand(r, -1, -1, -1), last], dim=2)


def _beside(left: Tensor, right: Tensor) -> Tensor:
    r = max(left.shape[0], right.shape[0])
    return torch.cat([table.expand(r, -1, -1, -1) for table in (left, right)], dim=-1)


def _on_constant(factors: Factors, numbers: Float[Tensor, "r h"]) -> Float[Tensor, "r h c 1"]:
    """Return columns that are zero but in the row of the constant channel."""
    return F.pad(numbers.detach()[..., None, None], (0, 0, factors.query.shape[2] - 1, 0))
