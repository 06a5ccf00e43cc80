"""Argument checks that the operators share: every error names the argument, what came and what was expected."""

import torch
from torch import Tensor
from torch.nn import Parameter

from translution_lib.functional.shared_maps import Weight, is_shared, sizes
from translution_lib.relations import Relations

HALF_TYPES = (torch.float16, torch.bfloat16)


def check_tokens(x: Tensor, n: int | None = None) -> None:
    """Refuse an x that is not b n c, or whose number of tokens is not n."""
    if x.ndim != 3:
        raise ValueError(f"x must have the shape (batch, tokens, channels), got {tuple(x.shape)}")
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


def autocast_together(*tensors: Tensor | None) -> list:
    """Cast tensors as autocast would cast the operands of one matrix product; without autocast return them as they are.

    A custom autograd function is opaque to autocast, so its operands are brought to one type before it is called.
    """
    device = next(t for t in tensors if t is not None).device.type
    device = "cpu" if device == "meta" else device      # where there are no numbers, the processor's autocast rules
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


def alike(tensors: tuple[Tensor | None, ...], dtypes: tuple[torch.dtype, ...], devices: tuple[str, ...]) -> bool:
    """Whether tensors are plain, not empty, of one of these types and on one device of these kinds.

    The numbers of a plain tensor stand in memory as its strides say, with their own signs.
    """
    given = [t for t in tensors if t is not None]
    if not all(type(t) in (Tensor, Parameter) and t.numel() and not (t.is_neg() or t._is_zerotensor()) for t in given):
        return False
    one = len({(t.dtype, t.device) for t in given}) == 1
    return one and given[0].dtype in dtypes and given[0].device.type in devices
