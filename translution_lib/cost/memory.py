"""The memory of a training step, predicted from a configuration; chapter "Making it fit".

The step is ``loss = cross_entropy(model(x), y)``, ``loss.backward()``, ``optimizer.step()``, ``optimizer.zero_grad()``,
and not the first one, so that the state of the optimizer is there. Gradients do not outlive a step (torch's default
``set_to_none=True``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from translution_lib.cost.base import Layer, check_positive
from translution_lib.cost.model import Config, config_of, layers_of, parameters
from translution_lib.cost.segments import Precision, Segment, feed_forward, inputs, mixing, read_out, stem
from translution_lib.models import ViTConfig

GB = 10 ** 9
CARDS = (24, 40, 80, 141)
"""Sizes of cards, in GB."""
CONTEXT_BYTES = GB
"""What the driver's context, loaded kernels and the libraries' own buffers take of a card: assumed."""
FRAGMENTATION = 0.05
"""What the allocator loses by rounding and gaps, as a share of what it hands out: assumed."""

STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Per optimizer: numbers of state that it keeps for each parameter."""
PRECISIONS = {("float32", None): Precision(), ("bfloat16", None): Precision(2, 2, 2, 2),
              ("float32", "bfloat16"): Precision(4, 2, 4, 4)}
MOMENTS = ("backward", "optimizer")


@dataclass(frozen=True)
class Memory:
    """What lives at the peak of a training step, in bytes.

    Attributes:
        parameters: the model's.
        gradients: those that exist at that moment.
        optimizer: the optimizer's state.
        saved: the batch, and what is kept for backward at that moment.
        workspace: what is made and freed around that moment: gradients of activations, gathered rows, temporaries of
            the optimizer.
        moment: "backward" or "optimizer", when the peak comes.
    """

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    workspace: int
    moment: str

    @property
    def total(self) -> int:
        """The peak."""
        return self.parameters + self.gradients + self.optimizer + self.saved + self.workspace

    @property
    def on_card(self) -> int:
        """The peak with what a card needs besides: ``CONTEXT_BYTES``, and ``FRAGMENTATION`` of the total."""
        return round((1 + FRAGMENTATION) * self.total) + CONTEXT_BYTES

    def fits(self, card_bytes: float | int) -> bool:
        """Whether the step runs on a card of so many bytes, its overhead included."""
        return self.on_card <= card_bytes

    def __repr__(self) -> str:
        """Show every part in GiB."""
        names = ("parameters", "gradients", "optimizer", "saved", "workspace")
        parts = " + ".join(f"{name} {getattr(self, name) / 2**30:.2f}" for name in names)
        return f"Memory({self.total / 2**30:.2f} GiB in {self.moment} = {parts})"


def memory(model: Config | nn.Module, batch: int, dtype: str = "float32", optimizer: str = "adamw",
           checkpoint: bool | None = None, autocast: str | None = None, device: str = "cuda",
           foreach: bool | None = None) -> Memory:
    """Return what a training step needs at its peak, by closed formula: nothing is built or run.

    Adam and AdamW either go over all parameters at once and make one temporary of the size of each (``foreach``,
    torch's default on a GPU), or go parameter by parameter and make two of the size of the largest (its default on a
    CPU). Plain and momentum SGD make none. Weight decay of SGD, and amsgrad, are not counted.

    Args:
        model: a ViT or a GPT, or the configuration of one.
        batch: samples of one step on one device.
        dtype: type of parameters and, without autocast, of everything else: "float32" or "bfloat16".
        optimizer: "none" (forward and backward alone), "sgd", "momentum", "adam" or "adamw".
        checkpoint: whether blocks are computed again in backward; None reads the configuration.
        autocast: "bfloat16" for torch.autocast around the forward run of a float32 model, or None.
        device: "cuda" or "cpu", whose defaults and autocast rules differ.
        foreach: the argument of that name of Adam and AdamW; None is torch's default.

    Raises:
        ValueError: a model, mixer, type, optimizer or device that is not known, a batch that is not a positive integer.
    """
    config = config_of(model)
    p = _precision(config, dtype, autocast, device)
    check_positive(batch=batch)
    if optimizer not in STATES:
        raise ValueError(f"optimizer must be one of {sorted(STATES)}, got {optimizer!r}")
    layers = layers_of(config)
    weights = p.weight * parameters(config)
    state, given = STATES[optimizer] * weights, inputs(config, batch, p)
    again = config.checkpoint if checkpoint is None else checkpoint
    moments = _backward(config, layers, batch, p, again)
    temporaries = _temporaries(config, layers, p, optimizer, device == "cuda" if foreach is None else foreach)
    moments.append((0, weights, temporaries))
    k = max(range(len(moments)), key=lambda k: sum(moments[k]))
    saved, gradients, work = moments[k]
    return Memory(weights, gradients, state, given + saved, work, MOMENTS[k == len(moments) - 1])


def smallest_card(needed: Memory, cards: Sequence[int] = CARDS) -> int | None:
    """Return the smallest of the cards (in GB = 10⁹ bytes) on which a step fits, overhead included, or None.

    Vendors name cards by GB or by GiB; 10⁹ is the careful reading. The overhead is that of :attr:`Memory.on_card`.
    """
    return next((card for card in sorted(cards) if needed.fits(card * GB)), None)


def _precision(config: Config, dtype: str, autocast: str | None, device: str) -> Precision:
    if device not in ("cuda", "cpu"):
        raise ValueError(f'device must be "cuda" or "cpu", got {device!r}')
    if (dtype, autocast) not in PRECISIONS:
        raise ValueError(f"dtype and autocast must be one of {list(PRECISIONS)}, got {(dtype, autocast)}")
    if device == "cuda" or autocast is None:
        return PRECISIONS[dtype, autocast]
    # On a GPU autocast runs LayerNorm and softmax in float32. On a CPU it leaves them the type that they are given, and
    # the tokens of a ViT come from a product.
    return Precision(4, 2, 2 if isinstance(config, ViTConfig) else 4, 2)


def _backward(config: Config, layers: Sequence[Layer], batch: int, p: Precision, again: bool) -> list[tuple]:
    """Return (kept for backward, gradients, workspace) at every segment, from the last to the first."""
    blocks = {layer: (mixing(config, layer, batch, p), feed_forward(config, batch, p)) for layer in set(layers)}
    first, last = stem(config, batch, p), read_out(config, batch, p)
    stream = p.stream * batch * config.tokens * config.dim
    outer = [stream if again else sum(s.saved for s in blocks[layer]) for layer in layers]
    kept, gradients, moments = first.saved + sum(outer), 0, []

    def through(segment: Segment, kept: int) -> None:
        nonlocal gradients
        gradients += segment.gradients
        moments.append((kept + segment.saved, gradients, segment.work))

    through(last, kept)
    for layer, size in zip(reversed(layers), reversed(outer), strict=True):
        mix, feed = blocks[layer]
        kept -= size
        through(feed, kept + mix.saved)
        through(mix, kept)
    through(first, 0)
    return moments


def _temporaries(config: Config, layers: Sequence[Layer], p: Precision, optimizer: str,
                 foreach: bool) -> int:
    """Return the bytes of the temporaries of ``optimizer.step()``; see :func:`memory`."""
    if not optimizer.startswith("adam"):
        return 0
    if foreach:
        return p.weight * parameters(config)
    return 2 * p.weight * max(config.dim * config.ff, config.dim * getattr(config, "vocabulary", 0),
                              *(layer.largest_weight for layer in layers))
