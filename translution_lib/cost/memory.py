"""The memory of a training step, from a few small counts on the meta device; chapter "Making it fit".

The step is ``loss = cross_entropy(model(x), y)``, ``loss.backward()``, ``optimizer.step()``, ``optimizer.zero_grad()``,
and not the first one, so that the state of the optimizer is there. Gradients do not outlive a step (torch's default
``set_to_none=True``). Blocks that are alike are counted once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from translution_lib.backends import backend
from translution_lib.cost.counting import (
    Config,
    config_of,
    count_saved_bytes,
    model_without_numbers,
)
from translution_lib.cost.on_meta import OnMeta
from translution_lib.cost.tracking import OPTIMIZERS, TensorBytes, batch_of, loss_of
from translution_lib.functional.checks import check_sizes
from translution_lib.mixers import mixer_named
from translution_lib.models.blocks import options_for, plain_names

GB = 10 ** 9
CARDS = (24, 40, 80, 141)
"""Sizes of cards, in GB."""
CONTEXT_BYTES = GB
"""What the driver's context, loaded kernels and the libraries' own buffers take of a card: assumed."""
FRAGMENTATION = 0.05
"""What the allocator loses by rounding and gaps, as a share of what it hands out: assumed."""

TYPES = (("float32", None), ("bfloat16", None), ("float32", "bfloat16"))
FORMS = ("fast", "gather")


@dataclass(frozen=True)
class Memory:
    """What lives at the peak of a training step, in bytes.

    Attributes:
        parameters: the model's.
        gradients: those of the parts of the model that backward has left behind.
        optimizer: the optimizer's state.
        saved: the batch, and what is kept for backward at that moment.
        workspace: what is made around that moment: gradients of activations and of the part's own parameters, gathered
            rows, temporaries of the optimizer.
        moment: "forward", "backward" or "optimizer", when the peak comes.
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
    """Return what a training step needs at its peak: its parts run once on the meta device, where nothing is computed.

    Every kind of block runs forward and backward alone, and so does what stands around the blocks. What they keep and
    what they need is added up as a step goes through them. The layers take the forms that they take by themselves.

    Args:
        model: a ViT or a GPT, or the configuration of one.
        batch: samples of one step on one device.
        dtype: type of parameters and, without autocast, of everything else: "float32" or "bfloat16".
        optimizer: "none" (forward and backward alone), "sgd", "momentum", "adam" or "adamw".
        checkpoint: whether blocks are computed again in backward; None reads the configuration.
        autocast: "bfloat16" for torch.autocast around the forward run of a float32 model, or None.
        device: "cuda" or "cpu", whose autocast rules differ, and the defaults of the optimizers.
        foreach: the argument of that name of the optimizer: all parameters at once, or one after the other. None is
            torch's default on the device.

    Raises:
        ValueError: a model, mixer, type, optimizer or device that is not known, a batch that is not a positive integer.
    """
    config = config_of(model)
    if device not in ("cuda", "cpu"):
        raise ValueError(f'device must be "cuda" or "cpu", got {device!r}')
    if (dtype, autocast) not in TYPES:
        raise ValueError(f"dtype and autocast must be one of {TYPES}, got {(dtype, autocast)}")
    check_sizes(batch=batch)
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {sorted(OPTIMIZERS)}, got {optimizer!r}")
    found = {name: once(parts_of, one_layer(config, name), batch, dtype, bool(autocast), device)
             for name in set(config.mixer)}
    given, stem, _, read_out, numbers = found[config.mixer[0]]
    total = numbers.around + sum(found[name][4].inside for name in config.mixer)
    together = device == "cuda" if foreach is None else foreach
    sizes = (total,) if together else tuple(size for *_, numbers in found.values() for size in numbers.sizes)
    weights, state, temporaries = of_the_optimizer(total, sizes, getattr(torch, dtype), optimizer, together)
    again = config.checkpoint if checkpoint is None else checkpoint
    moments = [*through([stem, *(found[name][2] for name in config.mixer), read_out], again),
               (0, weights, temporaries, "optimizer")]
    saved, gradients, work, moment = max(moments, key=lambda at: at[0] + at[1] + at[2])
    return Memory(weights, gradients, state, given + saved, work, moment)


