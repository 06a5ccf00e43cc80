"""A form of an operator that is taken inside a context alone."""

from collections.abc import Iterator
from contextlib import contextmanager


class Switch:
    """Whether a form is asked for: by the innermost context that is open.

    It is no context variable, since autograd runs CUDA's backward in a thread of its own.
    """

    def __init__(self) -> None:
        self._asked: list[bool] = []    # innermost last

    def __bool__(self) -> bool:
        return self._asked[-1:] == [True]

    @contextmanager
    def to(self, on: bool) -> Iterator[None]:
        """Ask for the form inside, or against it."""
        self._asked.append(on)
        try:
            yield
        finally:
            self._asked.pop()
