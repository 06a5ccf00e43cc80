"""The compiled operator equals the definition, and so do all gradients, with any number of threads."""

import os
import shutil
from functools import cache
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from translution_lib.functional.grouped import pair_scores, pair_values
from translution_lib.functional.groups import pairs_on

from tests.unit.strategies import EVERY, build, doubled, gradients, tables
from translution_lib import backend, offsets, pairs, shared
from translution_lib import functional as fn
from translution_lib.functional import compiled, forms, grouped

NAMES = ["scores", "scores_backward", "values", "values_backward"]
needs_compiler = pytest.mark.skipif(   # in CI there has to be one
    not (compiled._compiler() or os.environ.get("CI")), reason="no C compiler")


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
    assert compiled.takes(x, None, torch.nn.Parameter(x))
    other = x.double(), x.bfloat16(), x.to("meta"), x[:0], torch._neg_view(x), torch._efficientzerotensor(2)
    assert not any(compiled.takes(x, y) for y in other)


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
    with mock.patch.object(compiled, "_compile", side_effect=AssertionError("compiled again")):
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
    assert not list((tmp_path / "translution").iterdir()) and not forms._asked
    with backend("definition"):
        assert fn.translution(*operator(offsets(3))).isfinite().all()


@needs_compiler
def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(RuntimeError, match=f"cannot write to {file}.*XDG_CACHE_HOME"):
        compiled._library.__wrapped__()


@needs_compiler
def test_a_file_that_is_no_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    empty = mock.Mock(side_effect=lambda flags, library: library.touch())
    with mock.patch.object(compiled, "_compile", empty), \
            pytest.raises(RuntimeError, match=f"cannot load {tmp_path}/translution/compiled-.*too short"):
        compiled._library.__wrapped__()


@needs_compiler
@pytest.mark.parametrize("kind", ["DEFAULT", "AVX2"])
def test_other_processors_and_compilers(kind, tmp_path, monkeypatch):
    """Without the instructions of AVX, and without a compiler's exchange of numbers among vectors."""
    if kind == "AVX2" and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("no AVX here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -DWITHOUT_SHUFFLES")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    args = operator(offsets((2, 3), cls=True), heads=2, b=5, c=35, d=19, d_v=12)
    with mock.patch.object(compiled, "_library", cache(compiled._library.__wrapped__)), compiled.forced():
        found = and_gradients(fn.translution, args)
    assert_near(found, and_gradients(fn.translution_definition, doubled(args)))


@needs_compiler
@pytest.mark.parametrize("room", [0, 2**62], ids=["again", "kept"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("forward", [True, False])
def test_forward_inside_and_backward_outside_and_the_reverse(forward, heads, room):
    """What one form keeps, the other reads."""
    args = operator(offsets((2, 3), cls=True), heads)
    with mock.patch.object(grouped, "KEEP_BYTES", room):
        with compiled.forced(forward):
            y = fn.translution(*args)
        with compiled.forced(not forward):
            found = torch.autograd.grad(y.square().sum(), args[:4])
    exact = doubled(args)
    assert_near(found, torch.autograd.grad(fn.translution_definition(*exact).square().sum(), exact[:4]), 1e-4)


@needs_compiler
@pytest.mark.usefixtures("plain_types")
def test_what_does_not_fit_is_refused_before_c_reads_it():
    """A pointer has no shape: a smaller table would be read and written beyond its end."""
    rel = offsets(4)
    x, w_q, w_k, w_v, *_ = operator(rel, b=3)
    alpha = torch.rand(3, 2, 4, 4)
    wrong = [(alpha[:1], x, w_v), (alpha[..., :2, :2], x, w_v), (alpha, x, w_v[:3]), (alpha, x, w_v[:, :2]),
             (torch.rand(3, 3, 4, 4), x, w_v)]
    with compiled.forced():
        for given in wrong:
            with pytest.raises(ValueError, match="operands must fit a table of 4 tokens and 7 relations"):
                pair_values(*given, rel)
        for given in ((x, x, w_q, w_k[..., :4], rel, 2), (x, x[:, :3], w_q, w_k, rel, 2), (x, x, w_q, w_k, rel, 3)):
            with pytest.raises(ValueError, match="operands must fit"):
                pair_scores(*given)
    with pytest.raises(ValueError, match=r"alpha must have the shape \(3, heads, 4, 4\), got \(1, 2, 4, 4\)"):
        fn.translution_values(alpha[:1], x, w_v, rel)


@needs_compiler
def test_no_more_threads_than_relations():
    """A thread without a relation would have a copy of the sums for nothing."""
    torch.set_num_threads(4)
    with mock.patch.object(compiled, "_shared", mock.Mock(wraps=compiled._shared)) as shared_by, compiled.forced():
        and_gradients(fn.translution, operator(shared(5), relative="v"))
    assert {call.args[2] for call in shared_by.call_args_list} == {1}


@given(rel=tables(), slots=st.integers(1, 5))
def test_every_relation_is_dealt_once_and_evenly(rel, slots):
    found = pairs_on(rel, torch.device("cpu"))
    relation, start, query, key, order, part = (a.tolist() for a in compiled._arrays(found, slots))
    assert sorted(order) == list(range(len(relation))) and part[0] == 0 and part[-1] == len(order)
    for k, r in enumerate(relation):
        assert all(rel.index[i, j] == r for i, j in zip(query[start[k]:start[k + 1]], key[start[k]:start[k + 1]],
                                                       strict=True))
    sizes = [b - a for a, b in zip(start[:-1], start[1:], strict=True)]
    loads = [sum(sizes[k] for k in order[a:b]) for a, b in zip(part[:-1], part[1:], strict=True)]
    assert sum(loads) == len(found.flat) and max(loads) - min(loads) <= max(sizes)
