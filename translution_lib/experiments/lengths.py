"""A trained language model on texts longer than its context: what carries over, and what does not.

An encoding whose parameters do not depend on the length reads any text. One with parameters for each offset knows the
offsets of its context alone: a longer text needs a rule for those beyond, and `beyond` names it. No rule gives a
parameter to a place that training never saw, so that an absolute embedding is refused. Source: chapter "Language
models".
"""

from dataclasses import fields
from typing import Any

import torch

from translution_lib.models import GPT

WITHIN, NATIVE, REFUSE = "within", "native", "refuse"
RULES = ("clip", "window")


class Bounded(ValueError):
    """An encoding that cannot read a text of this length."""


def how(model: GPT, length: int, beyond: str = REFUSE) -> str:
    """In what way a model reads `length` tokens.

    Returns:
        "within" its context; "native", all parameters mean the same at any length; "clip", offsets longer than any in
        the context share the parameters of the longest; "window", no token reads further back than that.

    Raises:
        Bounded: it cannot, or no rule for it was chosen.
        ValueError: an unknown rule.
    """
    if beyond not in (REFUSE, *RULES):
        raise ValueError(f"beyond: got {beyond!r}, expected one of {', '.join((REFUSE, *RULES))}")
    if length <= model.config.context:
        return WITHIN
    if model.config.absolute:
        raise Bounded(f"an embedding of {model.config.context} places has none for {length} tokens")
    if shapes(model) == shapes(stretched(model, length, device="meta")):
        return NATIVE
    if beyond == REFUSE:
        raise Bounded(f"parameters for {model.config.context} offsets, none for those of {length} tokens")
    return beyond


def lengthened(model: GPT, length: int, beyond: str = REFUSE) -> GPT:
    """The same weights as a model of `length` tokens; the model itself where its context is as long.

    Args:
        model: on any device, trained.
        length: tokens of a text.
        beyond: "refuse", "clip" or "window", see `how`; it has no effect where none is needed.

    Raises:
        Bounded, ValueError: as `how`.
    """
    way = how(model, length, beyond)
    if way == WITHIN:
        return model
    rule = {} if way == NATIVE else {"reach": model.config.context, "beyond": way}
    with torch.random.fork_rng(devices=[]):
        longer = stretched(model, length, **rule)
    longer.load_state_dict(model.state_dict())
    return longer.to(model.head.weight.device, model.head.weight.dtype).train(model.training)


def stretched(model: GPT, length: int, device: str = "cpu", **changes: Any) -> GPT:
    """A model of the same configuration but for its context and `changes`, with weights of its own."""
    own = {field.name: getattr(model.config, field.name) for field in fields(model.config)}
    options = own.pop("options")
    with torch.device(device):
        return GPT(**{**own, "context": length, **changes}, **options)


def shapes(model: GPT) -> dict[str, tuple[int, ...]]:
    """The sizes of all that a model has learnt or drawn, by name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