def smallest_card(needed: Memory, cards: Sequence[int] = CARDS) -> int | None:
    """Return the smallest of the cards (in GB = 10⁹ bytes) on which a step fits, overhead included, or None.

    Vendors name cards by GB or by GiB; 10⁹ is the careful reading. The overhead is that of :attr:`Memory.on_card`.
    """
    return next((card for card in sorted(cards) if needed.fits(card * GB)), None)


def saved_bytes(model: Config | nn.Module, batch: int = 1, dtype: torch.dtype = torch.float32,
                form: str = "fast") -> int:
    """Return the bytes that the mixing layers of a model keep for backward besides parameters, counted on "meta".

    Args:
        model: the model or its configuration.
        batch: samples.
        dtype: type of the numbers.
        form: "fast" (what the library does) or "gather" (the equations, as the backend "definition" runs them: a matrix
            for every pair).

    Raises:
        ValueError: an unknown model or form, a batch that is not a positive integer.
    """
    config = config_of(model)
    check_sizes(batch=batch)
    if form not in FORMS:
        raise ValueError(f"form must be one of {FORMS}, got {form!r}")

    return sum(once(kept_by_mixer, one_layer(config, name), batch, dtype, form) for name in config.mixer)


@dataclass(frozen=True)
class Part:
    """What a part of a model needs, in bytes.

    Attributes:
        gradients: of its parameters.
        kept: what lives between its forward and its backward run, its result included.
        result: its result.
        forward, backward: the most that lives while it runs, what it keeps included.
    """

    gradients: int
    kept: int
    result: int
    forward: int
    backward: int


@dataclass(frozen=True)
class Numbers:
    """How many parameters a model of one layer has: around the block, inside it, and in each tensor."""

    around: int
    inside: int
    sizes: tuple[int, ...]


Moment = tuple[int, int, int, str]


def through(parts: Sequence[Part], again: bool) -> Iterator[Moment]:
    """Give what is kept, gradients, workspace and the name of each moment of a step, part by part.

    With ``again`` a block keeps its result alone, and runs forward once more before it runs backward.
    """
    outer = [parts[0].kept, *(part.result if again else part.kept for part in parts[1:-1]), parts[-1].kept]
    for k, part in enumerate(parts):
        before, behind = sum(outer[:k]), sum(later.gradients for later in parts[k + 1:])
        yield before, 0, part.forward, "forward"
        if again and 0 < k < len(parts) - 1:
            yield before, behind, part.forward + part.result, "backward"
        yield before + part.kept, behind, part.backward - part.kept, "backward"


_COUNTED: dict[tuple, Any] = {}


def once(count: Callable[..., Any], config: Config, *settings) -> Any:
    """Count with the library's own settings, whatever is set around; what was counted before is remembered."""
    makers = [mixer_named(name) for name in config.mixer]       # a name may be given to another mixer
    key = (count, repr(config), *map(id, makers), *settings)
    if key not in _COUNTED:
        with backend("torch", keep=False):
            _COUNTED[key] = count(config, *settings), makers
    return _COUNTED[key][0]


def kept_by_mixer(config: Config, batch: int, dtype: torch.dtype, form: str) -> int:
    """Return the bytes that the mixer of a model of one layer keeps for backward besides its parameters."""
    mixer = model_without_numbers(config, "float32").to(dtype).blocks[0].mixer
    with backend("definition" if form == "gather" else "torch", keep=False):
        return count_saved_bytes(mixer, torch.empty(batch, config.tokens, config.dim, dtype=dtype, device="meta"))


