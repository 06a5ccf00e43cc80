"""What the vision and the language model share: named sizes, the pre-norm block, the stack of mixers.

Source: the Translution paper, Table 1; chapter "What it costs".
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from translution_lib.backends.switch import as_now
from translution_lib.functional.checks import check_sizes
from translution_lib.mixers import Mixer, mixer_named
from translution_lib.mixers.registry import options_and_owners
from translution_lib.relations import Relations
from translution_lib.resizing import carried, nearest_tokens


@dataclass(frozen=True)
class Architecture:
    """A row of Table 1: depth (layers), dim (channels), heads, ff (hidden channels of the feed-forward part)."""

    depth: int
    dim: int
    heads: int
    ff: int


ARCHITECTURES = {
    "A": Architecture(depth=6, dim=192, heads=3, ff=768),
    "B": Architecture(depth=12, dim=192, heads=3, ff=768),
    "C": Architecture(depth=12, dim=384, heads=6, ff=1536),
}


ABSOLUTE = {"absolute": "self-attention", "absolute-translution": "translution", "performer-absolute": "performer"}
"""The mixers that a model gives an embedding of every token's place, and what their layers are then."""


def plain_names(names: Sequence[str]) -> list[str]:
    """Return the names of the layers: an absolute embedding is the model's, not theirs."""
    return [ABSOLUTE.get(name, name) for name in names]


def architecture(name: str) -> Architecture:
    """Return a row of Table 1 by its letter."""
    if name not in ARCHITECTURES:
        raise ValueError(f"name must start with one of {sorted(ARCHITECTURES)}, got {name!r}")
    return ARCHITECTURES[name]


