"""Two other transformers whose time does not grow with the square of the tokens: Linformer and Routing Transformer.

The attention is that of the packages ``linformer`` and ``routing-transformer``; around it stands the library's ViT with
a learned embedding of every place. Source: Horn et al. (2021), Table 1; chapter "Performers under shifts".
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.attention import check_sizes
from translution_lib.models.vit import ViT, ViTConfig


def linformer_vit(sizes: dict[str, Any], projected: int = 64) -> ViT:
    """Return a ViT whose layers read ``projected`` learned sums of the tokens (Wang et al., 2020).

    Args:
        sizes: the arguments of :class:`ViT`, without a mixer.
        projected: keys and values that are left of n tokens.

    Raises:
        ValueError: sizes that a ViT refuses, or a number that is not a positive integer.
    """
    from linformer.linformer import LinformerSelfAttention

    check_sizes(projected=projected)
    return _with_layers(sizes, lambda c: LinformerSelfAttention(c.dim, c.tokens, k=projected, heads=c.heads))


def routing_vit(sizes: dict[str, Any], window: int = 64) -> ViT:
    """Return a ViT whose layers attend within clusters of ``window`` queries and keys (Roy et al., 2021).

    Args:
        sizes: the arguments of :class:`ViT`, without a mixer.
        window: tokens of a cluster; there are as many clusters as it takes for all tokens.

    Raises:
        ValueError: sizes that a ViT refuses, or a number that is not a positive integer.
    """
    check_sizes(window=window)
    return _with_layers(sizes, lambda c: Routed(c.dim, c.heads, c.tokens, window))


def _with_layers(sizes: dict[str, Any], layer: Callable[[ViTConfig], nn.Module]) -> ViT:
    """A ViT with absolute embedding and such layers in the place of self-attention."""
    model = ViT(**sizes, mixer="absolute")
    for block in model.blocks:
        block.mixer = layer(model.config)
    return model


class Routed(nn.Module):
    """Attention within clusters of similar queries and keys, every head; the centres follow by moving averages.

    The package hands out a second loss, the distance of queries and keys from their centres. Here it needs no place in
    the training loop: its gradient is added in backward, as if it had been added to the mean loss of the batch.
    """

    steady = False  # the package starts and moves its centres from Python

    def __init__(self, dim: int, heads: int, tokens: int, window: int) -> None:
        super().__init__()
        from routing_transformer.routing_transformer import SelfAttention

        window = min(window, tokens)
        length = -(-tokens // window) * window
        self.attention = SelfAttention(dim, 1, length, heads, local_attn_heads=0, window_size=window)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Mix the tokens; while training, the backward pass moves the centres."""
        out, loss = self.attention(x)
        if self.training and torch.is_grad_enabled():
            out = _WithLoss.apply(out, loss)
            out.register_hook(self._move)
        return out

    def _move(self, gradient: Tensor) -> None:
        self.attention.global_attn.kmeans.update()


class _WithLoss(torch.autograd.Function):
    """The first argument as it is; in backward, the second has the gradient 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())
