"""What one mixing layer costs: formulas of the four that the book derives, all others counted.

A multiply–add counts as one. The symbols are those of the chapter "What it costs", with ρ for the number of relations
(|Δ| offsets, and three with CLS): n tokens, C = dim, C′ = inner = heads · head dimension. Source: the Translution
paper, section 3.4, eq. (1) and (2), Tables 2–8, 10, 11.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import nn

from translution_lib import mixers
from translution_lib.cost.counting import count_macs
from translution_lib.functional.checks import check_sizes
from translution_lib.models.blocks import without_numbers
from translution_lib.relations import Relations

MATRICES = ("query", "key", "value", "output")
BIASES = ("query.bias", "key.bias", "value.bias")


@dataclass(frozen=True)
class Layer:
    """A layer without a formula of its own: its numbers are counted, and the products that a run of it makes.

    Attributes:
        tokens: n, the CLS token included.
        relations: number ρ of relations in the table.
        attended: number of pairs that are not masked.
        dim: C, channels of a token.
        inner: C′, channels of all heads together.
        heads: number of heads.
        output: whether the output map (C′ + 1)·C is there.
        extra: parameters besides queries, keys, values and the output map.
        mixer: the layer itself.
    """

    tokens: int
    relations: int
    attended: int
    dim: int
    inner: int
    heads: int
    output: bool
    extra: int
    mixer: nn.Module = field(repr=False, compare=False)

    @property
    def pairs(self) -> int:
        """n², masked pairs included."""
        return self.tokens ** 2

    @property
    def parameters(self) -> int:
        """Number of trainable numbers."""
        return self.weights + self.biases + self.output * (self.inner + 1) * self.dim

    @property
    def biases(self) -> int:
        """Numbers in the biases of the query, key and value maps that all pairs share."""
        return sum(p.numel() for name, p in self.mixer.named_parameters() if name in BIASES)

    @property
    def macs_as_printed(self) -> int:
        """Multiply–adds as the paper's FLOPs columns count them, a matrix per pair once per token."""
        return self.mixing_as_printed + self.output_macs

    def macs_true(self, attended_only: bool = False) -> int:
        """Multiply–adds of the equations, scores and weighted sums included, softmax and biases not.

        Args:
            attended_only: count the pairs that are not masked, instead of all n² that the authors' code computes.
        """
        return self.mixing(self.attended if attended_only else self.pairs) + self.output_macs

    @property
    def macs_products(self) -> int:
        """Multiply–adds of the matrix products that the library's fast form runs; ``count_macs`` sees these.

        With one head it may run fewer: where a relation has more rows than channels, its scores are one product.
        """
        return self.mixing_products + self.output_macs

    @property
    def output_macs(self) -> int:
        """Multiply–adds of the output map."""
        return self.output * self.tokens * self.inner * self.dim

    @cached_property
    def counted(self) -> int:
        """Multiply–adds of the matrix products before the output map, counted on the meta device."""
        copy = deepcopy(self.mixer).to("meta").eval()
        return count_macs(copy, torch.empty(1, self.tokens, self.dim, device="meta")) - self.output_macs

    # What comes before the output map; a kind of layer with a formula replaces these four.
    @property
    def weights(self) -> int:
        """Parameters before the output map, biases not included."""
        return sum(p.numel() for name, p in self.mixer.named_parameters()
                   if not (name in BIASES or name.startswith("output.")))

    def mixing(self, pairs: int) -> int:
        """Multiply–adds when ``pairs`` pairs are computed."""
        return self.counted

    @property
    def mixing_as_printed(self) -> int:
        """Multiply–adds by the printed rule."""
        return self.mixing(self.pairs)

    @property
    def mixing_products(self) -> int:
        """Multiply–adds of matrix products in the fast form."""
        return self.counted


class SelfAttentionLayer(Layer):
    """Self-attention, with or without parts.

    What parts do is elementwise in their equations and counts nothing, as in the printed columns. The fast form of some
    takes matrix products instead, which ``macs_products`` counts.

    Label: eq-attention-cost, eq-cost-layer, eq-cost-true.
    """

    @property
    def weights(self) -> int:
        """3·C·C′, and the numbers of the parts."""
        return 3 * self.dim * self.inner + self.extra

    def mixing(self, pairs: int) -> int:
        """3·n·C·C′ + 2·pairs·C′."""
        return 3 * self.tokens * self.dim * self.inner + 2 * pairs * self.inner

    @property
    def mixing_products(self) -> int:
        """All n² scores, masked ones too; with parts counted."""
        return self.counted if len(getattr(self.mixer, "encodings", ())) else self.mixing(self.pairs)


