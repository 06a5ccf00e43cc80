"""Every mixer is one graph for a compiler. Run without enforced shapes, whose wrappers a compiler cannot trace."""

import pytest
import torch

from tests.unit.test_mixers import DIM, F64, NAMES, build, gradients


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("masked", [False, True])
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
