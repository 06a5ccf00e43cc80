"""Every mixer is one graph for a compiler, and few modules. Run without enforced shapes, whose wrappers disturb."""

import sys
from threading import Thread

import pytest
import torch

from tests.unit.test_backends import NEEDS, watched
from tests.unit.test_mixers import DIM, F64, NAMES, build, gradients
from translution_lib import Translution, backend, offsets

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "masked"), [
    *((name, True) for name in NAMES), ("translution", False), ("performer", False),
    *(pytest.param(name, False, marks=pytest.mark.nightly) for name in NAMES
      if name not in ("translution", "performer"))])
def test_a_layer_is_one_graph(name, masked):
    """Nothing in a forward pass stops a compiler, with and without a mask of the samples; gradients are equal."""
    layer = build(name)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64, requires_grad=True)
    mask = (torch.arange(x.shape[1]) < torch.tensor([[4], [9]]),) if masked else ()
    torch.compiler.reset()
    inputs, compiled = [x, *layer.parameters()], torch.compile(layer, backend="eager", fullgraph=True)
    y = compiled(x, *mask)
    torch.testing.assert_close(y, layer(x, *mask))
    for a, b in zip(gradients(y, inputs), gradients(layer(x, *mask), inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["self-attention", "scalar-bias", "gated-bias", "rotary", "general-translution"])
def test_an_exported_layer_computes_the_same_and_leaves_the_layer_as_it_was(name):
    """What an export traces does not stay among the tables of the layer's relations."""
    layer = build(name)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.parametrize("name", ["padded", pytest.param("c", marks=NEEDS["c"])])
@pytest.mark.parametrize("own", [False, True])
def test_a_graph_runs_the_backend_that_is_asked_for(name, own):
    """By a context around the call, or by the layer's own argument; and another graph serves who asks for another."""
    layer = Translution(offsets(4), 6, 2, backend=name if own else "auto")
    x = torch.randn(2, 4, 6, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)

    def step(how, forward):
        with watched(name) as calls:
            if how is None:
                y = compiled(x)
            else:
                with backend(how):
                    y = compiled(x)
            (found,) = torch.autograd.grad(y.sum(), x)
            assert calls() == [forward] * 4
        with backend("torch"):
            torch.testing.assert_close((y, found), ((z := layer(x)), torch.autograd.grad(z.sum(), x)[0]))

    for how, forward in ((name, 1), ("torch", 0), ("definition", 0), (None, own), (name, 1)):
        step(how, forward)
    thread = Thread(target=step, args=("torch", 0))
    thread.start()
    thread.join()


def test_from_a_layer_to_its_product_are_eight_modules_and_the_table():
    rel = offsets((3, 3), cls=True)
    layer, x, seen = Translution(rel, 8, 2), torch.randn(2, 10, 8), set()
    layer(x)                                            # what is made once is made
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: seen.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        layer(x)
    finally:
        sys.setprofile(before)
    found = {path for path in seen if "translution_lib" in path} - {sys.modules[type(rel).__module__].__file__}
    assert 3 < len(found) <= 8
