"""Whether a form computes what the definition says, on small random cases: a command that prints its verdict.

    python -m translution_lib.backends.proof padded cuda:0 bfloat16

Scores, values and all gradients are compared with the literal equation in float64: ‖error‖/‖reference‖ for every query,
token and relation by itself, so that no small part hides among the others. Equal inputs have to give equal bits, also
where the memory that torch hands out was full of NaN before. Chapter "Making it fit".
"""

import json
import math
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translution_lib.backends.grouped import pairs_on
from translution_lib.backends.switch import form_named
from translution_lib.relations import MASKED, Relations, offsets, pairs, shared

BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 5e-2}
"""The largest relative error of each type: some ten times what rounding gives, less than one wrong pair does."""
RUNS = 3


@dataclass(frozen=True)
class Case:
    """A problem: a table, the channels of s and t, the width of the product, and which sides have a weight."""

    table: Callable[[], Relations]
    heads: int = 2
    channels: tuple[int, int] = (16, 24)
    width: int = 32
    batch: int = 3
    weights: str = "qk"
    same: bool = False


def unread() -> Relations:
    """Return a table whose last key is read by no query; its token holds NaN, which must not spread."""
    index = offsets(5).index.clone()
    index[:, -1] = MASKED
    return Relations(index, 9, tuple(range(9)))


CASES = [
    Case(lambda: offsets((2, 3), cls=True)),
    Case(lambda: offsets((2, 3), cls=True), weights="q"),
    Case(lambda: offsets(7, causal=True, clip=2), heads=1, channels=(16, 16), width=16, weights="k"),
    Case(lambda: offsets(6, causal=True).for_length(3)),                        # relations without a pair
    Case(lambda: pairs(3), batch=1),                                            # one row each
    Case(lambda: offsets(9, clip=1), channels=(24, 24), width=16, heads=1, batch=2, same=True),
    Case(lambda: shared(5), channels=(5, 7), width=6),
    Case(unread),
    Case(lambda: offsets((3, 3), cls=True), heads=3, channels=(64, 64), width=192, batch=8, same=True),
]


class Disagreement(Exception):
    """A form gave something else than the definition, or something else than before."""


def verdict(name: str, device: torch.device, dtype: torch.dtype) -> dict:
    """Return whether a form agrees with the definition, why not, and its worst relative error."""
    found = {"agreed": False, "applies": True, "reason": None, "error": None}
    try:
        form, errors = form_named(name), []
        for seed, case in enumerate(CASES):
            errors += compare(form, case, seed, device, dtype)
    except Disagreement as error:
        return {**found, "reason": str(error)}
    except Exception as error:
        return {**found, "reason": f"{type(error).__name__}: {error}"[:500]}
    if not errors:
        return {**found, "applies": False, "reason": "it serves no such operands"}
    return {**found, "agreed": True, "error": max(errors)}


def compare(form: Any, case: Case, seed: int, device: torch.device, dtype: torch.dtype) -> list[float]:
    """Return the worst errors of a form on a case, none where it does not take the operands.

    Raises:
        Disagreement: an error is above the bound of its type, or equal inputs gave other bits.
    """
    relations, generator = case.table(), torch.Generator().manual_seed(seed)
    found = []
    for what, names in (("scores", ("ds", "dt", "dW_q", "dW_k")), ("values", ("dalpha", "dx", "dW"))):
        make = _scores if what == "scores" else _values
        grad, operands = make(case, relations, generator, device, dtype)
        given = [_spoiled(t, relations) if k == 1 else t for k, t in enumerate(operands)]
        if case.same and what == "scores":
            given[1] = given[0]
        if not form.takes(grad, *given):
            continue
        runs = [_run(form, what, grad, given, relations, case.heads) for _ in range(RUNS)]
        exact = _exact(what, grad, operands, relations, case.heads)
        for name, *results, reference in zip((what, *names), *runs, exact, strict=True):
            where = f"{name} of {relations}, {case.channels} channels, width {case.width}, {case.heads} heads"
            if reference is not None:
                found.append(_judge(results, reference, 2 if reference.ndim == 4 else 0, dtype, where))
    return found


def _judge(results: list[Tensor], exact: Tensor, dim: int, dtype: torch.dtype, where: str) -> float:
    first = results[0]
    if first.shape != exact.shape or first.dtype != dtype:
        raise Disagreement(f"{where}: {tuple(first.shape)} of {first.dtype}, expected {tuple(exact.shape)} of {dtype}")
    error = _worst(first.double(), exact, dim)
    if not error <= BOUNDS[dtype]:
        raise Disagreement(f"{where}: relative error {error:.1e}, above {BOUNDS[dtype]:.0e}")
    if not all(torch.equal(first, other) for other in results[1:]):
        raise Disagreement(f"{where}: equal inputs gave other bits")
    return error


