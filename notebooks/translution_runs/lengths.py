"""A trained language model on texts longer than its context: what carries over, and what does not.

An encoding whose parameters do not depend on the length reads any text. One with parameters for each offset knows the
offsets of its context alone: a longer text needs a rule for those beyond. No rule gives a parameter to a place that
training never saw, so that an absolute embedding is refused. Source: chapter "Language models".
"""

from typing import Any

from translution_lib.models import GPT
from translution_lib.models.blocks import alike
from translution_lib.models.gpt import BEYOND

WITHIN, NATIVE = "within", "native"


class Bounded(ValueError):
    """An encoding that cannot read a text of this length, or not by this rule."""


def how(model: GPT, length: int, rule: str = "") -> str:
    """In what way a model reads `length` tokens.

    Args:
        model: on any device.
        length: tokens of a text.
        rule: "" (as the encoding is), "clip" (offsets longer than any in the context share the parameters of the
            longest) or "window" (no token reads further back than that).

    Returns:
        "within" its context; "native", all parameters mean the same at any length; or the rule.

    Raises:
        Bounded: it cannot.
        ValueError: an unknown rule.
    """
    if rule not in ("", *BEYOND):
        raise ValueError(f"rule: got {rule!r}, expected nothing, or one of {', '.join(BEYOND)}")
    known = model.config.context
    if length <= known:
        return WITHIN
    if model.config.absolute:
        raise Bounded(f"there is an embedding of {known} places, and none of the others")
    if rule and (model.config.reach, model.config.bucket_offsets) != (None, None):
        raise Bounded("offsets share parameters by a rule of the model's own")
    native = shapes(model) == shapes(alike(model, context=length))
    if rule == "clip" and native:
        raise Bounded("nothing to clip: no parameter belongs to an offset of the context")
    if rule == "" and not native:
        raise Bounded(f"there are parameters for {known} offsets, and none for the others")
    return rule or NATIVE


def lengthened(model: GPT, length: int, rule: str = "") -> GPT:
    """The same weights as a model of `length` tokens; the model itself where its context is as long.

    Raises:
        Bounded: as `how`, and where the layers cannot follow the rule, as Performers no window.
        ValueError: an unknown rule.
    """
    way = how(model, length, rule)
    if way == WITHIN:
        return model
    changes: dict[str, Any] = {} if way == NATIVE else {"reach": model.config.context, "beyond": way}
    try:
        return model.resized(length, **changes)
    except ValueError as error:
        raise Bounded(f"no {way}: {error}") from error


def shapes(model: GPT) -> dict[str, tuple[int, ...]]:
    """The sizes of all that a model has learnt or drawn, by name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
