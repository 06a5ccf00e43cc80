"""The cost of one mixing layer, from the layer itself or from its name and options; chapter "What it costs"."""

from collections.abc import Callable
from dataclasses import fields
from math import log, prod
from typing import Any

from torch import nn

from translution_lib import mixers
from translution_lib.cost.base import FORMS, Layer
from translution_lib.cost.encodings import GatedLayer, RotaryLayer, ScalarBiasLayer, VectorLayer
from translution_lib.cost.geometry import RiemannLayer
from translution_lib.cost.kinds import ConvolutionLayer, LoRLayer, SelfAttentionLayer, TranslutionLayer
from translution_lib.cost.performers import FirstStrategyLayer, PerformerLayer, SecondStrategyLayer
from translution_lib.cost.relatives import AbsoluteTranslutionLayer, GeneralLayer, RotaryTranslutionLayer
from translution_lib.mixers.positional import clipped, offset_count
from translution_lib.relations import Relations


def of(mixer: nn.Module) -> Layer:
    """Return the cost of a mixing layer of the library.

    Raises:
        ValueError: a layer whose cost is not known here.
    """
    for kind, (name, read) in LAYERS.items():
        if isinstance(mixer, kind):
            layer: Any = mixer
            options = {"output": isinstance(layer.output, nn.Linear), **read(layer)}
            if isinstance(layer, mixers.Attention):
                options |= {"heads": layer.heads, "head_dim": layer.head_dim}
            return named(name, layer.relations, layer.dim, **options)
    raise ValueError(f"mixer must be a layer of one of {sorted(KINDS)}, got {type(mixer).__name__}")


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
    inner = heads * head_dim if head_dim is not None else dim
    numbers = {**read(relations, heads, width=inner // heads, **options), **fixed}
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


def _low_rank(relations, heads, relative_dim=8, shared: bool = True, core: str = "dense", **ignored) -> dict:
    low, wide = relative_dim if isinstance(relative_dim, (tuple, list)) else (relative_dim, relative_dim)
    return {"low": heads * low, "core": heads * wide, "shared": shared, "diagonal": core == "diagonal"}


def _vectors(relations, heads, absolute=False, sides="kv", clip=None, per_head=True, **ignored) -> dict:
    return {"absolute": absolute, "sides": sides, "vectors": offset_count(clipped(relations, clip)),
            "per_head": per_head}


def _bias_rows(relations, heads, absolute=False, bias="table", num_buckets=32, **ignored) -> dict:
    return {"absolute": absolute, "rows": {"table": offset_count(relations), "t5": num_buckets, "alibi": 0}[bias]}


def _gate(relations, heads, absolute=False, form="original", **ignored) -> dict:
    delta = relations.labels[: offset_count(relations)]
    distances = len({sum(step**2 for step in label) for label in delta})
    features = 1 + len(delta[0]) if form == "original" else distances
    return {"absolute": absolute, "features": features, "vectors": len(delta)}


def _turns(relations, heads, absolute=False, angles="fixed", cls_token="free", **ignored) -> dict:
    offset_count(relations)
    return {"absolute": absolute, "axes": len(relations.shape), "learned": angles == "learned",
            "extra": 2 if relations.cls and cls_token == "free" else 0}


def _functions(relations, heads, kernel="mlp", functions=8, hidden=32, centres=5, **ignored) -> dict:
    m, axes = offset_count(relations), len(relations.shape)
    reach = [len(set(axis)) for axis in zip(*relations.labels[:m], strict=True)]
    number = {"mlp": functions, "radial": prod(centres if r > 1 else 1 for r in reach), "axes": sum(reach),
              "table": m}[kernel]
    learned = functions - 1 if kernel == "mlp" else 0
    return {"functions": number + relations.count - m, "table": kernel == "table", "axes": axes, "vectors": m,
            "learned": learned, "network": hidden if learned else 0}


def _features(relations, heads, absolute=False, features="positive", num_features=None, width=1, **ignored) -> dict:
    draws = num_features or max(1, int(width * log(width)))
    return {"absolute": absolute, "draws": draws, "waves": 1 if features == "positive" else 2,
            "causal": not relations.complete}


def _length_scales(relations, heads, length_scales=4, num_features=None, width=1, **options) -> dict:
    scales = len(relations.shape) * length_scales
    return {**_features(relations, heads, num_features=num_features, width=width + 2 * scales, **options),
            "axes": len(relations.shape), "scales": scales, "cls": relations.cls}


def _distances(relations, heads, clip=6, signed=False, corner=None, **options) -> dict:
    line = signed or relations.causal
    return {**_features(relations, heads, **options), "cls": relations.cls, "placed": corner is not None,
            "vectors": 2 * clip + 1 if signed and not relations.causal else clip + 1,
            "balls": None if line else min(clip, sum(side - 1 for side in relations.shape))}


def _transport(relations, heads, transport="rotation", metric="scalar", angles="fixed", alpha=0.1, focus=None, width=1,
               **options) -> dict:
    axes = len(relations.shape)
    scales = {None: None, "scalar": heads * axes, "pairs": heads * width // 2}.get(metric, heads * width)
    return {**_turns(relations, heads, **options), "learned": transport not in ("skew", "none") and angles == "learned",
            "still": transport == "none", "skew": transport == "skew", "scales": scales, "squashed": alpha is not None,
            "focus": focus or "", "turning": metric == "general"}


KINDS: dict[str, tuple[type[Layer], dict, Callable[..., dict]]] = {
    "self-attention": (SelfAttentionLayer, {}, _absolute),
    "absolute": (SelfAttentionLayer, {"absolute": True}, _absolute),
    "translution": (TranslutionLayer, {}, _relative),
    "value-translution": (TranslutionLayer, {"relative": "v"}, _relative),
    "lor-translution": (LoRLayer, {}, _low_rank),
    "convolution": (ConvolutionLayer, {}, _taps),
    "key-vector": (VectorLayer, {"sides": "k"}, _vectors),
    "value-vector": (VectorLayer, {"sides": "v"}, _vectors),
    "key-value-vector": (VectorLayer, {}, _vectors),
    "scalar-bias": (ScalarBiasLayer, {}, _bias_rows),
    "gated-bias": (GatedLayer, {}, _gate),
    "rotary": (RotaryLayer, {}, _turns),
    "rotary-translution": (RotaryTranslutionLayer, {}, _turns),
    "general-translution": (GeneralLayer, {}, _functions),
    "absolute-translution": (AbsoluteTranslutionLayer, {}, _relative),
    "riemann": (RiemannLayer, {}, _transport),
    "performer": (PerformerLayer, {}, _features),
    "performer-no-position": (PerformerLayer, {}, _features),
    "performer-absolute": (PerformerLayer, {"absolute": True}, _features),
    "performer-s1": (FirstStrategyLayer, {}, _length_scales),
    "performer-s2": (SecondStrategyLayer, {}, _distances),
}
"""Per mixer name: its cost class, the numbers that the name fixes, and a reader of its options."""


def _absolute_too(mixer: nn.Module, **options) -> dict:
    return {"absolute": mixer.position is not None, **options}


LAYERS: dict[type[nn.Module], tuple[str, Callable[..., dict]]] = {
    mixers.Convolution: ("convolution", lambda layer: {"kernel_size": tuple(layer.kernel.shape[:-2])}),
    mixers.RelativeVectors: ("key-value-vector", lambda layer: _absolute_too(
        layer, sides=layer.sides, clip=layer.clip, per_head=layer.per_head)),
    mixers.ScalarBias: ("scalar-bias", lambda layer: _absolute_too(
        layer, bias=layer.maker, num_buckets=0 if layer.bias is None else layer.bias.shape[1])),
    mixers.GatedPositionalAttention: ("gated-bias", lambda layer: _absolute_too(layer, form=layer.form)),
    mixers.RotaryTranslution: ("rotary-translution", lambda layer: _rotary(layer)),
    mixers.Rotary: ("rotary", lambda layer: _rotary(layer)),
    mixers.Riemann: ("riemann", lambda layer: _absolute_too(
        layer, transport=layer.transport, metric=layer.metric, alpha=layer.alpha, focus=layer.focus,
        angles="fixed" if layer.theta is None else "learned")),
    mixers.PerformerS1: ("performer-s1", lambda layer: _random(layer, length_scales=layer.scales.shape[1])),
    mixers.PerformerS2: ("performer-s2", lambda layer: _random(
        layer, clip=layer.clip, signed=layer.signed and not layer.relations.causal, corner=layer.corner)),
    mixers.Performer: ("performer", lambda layer: _random(layer)),
    mixers.SelfAttention: ("self-attention", _absolute_too),
    mixers.GeneralTranslution: ("general-translution", lambda layer: _general(layer)),
    mixers.AbsoluteTranslution: ("absolute-translution", lambda layer: {"relative": layer.relative}),
    mixers.Translution: ("translution", lambda layer: {"relative": layer.relative}),
    mixers.LoRTranslution: ("lor-translution", lambda layer: {
        "relative_dim": layer.relative_dim, "shared": layer.query is not None, "core": layer.core}),
}
"""Per class of layers, special ones first: a mixer name with its cost, and a reader of the layer's options."""


def _random(layer: mixers.Performer, **options) -> dict:
    return _absolute_too(layer, features=layer.features, num_features=len(layer.omega), **options)


def _rotary(layer: mixers.Rotary) -> dict:
    return _absolute_too(layer, angles="fixed" if layer.theta is None else "learned", cls_token=layer.cls_token)


def _general(layer: mixers.GeneralTranslution) -> dict:
    basis: Any = layer.basis
    network = getattr(basis, "network", None)
    roles = layer.relations.count - offset_count(layer.relations)
    options = {"kernel": layer.kernel, "functions": layer.query.shape[0] - roles,
               "hidden": 0 if network is None else network[0].out_features}
    if layer.kernel == "radial":                             # the same number along every axis that is not a point
        centres = basis.centres
        options["centres"] = max(len(centres[:, axis].unique()) for axis in range(centres.shape[1]))
    return options


__all__ = ["FORMS", "KINDS", "LAYERS", "Layer", "named", "of"]
