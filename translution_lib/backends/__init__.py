"""How the two hot products run: in torch, in C or by Triton's kernels; chosen by one switch, :func:`backend`.

``products`` holds both and asks ``switch`` and ``choice`` for the form that computes them. A *form* is a module, or an
object, with ``takes(*tensors)``, whether it can serve these operands, and with ``scores``, ``scores_backward``,
``values`` and ``values_backward``, whose arguments are those of ``grouped``, the form that is always there. The others
are ``compiled`` (C), ``fused`` (Triton) and the two of ``stacked``. Chapter "Making it fit".
"""

from translution_lib.backends.switch import backend

__all__ = ["backend"]
