"""Tensors without numbers on the ways that a device takes: torch's meta device knows no fused attention, no autocast.

Source: torch.autocast's lists of operations; chapter "Making it fit".
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

PRODUCTS = {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, torch.bmm, torch.einsum, F.conv1d,
            F.conv2d, F.scaled_dot_product_attention}
"""What autocast runs in the smaller type."""
SINGLE = {F.cross_entropy, F.softplus, torch.cumsum, Tensor.cumsum}
"""What it runs in single precision, ..."""
SINGLE_ON_CARDS = {F.layer_norm, F.softmax, torch.softmax, Tensor.softmax, torch.exp, Tensor.exp}
"""... and what on a GPU alone."""


class OnMeta(TorchFunctionMode):
    """Within this context operations on "meta" are those of a device: fused attention, and autocast where it is on.

    The library's own products follow ``torch.autocast("cpu")`` there; so does this, by the rules of the device.

    Args:
        device: "cuda" or "cpu".
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.single = SINGLE | SINGLE_ON_CARDS if device == "cuda" else SINGLE
        self.copies: dict[Tensor, Tensor] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run a function as the device would."""
        kwargs = kwargs or {}
        if (func in PRODUCTS or func in self.single) and torch.is_autocast_enabled("cpu"):
            dtype = torch.float32 if func in self.single else torch.get_autocast_dtype("cpu")
            args, kwargs = tree_map(lambda x: self.cast(x, dtype), (args, kwargs))
        return (fused if func is F.scaled_dot_product_attention else func)(*args, **kwargs)

    def __exit__(self, *error):
        """Let go of the copies of weights, as autocast does."""
        self.copies.clear()
        return super().__exit__(*error)

    def cast(self, x: object, dtype: torch.dtype) -> object:
        """Return x as autocast hands it on: of a parameter there is one copy."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype in (dtype, torch.float64):
            return x
        if not (x.is_leaf and x.requires_grad):
            return x.to(dtype)
        if x not in self.copies:
            self.copies[x] = x.to(dtype)
        return self.copies[x]


def fused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
          is_causal: bool = False, scale: float | None = None) -> Tensor:
    """Torch's attention, by the kernel that forms no weights where a device would take it."""
    if dropout_p or q.shape[-1] != v.shape[-1] or (attn_mask is not None and attn_mask.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = q.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, -torch.inf)       # as torch does
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
