"""Argument checks that the operators share: every error names the argument, what came and what was expected."""

import torch
from torch import Tensor

from translution_lib.functional.shared_maps import Weight, is_shared, sizes
from translution_lib.relations import Relations


def check_tokens(x: Tensor, n: int | None = None) -> None:
    """Refuse an x that is not b n c, or whose number of tokens is not n."""
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise ValueError(f"x must be a dense tensor, got {getattr(x, 'layout', type(x).__name__)}")
    if x.ndim != 3 or not x.is_floating_point():
        raise ValueError(f"x must hold floating-point numbers of the shape (batch, tokens, channels), got {x.dtype} of "
                         f"the shape {tuple(x.shape)}")
    if n is not None and x.shape[1] != n:
        raise ValueError(f"x has {x.shape[1]} tokens, expected {n}: the length of its relation table")


def check_sizes(**sizes: int) -> None:
    """Refuse a size that is not an integer ≥ 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {size!r}")


def check_choice(name: str, value: object, known: tuple) -> None:
    """Refuse a name that is not one of those known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def check_heads(heads: int, dim: int, name: str = "heads") -> int:
    """Return the dimension of a head, or say that the heads do not divide the channels."""
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1 or dim % heads:
        raise ValueError(f"{name} must be an integer ≥ 1 that divides the {dim} channels, got {heads!r}")
    return dim // heads


def check_weight(name: str, w: Weight, rows: int, count: int | None, columns: int | None = None) -> None:
    """Refuse a weight that is neither c e (shared, a matrix or a map) nor r c e (one matrix per relation)."""
    expected = f"({rows}, {columns or 'any'})" + (f" or ({count}, {rows}, {columns or 'any'})" if count else "")
    got = sizes(w)
    fits = is_shared(w) or (count is not None and len(got) == 3 and got[0] == count)
    if not fits or got[-2] != rows or (columns is not None and got[-1] != columns):
        raise ValueError(f"{name} must have the shape {expected}, got {got}")


def check_attention(x: Tensor, w_q: Weight, w_k: Weight, w_v: Weight | None, relations: Relations, heads: int) -> int:
    """Check the arguments of an attention operator together; return the dimension of a head."""
    check_tokens(x, relations.n)
    check_weight("w_q", w_q, x.shape[2], relations.count)
    check_weight("w_k", w_k, x.shape[2], relations.count, sizes(w_q)[-1])
    if w_v is not None:
        check_weight("w_v", w_v, x.shape[2], relations.count)
        check_heads(heads, sizes(w_v)[-1])
    return check_heads(heads, sizes(w_q)[-1])


def check_mask(mask: Tensor | None, x: Tensor, no_pairs: str = "") -> None:
    """Refuse a mask that is neither b n nor b n n of booleans; ``no_pairs`` says why a layer takes none of b n n.

    Raises:
        ValueError: as above.
    """
    if mask is None:
        return
    shapes = [tuple(x.shape[:2]), (*x.shape[:2], x.shape[1])][: 1 if no_pairs else 2]
    if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"mask must hold booleans of the shape {wanted}{no_pairs}, "
                         f"got {mask.dtype} of the shape {tuple(mask.shape)}")
