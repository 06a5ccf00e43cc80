"""The cost of one mixing layer, from the layer itself or from its name and options; chapter "What it costs"."""

from collections.abc import Callable
from dataclasses import fields
from math import prod

from torch import nn

from translution_lib.cost.base import FORMS, Layer
from translution_lib.cost.kinds import ConvolutionLayer, LoRLayer, SelfAttentionLayer, TranslutionLayer
from translution_lib.mixers import Convolution, LoRTranslution, SelfAttention, Translution
from translution_lib.relations import Relations


def of(mixer: nn.Module) -> Layer:
    """Return the cost of a mixing layer of the library.

    Raises:
        ValueError: a layer whose cost is not known here.
    """
    if isinstance(mixer, Convolution):
        return named("convolution", mixer.relations, mixer.dim, kernel_size=tuple(mixer.kernel.shape[:-2]),
                     output=isinstance(mixer.output, nn.Linear))
    options: dict = {}
    if isinstance(mixer, SelfAttention):
        name, options = "self-attention", {"absolute": mixer.position is not None}
    elif isinstance(mixer, Translution):
        name, options = "translution", {"relative": mixer.relative}
    elif isinstance(mixer, LoRTranslution):
        name, options = "lor-translution", {"relative_dim": mixer.relative_dim, "shared": mixer.query is not None}
    else:
        raise ValueError(f"mixer must be a layer of one of {sorted(KINDS)}, got {type(mixer).__name__}")
    return named(name, mixer.relations, mixer.dim, mixer.heads, head_dim=mixer.head_dim,
                 output=isinstance(mixer.output, nn.Linear), **options)


def named(name: str, relations: Relations, dim: int, heads: int = 1, *, head_dim: int | None = None,
          output: bool = True, **options) -> Layer:
    """Return the cost of the mixer ``MIXERS[name](relations, dim=dim, heads=heads, …)`` without building it.

    Options that change no cost (``init``, ``variant``, ``dropout``) are accepted and ignored.

    Raises:
        ValueError: a mixer whose cost is not known here.
    """
    if name not in KINDS:
        raise ValueError(f"mixer must be one of {sorted(KINDS)}, got {name!r}")
    kind, fixed, read = KINDS[name]
    numbers = {**read(relations, heads, **options), **fixed}
    inner = heads * head_dim if head_dim is not None else dim
    size = Layer(relations.n, relations.count, int(relations.mask.sum()), dim, inner, heads, output,
                 _largest_group(relations))
    return kind(**{f.name: getattr(size, f.name) for f in fields(size)}, **numbers)


def _largest_group(relations: Relations) -> int:
    """Return the pairs of the largest relation, with those of its mirror image where the table has one."""
    largest = int(relations.sizes.max())
    return largest if relations.causal or relations.count == 1 else min(2 * largest, relations.n ** 2)


def _absolute(relations, heads, absolute: bool = False, **ignored) -> dict:
    return {"absolute": absolute}


def _taps(relations, heads, kernel_size=3, **ignored) -> dict:
    sides = [kernel_size] * len(relations.shape) if isinstance(kernel_size, int) else kernel_size
    return {"taps": prod(sides)}


def _relative(relations, heads, relative: str = "qkv", **ignored) -> dict:
    return {"relative": relative}


def _low_rank(relations, heads, relative_dim=8, shared: bool = True, **ignored) -> dict:
    low, core = relative_dim if isinstance(relative_dim, (tuple, list)) else (relative_dim, relative_dim)
    return {"low": heads * low, "core": heads * core, "shared": shared}


KINDS: dict[str, tuple[type[Layer], dict, Callable[..., dict]]] = {
    "self-attention": (SelfAttentionLayer, {}, _absolute),
    "absolute": (SelfAttentionLayer, {"absolute": True}, _absolute),
    "translution": (TranslutionLayer, {}, _relative),
    "value-translution": (TranslutionLayer, {"relative": "v"}, _relative),
    "lor-translution": (LoRLayer, {}, _low_rank),
    "convolution": (ConvolutionLayer, {}, _taps),
}
"""Per mixer name: its cost class, the numbers that the name fixes, and a reader of its options."""

__all__ = ["FORMS", "KINDS", "ConvolutionLayer", "Layer", "LoRLayer", "SelfAttentionLayer", "TranslutionLayer",
           "named", "of"]
