"""The compiled operator equals the definition, and so do all gradients, with any number of threads."""

import os
import shutil
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.strategies import EVERY, build, gradients, tables
from translution_lib import definition, offsets, pairs, shared
from translution_lib import functional as fn
from translution_lib.functional import compiled, grouped
from translution_lib.functional.grouped import pair_scores, pair_values

NAMES = ["scores", "scores_backward", "values", "values_backward"]
needs_compiler = pytest.mark.skipif(   # in CI there has to be one
    not (os.environ.get("CC") or shutil.which("cc") or os.environ.get("CI")), reason="no C compiler")


@pytest.fixture(autouse=True)
def threads():
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def operator(rel, heads=2, relative="qkv", b=2, c=9, d=5, d_v=4, seed=5):
    """Return arguments of ``translution`` in float32 whose scores and outputs are of order 1."""
    g = torch.Generator().manual_seed(seed)

    def weight(letter: str, e: int) -> torch.Tensor:
        shape = (rel.count, c, e) if letter in relative else (c, e)
        return (torch.randn(shape, generator=g) / c**0.5).requires_grad_()

    x = torch.randn(b, rel.n, c, generator=g).requires_grad_()
    return [x, weight("q", heads * d), weight("k", heads * d), weight("v", heads * d_v), rel, heads]


def doubled(args):
    return [a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]


def and_gradients(function, args):
    """Return the result and the gradients of a linear function of it that is the same in every type."""
    y = function(*args)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y)
    inputs = [a for a in args if isinstance(a, torch.Tensor)]
    return [y.detach(), *torch.autograd.grad((y * g).sum(), inputs, allow_unused=True, materialize_grads=True)]


