"""General Translution: attention whose scores and values depend on a continuous offset δ = p_i − p_j.

The general operator takes any two functions of the offset. The mixture makes its matrices from K functions of the
offset, W[δ] = Σ_k φ_k(δ) W_k; a table of discrete offsets is the mixture whose functions are one-hot.
Source: the Translution paper, appendix B, corrected; chapter "Continuous positions".
"""

import math
from collections.abc import Callable, Sequence

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from translution_lib.functional.checks import check_choice, check_heads, check_tokens

WEIGHTINGS = ("softmax", "sigmoid", "sum")
BLOCK_NUMBERS = 2**20


def differences(positions: Float[Tensor, "b n m"]) -> Float[Tensor, "b n n m"]:
    """Return the offsets δ_ij = p_i − p_j of all pairs, query minus key."""
    if positions.ndim != 3:
        raise ValueError(f"positions must have the shape (batch, tokens, axes), got {tuple(positions.shape)}")
    return positions[:, :, None] - positions[:, None]


def gaussians(delta: Float[Tensor, "... m"], centres: Float[Tensor, "k m"],
              width: float | int) -> Float[Tensor, "... k"]:
    """Return φ_k(δ) = exp(−‖δ − c_k‖² / (2·width²)): one at its own centre, near zero a few widths away.

    Args:
        delta: offsets, m coordinates each.
        centres: the centres c_k, in the units of the offsets.
        width: standard deviation of the bell, in the same units.

    Raises:
        ValueError: offsets and centres of different dimensions, or a width that is not positive.

    Label: eq-continuous-bells, eq-continuous-product, thm-continuous-limits.
    """
    if centres.ndim != 2 or delta.shape[-1] != centres.shape[1]:
        raise ValueError(f"centres must have the shape (k, {delta.shape[-1]}), got {tuple(centres.shape)}")
    if not width > 0:
        raise ValueError(f"width must be positive, got {width!r}")
    squares = delta.new_zeros(())
    for axis in range(centres.shape[1]):                                        # never all differences at once
        squares = squares + (delta[..., axis, None] - centres[:, axis]) ** 2
    return torch.exp(-squares / (2 * width**2))


