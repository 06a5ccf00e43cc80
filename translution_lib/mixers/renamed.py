"""Parameters of the first edition's layers under their names of today."""

from collections.abc import Mapping

from torch import Tensor

PART = ("key_vector", "value_vector", "position_weight", "gate", "theta", "scale", "log_sigma", "generator")
"""What was a parameter of a layer and is one of its part."""
SHARED = ("query", "key", "value", "query_low", "key_low", "value_low", "value_up")
"""What was a matrix (C, C′) and is the weight of a linear map where all pairs share it."""


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict of the first edition, of a layer or of a whole model, as today's layers load it.

    An embedding of places comes before the part; the table of a scalar bias was called ``bias``. The layers of a name
    that never had a part, such as Translution's, keep their names. A shared matrix becomes a map's transposed weight.

    Args:
        state: parameters by their old names; names of today stay as they are.
    """
    layers, low = ({layer for layer, _, last in (name.rpartition(".") for name in state) if last == kind}
                   for kind in ("query", "query_low"))
    absolute = {layer for layer in layers if _at(layer, "position") in state}
    own = {layer for layer in layers if _at(layer, "theta") not in state and any(
        state[name].ndim == 3 for name in (_at(layer, kind) for kind in ("query", "key", "value")) if name in state)}
    new = {name: _new(name, layers - own, absolute) for name in state}
    shared = {name for name, table in state.items() if table.ndim == 2 and _shared(name, layers | low)}
    return {f"{new[name]}.weight" if name in shared else new[name]: table.mT.contiguous() if name in shared else table
            for name, table in state.items()}


def _shared(name: str, layers: set[str]) -> bool:
    layer, _, last = name.rpartition(".")
    return layer in layers and last in SHARED


def _new(name: str, layers: set[str], absolute: set[str]) -> str:
    layer, _, last = name.rpartition(".")
    if layer not in layers:
        return name
    if last == "position":
        return _at(layer, "encodings.0.position")
    last = "table" if last == "bias" else last
    return _at(layer, f"encodings.{int(layer in absolute)}.{last}") if last in (*PART, "table") else name


def _at(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name
