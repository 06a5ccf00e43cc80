"""The cost of one mixing layer, from the layer itself or from its name and options; chapter "What it costs"."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from math import log, prod
from typing import Any

import torch
from torch import nn

from translution_lib import mixers
from translution_lib.cost.base import FORMS, Layer
from translution_lib.cost.encodings import CountedLayer, GatedLayer, RotaryLayer, ScalarBiasLayer, VectorLayer
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
    layer: Any = mixer
    known = _part(layer) if type(mixer) is mixers.Attention else next(
        (found for kind, found in LAYERS.items() if isinstance(mixer, kind)), None)
    if known is None and isinstance(mixer, mixers.Attention):
        return _counted(mixer)
    if known is None:
        raise ValueError(f"mixer must be a layer of one of {sorted(KINDS)}, or attention with parts, got {mixer!r}")
    name, read = known
    options = {"output": isinstance(layer.output, nn.Linear), **read(layer)}
    if isinstance(layer, mixers.Mixer):
        options |= {"heads": layer.heads, "head_dim": layer.head_dim}
    return named(name, layer.relations, layer.dim, **options)


def _counted(layer: mixers.Attention) -> Layer:
    """Return the cost of attention with any parts, from a copy on the meta device."""
    from translution_lib.cost.counting import count_macs, count_parameters  # which reads the costs of models

    copy = deepcopy(layer).to("meta")
    size = named("self-attention", layer.relations, layer.dim, layer.heads, head_dim=layer.head_dim,
                 output=isinstance(layer.output, nn.Linear))
    numbers = count_parameters(copy) - sum(p.numel() for p in copy.output.parameters())
    products = count_macs(copy, torch.empty(1, layer.relations.n, layer.dim, device="meta")) - size.output_macs
    return CountedLayer(**{f.name: getattr(size, f.name) for f in fields(size)}, numbers=numbers, products=products)


def _part(layer: mixers.Attention) -> tuple[str, Callable[..., dict]] | None:
    """Return the name and the reader of attention with one part, beside an embedding of places."""
    kinds = [type(part) for part in layer.encodings if not isinstance(part, mixers.Absolute)]
    return ("self-attention", _absolute_too) if not kinds else PARTS.get(kinds[0]) if len(kinds) == 1 else None


def named(name: str, relations: Relations, dim: int, heads: int = 1, *, head_dim: int | None = None,
          output: bool = True, **options) -> Layer:
    """Return the cost of the mixer ``MIXERS[name](relations, dim=dim, heads=heads, …)`` without building it.

    Options that change no cost (``init``, ``variant``, ``dropout``) are accepted and ignored.

    Raises:
        ValueError: a mixer whose cost is not known here.
    """
    if name not in KINDS:
        with torch.device("meta"):
            return of(mixers.mixer_named(name)(relations, dim=dim, heads=heads, head_dim=head_dim, output=output,
                                               **options))
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
    return {"absolute": getattr(mixer, "position", None) is not None, **options}


PARTS: dict[type[nn.Module], tuple[str, Callable[..., dict]]] = {
    mixers.Vectors: ("key-value-vector", lambda layer: _absolute_too(
        layer, sides=layer.sides, clip=layer.clip, per_head=layer.per_head)),
    mixers.ScalarBias: ("scalar-bias", lambda layer: _absolute_too(
        layer, bias=layer.maker, num_buckets=layer.num_buckets)),
    mixers.PositionalGate: ("gated-bias", lambda layer: _absolute_too(layer, form=layer.form)),
    mixers.Rotary: ("rotary", lambda layer: _rotary(layer)),
    mixers.Transport: ("riemann", lambda layer: _absolute_too(
        layer, transport=layer.transport, metric=layer.metric, alpha=layer.alpha, focus=layer.focus,
        angles="fixed" if layer.theta is None else "learned")),
}
"""Per class of parts: the name of attention with it alone, and a reader of the layer's options."""


LAYERS: dict[type[nn.Module], tuple[str, Callable[..., dict]]] = {
    mixers.Convolution: ("convolution", lambda layer: {"kernel_size": tuple(layer.kernel.shape[:-2])}),
    mixers.RotaryTranslution: ("rotary-translution", lambda layer: _rotary(layer)),
    mixers.PerformerS1: ("performer-s1", lambda layer: _random(layer, length_scales=layer.scales.shape[1])),
    mixers.PerformerS2: ("performer-s2", lambda layer: _random(
        layer, clip=layer.clip, signed=layer.signed and not layer.relations.causal, corner=layer.corner)),
    mixers.Performer: ("performer", lambda layer: _random(layer)),
    mixers.GeneralTranslution: ("general-translution", lambda layer: _general(layer)),
    mixers.AbsoluteTranslution: ("absolute-translution", lambda layer: {"relative": layer.relative}),
    mixers.Translution: ("translution", lambda layer: {"relative": layer.relative}),
    mixers.LoRTranslution: ("lor-translution", lambda layer: {
        "relative_dim": layer.relative_dim, "shared": layer.query is not None, "core": layer.core}),
}
"""Per class of layers, special ones first: a mixer name with its cost, and a reader of the layer's options."""


def _random(layer: mixers.Performer, **options) -> dict:
    return _absolute_too(layer, features=layer.features, num_features=len(layer.omega), **options)


def _rotary(layer: Any) -> dict:
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