@dataclass(frozen=True)
class ConvolutionLayer(Layer):
    """Convolution with a number of taps; padding counts as if it were multiplied, as torch's counter does.

    Label: eq-conv-cost.
    """

    taps: int = 9

    @property
    def weights(self) -> int:
        """One matrix per tap."""
        return self.taps * self.dim ** 2

    def mixing(self, pairs: int) -> int:
        """n·taps·C², whatever the table masks."""
        return self.tokens * self.weights

    @property
    def mixing_products(self) -> int:
        """n·taps·C²."""
        return self.tokens * self.weights


@dataclass(frozen=True)
class TranslutionLayer(Layer):
    """Translution; ``relative`` holds the letters of "qkv" that have one matrix per relation.

    Label: eq-rel-parameters, eq-cost-layer, eq-cost-true.
    """

    relative: str = "qkv"

    def copies(self, relative: int, shared: int = 1) -> int:
        """Sum over the letters: ``relative`` for each relative one, ``shared`` for each other."""
        return len(self.relative) * relative + (3 - len(self.relative)) * shared

    @property
    def weights(self) -> int:
        """C·C′ for every relation of a relative letter, C·C′ for a shared letter, and an embedding if there is one."""
        return self.copies(self.relations) * self.dim * self.inner + self.extra

    @property
    def mixing_as_printed(self) -> int:
        """Self-attention's count: the printed columns ignore that the matrices differ from pair to pair."""
        return (3 * self.tokens * self.dim + 2 * self.pairs) * self.inner

    def mixing(self, pairs: int) -> int:
        """C·C′ per pair for a relative letter, per token for a shared one; 2·C′ per pair for score and sum."""
        return self.copies(pairs, self.tokens) * self.dim * self.inner + 2 * pairs * self.inner

    @property
    def mixing_products(self) -> int:
        """Projections of attended pairs; scores and sums only where both, or the value, are shared."""
        dense = ("q" not in self.relative and "k" not in self.relative) + ("v" not in self.relative)
        return self.copies(self.attended, self.tokens) * self.dim * self.inner + dense * self.pairs * self.inner

    def saved_bytes(self, batch: int = 1, itemsize: int = 4, form: str = "fast") -> int:
        """Bytes kept for backward with all letters relative, the input of the output map included, as derived.

        Args:
            batch: samples.
            itemsize: bytes of a number.
            form: "gather" keeps the matrix, the row and the vector of every pair; "pairs" the vectors alone, of the
                pairs that are not masked; "fast" computes them again, and keeps the tokens, reordered for scores and
                for values where there is a batch.

        Raises:
            ValueError: a batch or itemsize that is not a positive integer, an unknown form, a shared letter.

        Label: eq-fit-recompute, eq-fit-memory.
        """
        check_sizes(batch=batch, itemsize=itemsize)
        n, c, e = self.tokens, self.dim, self.inner
        forms = {"fast": (1 + (batch > 1)) * n * c, "pairs": (1 + (batch > 1)) * n * c + 3 * self.attended * e,
                 "gather": 3 * self.pairs * (c * e + c + e)}
        if form not in forms:
            raise ValueError(f"form must be one of {tuple(forms)}, got {form!r}")
        if self.relative != "qkv":
            raise ValueError(f'relative must be "qkv", got {self.relative!r}')
        return itemsize * batch * (self.heads * self.pairs + self.output * n * e + forms[form])


class RelativeLayer(TranslutionLayer):
    """A relative of Translution: its equation has Translution's pairs, its numbers and its run are counted."""

    weights, mixing_products = Layer.weights, Layer.mixing_products

    def mixing(self, pairs: int) -> int:
        """Translution's, and what a run multiplies besides, such as functions that make matrices."""
        ran, plain = self.counted, TranslutionLayer.mixing_products.fget(self)    # type: ignore[attr-defined]
        return super().mixing(pairs) + max(0, ran - plain)


