"""A mixer in the place of torch's own attention. Source: chapter "Add your own encoding"."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """A mixer that takes and returns what ``nn.MultiheadAttention`` does, for ``nn.TransformerEncoderLayer``.

        >>> from translution_lib import Translution, offsets
        >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> layer.self_attn = SelfAttention(Translution(offsets((2, 2)), 8, 2))
        >>> layer(torch.zeros(1, 4, 8)).shape
        torch.Size([1, 4, 8])

    Then ``nn.TransformerEncoder(layer, depth)`` copies it. Torch's fused path for evaluation, which would read the
    weights of a ``nn.MultiheadAttention``, is not taken. A token that may attend to nothing gives zero, not NaN.

    Args:
        mixer: any layer of this library, b n c -> b n c.
        batch_first: whether the batch comes first, or the tokens, as for torch's layer: its default is False.
    """

    # What torch asks before it takes its fused path.
    in_proj_weight = in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, mixer: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.mixer, self.batch_first = mixer, batch_first
        self.embed_dim, self.num_heads = getattr(mixer, "dim", None), getattr(mixer, "heads", 1)

    @property
    def out_proj(self) -> nn.Module:
        """Refuse what an encoder asks that was built around torch's own attention."""
        raise RuntimeError("nn.TransformerEncoder must be built after the layer's self_attn is set, or with "
                           "enable_nested_tensor=False")

    def forward(self, query: Float[Tensor, "b n c"], key: Float[Tensor, "b n c"], value: Float[Tensor, "b n c"],
                key_padding_mask: Tensor | None = None, need_weights: bool = False, attn_mask: Tensor | None = None,
                average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Float[Tensor, "b n c"], None]:
        """Mix the tokens, b n c, or n b c unless the batch comes first.

        Args:
            query: the tokens.
            key: the same tensor.
            value: the same tensor.
            key_padding_mask: b n, torch's way: True or −∞ where a token is to be *ignored*.
            need_weights: False.
            attn_mask: n n or (b · heads) n n, the same for all heads: True or −∞ where a pair may *not* attend.
            average_attn_weights: without meaning here.
            is_causal: whether attn_mask is causal, which is read in any case.

        Raises:
            ValueError: attention to other tokens, weights wanted, a mask of other numbers than 0 and −∞ or that differs
                between heads, is_causal without a mask, what the mixer refuses, such as a mask of pairs.
        """
        if key is not query or value is not query:
            raise ValueError("key and value must be the query itself: a mixer is self-attention")
        if need_weights:
            raise ValueError("need_weights must be False: fast forms do not hold the weights; see mixer.weights")
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask must be given with is_causal, or the mixer a causal table")
        x = query if self.batch_first else query.transpose(0, 1)
        mask = None if key_padding_mask is None else _allowed("key_padding_mask", key_padding_mask)
        if attn_mask is not None:
            pairs = self._pairs(_allowed("attn_mask", attn_mask), x)
            mask = pairs if mask is None else pairs & mask[:, None]
        y = self.mixer(x) if mask is None else self.mixer(x, mask)
        return (y if self.batch_first else y.transpose(0, 1)), None

    def _pairs(self, allowed: Tensor, x: Tensor) -> Tensor:
        """Return which pairs may attend, b n n."""
        if allowed.ndim == 3:
            by_head = allowed.unflatten(0, (len(x), -1))
            allowed = by_head[:, 0]
            if not torch.equal(by_head, allowed[:, None].expand_as(by_head)):
                raise ValueError("attn_mask must be the same for all heads of a sample")
        return allowed.expand(len(x), -1, -1)


def _allowed(name: str, mask: Tensor) -> Tensor:
    """Return True where torch's mask, of booleans or added to the scores, lets something be read."""
    if mask.dtype == torch.bool:
        return ~mask
    allowed = mask == 0
    if not torch.compiler.is_compiling() and not bool((allowed | mask.isneginf()).all()):
        raise ValueError(f"{name} must hold booleans, or 0 and −∞ alone: other numbers are a bias, which is a part")
    return allowed
