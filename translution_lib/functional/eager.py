"""What `torch.compile` leaves alone, marked without loading the compiler."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """As `torch.compiler.disable`, whose import of the compiler (a third of ours) waits until somebody compiles.

    Nothing can be compiling before the compiler's own module is there.
    """
    marked: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not marked:
            marked.append(torch.compiler.disable(function))
        return marked[0](*args, **kwargs)

    return call
