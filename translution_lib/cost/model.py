"""What a model costs by formula: parameters and multiply–adds, those of a layer without a formula counted.

Outside the mixing layers the count is that of the paper's tables: a linear map takes rows · columns multiply–adds,
LayerNorm five per element, and biases, GELU, softmax, residual sums and the embedding lookup nothing. The paper's model
normalises all tokens before its read-out, which is what these formulas count; the library's ViT normalises only what
it reads, 5·(n − 1)·C less. Source: the Translution paper, Tables 2–8, 10 and 11; chapter
"What it costs".
"""

from math import prod

from torch import nn

from translution_lib.cost.counting import Config, config_of
from translution_lib.cost.layer import Layer, named
from translution_lib.models import ViTConfig
from translution_lib.models.blocks import options_for, plain_names

NORM = 5
"""Multiply–adds that fvcore charges for one element of a LayerNorm."""


def layers_of(model: Config | nn.Module) -> list[Layer]:
    """Return the cost of every mixing layer of a model, first layer first.

    Raises:
        ValueError: an unknown model type or mixer.
    """
    config, names = config_of(model), plain_names(config_of(model).mixer)
    where = config.relations()
    made = {name: named(name, where, config.dim, config.heads, **options_for(name, config.mixer, config.options))
            for name in set(names)}
    return [made[name] for name in names]


def parameters(model: Config | nn.Module) -> int:
    """Return the number of trainable numbers of a model.

    Raises:
        ValueError: an unknown model type or mixer.

    Label: eq-cost-model, eq-preprint-parameters.
    """
    config = config_of(model)
    c, f = config.dim, config.ff
    block = 2 * c + (2 * c + c * f + f + f * c + c)             # norm before the mixer; norm and two linear maps after
    fixed = isinstance(config, ViTConfig) and config.fixed
    around = (config.absolute and not fixed) * config.tokens * c
    if isinstance(config, ViTConfig):
        p = prod(config.patch)
        around += 2 * config.normalised + (p * c + c) + 2 * c   # norm, linear map, norm of the patches
        around += (config.pool == "cls") * c + 2 * c + (c * config.classes + config.classes)
    else:
        around += 2 * config.vocabulary * c + 4 * c             # embedding, untied read-out, two norms
    return around + sum(block + layer.parameters for layer in layers_of(config))


def macs_as_printed(model: Config | nn.Module) -> int:
    """Return the multiply–adds of one sample as the FLOPs columns of the paper's tables count them.

    Raises:
        ValueError: an unknown model type or mixer.

    Label: eq-cost-printed.
    """
    config = config_of(model)
    return _norms(config) + _products(config) + sum(layer.macs_as_printed for layer in layers_of(config))


def macs_true(model: Config | nn.Module, attended_only: bool = False) -> int:
    """Return the multiply–adds of one sample, every pair's products counted; the rest as in the printed columns.

    Args:
        model: the model or its configuration.
        attended_only: leave out masked pairs (in a causal model all with j > i), which the authors' code computes.

    Raises:
        ValueError: an unknown model type or mixer.

    Label: eq-preprint-macs.
    """
    config = config_of(model)
    return _norms(config) + _products(config) + sum(layer.macs_true(attended_only) for layer in layers_of(config))


def macs_products(model: Config | nn.Module) -> int:
    """Return the multiply–adds of the matrix products that the library's model runs for one sample.

    It equals :func:`count_macs`: no LayerNorm, no elementwise work. A score q·k of a pair whose vectors exist for that
    pair only is elementwise.

    Raises:
        ValueError: an unknown model type or mixer.
    """
    config = config_of(model)
    return _products(config) + sum(layer.macs_products for layer in layers_of(config))


def _norms(config: Config) -> int:
    """Five per element of every LayerNorm."""
    n, c = config.tokens, config.dim
    blocks = 2 * NORM * n * c * config.depth
    if isinstance(config, ViTConfig):
        return blocks + NORM * prod(config.grid) * (config.normalised + c) + NORM * n * c
    return blocks + 2 * NORM * n * c


def _products(config: Config) -> int:
    """Linear maps outside the mixing layers."""
    n, c = config.tokens, config.dim
    blocks = 2 * n * c * config.ff * config.depth
    if isinstance(config, ViTConfig):
        return blocks + prod(config.grid) * prod(config.patch) * c + c * config.classes
    return blocks + n * c * config.vocabulary