@dataclass(frozen=True)
class LoRLayer(Layer):
    """LoR-Translution; ``low`` = h·C¹ and ``core`` = h·C² channels of all heads, ``shared``: with Wq, Wk, Wv.

    With ``diagonal`` cores there are two diagonals for each relation instead of three matrices.

    Label: eq-lor-parameters, eq-cost-low-rank, eq-sharing-cost.
    """

    low: int = 24
    core: int = 24
    shared: bool = True
    diagonal: bool = False

    @property
    def per_core(self) -> int:
        """Numbers of a relation, and multiply–adds with them for a pair: 3·R1·R2, or 2·R1 with diagonals."""
        return 2 * self.low if self.diagonal else 3 * self.low * self.core

    @property
    def per_token(self) -> int:
        """Multiply–adds per token of W1 (three of them) and W2: 3·C·R1 + R2·C′; also their parameters."""
        return 3 * self.dim * self.low + self.core * self.inner

    @property
    def weights(self) -> int:
        """3·C·C′ where shared, W1 and W2, and the cores of every relation."""
        return 3 * self.shared * self.dim * self.inner + self.per_token + self.relations * self.per_core

    @property
    def mixing_as_printed(self) -> int:
        """Self-attention (where shared) plus W1, W2 and three cores once per token."""
        return self._wide(self.pairs) + self.tokens * (self.per_token + self.per_core)

    def mixing(self, pairs: int) -> int:
        """Self-attention, W1 and W2 per token; the cores and 2·R2 for score and sum per pair."""
        return self._wide(pairs) + self.tokens * self.per_token + pairs * (self.per_core + 2 * self.core)

    @property
    def mixing_products(self) -> int:
        """The cores of attended pairs, if they are matrices; the scores of the shared part for all pairs."""
        cores = 0 if self.diagonal else self.attended * self.per_core
        return self._wide(self.pairs) + self.tokens * self.per_token + cores

    def _wide(self, pairs: int) -> int:
        return self.shared * (3 * self.tokens * self.dim + 2 * pairs) * self.inner


FORMULAS: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], tuple]]] = {
    mixers.Attention: (SelfAttentionLayer, lambda layer: ()),
    mixers.Convolution: (ConvolutionLayer, lambda layer: (prod(layer.kernel.shape[:-2]),)),
    mixers.LoRTranslution: (LoRLayer, lambda layer: (
        *(layer.heads * r for r in layer.relative_dim), layer.query is not None, layer.core == "diagonal")),
    **dict.fromkeys((mixers.Translution, mixers.ValueTranslution, mixers.AbsoluteTranslution),
                    (TranslutionLayer, lambda layer: (layer.relative,))),
    mixers.GeneralTranslution: (RelativeLayer, lambda layer: ()),
    mixers.RotaryTranslution: (RelativeLayer, lambda layer: ("v",)),
}
"""Per class of layers: its formula, and a reader of the numbers that the formula needs besides."""


def of(mixer: nn.Module) -> Layer:
    """Return the cost of a mixing layer: by formula where one is derived, otherwise counted when it is asked for.

    Raises:
        ValueError: a module that is no layer over a table of relations.
    """
    layer: Any = mixer
    if not isinstance(getattr(mixer, "relations", None), Relations):
        raise ValueError(f"mixer must be a layer over a table of relations, got {mixer!r}")
    where, inner, heads = layer.relations, getattr(layer, "inner", layer.dim), getattr(layer, "heads", 1)
    extra = sum(p.numel() for name, p in mixer.named_parameters() if name.partition(".")[0] not in MATRICES)
    sizes = (where.n, where.count, int(where.mask.sum()), layer.dim, inner, heads, isinstance(
        getattr(layer, "output", None), nn.Linear), extra, mixer)
    kind, read = FORMULAS.get(type(mixer), (Layer, lambda layer: ()))
    return kind(*sizes, *read(layer))


def named(name: str, relations: Relations, dim: int, heads: int = 1, **options) -> Layer:
    """Return the cost of the layer ``MIXERS[name](relations, dim=dim, heads=heads, …)``, built on the meta device.

    Raises:
        ValueError: an unknown mixer, or options that it refuses.
    """
    make = mixers.mixer_named(name)
    with without_numbers():
        return of(make(relations, dim=dim, heads=heads, **options))