def _worst(found: Tensor, exact: Tensor, dim: int) -> float:
    """Return the largest ‖error‖/‖reference‖ of the slices along a dimension; where that is 0/0, there is no error."""
    error, size = ((t.movedim(dim, 0).flatten(1)).norm(dim=1) for t in (found - exact, exact))
    return float(torch.where(error == 0, 0.0, error / size).max())


def _scores(case: Case, relations: Relations, generator: torch.Generator, device, dtype) -> tuple:
    n, b, e = relations.n, case.batch, case.width
    c_q, c_k = (c if letter in case.weights else e for c, letter in zip(case.channels, "qk", strict=True))
    grad, s, t = (_random(generator, device, dtype, *shape)
                  for shape in ((b, case.heads, n, n), (n, b, c_q), (n, b, c_k)))
    weights = [_weight(generator, device, dtype, relations.count, c, e) if letter in case.weights else None
               for c, letter in ((c_q, "q"), (c_k, "k"))]
    return grad, [s, s if case.same else t, *weights]


def _values(case: Case, relations: Relations, generator: torch.Generator, device, dtype) -> tuple:
    n, b, c, e = relations.n, case.batch, case.channels[1], case.width
    grad, alpha, x = (_random(generator, device, dtype, *shape)
                      for shape in ((n, b, e), (b, case.heads, n, n), (n, b, c)))
    return grad, [alpha, x, _weight(generator, device, dtype, relations.count, c, e)]


def _random(generator: torch.Generator, device, dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def _weight(generator: torch.Generator, device, dtype, r: int, c: int, e: int) -> Tensor:
    return _random(generator, device, dtype, r, c, e) / math.sqrt(c)


def _spoiled(x: Tensor, relations: Relations) -> Tensor:
    """Put NaN into the tokens that are the key of no pair."""
    alone = ~relations.mask.any(dim=0).to(x.device)
    return x.masked_fill(alone[:, None, None], math.nan) if bool(alone.any()) else x


def _run(form: Any, what: str, grad: Tensor, operands: list, relations: Relations, heads: int) -> list:
    """Return the result and the gradients that a form gives, in memory that held NaN."""
    spoil = [torch.full((size,), math.nan, device=grad.device, dtype=grad.dtype) for size in (256, 2**12, 2**16, 2**20)]
    del spoil
    rest = (pairs_on(relations, grad.device), heads) if what == "scores" else (pairs_on(relations, grad.device),)
    out = getattr(form, what)(*operands, *rest, False)[0]
    return [out, *getattr(form, what + "_backward")(grad, *operands, *rest)]


def _exact(what: str, grad: Tensor, operands: list, relations: Relations, heads: int) -> list:
    """Return the result and the gradients by the literal equation in float64."""
    leaves = [None if t is None else t.detach().double().clone().requires_grad_() for t in operands]
    out = _EQUATIONS[what](*leaves, relations, heads)
    given = [t for t in leaves if t is not None]
    gradients = iter(torch.autograd.grad(out, given, grad.double()))
    return [out.detach(), *(None if t is None else next(gradients) for t in leaves)]


def _exact_scores(s, t, w_q, w_k, relations: Relations, heads: int) -> Tensor:
    q, k = _projected(s, w_q, relations, "i"), _projected(t, w_k, relations, "j")
    a = (q * k).unflatten(-1, (heads, -1)).sum(-1).permute(0, 3, 1, 2)
    return a.masked_fill(~relations.mask_on(a.device), 0.0)


def _exact_values(alpha, x, w, relations: Relations, heads: int) -> Tensor:
    v = _projected(x, w, relations, "j").unflatten(-1, (heads, -1))             # b i j h d
    a = alpha.masked_fill(~relations.mask_on(x.device), 0.0)
    return torch.einsum("bhij,bijhd->ibhd", a, v).flatten(2)


def _projected(x: Tensor, w: Tensor | None, relations: Relations, side: str) -> Tensor:
    """Return every pair's row of n b c times its matrix, b i j e; without a weight the row."""
    rows = x.transpose(0, 1).unsqueeze(2 if side == "i" else 1)
    if w is None:
        return rows
    return (rows.unsqueeze(-2) @ w[relations.index_on(w.device).clamp(min=0)]).squeeze(-2)


_EQUATIONS: dict[str, Callable[..., Tensor]] = {"scores": _exact_scores, "values": _exact_values}


def main(name: str, device: str, dtype: str, seconds: str = "0") -> None:
    """Print the verdict on a form as one line of JSON; end after so many seconds, also if nobody waits any more."""
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds))
    print(json.dumps(verdict(name, torch.device(device), getattr(torch, dtype))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
