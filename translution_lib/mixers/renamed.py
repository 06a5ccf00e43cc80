"""Parameters of the first edition's layers under their names of today."""

from collections.abc import Mapping

from torch import Tensor

PART = ("key_vector", "value_vector", "position_weight", "gate", "theta", "scale", "log_sigma", "generator")
"""What was a parameter of a layer and is one of its part."""


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict of the first edition, of a layer or of a whole model, as today's layers load it.

    An embedding of places comes before the part; the table of a scalar bias was called ``bias``. The layers of a name
    that never had a part, such as Translution's, keep their names.

    Args:
        state: parameters by their old names; names of today stay as they are.
    """
    layers = {name.rpartition(".")[0] for name in state if name.rpartition(".")[2] == "query"}
    absolute = {layer for layer in layers if _at(layer, "position") in state}
    own = {layer for layer in layers if _at(layer, "theta") not in state and any(
        state[name].ndim == 3 for name in (_at(layer, kind) for kind in ("query", "key", "value")) if name in state)}
    return {_new(name, layers - own, absolute): table for name, table in state.items()}


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
