"""Turn a layer into the Translution layer that computes the same function: the taxonomy theorem, executable.

An encoding takes part by saying its factors in a few lines, as ``inclusions`` does for those of the library::

    @part_factors.register(MyBias)
    def _(part: MyBias, heads: Factors, layer: Attention) -> Factors:
        return heads.with_bias(heads.refined(part.table, layer.relations))      # a number per relation and head, r h

or by raising :class:`NoTranslution` with what stands in the way. Source: chapter "The taxonomy theorem".
"""

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from translution_lib.mixers.attention import Attention
from translution_lib.mixers.encodings import Encoding
from translution_lib.mixers.encodings.encoding import EQUATIONS
from translution_lib.mixers.factors import Factors, NoTranslution, plain
from translution_lib.mixers.translution import Translution


@singledispatch
def factors(layer: object) -> Factors:
    """Return the heads of a layer as factors; every encoding registers its own rule.

    Raises:
        NoTranslution: a layer whose function is not of form (★), or for which nothing is registered.
    """
    raise NoTranslution(layer, "no rule is registered that writes it in form (★)", "def-taxonomy-star")


@singledispatch
def part_factors(part: object, heads: Factors, layer: Attention) -> Factors:
    """Return what a part of attention makes of the heads' factors; every part registers its own rule.

    Raises:
        NoTranslution: a part that leads out of form (★), or for which nothing is registered.
    """
    raise NoTranslution(part, "no rule is registered that writes it in form (★)", "def-taxonomy-star")


def as_translution(layer: nn.Module) -> "AsTranslution":
    """Return the Translution layer that computes the same function as an encoding's layer.

    Args:
        layer: a layer b n c -> b n c; convolution, self-attention, Translution, LoR-Translution, relative vectors,
            scalar bias, rotary, or any layer that registers with :func:`~translution_lib.mixers.convert.factors`.

    Raises:
        NoTranslution: a layer that is none, with the obstruction and the theorem that proves it.

    Label: thm-taxonomy-inclusions, thm-taxonomy-strict.
    """
    _refuse_unknown_changes(layer)
    return AsTranslution(factors(layer), layer)


class AsTranslution(nn.Module):
    """A Translution layer, with a constant channel before it where the theorem needs one.

    Attributes:
        translution: the layer. Its ``relative`` says which of q, k, v depend on the relation, its ``head_dim`` how
            wide the heads have become. With a constant channel it hands the constant on: [f, 1] -> [f', 1].
        constant: whether a channel of ones is appended to the features.
    """

    def __init__(self, heads: Factors, layer: nn.Module) -> None:
        super().__init__()
        _, count, channels, width = heads.query.shape
        width = max(width, heads.value.shape[-1])
        self.constant, self.dim = heads.constant, channels - int(heads.constant)
        tables = {"query": heads.query * math.sqrt(width), "key": heads.key, "value": heads.value}
        relative = "".join(name[0] for name, table in tables.items() if table.shape[0] > 1)
        with torch.device("meta"):
            self.translution = Translution(heads.relations, channels, count, relative=relative, head_dim=width,
                                           dropout=getattr(layer, "dropout", 0.0))
        for name, table in tables.items():
            weight = rearrange(F.pad(table, (0, width - table.shape[-1])), "r h c d -> r c (h d)")
            if name[0] in relative:
                setattr(self.translution, name, nn.Parameter(weight.clone()))
            else:
                getattr(self.translution, name).weight = nn.Parameter(weight[0].T.contiguous())
        weight, bias = _output(heads, getattr(layer, "output", nn.Identity()), width)
        self.translution.output.weight, self.translution.output.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.train(layer.training)

    def with_constant(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c2"]:
        """Append the channel of ones, if the layer has one."""
        return F.pad(x, (0, 1), value=1.0) if self.constant else x

    def weights(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b h n n"]:
        """Return the attention weights of the Translution layer."""
        return self.translution.weights(self.with_constant(x))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Append the constant, mix the tokens, drop the constant."""
        return self.translution(self.with_constant(x))[..., : self.dim]

    def extra_repr(self) -> str:
        """Describe the layer without its weights."""
        return f"constant={self.constant}"


def _output(heads: Factors, output: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the output map, which takes over what gathers the heads and hands the constant on."""
    up = rearrange(heads.up, "(h v) e -> h v e", h=heads.value.shape[1])
    weight = rearrange(F.pad(up, (0, 0, 0, width - up.shape[1])), "h v e -> e (h v)")
    bias = weight.new_zeros(weight.shape[0])
    if isinstance(output, nn.Linear):
        weight = output.weight.detach() @ weight
        bias = weight.new_zeros(weight.shape[0]) if output.bias is None else output.bias.detach().clone()
    if heads.constant:
        weight, bias = F.pad(weight, (0, 0, 0, 1)), F.pad(bias, (0, 1), value=1.0)
    return weight.contiguous(), bias


def _refuse_unknown_changes(layer: nn.Module) -> None:
    """Refuse a subclass of a registered layer, or of a part of it, that computes something else without a rule."""
    _refuse_changes(layer, factors, ("scores", "weights", "values", "mix", "forward"))
    for part in getattr(layer, "encodings", ()):
        _refuse_changes(part, part_factors, [name for name in vars(Encoding)
                                             if name.removesuffix("_definition") in {*EQUATIONS, "changes"}])


def _refuse_changes(layer: nn.Module, rules: Any, methods: Sequence[str]) -> None:
    kind = type(layer)
    known = next((k for k in kind.__mro__ if k in rules.registry), object)
    changed = [name for name in methods if getattr(kind, name, None) is not getattr(known, name, None)]
    if known is not object and changed:
        raise NoTranslution(layer, f"it changes {', '.join(changed)} of {known.__name__} and registers no rule of "
                            "its own", "def-taxonomy-star")


__all__ = ["AsTranslution", "Factors", "NoTranslution", "as_translution", "factors", "part_factors", "plain"]
