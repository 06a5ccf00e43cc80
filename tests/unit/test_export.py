"""Programs that leave the library: torch.export and ONNX, for any size of the batch."""

import numpy as np
import onnxruntime
import pytest
import torch

from tests.unit.strategies import DIM, HEADS, build
from translution_lib import GPT, MIXERS, ViT, offsets
from translution_lib.backends.exported import pair_scores, pair_values

pytestmark = pytest.mark.slow

BATCH = torch.export.Dim("batch")
OPEN = [*((name, {}) for name in sorted(MIXERS)), ("lor-translution", {"core": "diagonal"}),
        ("performer", {"features": "trigonometric", "num_features": 9})]


def exported(module, x):
    """Return the exported program, which must know no operator of this library's own."""
    program = torch.export.export(module.eval(), (x,), dynamic_shapes=({0: BATCH},))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names and not [name for name in names if "translution" in name or "autograd" in name]
    return program


def assert_any_batch(module, x, other):
    """The program gives what the module gives, for another batch than the one it was traced with, and leaves it be."""
    before = module(x)
    program = exported(module, x).module()
    for given in (x, other, other[:1]):
        torch.testing.assert_close(program(given), module(given), rtol=1e-4, atol=1e-5)
    assert torch.equal(module(x), before)


@pytest.mark.parametrize(("name", "options"), OPEN)
@torch.no_grad()
def test_a_layer_is_exported(name, options):
    layer = build(name, offsets((2, 3), cls=name != "convolution"), **options).float()
    n = layer.relations.n
    assert_any_batch(layer, torch.randn(2, n, DIM), torch.randn(5, n, DIM))


def test_a_text_model_is_exported():
    """Causal tables, and gradients: nothing is switched off."""
    names = ("translution", "performer", "performer-s2", "riemann", "key-value-vector")
    model = GPT(7, 5, DIM, len(names), HEADS, 8, mixer=names)
    assert_any_batch(model.eval(), torch.randint(7, (2, 5)), torch.randint(7, (3, 5)))


@torch.no_grad()
def test_a_program_is_saved_and_read_without_the_tables(tmp_path):
    model, images = ViT((4, 6), 2, 1, 5, DIM, 1, HEADS, 8).eval(), torch.randn(3, 1, 4, 6)
    torch.export.save(exported(model, images[:2]), tmp_path / "model.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "model.pt2").module()(images), model(images))


@pytest.mark.parametrize(("model", "inputs"), [
    (ViT((4, 6), 2, 1, 5, DIM, 3, HEADS, 8, mixer=("self-attention", "scalar-bias", "translution")),
     lambda b: torch.randn(b, 1, 4, 6)),
    (GPT(7, 5, DIM, 3, HEADS, 8, mixer=("rotary", "key-value-vector", "performer")),
     lambda b: torch.randint(7, (b, 5)))], ids=["images", "text"])
@torch.no_grad()
def test_onnx_runs_what_we_run(model, inputs, tmp_path):
    """The common mixers in another runtime."""
    torch.onnx.export(model.eval(), (inputs(2),), dynamic_shapes=({0: BATCH},), dynamo=True, verbose=False).save(
        tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for given in (inputs(2), inputs(3)):
        found = session.run(None, {session.get_inputs()[0].name: given.numpy()})[0]
        np.testing.assert_allclose(found, model(given).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("table", [offsets((2, 2), cls=True), offsets(5, causal=True, window=2)], ids=repr)
def test_plain_products_are_the_grouped_ones(table, monkeypatch):
    s, t = torch.randn(2, 2, table.n, 3, dtype=torch.float64).unbind()
    w_q, w_k = torch.randn(2, table.count, 3, 4, dtype=torch.float64).unbind()
    alpha = torch.rand(2, 2, table.n, table.n, dtype=torch.float64) * table.mask
    runs = [(pair_scores, (s, t, w_q, w_k, table, 2)), (pair_scores, (s @ w_q[0], t, None, w_k, table, 2)),
            (pair_scores, (s, t @ w_q[0], w_k, None, table, 1)), (pair_values, (alpha, t, w_k, table))]
    grouped = [run(*given) for run, given in runs]
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    for (run, given), expected in zip(runs, grouped, strict=True):
        torch.testing.assert_close(run(*given), expected)
