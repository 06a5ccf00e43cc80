"""Finite differences confirm the gradients of the operator on every table, and of every option of every layer.

That every form equals the definition, gradients included, is held in ``test_backends``.
"""

from unittest.mock import patch

import pytest
import torch
from torch.func import functional_call

from tests.unit.strategies import DIM, EVERY, F64, build
from translution_lib import backend, offsets, pairs, shared
from translution_lib import functional as fn
from translution_lib.backends import grouped

pytestmark = pytest.mark.slow

TABLES = {
    "line": lambda: offsets(3), "cls": lambda: offsets((1, 2), cls=True), "causal": lambda: offsets(3, causal=True),
    "window": lambda: offsets(4, window=1), "clip": lambda: offsets(4, clip=1), "pairs": lambda: pairs(2),
    "prefix": lambda: offsets(4, causal=True).for_length(2), "shared": lambda: shared(3),
}


def problem(table, heads, batch=2, c=2, d=2):
    """Return relations and random x, W^q, W^k, W^v in float64."""
    rel, g = TABLES[table](), torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, dtype=F64, generator=g, requires_grad=True)

    w = [random(rel.count, c, heads * d) for _ in "qkv"]
    return rel, [random(batch, rel.n, c), *w]


@pytest.mark.parametrize(("heads", "keep"), [(1, False), (2, True), *(
    pytest.param(*rest, marks=pytest.mark.nightly) for rest in ((1, True), (2, False)))])
@pytest.mark.parametrize("table", TABLES)
def test_gradients_of_every_table_and_form(table, heads, keep):
    rel, args = problem(table, heads, batch=3)
    with backend("torch", keep):
        torch.testing.assert_close(fn.translution(*args, rel, heads), fn.translution_definition(*args, rel, heads))
        assert torch.autograd.gradcheck(lambda *a: fn.translution(*a, rel, heads), args, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *a: fn.translution(*a, rel, heads), args, fast_mode=True)


def test_both_ways_to_the_scores_are_taken():
    """Where some relations have more rows than channels and others fewer, one head uses both ways, and they agree."""
    rel, args = problem("line", 1, batch=2, c=3, d=3)
    taken, real = [], grouped.bilinear

    def spy(*given):
        taken.append(real(*given))
        return taken[-1]

    with patch.object(grouped, "bilinear", spy):
        found = torch.autograd.grad(fn.translution(*args, rel, 1).square().sum(), args)
    assert set(taken) == {True, False}
    expected = torch.autograd.grad(fn.translution_definition(*args, rel, 1).square().sum(), args)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("variant", ["printed", "released"])
@pytest.mark.parametrize("with_shared", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_gradients_of_low_rank(heads, with_shared, variant):
    rel, g = offsets((1, 2), cls=True), torch.Generator().manual_seed(4)

    def random(*shape):
        return torch.randn(*shape, dtype=F64, generator=g, requires_grad=True)

    x, e, r = random(2, rel.n, 2), 2 * heads, heads
    leaves = [random(2, r) for _ in range(3)], [random(rel.count, r, r) for _ in range(3)], [random(r, e)]
    wide = [random(2, e) for _ in range(3)] if with_shared else []

    def run(x, *w):
        return fn.lor_translution(x, w[:3], w[3:6], w[6], rel, heads, shared=w[7:] or None, variant=variant)

    assert torch.autograd.gradcheck(run, (x, *leaves[0], *leaves[1], *leaves[2], *wide), fast_mode=True)


@pytest.mark.parametrize("heads", [1, 2])
def test_bfloat16_within_its_bound(heads):
    """Sums accumulate in float32: every error is below a tenth of the root mean square of its tensor."""
    rel, args = problem("line", heads, batch=40, c=16, d=16 // heads)
    args = [(a / 4 if a.ndim == 3 and len(a) == rel.count else a).detach().requires_grad_() for a in args]
    half = [a.detach().bfloat16().requires_grad_() for a in args]
    exact = [a.detach().double().requires_grad_() for a in half]

    def results(inputs):
        y = fn.translution(*inputs, rel, heads)
        return [y.detach(), *torch.autograd.grad(y.sum(), inputs)]

    for a, b in zip(results(half), results(exact), strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).abs().max() < 0.1 * b.square().mean().sqrt()


@pytest.mark.parametrize(("name", "options"), EVERY)
@pytest.mark.parametrize("table", ["grid", "causal"])
@pytest.mark.parametrize("form", ["auto", pytest.param("definition", marks=pytest.mark.nightly)])
def test_gradients_of_every_option(name, options, table, form):
    """Along random directions of the input and of every parameter; all parameters away from their start."""
    layer = build(name, offsets(3, causal=True) if table == "causal" else None, **options)
    keys = [key for key, _ in layer.named_parameters()]
    values = [(p + 0.1 * torch.randn_like(p)).detach().requires_grad_() for p in layer.parameters()]
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64, requires_grad=True)

    def run(x, *values):
        return functional_call(layer, dict(zip(keys, values, strict=True)), (x,))

    with backend(form):
        assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
