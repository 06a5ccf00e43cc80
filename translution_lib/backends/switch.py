"""One switch for how the layers and their products run: :func:`backend`, thread by thread.

A graph of ``torch.compile`` is made anew where another backend is asked for around its call. Chapter "Making it fit".
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch

NAMES = ("auto", "definition", "torch", "c", "triton")
HERE = "translution_lib.backends."
FORMS = {"torch": HERE + "grouped", "c": HERE + "compiled", "triton": HERE + "fused",
         "padded": HERE + "stacked:padded", "grouped_mm": HERE + "stacked:grouped_mm"}
"""Where each form is. The last two are candidates of "auto" on a card, which tests and benchmarks name."""


class _Here(threading.local):
    """What is asked for in this thread. A compiler cannot read a context variable; this it guards."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.keep = False


_here = _Here()


@contextmanager
def backend(name: str = "auto", keep: bool | None = None) -> Iterator[None]:
    """Run the layers inside by one backend; the innermost wins, in this thread alone.

    What a forward pass took, its backward pass takes, wherever it runs. A layer's own argument ``backend`` holds where
    no context is around its call. Nothing may ``await`` or ``yield`` inside: the thread would go on with this choice.

    Args:
        name: how everything inside runs.

            "auto", the default, takes the fastest form that agreed with the definition when this machine first used
            it. On a card that is found out by timing every shape once; on a processor, where a C compiler is there,
            for products of 10⁸ multiply–adds and more, and smaller ones are torch's. Times differ from run to run, and
            so may the form and the last bits: what has to be repeated names a backend.
            "definition" runs the equations of every layer literally.
            "torch" runs one product for each group of pairs, on any device and in any type.
            "c" does so in C, for float32 on a processor; a C compiler is needed once.
            "triton" does so by kernels for float32, float16 and bfloat16 on a card.
            Operands that "c" and "triton" do not serve are torch's.
        keep: keep the projected pairs for backward, rather than compute them again; None means as outside. Forms that
            never store a projected pair keep none, and neither do compiled graphs.

    Raises:
        ValueError: an unknown name.
        RuntimeError: "c" without a C compiler, "triton" without Triton or a card.

    Label: eq-fit-recompute.
    """
    check_backend(name)
    with _asked(name, _here.keep if keep is None else keep):
        yield


def check_backend(name: str) -> None:
    """Refuse a backend that there is not, or that cannot run on this machine.

    Raises:
        ValueError, RuntimeError: as for :func:`backend`.
    """
    if name not in NAMES and name not in FORMS:
        raise ValueError(f"backend must be one of {NAMES}, got {name!r}")
    if name in ("c", "triton") and not torch.compiler.is_compiling():
        form_named(name).require()


def form_named(name: str) -> Any:
    """Return a form by its short name, or by its import path, "module" or "module:object"."""
    path, _, part = FORMS.get(name, name).partition(":")
    return getattr(import_module(path), part) if part else import_module(path)


def asked() -> str:
    """Return the backend that is asked for here."""
    return _here.name or "auto"


def kept() -> bool:
    """Tell whether projected pairs are to be kept for backward."""
    return _here.keep


def by_default(name: str) -> AbstractContextManager[None]:
    """Ask for a backend where nobody around does: a layer's own argument."""
    return nullcontext() if name == "auto" or _here.name is not None else _asked(name, _here.keep)


def as_now(run: Callable) -> Callable:
    """Return a function that asks for what is asked for now, whenever it is called and in whichever thread."""
    name, keep = _here.name, _here.keep

    def again(*args):
        with _asked(name, keep):
            return run(*args)
    return again


@contextmanager
def _asked(name: str | None, keep: bool) -> Iterator[None]:
    before = _here.name, _here.keep
    _here.name, _here.keep = name, keep
    try:
        yield
    finally:
        _here.name, _here.keep = before
