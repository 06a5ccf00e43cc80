"""What a model costs, by closed formula: parameters, multiply–adds, bytes kept for backward.

Outside the mixing layers the count is that of the seed's tables: a linear map takes rows · columns multiply–adds,
LayerNorm five per element, and biases, GELU, softmax, residual sums and the embedding lookup nothing. The seed's model
normalises all tokens before its read-out, which is what these formulas count; the library's ViT normalises only what
it reads, 5·(n − 1)·C less. Source: seed 000, Tables 2–8, 10 and 11; chapter "What it costs".
"""

import torch
from torch import nn

from translution_lib.cost.base import Layer
from translution_lib.cost.layer import named
from translution_lib.mixers import mixer_named
from translution_lib.models import GPT, GPTConfig, ViT, ViTConfig
from translution_lib.models.blocks import options_for, plain_names

Config = ViTConfig | GPTConfig
NORM = 5
"""Multiply–adds that fvcore charges for one element of a LayerNorm."""


def config_of(model: Config | nn.Module) -> Config:
    """Return the configuration of a model, or the configuration itself.

    Raises:
        ValueError: anything but a ViT, a GPT or one of their configurations.
    """
    config = model.config if isinstance(model, (ViT, GPT)) else model
    if not isinstance(config, (ViTConfig, GPTConfig)):
        raise ValueError(f"model must be a ViT, a GPT or the configuration of one, got {type(model).__name__}")
    return config


def layers_of(model: Config | nn.Module) -> list[Layer]:
    """Return the cost of every mixing layer of a model, first layer first.

    Raises:
        ValueError: an unknown model type, or a mixer whose cost is not known.
    """
    config = config_of(model)
    relations = config.relations()
    names = plain_names(config.mixer)
    made = {name: _layer(name, relations, config) for name in dict.fromkeys(names)}
    return [made[name] for name in names]


def _layer(name: str, relations, config: Config) -> Layer:
    mixer_named(name)
    return named(name, relations, config.dim, config.heads, **options_for(name, config.mixer, config.options))


def parameters(model: Config | nn.Module) -> int:
    """Return the number of trainable numbers of a model.

    Raises:
        ValueError: an unknown model type, or a mixer whose cost is not known.

    Label: eq-cost-model, eq-preprint-parameters.
    """
    config = config_of(model)
    c, f = config.dim, config.ff
    block = 2 * c + (2 * c + c * f + f + f * c + c)             # norm before the mixer; norm and two linear maps after
    fixed = getattr(config, "embedding", "learned") != "learned"
    around = (config.absolute and not fixed) * config.tokens * c
    if isinstance(config, ViTConfig):
        p = config.channels * config.patch_size ** 2
        around += 2 * config.normalised + (p * c + c) + 2 * c   # norm, linear map, norm of the patches
        around += (config.pool == "cls") * c + 2 * c + (c * config.classes + config.classes)
    else:
        around += 2 * config.vocabulary * c + 4 * c             # embedding, untied read-out, two norms
    return around + sum(block + layer.parameters for layer in layers_of(config))


def macs_as_printed(model: Config | nn.Module) -> int:
    """Return the multiply–adds of one sample as the FLOPs columns of the seed's tables count them.

    Raises:
        ValueError: an unknown model type, or a mixer whose cost is not known.

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
        ValueError: an unknown model type, or a mixer whose cost is not known.

    Label: eq-preprint-macs.
    """
    config = config_of(model)
    return _norms(config) + _products(config) + sum(layer.macs_true(attended_only) for layer in layers_of(config))


def macs_products(model: Config | nn.Module) -> int:
    """Return the multiply–adds of the matrix products that the library's model runs for one sample.

    It equals :func:`count_macs`: no LayerNorm, no elementwise work. A score q·k of a pair whose vectors exist for that
    pair only is elementwise.

    Raises:
        ValueError: an unknown model type, or a mixer whose cost is not known.
    """
    config = config_of(model)
    return _products(config) + sum(layer.macs_products for layer in layers_of(config))


def saved_bytes(model: Config | nn.Module, batch: int = 1, dtype: torch.dtype = torch.float32,
                form: str = "fast") -> int:
    """Return the bytes that the mixing layers of a model keep for backward, besides parameters; see ``Layer``.

    Args:
        model: the model or its configuration.
        batch: samples.
        dtype: type of the numbers.
        form: "fast" (the library), "lean" (no projected pair is kept), "gather" (one matrix per pair and sample) or
            "pairs" (one vector per pair and letter).

    Raises:
        ValueError: an unknown model type or form, a mixer whose cost is not known.

    Label: eq-fit-memory.
    """
    return sum(layer.saved_bytes(batch, dtype.itemsize, form) for layer in layers_of(model))


def _norms(config: Config) -> int:
    """Five per element of every LayerNorm."""
    n, c = config.tokens, config.dim
    blocks = 2 * NORM * n * c * config.depth
    if isinstance(config, ViTConfig):
        return blocks + NORM * config.grid ** 2 * (config.normalised + c) + NORM * n * c
    return blocks + 2 * NORM * n * c


def _products(config: Config) -> int:
    """Linear maps outside the mixing layers."""
    n, c = config.tokens, config.dim
    blocks = 2 * n * c * config.ff * config.depth
    if isinstance(config, ViTConfig):
        return blocks + config.grid ** 2 * config.channels * config.patch_size ** 2 * c + c * config.classes
    return blocks + n * c * config.vocabulary