def parts_of(config: Config, batch: int, dtype: str, autocast: bool,
             device: str) -> tuple[int, Part, Part, Part, Numbers]:
    """Return the bytes of a batch, and the three parts of a model of one layer: before the block, it, and after it."""
    model = model_without_numbers(config, dtype)
    (block,), (inputs, targets) = model.blocks, batch_of(config, batch, next(model.parameters()))
    numbers = numbers_of(model, block)

    def around(cut: nn.Module) -> Tensor:
        model.blocks = nn.Sequential(cut)
        return loss_of(model, inputs, targets)

    cut = watched(around, model, autocast, device)
    first, end, back, last = cut.notes
    behind = back.gradients
    stem = Part(last.gradients - behind, first.now, cut.size, first.peak, last.peak - behind)
    read_out = Part(behind, end.now - first.now, 0, end.peak - first.now, back.peak - first.now)
    x = torch.empty(cut.shape, dtype=cut.dtype, device="meta", requires_grad=True)
    cut = watched(lambda cut: cut(block(x)).sum(), block, autocast, device)
    first, _, _, last = cut.notes
    inside = Part(last.gradients, first.now, cut.size, first.peak, last.peak)
    return bytes_of((inputs, targets)), stem, inside, read_out, numbers


def numbers_of(model: nn.Module, block: nn.Module) -> Numbers:
    """Return the sizes of a model whose one layer is in the block."""
    sizes = tuple(p.numel() for p in model.parameters())
    inside = sum(p.numel() for p in block.parameters())
    return Numbers(sum(sizes) - inside, inside, sizes)


def watched(run: Callable[["Cut"], Tensor], module: nn.Module, autocast: bool, device: str) -> "Cut":
    """Run forward through a cut and backward again, and return the cut with its four notes."""
    with TensorBytes() as seen:
        cut = Cut(seen, module)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), OnMeta(device):
            end = run(cut)
        cut.note()
        end.backward()
        cut.note()
    return cut


@dataclass(frozen=True)
class Note:
    """Bytes that live, the most that lived since the last note, and those of gradients of parameters."""

    now: int
    peak: int
    gradients: int


class Cut(nn.Module):
    """A place between two parts of a model: what lives is noted there, on the way forward and on the way back."""

    def __init__(self, seen: TensorBytes, module: nn.Module) -> None:
        super().__init__()
        self.seen, self.owner = seen, (module,)     # a tuple, since it is no part of this module
        self.notes: list[Note] = []

    def note(self) -> None:
        """Note what lives, and begin anew to look for the most."""
        grads = [p.grad for p in self.owner[0].parameters() if p.grad is not None]
        self.notes.append(Note(self.seen.now, self.seen.peak, bytes_of(grads)))
        self.seen.peak = self.seen.now

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hand the tokens on."""
        self.size, self.shape, self.dtype = x.nbytes, x.shape, x.dtype
        return _Passing.apply(x, self.note)


class _Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note
        note()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.note()
        return gradient.contiguous(), None      # that of a sum has no memory of its own before


@cache
def of_the_optimizer(total: int, sizes: tuple[int, ...], dtype: torch.dtype, optimizer: str,
                     foreach: bool) -> tuple[int, int, int]:
    """Return the bytes of so many parameters, of an optimizer's state for them, and of what it makes and frees.

    Tensors of the ``sizes`` stand for all. With ``foreach`` one is enough, for all go through a step together.
    """
    few = [nn.Parameter(torch.empty(size, dtype=dtype, device="meta")) for size in sizes]
    weights, made = total * dtype.itemsize, OPTIMIZERS[optimizer](few, foreach=foreach)
    if made is None:
        return weights, 0, 0
    for p in few:
        p.grad = torch.empty_like(p)
    made.step()
    with TensorBytes() as seen:
        made.step()
    kept = (t for of_one in made.state.values() for t in of_one.values())
    state = bytes_of(t for t in kept if isinstance(t, Tensor) and t.is_meta)
    return weights, state * total // sum(sizes), seen.peak


def one_layer(config: Config, name: str) -> Config:
    """Return the configuration of a model with one of the layers of another alone."""
    options = options_for(plain_names([name])[0], config.mixer, config.options)
    return replace(config, depth=1, mixer=(name,), options=options, checkpoint=False)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors that share nothing."""
    return sum(tensor.nbytes for tensor in tensors)
