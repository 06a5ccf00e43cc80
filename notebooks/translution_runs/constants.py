"""Tables that layers copy to the device in every step, kept there while a step is recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Constants:
    """Copies from the CPU's memory to a device, in the order in which a step makes them.

    Such a copy waits for the device, and none can be part of a CUDA graph. First a step's copies are noted, with what
    was copied. Where a later step asks for the same copies in the same order, the noted ones are handed out.

    Args:
        device: where the copies lie.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.noted_copies: list[tuple[Tensor, Tensor, int]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, copies are made and kept."""
        with Copies(self.device, self._note):
            yield

    @contextmanager
    def handed_out(self) -> Iterator[None]:
        """Inside, a copy is the noted one.

        Raises:
            RuntimeError: something else is copied than what was noted, or a noted copy was changed.
        """
        waiting = iter(self.noted_copies)

        def hand_out(source: Tensor, make: Callable[[], Tensor]) -> Tensor:
            old, copy, version = next(waiting, (source.new_empty(0), source, 0))
            if copy is source or old.dtype != source.dtype or not torch.equal(old, source):
                raise RuntimeError("a layer copies other numbers to the device than in the step before")
            if copy._version != version:
                raise RuntimeError("a layer changes in place what it copied to the device")
            return copy

        with Copies(self.device, hand_out):
            yield

    def _note(self, source: Tensor, make: Callable[[], Tensor]) -> Tensor:
        copy = make()
        self.noted_copies.append((source.clone(), copy, copy._version))
        return copy


class Copies(TorchDispatchMode):
    """Asks `answer` for every copy of a whole tensor from the CPU to the device, in forward and backward."""

    def __init__(self, device: torch.device, answer: Callable[[Tensor, Callable[[], Tensor]], Tensor]) -> None:
        super().__init__()
        self.device, self.answer = device, answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch calls it, for each operation."""
        kwargs = kwargs or {}
        goal = torch.device(kwargs.get("device") or "cpu")
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu" and goal.type == self.device.type:
            return self.answer(args[0], lambda: func(*args, **kwargs))
        return func(*args, **kwargs)
