"""The best approximation of a table of matrices, one per relation, by a low-rank family.

A low-rank family is W[r] ≈ W + W1 G[r] W2: a shared matrix, two shared bases and a small core for every relation. It is
the value path of LoR-Translution. Source: the Translution paper, eq. (2); chapter "LoR-Translution".
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class LowRankFamily(NamedTuple):
    """A family W + W1 G[r] W2 of matrices, one for every relation r.

    Label: thm-lor-span.
    """

    shared: Float[Tensor, "c e"]
    low: Float[Tensor, "c r1"]
    core: Float[Tensor, "r r1 r2"]
    up: Float[Tensor, "r2 e"]

    def table(self) -> Float[Tensor, "r c e"]:
        """Return the matrices themselves."""
        return self.shared + self.low @ self.core @ self.up


def tucker(table: Float[Tensor, "r c e"], r1: int, r2: int,
           sweeps: int = 0) -> tuple[Float[Tensor, "c r1"], Float[Tensor, "r r1 r2"], Float[Tensor, "r2 e"]]:
    """Approximate W[r] by W1 G[r] W2 with orthonormal columns of W1 and rows of W2 (a Tucker-2 decomposition).

    Without sweeps the bases are the leading singular vectors of the two unfoldings (HOSVD): its squared error is at
    most twice the smallest one. Every sweep improves one base for the other (HOOI) and never raises the error.

    Args:
        table: one matrix for every relation.
        r1: columns of W1, at most c.
        r2: rows of W2, at most e.
        sweeps: number of alternating improvements.

    Raises:
        ValueError: a table that is not ``r c e``, or sizes outside 0 … c and 0 … e.

    Label: thm-lor-tucker.
    """
    if table.ndim != 3:
        raise ValueError(f"table must have one matrix per relation (r c e), got the shape {tuple(table.shape)}")
    for name, size, limit in (("r1", r1, table.shape[1]), ("r2", r2, table.shape[2])):
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= limit:
            raise ValueError(f"{name} must be an integer from 0 to {limit}, got {size!r}")
    left, right = _leading(table, r1), _leading(table.mT, r2)
    for _ in range(sweeps):
        left = _leading(table @ right, r1)
        right = _leading(table.mT @ left, r2)
    return left, left.mT @ table @ right, right.mT


def low_rank_family(table: Float[Tensor, "r c e"], r1: int, r2: int, sweeps: int = 20) -> LowRankFamily:
    """Approximate a table by W + W1 G[r] W2: the mean as W, then :func:`tucker` of what is left; same arguments.

    The mean is the best W whatever the bases are (chapter "LoR-Translution"), so only the bases can be improved.

    Label: thm-lor-best, thm-lor-shift, thm-lor-families.
    """
    mean = table.mean(dim=0) if table.ndim == 3 else table
    return LowRankFamily(mean, *tucker(table - mean, r1, r2, sweeps))


def _leading(table: Float[Tensor, "r c e"], count: int) -> Float[Tensor, "c count"]:
    """Return the leading left singular vectors of the matrices of a table side by side."""
    gram = (table @ table.mT).sum(dim=0)
    return torch.linalg.eigh(gram).eigenvectors.flip(-1)[:, :count]