def assert_near(found, expected, bound=2e-5):
    """No error is larger than ``bound`` times the root mean square of the numbers of its tensor."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == torch.float32
        assert float((a.double() - b).abs().max()) <= bound * float(b.norm()) / b.numel()**0.5 + 1e-12


@needs_compiler
@given(rel=tables(), heads=st.integers(1, 3), relative=st.sets(st.sampled_from("qkv")), b=st.integers(1, 4),
       c=st.integers(1, 30), d=st.integers(1, 20), d_v=st.integers(1, 20), slots=st.integers(1, 4),
       room=st.sampled_from([0, 2**62]))
@example(offsets((2, 3), cls=True), 3, set("qkv"), 140, 8, 8, 8, 2, 0)           # a pair has more rows than a chunk
@example(offsets((2, 3), cls=True), 3, set("qkv"), 140, 8, 8, 8, 2, 2**62)
@example(shared(9), 1, set("qkv"), 7, 24, 24, 48, 3, 2**62)                     # one relation, several chunks
@example(shared(9), 2, set("qkv"), 7, 16, 13, 21, 1, 0)                         # every width of a panel of columns
def test_compiled_equals_the_definition(rel, heads, relative, b, c, d, d_v, slots, room):
    torch.set_num_threads(slots)
    args = operator(rel, heads, relative, b, c, d, d_v)
    with compiled.forced(), mock.patch.object(grouped, "KEEP_BYTES", room):
        found = and_gradients(fn.translution, args)
    assert_near(found, and_gradients(fn.translution_definition, doubled(args)))


@needs_compiler
@pytest.mark.parametrize("room", [0, 2**62], ids=["again", "kept"])
@pytest.mark.parametrize(("name", "options"), EVERY)
def test_every_layer_gives_the_same_inside(name, options, room):
    """Layers that have grouped products take them from C; in all others nothing changes."""
    layer = build(name, **options).float()
    x = torch.randn(3, layer.relations.n, layer.dim).requires_grad_()
    inputs = [x, *layer.parameters()]
    expected = [(y := layer(x)).detach(), *gradients(y, inputs)]
    with compiled.forced(), mock.patch.object(grouped, "KEEP_BYTES", room):
        found = [(y := layer(x)).detach(), *gradients(y, inputs)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@needs_compiler
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_equal_threads_give_equal_bits(slots):
    torch.set_num_threads(slots)
    args = operator(offsets((3, 3), cls=True), c=24, d=12)
    with compiled.forced():
        first, second = (and_gradients(fn.translution, args) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_compiler
def test_weights_and_inputs_of_any_strides():
    """A transposed weight, such as a tied one, gets its gradient where it belongs."""
    rel = offsets(4)
    x, w_q, w_k, w_v, *_ = operator(rel, c=10, d=5, d_v=5)
    turned = [w.detach().mT.contiguous().mT.requires_grad_() for w in (w_q, w_k, w_v)]
    skewed = x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert not any(a.is_contiguous() for a in (*turned, skewed))
    with compiled.forced():
        found = and_gradients(fn.translution, [skewed, *turned, rel, 2])
    assert_near(found, and_gradients(fn.translution_definition, doubled([x, w_q, w_k, w_v, rel, 2])))


@needs_compiler
def test_relations_without_pairs_get_no_gradient():
    rel = offsets(6, causal=True).for_length(3)
    args = operator(rel)
    with compiled.forced():
        found = and_gradients(fn.translution, args)
    unused = rel.sizes == 0
    assert unused.any() and all(not dw[unused].any() and dw[~unused].any() for dw in found[2:])


@needs_compiler
def test_second_derivatives():
    args = operator(offsets(3, causal=True), b=1, c=3, d=2, d_v=2)

    def of(function, args):
        y = function(*args)
        first = torch.autograd.grad((y * y).sum(), args[:4], create_graph=True)
        return torch.autograd.grad(sum((f * f).sum() for f in first), args[:4])

    with compiled.forced():
        found = of(fn.translution, args)
    assert_near(found, of(fn.translution_definition, doubled(args)), 1e-4)


@needs_compiler
@pytest.mark.parametrize("room", [0, 2**62], ids=["again", "kept"])
def test_the_operator_takes_the_compiled_form_where_it_can(room):
    """The comparisons above would hold without it: the operator must call C, forward and backward."""
    args = operator(offsets(4))
    for forced in (True, False):
        spies = {k: mock.Mock(wraps=getattr(compiled, k)) for k in NAMES}
        with mock.patch.multiple(compiled, **spies), compiled.forced(forced), \
                mock.patch.object(grouped, "KEEP_BYTES", room):
            and_gradients(fn.translution, args)
        assert [spy.called for spy in spies.values()] == [forced] * 4


@needs_compiler
def test_what_it_takes():
    x = torch.ones(2)
    assert not compiled.available(x)
    with compiled.forced():
        assert compiled.available(x, None, torch.nn.Parameter(x))
        assert not any(compiled.available(x, y) for y in (x.double(), x.bfloat16(), x.to("meta"), x[:0]))
        with compiled.forced(False):
            assert not compiled.available(x)
        assert compiled.available(x)
    assert not compiled.available(x)


@needs_compiler
def test_autocast_vmap_and_an_empty_batch_go_on():
    rel = pairs(3)
    x, w_q, _, w_v, *_ = [a.detach() if isinstance(a, torch.Tensor) else a for a in operator(rel, heads=1)]
    alpha = torch.rand(2, 1, rel.n, rel.n)
    with compiled.forced():
        with torch.autocast("cpu", torch.bfloat16):
            assert pair_values(alpha, x, w_v, rel).dtype == torch.bfloat16
        assert pair_values(alpha[:0], x[:0], w_v, rel).shape == (0, rel.n, w_v.shape[-1])
        each = torch.vmap(lambda x, a: pair_values(a[None], x[None], w_v, rel)[0])(x, alpha)
        torch.testing.assert_close(each, pair_values(alpha, x, w_v, rel))
        each = torch.vmap(lambda x: pair_scores(x[None], x[None], w_q, w_q, rel, 1)[0])(x)
        torch.testing.assert_close(each, pair_scores(x, x, w_q, w_q, rel, 1))


@needs_compiler
def test_it_is_compiled_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled._library.__wrapped__()
    (made,) = (tmp_path / "translution").iterdir()
    monkeypatch.setenv("CC", "no-such-compiler")
    compiled._library.__wrapped__()
    assert made.suffix == ".so" and [made] == list((tmp_path / "translution").iterdir())


@pytest.mark.parametrize(("compiler", "message"), [
    ("no-such-compiler", "'no-such-compiler' does not start"), ("false", "false -O3 .* failed"),
    (None, "as `cc` or in CC")])
def test_without_a_compiler_it_says_so(compiler, message, tmp_path, monkeypatch):
    """Nothing half-written stays, and everything outside goes on as before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if compiler:
        monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with mock.patch.object(compiled, "_library", compiled._library.__wrapped__), \
            pytest.raises(RuntimeError, match=message), compiled.forced():
        pytest.fail("nothing runs inside")
    assert not list((tmp_path / "translution").iterdir()) and not compiled.available(torch.ones(1))
    with definition():
        assert fn.translution(*operator(offsets(3))).isfinite().all()


@needs_compiler
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(RuntimeError, match=f"cannot write to {file}.*XDG_CACHE_HOME"):
        compiled._library.__wrapped__()