class Block(nn.Module):
    """Pre-norm block: x + mixer(LN x), then x + feed-forward(LN x).

    Label: thm-equivariance-sets, eq-preprint-stream.
    """

    def __init__(self, mixer: nn.Module, dim: int, ff: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(dim), mixer
        self.feed_forward = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim))

    def forward(self, x: Float[Tensor, "b n c"], mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
        """Mix the tokens, as far as the mask lets them, then transform each of them."""
        x = x + (self.mixer(self.norm(x)) if mask is None else self.mixer(self.norm(x), mask))
        return x + self.feed_forward(x)

    def step(self, x: Float[Tensor, "b m c"], memory: Any = None) -> tuple[Float[Tensor, "b m c"], Any]:
        """Go on with a text, as a mixer's own ``step`` does; a module without one is run again on all tokens."""
        step: Any = getattr(self.mixer, "step", None) or partial(Mixer.step, cast(Mixer, self.mixer))
        y, memory = step(self.norm(x), memory)
        x = x + y
        return x + self.feed_forward(x), memory


def run_blocks(blocks: nn.Sequential, x: Float[Tensor, "b n c"], recompute: bool,
               mask: Tensor | None = None) -> Float[Tensor, "b n c"]:
    """Run the blocks one after the other.

    With ``recompute``, while training with gradients, a block keeps its input alone and backward runs it a second time,
    with the same dropout and the same ``backend`` of every layer, before it needs what lies inside.
    """
    if not (recompute and blocks.training and torch.is_grad_enabled()):
        for block in blocks:
            x = block(x, mask)
        return x
    for block in blocks:
        x = checkpoint(as_now(block), x, mask, use_reentrant=False)
    return x


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def mixer_names(mixer: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """Return one mixer name per layer: a single name is repeated, a sequence must have ``depth`` of them."""
    names = (mixer,) * depth if isinstance(mixer, str) else tuple(mixer)
    if len(names) != depth:
        raise ValueError(f"mixer must be one name or one per layer ({depth}), got {len(names)}")
    for name in names:
        mixer_named(name)
    return names


def make_blocks(names: Sequence[str], relations: Relations, dim: int, heads: int, ff: int,
                options: Mapping[str, Any]) -> nn.Sequential:
    """Return a stack of blocks, one per mixer name.

    The absolute embedding of the mixers of ``ABSOLUTE`` belongs to the model, which adds it once; its layers are the
    plain ones. ``options`` are read by :func:`options_for`.
    """
    check_sizes(dim=dim, heads=heads, ff=ff)
    made = (mixer_named(name)(relations, dim=dim, heads=heads, **options_for(name, names, options))
            for name in plain_names(names))
    return nn.Sequential(*(Block(mixer, dim, ff) for mixer in made))


def alike(model: nn.Module, **changes: Any) -> Any:
    """Return a model of the same configuration but for these changes, without numbers: on the meta device.

    Raises:
        ValueError: what the constructor refuses.
    """
    with without_numbers():
        return type(model)(**{**arguments(model.config), **changes})


def arguments(config: Any) -> dict[str, Any]:
    """Return what the model of a configuration is made from."""
    own = {field.name: getattr(config, field.name) for field in fields(config)}
    return {**own.pop("options"), **own}


class _NothingToDraw(TorchFunctionMode):
    """Drawing, filling and scaling do nothing: without numbers these are most of the time that building takes."""

    FILLS = {nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.uniform_, nn.init.normal_, nn.init.constant_,
             Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_}
    SCALES = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.randn and not kwargs:
            return torch.empty(*args)
        given = (*args, *(kwargs or {}).values())
        scaled = func in self.SCALES and isinstance(given[1], float) and given[0].is_floating_point()
        return given[0] if (func in self.FILLS or scaled) and given[0].is_meta else func(*args, **(kwargs or {}))


@contextmanager
def without_numbers() -> Iterator[None]:
    """Within this context modules are built on the meta device, and torch's random numbers stay where they are."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), _NothingToDraw():
        yield


def resized(model: Any, **changes: Any) -> Any:
    """Return a copy of a model with a table of another size; its layers and its places carry their parameters over."""
    other = alike(model, **changes)
    memo = {id(model.relations): other.relations}
    for block in model.blocks:
        memo[id(block.mixer)] = block.mixer.resized(other.relations)
    if isinstance(model.position, nn.Parameter):
        memo[id(model.position)] = carried(model.position, nearest_tokens(model.relations, other.relations))
    config, other = other.config, copy.deepcopy(model, memo)
    other.config = config
    _tie(other, model)
    return other


def _tie(model: nn.Module, like: nn.Module) -> None:
    """Let a model share the parameters that another one shares: each layer has been copied by itself."""
    first: dict[int, str] = {}
    for name, parameter in like.named_parameters(remove_duplicate=False):
        owner, _, leaf = name.rpartition(".")
        kept = first.setdefault(id(parameter), name)
        if kept != name:
            setattr(model.get_submodule(owner), leaf, model.get_parameter(kept))


def joined_options(named: Mapping[str, Mapping[str, Any]] | None, flat: dict[str, Any]) -> dict[str, Any]:
    """Return the options of all layers as a configuration keeps them: flat ones, and those of a mixer under its name.

    Raises:
        ValueError: options by name that are not mappings.
    """
    named = {} if named is None else named
    if not isinstance(named, Mapping) or not all(isinstance(own, Mapping) for own in named.values()):
        raise ValueError(f"options must give each mixer its own, {{name: {{option: value}}}}, got {named!r}")
    return {**flat, **{name: dict(own) for name, own in named.items()}}


def options_for(name: str, names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one layer of a stack: the flat ones that it knows, and those under its name.

    Raises:
        ValueError: a flat option that no layer knows, or that means something else in another layer of the stack; a
            name of no layer, an option that its layer does not know.
    """
    plain = sorted(set(plain_names(names)))
    by_name = {key: own for key, own in options.items() if isinstance(own, Mapping)}
    for key, own in by_name.items():
        mixer = ABSOLUTE.get(key, key)
        if mixer not in plain:
            raise ValueError(f"options must be those of {', '.join(plain)}, got options of {key!r}")
        for option in own.keys() - options_of(mixer):
            raise ValueError(f"{option} is not an option of {mixer}, which knows {sorted(options_of(mixer))}")
    flat = {key: value for key, value in options.items() if key not in by_name}
    for key in flat:
        owners = [other for other in plain if key in options_of(other)]
        if not owners:
            raise ValueError(f"{key} is not an option of {', '.join(plain)}; "
                             f"{name} knows {sorted(options_of(name))}")
        if len({options_and_owners(other)[key] for other in owners}) > 1:
            raise ValueError(f"{key} is an option of {' and of '.join(owners)}, which may differ: give each its own, "
                             f"options={{{owners[0]!r}: {{{key!r}: …}}}}")
    mine = {key: value for key, value in flat.items() if key in options_of(name)}
    return mine | {option: value for key, own in by_name.items() if ABSOLUTE.get(key, key) == name
                   for option, value in own.items()}


def options_of(name: str) -> set[str]:
    """Return the names of the options that a mixer takes."""
    return set(options_and_owners(name))
