"""What the parts of a model keep, produce and need while it trains, in bytes: the pieces of :func:`cost.memory`.

A model is a row of segments: input, two per block (mixing, feed-forward), read-out with loss. Forward adds what each
keeps for backward; backward walks the row from its end, frees what was kept and leaves gradients of parameters.
Source: chapter "Making it fit".
"""

from dataclasses import dataclass

from translution_lib.cost.base import Layer
from translution_lib.cost.model import Config
from translution_lib.models import ViTConfig

STATISTICS = 8
"""Bytes of mean and reciprocal deviation that a LayerNorm keeps per token, in single precision."""


@dataclass(frozen=True)
class Precision:
    """Bytes of a number: of parameters, of what products read and write, of what stays in between; ids take eight.

    Attributes:
        weight: parameters, their gradients and the state of the optimizer.
        product: operands and results of matrix products.
        stream: the residual stream and the input of every LayerNorm.
        softmax: results of softmax.
    """

    weight: int = 4
    product: int = 4
    stream: int = 4
    softmax: int = 4

    @property
    def mixed(self) -> bool:
        """Whether products read copies of the parameters in a smaller type."""
        return self.product < self.weight

    def copies(self, numbers: int) -> int:
        """Bytes of copies of parameters for products."""
        return self.mixed * self.product * numbers


@dataclass(frozen=True)
class Segment:
    """A part of a model, in bytes.

    Attributes:
        saved: kept from its forward run to its backward run.
        gradients: of its parameters, there from its backward run on.
        work: the most that its backward run needs besides.
    """

    saved: int
    gradients: int
    work: int


def mixing(config: Config, layer: Layer, batch: int, p: Precision) -> Segment:
    """First half of a block: norm, mixing layer, residual sum."""
    n, c, e = layer.tokens, layer.dim, layer.inner
    saved = layer.saved_bytes(batch, p.product) + batch * n * (p.stream * c + STATISTICS)
    if p.stream > p.product:                        # every product that reads the input casts a copy of its own
        saved += p.product * batch * max(layer.reads - 1, 0) * n * c
    if p.mixed:
        saved += p.copies(layer.weights + layer.output * e * c)
    if p.softmax > p.product and layer.keeps_weights:
        saved += p.softmax * batch * layer.heads * n * n
    dropout = layer.keeps_weights and any(own.get("dropout", 0.0) for own in (
        config.options, *(own for own in config.options.values() if isinstance(own, dict))))
    saved += dropout * batch * layer.heads * n * n * (p.product + 1)
    work = layer.work(batch, p.product) + p.stream * batch * n * c + p.copies(layer.weights)
    return Segment(saved, p.weight * (2 * c + layer.parameters), work)


def feed_forward(config: Config, batch: int, p: Precision) -> Segment:
    """Second half of a block: norm, linear map, GELU, linear map, residual sum."""
    rows, c, f = batch * config.tokens, config.dim, config.ff
    saved = rows * (p.stream * c + STATISTICS + p.product * (c + 2 * f)) + p.copies(2 * c * f)
    work = rows * (p.product * f + (p.stream + p.product * (p.stream > p.product)) * c) + p.copies(c * f)
    return Segment(saved, p.weight * (2 * c + 2 * c * f + f + c), work)


def inputs(config: Config, batch: int, p: Precision) -> int:
    """Bytes of a batch: images or token ids, and the ids to predict."""
    if isinstance(config, ViTConfig):
        return batch * (p.weight * config.channels * config.image_size ** 2 + 8)
    return 16 * batch * config.tokens


def stem(config: Config, batch: int, p: Precision) -> Segment:
    """From the input to the first block."""
    c, rows = config.dim, batch * config.tokens
    places = config.absolute * config.tokens * c
    if not isinstance(config, ViTConfig):
        return Segment(0, p.weight * (config.vocabulary * c + places), p.stream * rows * c)
    pixels, patches = config.channels * config.patch_size ** 2, batch * config.grid ** 2
    normed = config.normalised
    kept = p.weight * normed + p.product * pixels + p.stream * c + (1 + (normed > 0)) * STATISTICS
    saved = patches * kept + p.copies(pixels * c)
    numbers = 2 * normed + pixels * c + c + 2 * c + (config.pool == "cls") * c + places
    return Segment(saved, p.weight * numbers, p.product * patches * pixels + 2 * p.stream * rows * c)


def read_out(config: Config, batch: int, p: Precision) -> Segment:
    """From the last block to the loss: the probabilities are kept, and backward needs two tables of their size."""
    c, rows, single = config.dim, batch * config.tokens, p.weight
    if isinstance(config, ViTConfig):
        kept = rows * p.stream * c if config.pool == "cls" else batch * p.stream * c
        saved = kept + batch * (p.product * c + STATISTICS + single * config.classes) + p.copies(c * config.classes)
        work = 2 * single * batch * config.classes + p.stream * rows * c
        return Segment(saved, p.weight * (2 * c + c * config.classes + config.classes), work)
    v = config.vocabulary
    saved = rows * ((2 * p.stream + p.product) * c + 2 * STATISTICS + single * v) + p.copies(c * v)
    return Segment(saved, p.weight * (4 * c + c * v), 2 * single * rows * v)
