"""Softmax attention as a layer, with any parts that know where tokens are.

Source: the Translution paper, section 3.2 and appendix E; chapters "Self-attention" and "The taxonomy theorem".
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.functional.attention import masked_softmax
from translution_lib.functional.shared_maps import Weight, applied
from translution_lib.mixers.encodings import Encoding
from translution_lib.mixers.init import linear
from translution_lib.mixers.mixer import Mixer, check_sizes, longer
from translution_lib.relations import Relations


class Attention(Mixer):
    """Self-attention, and what its parts add: one query, one key and one value matrix for all pairs.

    The score of a pair is a_ij = q_ij·k_ji / √d + b_ij, and its value v_j + r_ij. A part may change the tokens, turn
    queries and keys, add a bias, mix or scale the weights, add to the values; parts act in the order in which they are
    given, biases and values add up. An attribute that attention lacks is looked up in its parts: ``layer.theta``.

    Args:
        relations: which pairs are masked, and where the tokens stand; a part may read its relations.
        dim, heads: channels and heads, as for :class:`Mixer`.
        encodings: parts such as ``Rotary(angles="learned")``, each with its own options alone; they are copied.
        options: ``head_dim``, ``dropout``, ``output``, ``qkv_bias`` as for :class:`Mixer`.

    Raises:
        ValueError: what :class:`Mixer` refuses, something that is no part, two parts that turn queries and keys, a
            table that a part cannot serve.

    Label: eq-attention-heads, thm-attention-permutation, thm-attention-shift.
    """

    by_relation: ClassVar[tuple[str, ...]] = ()
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear | nn.Parameter

    def __init__(self, relations: Relations, dim: int, heads: int, encodings: Sequence[Encoding] = (),
                 **options) -> None:
        super().__init__(relations, dim, heads, **options)
        for name in ("query", "key", "value"):
            setattr(self, name, linear(dim, self.inner, self.qkv_bias))
        for part in encodings:
            if not isinstance(part, Encoding):
                raise ValueError(f"encodings must be parts such as Rotary(), got {part!r}")
        self.encodings = nn.ModuleList(copy.deepcopy(part) for part in encodings)
        for part in self.parts:
            part.start(relations, dim, heads, self.head_dim)
        turning = self.that_change("queries_keys")
        if len(turning) > 1:
            raise ValueError("encodings may hold one part that turns queries and keys, got "
                             + " and ".join(type(part).__name__ for part in turning))
        self._modules["output"] = self._modules.pop("output")       # last, as it is applied

    def __getattr__(self, name: str):
        """Look an attribute up in the parts."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not name.startswith("_"):
                for part in self.__dict__.get("_modules", {}).get("encodings", ()):
                    if hasattr(part, name):
                        return getattr(part, name)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute where it is: in attention, or else in the part that has it."""
        parts = self.__dict__.get("_modules", {}).get("encodings", ())
        owner = next((part for part in parts if name in {**vars(part), **part._parameters}), None)
        if owner is None or name in {**vars(self), **self._parameters}:
            super().__setattr__(name, value)
        else:
            setattr(owner, name, value)

    @property
    def parts(self) -> list[Encoding]:
        """The parts, in their order."""
        return [cast(Encoding, part) for part in self.encodings]

    def that_change(self, method: str) -> list[Encoding]:
        """Return the parts that have a method of their own."""
        return [part for part in self.parts if part.changes(method)]

    def resized(self, relations: Relations) -> "Attention":
        """Return a copy for another table, as every layer does; each part says what it has by offset or place."""
        layer = cast(Attention, super().resized(relations))
        for k, part in enumerate(self.parts):
            layer.encodings[k] = part.resized(self.relations, relations, self.dim, self.heads, self.head_dim)
        return layer

    def placed(self, x: Float[Tensor, "b n c"], where: Relations | None = None) -> Float[Tensor, "b n c"]:
        """Return what queries, keys and values are made of."""
        for part in self.parts:
            x = part.placed(x, where or self.relations_for(x))
        return x

    def by_head(self, x: Float[Tensor, "b n c"], *weights: Weight,
                where: Relations | None = None) -> list[Tensor]:
        """Return the tokens times each weight, b h n d: as many heads as the weight has columns for.

        ``where`` is their table, by default that of a whole text; x are its queries.
        """
        x = self.placed(x, where)
        return [rearrange(applied(x, w), "b n (h d) -> b h n d", d=self.head_dim) for w in weights]

    def projected(self, x: Float[Tensor, "b n c"], where: Relations | None = None) -> tuple[Tensor, Tensor]:
        """Return queries and keys, b h n d, before any part changes them."""
        q, k = self.by_head(x, self.query, self.key, where=where)
        return q, k

    def content(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return q_i·k_j / √d, the scores before any part changes them."""
        q, k = self.by_head(x, self.query, self.key)
        return q @ k.mT / math.sqrt(self.head_dim)

    def scores(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """a_ij = q_ij·k_ji / √d + b_ij, pair by pair.

        Label: eq-attention-bilinear, eq-attention-homogeneous, thm-attention-variance.
        """
        (q, k), where = self.projected(x), self.relations_for(x)
        q_ij, k_ij = q[:, :, :, None], k[:, :, None]                                # b h i 1 d, b h 1 j d
        for part in self.that_change("queries_keys"):
            q_ij, k_ij = torch.broadcast_tensors(q_ij, k_ij)                            # b h n n d
            q_ij, k_ij = part.queries_keys_definition(q_ij, k_ij, where)
        a = (q_ij * k_ij).sum(-1) / math.sqrt(self.head_dim)
        for part in self.that_change("bias"):
            bias = part.bias_definition(q, where)
            a = a if bias is None else a + bias
        return a

    def weights(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b h n n"]:
        """Return the weights of the softmax, as the parts mix them: rows sum to one, masked pairs are exactly zero."""
        alpha = super().weights(x, mask)
        for part in self.that_change("weights"):
            alpha = part.weights(alpha, self.relations_for(x))
        return alpha

    def values(self, alpha: Float[Tensor, "b h n n"], x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n e"]:
        """Return Σ_j α_ij (v_j + r_ij), of each weight what the parts pass on."""
        where, (v,) = self.relations_for(x), self.by_head(x, self.value)
        for part in self.that_change("passed"):
            alpha = part.passed(alpha, where)
        y = (alpha[..., None] * v[:, :, None]).sum(dim=3)
        for part in self.that_change("values"):
            more = part.values_definition(alpha, where)
            y = y if more is None else y + more
        return joined(y)

    def mix(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n e"]:
        """Run torch's fused attention; what happens after the softmax needs the weights themselves."""
        where = self.relations_for(x)
        q, k, v = self.by_head(x, self.query, self.key, self.value)
        bias = self.bias_of(q, where, mask)
        for part in self.that_change("queries_keys"):
            q, k = part.queries_keys(q, k, where)
        return joined(self.read(q, k, v, bias, where))

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text; the memory holds the keys, as the parts turned them, and the values.

        With a part that does not say that it serves some rows alone (``by_rows``), all rows are computed again.
        """
        if not all(part.by_rows for part in self.parts):
            return super().step(x, memory)
        keys, values = (None, None) if memory is None else memory
        where = self.relations.rows(known(keys), known(keys) + x.shape[1])
        q, k, v = self.by_head(x, self.query, self.key, self.value, where=where)
        bias = self.bias_of(q, where)
        for part in self.that_change("queries_keys"):
            q, k = part.queries_keys(q, k, where)
        k, v = longer(keys, k), longer(values, v)
        return self.output(joined(self.read(q, k, v, bias, where))), (k, v)

    def read(self, q: Float[Tensor, "b h i d1"], k: Float[Tensor, "b h n d1"], v: Float[Tensor, "b h n d"],
             bias: Tensor | None, where: Relations) -> Float[Tensor, "b h i d"]:
        """Return what queries read of the values, from queries and keys as the parts turned them."""
        mixing = self.that_change("weights")
        dropping = bool(self.dropout and self.training)
        by_weights = any(dropping or not hasattr(part, "mixed") for part in mixing)
        if not (by_weights or self.that_change("passed") or self.that_change("values")):
            y = self.fused_wide(q, k, v, bias, where)
            for part in mixing:
                y = cast(Any, part).mixed(y, v, where)
            return y
        a = q @ k.mT / math.sqrt(self.head_dim)
        alpha = masked_softmax(a if bias is None else a + bias, where.mask_needed(q.device))
        return self.summed(alpha, v, where)

    def summed(self, alpha: Float[Tensor, "b h i n"], v: Float[Tensor, "b h n d"],
               where: Relations) -> Float[Tensor, "b h i d"]:
        """Return the sums of values, from the weights of the softmax."""
        for part in self.that_change("weights"):
            alpha = part.weights(alpha, where)
        alpha = self.dropped(alpha)
        for part in self.that_change("passed"):
            alpha = part.passed(alpha, where)
        y = alpha.to(v.dtype) @ v
        for part in self.that_change("values"):
            more = part.values(alpha, where)
            y = y if more is None else y + more
        return y

    def bias_of(self, q: Float[Tensor, "b h i d"], where: Relations, mask: Tensor | None = None) -> Tensor | None:
        """Return what is added to the scaled scores by all parts, −∞ where a query may not read a key of a sample.

        The pairs that the table masks are left to the attention.
        """
        total = None
        for part in self.that_change("bias"):
            bias = part.bias(q, where)
            if bias is not None:
                total = bias if total is None else total + bias
        if mask is None:
            return total
        total = q.new_zeros(()) if total is None else total
        return torch.where(mask[:, None], total, -math.inf)

    def fused_wide(self, q: Float[Tensor, "b h i d1"], k: Float[Tensor, "b h n d1"], v: Float[Tensor, "b h n d"],
                   bias: Tensor | None, where: Relations) -> Float[Tensor, "b h i d"]:
        """Run torch's attention where queries and keys may have more channels than values."""
        if not self.that_change("queries_keys"):
            return self.fused(q, k, v, bias, where)
        wide = F.pad(v, (0, q.shape[-1] - self.head_dim))   # the fused kernels want one size for q, k and v
        return self.fused(q, k, wide, bias, where, self.head_dim ** -0.5)[..., : self.head_dim]

    def fused(self, q: Float[Tensor, "b h i d1"], k: Float[Tensor, "b h n d1"], v: Float[Tensor, "b h n d2"],
              bias: Tensor | None, relations: Relations, scale: float | None = None) -> Float[Tensor, "b h i d2"]:
        """Run torch's attention under the mask of the table.

        A bias, which broadcasts to b h i n, is added to the scaled scores; the scale is 1/√d1 by default.
        """
        causal = bias is None and relations.all_past
        if bias is None:
            bias = None if relations.complete or causal else relations.mask_on(q.device)
        else:
            bias = bias.to(q.dtype)
            if not relations.complete:
                bias = bias.masked_fill(~relations.mask_on(q.device), -math.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale,
                                              dropout_p=self.dropout if self.training else 0.0)

    def learnt(self) -> dict[str, Tensor]:
        """Return what a reader may want to see of trained parts, by name."""
        return {name: table for part in self.parts for name, table in part.learnt().items()}


def joined(mixed: Float[Tensor, "b h n d"]) -> Float[Tensor, "b n e"]:
    """Put the heads side by side."""
    return rearrange(mixed, "b h n d -> b n (h d)")


def known(keys: Tensor | None) -> int:
    """Return how many tokens keys (b h n d) stand for: none at the start of a text."""
    return 0 if keys is None else keys.shape[2]


__all__ = ["Attention", "Mixer", "check_sizes"]