def lattice(low: Sequence[float | int], high: Sequence[float | int], count: int) -> Float[Tensor, "k m"]:
    """Return the points of a regular grid with ``count`` places per axis; an axis of zero length gets one."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an integer ≥ 1, got {count!r}")
    middle = [(a + b) / 2 if count == 1 else a for a, b in zip(low, high, strict=True)]
    axes = [torch.linspace(a, b, count if b > a else 1, dtype=torch.float64, device="cpu")
            for a, b in zip(middle, high, strict=True)]
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def weigh(a: Float[Tensor, "b h n n"], mask: Tensor | None = None, weighting: str = "softmax") -> Tensor:
    """Turn scores into weights α_ij; where the mask is False the weight is exactly zero.

    Args:
        a: scores.
        mask: True where a token exists, ``b n``, or where a pair may attend, ``b n n``.
        weighting: "softmax" (rows sum to one), "sigmoid" (each weight on its own, between 0 and 1) or "sum" (the
            scores themselves).

    Raises:
        ValueError: an unknown weighting, or a mask that leaves a query without a key.

    Label: eq-continuous-sum.
    """
    check_choice("weighting", weighting, WEIGHTINGS)
    allowed = _pairs(mask, a)
    if weighting == "softmax":
        return a.softmax(-1) if allowed is None else a.masked_fill(~allowed, -math.inf).softmax(-1)
    alpha = a.sigmoid() if weighting == "sigmoid" else a
    return alpha if allowed is None else alpha.masked_fill(~allowed, 0)


def general_translution(x: Float[Tensor, "b n c"], positions: Float[Tensor, "b n m"], score: Callable, value: Callable,
                        mask: Tensor | None = None, weighting: str = "softmax") -> Float[Tensor, "b n e"]:
    """General Translution, literally: f'_i = Σ_j α_ij v(δ_ij, f_j), with the weights α of the scores s(δ_ij, f_i, f_j).

    Args:
        x: features f, one row per token.
        positions: positions p, real numbers in any number of dimensions.
        score: s, a function of (δ: b n n m, f_i: b n 1 c, f_j: b 1 n c) that gives b n n, or b h n n for h heads.
        value: v, a function of (δ: b n n m, f_j: b 1 n c) that gives b n n e.
        mask: True where a token exists, ``b n``, or where a pair may attend, ``b n n``.
        weighting: see :func:`weigh`.

    Raises:
        ValueError: shapes that do not fit, an unknown weighting, a query without a key.

    Label: eq-translution-general, eq-continuous-definition, eq-continuous-bias, thm-continuous-equivariance.
    """
    check_tokens(x)
    delta = differences(_placed(x, positions))
    a = score(delta, x[:, :, None], x[:, None])
    a = a[:, None] if a.ndim == 3 else a
    v = value(delta, x[:, None]).expand(*delta.shape[:3], -1)
    check_heads(a.shape[1], v.shape[-1])
    v = rearrange(v, "b i j (h d) -> b h i j d", h=a.shape[1])
    return rearrange((weigh(a, mask, weighting)[..., None] * v).sum(3), "b h i d -> b i (h d)")


def mixture_translution_definition(x: Float[Tensor, "b n c"], phi: Float[Tensor, "b2 n n k"],
                                   w_q: Float[Tensor, "k c e"], w_k: Float[Tensor, "k c e"],
                                   w_v: Float[Tensor, "k c e2"], heads: int = 1,
                                   mask: Tensor | None = None) -> Float[Tensor, "b n e2"]:
    """Translution with the matrices W[δ_ij] = Σ_k φ_k(δ_ij) W_k, literally: it builds a matrix for every pair.

    Args:
        x: features f, one row per token.
        phi: the K functions of the offset of every pair; a batch of one serves all.
        w_q: the K matrices of the queries' mixture.
        w_k: likewise for the keys; what eq. (1) writes W^k[−δ] is read at φ(δ).
        w_v: likewise for the values; the number of its columns may differ.
        heads: number of heads; the channels of head h are the h-th slice.
        mask: True where a token exists, ``b n``, or where a pair may attend, ``b n n``.

    Raises:
        ValueError: shapes that do not fit, heads that do not divide the channels, a query without a key.

    Label: eq-continuous-mixture, thm-continuous-table.
    """
    d = _check_mixture(x, phi, w_q, w_k, w_v, heads)
    made = [torch.einsum("bijk,kce->bijce", phi, w) for w in (w_q, w_k, w_v)]   # W[δ_ij]: b n n c e
    q = (x[:, :, None, None] @ made[0]).squeeze(-2)                             # q_ij = f_i W^q[δ]
    k = (x[:, None, :, None] @ made[1]).squeeze(-2)                             # k_ji = f_j W^k[−δ]
    v = (x[:, None, :, None] @ made[2]).squeeze(-2)                             # v_ij = f_j W^v[δ]
    q, k, v = (rearrange(y, "b i j (h d) -> b h i j d", h=heads) for y in (q, k, v))
    alpha = weigh((q * k).sum(-1) / math.sqrt(d), mask)
    return rearrange((alpha[..., None] * v).sum(3), "b h i d -> b i (h d)")


def mixture_translution(x: Float[Tensor, "b n c"], phi: Float[Tensor, "b2 n n k"], w_q: Float[Tensor, "k c e"],
                        w_k: Float[Tensor, "k c e"], w_v: Float[Tensor, "k c e2"], heads: int = 1,
                        mask: Tensor | None = None, rows: int | None = None) -> Float[Tensor, "b n e2"]:
    """The same without a matrix per pair; equal to :func:`mixture_translution_definition`, same arguments.

    Each of the K matrices multiplies each token once; a pair then only mixes K vectors. Queries go in blocks of
    ``rows``, chosen so that no temporary exceeds about a million numbers, and backward computes each block again.

    Label: eq-continuous-lean, eq-continuous-cost.
    """
    d = _check_mixture(x, phi, w_q, w_k, w_v, heads)
    n, batch, numbers = x.shape[1], x.shape[0], max(w_q.shape[2], heads * phi.shape[3])
    rows = rows or max(1, BLOCK_NUMBERS // (batch * n * numbers))               # of q_ij, and of α_ij φ_k(δ_ij)
    q, k, v = (torch.einsum("bnc,kce->bnke", x, w) for w in (w_q, w_k, w_v))    # f W_k for every token and matrix
    phi, allowed = phi.expand(batch, -1, -1, -1), _pairs(mask, phi.new_empty(batch, 1, n, n))
    done = []
    for first in range(0, n, rows):
        part = slice(first, first + rows)
        block = (phi[:, part], q[:, part], k, v, None if allowed is None else allowed[:, :, part], heads, d)
        again = rows < n and torch.is_grad_enabled()
        done.append(checkpoint(_rows, *block, use_reentrant=False) if again else _rows(*block))
    return torch.cat(done, dim=1)


def _rows(phi: Float[Tensor, "b i j k"], q: Float[Tensor, "b i k e"], k: Float[Tensor, "b j k e"],
          v: Float[Tensor, "b j k e2"], allowed: Bool[Tensor, "b 1 i j"] | None, heads: int,
          d: int) -> Float[Tensor, "b i e2"]:
    """Return the outputs of a block of queries i for all keys j."""
    q_ij = phi @ q                                                              # Σ_k φ_k(δ_ij) f_i W^q_k
    k_ij = (phi.transpose(1, 2) @ k).transpose(1, 2)
    a = rearrange(q_ij * k_ij, "b i j (h d) -> b h i j d", h=heads).sum(-1) / math.sqrt(d)
    alpha = (a if allowed is None else a.masked_fill(~allowed, -math.inf)).softmax(-1)
    mixed = (alpha[..., None] * phi[:, None]).flatten(-2)                       # α_ij φ_k(δ_ij): b h i (j k)
    return rearrange(mixed @ rearrange(v, "b j k (h d) -> b h (j k) d", h=heads), "b h i d -> b i (h d)")


def _placed(x: Tensor, positions: Tensor) -> Tensor:
    if positions.ndim != 3 or positions.shape[:2] != x.shape[:2]:
        raise ValueError(f"positions must have the shape ({x.shape[0]}, {x.shape[1]}, axes), "
                         f"got {tuple(positions.shape)}")
    return positions


def _pairs(mask: Tensor | None, a: Tensor) -> Tensor | None:
    """Return which pairs may attend, b 1 n n, from a mask of tokens or of pairs."""
    if mask is None:
        return None
    batch, n = a.shape[0], a.shape[-1]
    if mask.shape not in ((batch, n), (batch, n, n)) or mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean with the shape ({batch}, {n}) or ({batch}, {n}, {n}), "
                         f"got {mask.dtype} {tuple(mask.shape)}")
    allowed = mask[:, None].expand(-1, n, -1) if mask.ndim == 2 else mask
    if not bool(allowed.any(-1).all()):
        raise ValueError("mask leaves a query without a key: every token must attend to at least one")
    return allowed[:, None]


def _check_mixture(x: Tensor, phi: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, heads: int) -> int:
    """Check the arguments of a mixture together; return the dimension of a head."""
    check_tokens(x)
    b, n, c = x.shape
    if phi.ndim != 4 or phi.shape[0] not in (1, b) or phi.shape[1:3] != (n, n):
        raise ValueError(f"phi must have the shape ({b} or 1, {n}, {n}, k), got {tuple(phi.shape)}")
    for name, w, columns in (("w_q", w_q, None), ("w_k", w_k, w_q.shape[-1]), ("w_v", w_v, None)):
        if w.ndim != 3 or w.shape[:2] != (phi.shape[3], c) or columns not in (None, w.shape[2]):
            raise ValueError(f"{name} must have the shape ({phi.shape[3]}, {c}, {columns or 'any'}), "
                             f"got {tuple(w.shape)}")
    check_heads(heads, w_v.shape[2])
    return check_heads(heads, w_q.shape[2])
