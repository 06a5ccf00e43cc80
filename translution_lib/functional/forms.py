"""Which form computes a grouped product: the one that is asked for, else on a card the fastest that was proved there.

A form is a module with ``takes(*tensors)``, whether it can serve these operands, and with ``scores``,
``scores_backward``, ``values`` and ``values_backward``, whose arguments are those of module ``loop``. On a processor
the loop is taken unless another form is asked for; on CUDA see module ``choice``. Chapter "Making it fit".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from torch import Tensor

from translution_lib.functional import choice, loop
from translution_lib.functional.choice import exported, report, self_check
from translution_lib.functional.groups import Pairs

_asked: list[tuple[str, bool]] = []     # innermost last; no context variable: CUDA's backward has its own thread


@contextmanager
def forced(name: str, on: bool = True) -> Iterator[None]:
    """Take one form inside for every tensor that it can serve, and the loop for all others.

    Args:
        name: "loop", "compiled", or a candidate: "padded", "grouped_mm", "fused"; or the import path of a module.
        on: False means not this form, as if it were not there.

    Raises:
        ValueError: there is no form of this name.
    """
    choice.module_of(name)
    _asked.append((name, on))
    try:
        yield
    finally:
        _asked.pop()


def form(what: str, operands: tuple[Tensor | None, ...], pairs: Pairs, heads: int, *gradients: Tensor) -> ModuleType:
    """Return the form that computes "scores" or "values" of these operands, or their gradients from these gradients."""
    wanted, refused = _wishes()
    given = (*gradients, *operands)
    if wanted:
        return next((m for m in map(choice.module_of, wanted) if m.takes(*given)), loop)
    first = next(t for t in operands if t is not None)
    if first.device.type not in choice.DEVICES or not choice.plain(given):
        return loop
    found = choice.take(what, operands, pairs, heads, refused)
    return found if found.takes(*given) else loop


def _wishes() -> tuple[list[str], tuple[str, ...]]:
    """Return the names that are asked for, the innermost first, and those that are asked not to be taken."""
    latest = dict(_asked)
    wanted = [name for name in dict.fromkeys(name for name, _ in reversed(_asked)) if latest[name]]
    return wanted, tuple(sorted(choice.name_of(name) for name, on in latest.items() if not on))


__all__ = ["exported", "forced", "form", "report", "self_check"]
