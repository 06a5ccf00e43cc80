"""The switch, and the contract of every form: it equals the definition, with all gradients, and is the one that ran."""

import math
import os
import platform
import sys
from contextlib import ExitStack, contextmanager
from threading import Barrier, Thread
from unittest import mock

import pytest
import torch

from tests.unit.strategies import DIM, EVERY, F64, build, doubled, gradients
from translution_lib import GPT, Attention, Translution, ViT, backend, offsets, pairs, shared
from translution_lib import functional as fn
from translution_lib.backends import choice, fused, grouped, library, products, switch
from translution_lib.backends.products import pair_scores, pair_values
from translution_lib.backends.switch import asked, form_named

HERE = (sys.platform, platform.machine()) == ("linux", "x86_64")      # where the test extra brings Triton
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
needs_triton = pytest.mark.skipif(not HERE and fused._kernels() is None, reason="no Triton for this platform")
needs_compiler = pytest.mark.skipif(   # in CI there has to be one
    not (library.compiler() or os.environ.get("CI")), reason="no C compiler")
NEEDS = {"c": needs_compiler, "triton": needs_triton}

TABLES = {
    "line": lambda: offsets(4), "grid": lambda: offsets((2, 2)), "cls": lambda: offsets((1, 3), cls=True),
    "causal": lambda: offsets(4, causal=True), "window": lambda: offsets(3, window=1),
    "clip": lambda: offsets(5, clip=1), "cls-window": lambda: offsets((1, 3), cls=True, window=1),
    "causal-all": lambda: offsets(5, causal=True, window=2, clip=1),
    "prefix": lambda: offsets(6, causal=True).for_length(3), "pairs": lambda: pairs(3), "shared": lambda: shared(4),
    "shared-causal": lambda: shared(4, causal=True),
}
CASES = [   # table, heads, which weights are relative, batch, channels, head dimension of scores and of values
    ("line", 1, "qkv", 2, 3, 4, 2), ("grid", 1, "qkv", 1, 5, 3, 4), ("cls", 2, "qkv", 2, 4, 2, 3),
    ("causal", 2, "qkv", 3, 6, 5, 5), ("window", 1, "qk", 2, 4, 4, 4), ("clip", 2, "qv", 1, 3, 2, 2),
    ("cls-window", 1, "kv", 2, 3, 3, 3), ("causal-all", 3, "qkv", 1, 4, 2, 2), ("prefix", 1, "qkv", 2, 3, 2, 2),
    ("pairs", 1, "qkv", 1, 4, 3, 2), ("shared", 1, "qkv", 5, 4, 4, 3), ("shared-causal", 2, "kv", 2, 3, 3, 2),
    ("line", 3, "q", 1, 3, 2, 2), ("clip", 2, "k", 2, 3, 2, 2), ("clip", 2, "v", 2, 3, 2, 2),
]
WAYS = {    # a form, whether it keeps pairs, the type and bound of its errors, what its channels are multiples of
    "torch": ("torch", False, torch.float64, 1e-12, 1), "torch kept": ("torch", True, torch.float64, 1e-12, 1),
    "c": ("c", False, torch.float32, 2e-5, 1), "c kept": ("c", True, torch.float32, 2e-5, 1),
    "triton": ("triton", False, torch.float32, 1e-5, 1), "padded": ("padded", False, torch.float32, 1e-5, 1),
    "grouped_mm": ("grouped_mm", False, torch.bfloat16, 0.15, 8),
}
NAMES = ("scores", "scores_backward", "values", "values_backward")


@pytest.fixture(params=[pytest.param(way, marks=NEEDS.get(name, ())) for way, (name, *_) in WAYS.items()])
def way(request):
    return WAYS[request.param]


def operator(table, heads, relative, b, c, d, d_v, dtype=torch.float32, times=1):
    """Return arguments of ``translution`` whose scores and outputs are of order 1."""
    rel, g = TABLES[table]() if isinstance(table, str) else table, torch.Generator().manual_seed(5)
    c, d, d_v = times * c, times * d, times * d_v

    def weight(letter: str, e: int) -> torch.Tensor:
        shape = (rel.count, c, e) if letter in relative else (c, e)
        return (torch.randn(shape, generator=g) / math.sqrt(c)).to(DEVICE, dtype).requires_grad_()

    x = torch.randn(b, rel.n, c, generator=g).to(DEVICE, dtype).requires_grad_()
    return [x, weight("q", heads * d), weight("k", heads * d), weight("v", heads * d_v), rel, heads]


def and_gradients(y, inputs):
    """Return y and the gradients of a linear function of y that is the same in every type."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y)
    return [y.detach(), *torch.autograd.grad((y * g).sum(), inputs, allow_unused=True, materialize_grads=True)]


def assert_near(found, expected, bound=1e-5):
    """No error is larger than ``bound`` times the root mean square of the numbers of its tensor."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a.double(), b, rtol=0, atol=bound * float(b.norm()) / math.sqrt(b.numel()) + 1e-12)


def check(function, reference, args, bound=1e-5, form="triton", keep=False):
    """Compare a function in one form with its definition in float64, values and gradients."""
    exact = [tuple(doubled(a)) if isinstance(a, tuple) else a for a in doubled(args)]
    leaves = [[t for a in given for t in (a if isinstance(a, tuple) else (a,)) if isinstance(t, torch.Tensor)]
              for given in (args, exact)]
    with backend(form, keep):
        found = and_gradients(function(*args), leaves[0])
    assert_near(found, and_gradients(reference(*exact), leaves[1]), bound)


@contextmanager
def watched(name):
    """Count the calls of a form's functions."""
    form, spies = form_named(name), {}
    owner = type(form) if name in ("padded", "grouped_mm") else form
    with ExitStack() as stack:
        for k in NAMES:
            spies[k] = stack.enter_context(mock.patch.object(owner, k, autospec=True, side_effect=getattr(owner, k)))
        yield lambda: [spies[k].call_count for k in NAMES]


def every_way() -> list:
    """Each way in each case. Triton's interpreter is slow: five of its cases serve until the night."""
    few = {case for case in CASES if case[0] in ("grid", "cls-window", "prefix", "shared-causal") or case[2] == "k"}
    return [pytest.param(way, case, id="-".join(map(str, (way, *case))), marks=[
        *([NEEDS[form]] if form in NEEDS else []),
        *([pytest.mark.nightly] if form == "triton" and case not in few else [])])
        for way, (form, *_) in WAYS.items() for case in CASES]


@pytest.mark.parametrize(("way", "case"), every_way(), indirect=["way"])
def test_every_form_equals_the_definition(way, case):
    name, keep, dtype, bound, times = way
    args = operator(*case, dtype=dtype, times=times)
    with watched(name) as calls:
        check(fn.translution, fn.translution_definition, args, bound, name, keep)
    scores, values = ({"q", "k"} & {*case[2]}) != set(), "v" in case[2]
    assert calls() == [scores, scores, values, values]


@pytest.mark.parametrize("way", ["torch", pytest.param("c", marks=needs_compiler), "padded"])
@pytest.mark.parametrize(("name", "options"), [e for e in EVERY if "translution" in e[0]])
def test_layers_give_the_same_in_every_form(name, options, way):
    form, _, dtype, *_ = WAYS[way]
    layer = build(name, **options).to(dtype)
    x = torch.randn(3, layer.relations.n, DIM, dtype=dtype, requires_grad=True)
    inputs = [x, *layer.parameters()]
    expected = [(y := layer(x)).detach(), *gradients(y, inputs)]
    with backend(form, keep=True):
        found = [(y := layer(x)).detach(), *gradients(y, inputs)]
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


def test_second_derivatives(way):
    name, keep, dtype, bound, _ = way
    if dtype == torch.bfloat16:
        dtype, bound = torch.float32, 1e-5      # which it hands on
    args = operator("causal", 2, "qkv", 1, 3, 2, 2, dtype=dtype)

    def of(function, args):
        y = function(*args)
        first = torch.autograd.grad((y * y).sum(), args[:4], create_graph=True)
        return torch.autograd.grad(sum((f * f).sum() for f in first), args[:4])

    with backend(name, keep):
        found = of(fn.translution, args)
    assert_near(found, of(fn.translution_definition, doubled(args)), 10 * bound)


def test_autocast_vmap_and_an_empty_batch(way):
    name, keep, dtype, bound, times = way
    x, w_q, _, w_v, rel, _ = (a.detach() if isinstance(a, torch.Tensor) else a for a in
                              operator("line", 1, "qkv", 2, 2, 2, 2, dtype=dtype, times=times))
    alpha = torch.rand(2, 1, rel.n, rel.n).to(x)
    with backend(name, keep):
        with torch.autocast(DEVICE, torch.bfloat16):
            assert pair_values(alpha.float(), x.float(), w_v.float(), rel).dtype == torch.bfloat16
        assert pair_values(alpha[:0], x[:0], w_v, rel).shape == (0, rel.n, w_v.shape[-1])
        each = torch.vmap(lambda x, a: pair_values(a[None], x[None], w_v, rel)[0])(x, alpha)
        torch.testing.assert_close(each, pair_values(alpha, x, w_v, rel), rtol=bound, atol=bound)
        each = torch.vmap(lambda x: pair_scores(x[None], x[None], w_q, w_q, rel, 1)[0])(x)
        torch.testing.assert_close(each, pair_scores(x, x, w_q, w_q, rel, 1), rtol=bound, atol=bound)


def test_equal_inputs_give_equal_bits(way):
    name, keep, dtype, _, times = way
    args = operator("cls-window", 2, "qkv", 3, 4, 3, 2, dtype=dtype, times=times)
    with backend(name, keep):
        first, second = (and_gradients(fn.translution(*args), args[:4]) for _ in range(2))
    assert all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(first, second, strict=True))


def in_a_thread(function):
    """Run a function in another thread, and raise here what it raises there."""
    failed = []

    def run():
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    for error in failed:
        raise error


@pytest.mark.parametrize("heads", [1, 2])
def test_backward_takes_the_form_of_forward_wherever_it_runs(way, heads):
    """Under another backend and in another thread, which have nothing to say."""
    name, keep, dtype, bound, times = way
    args = operator("cls", heads, "qkv", 2, 4, 2, 3, dtype=dtype, times=times)
    other = "padded" if name.startswith("torch") else "torch"
    with backend(name, keep):
        y = fn.translution(*args)
    found = []

    def backward():
        with backend(other):
            found.extend(torch.autograd.grad(y.square().sum(), args[:4]))

    with watched(name) as calls, watched(other) as others:
        in_a_thread(backward)
    assert calls() == [0, 1, 0, 1] and others() == [0] * 4
    exact = doubled(args)
    assert_near(found, torch.autograd.grad(fn.translution_definition(*exact).square().sum(), exact[:4]), 5 * bound)


def test_what_a_form_does_not_serve_is_torchs():
    double, few = operator("line", 2, "qkv", 2, 3, 4, 2, dtype=F64), operator("line", 1, "qkv", 2, 3, 4, 2)
    for name, args in (("c", double), ("triton", double), ("grouped_mm", few)):
        if name == "c" and not library.compiler():
            continue
        with backend(name), watched(name) as calls, watched("torch") as torchs:
            and_gradients(fn.translution(*args), args[:4])
        assert calls() == [0] * 4 and torchs() == [1] * 4


def test_forms_are_chosen_outside_autocast(monkeypatch):
    """Forward, and backward without forward: under autocast a sum would be wider than what it is written to."""
    seen = []

    def noted(*_):
        seen.append(torch.is_autocast_enabled("cpu"))
        return grouped

    monkeypatch.setattr(choice, "take", noted)
    monkeypatch.setitem(products.LEAST, "cpu", 0)
    args = operator("line", 1, "qkv", 2, 3, 4, 2)
    with backend("auto"), torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
        fn.translution(*args)
        assert seen == [False, False]
        relations = offsets(4)
        job = products.Job("values", grouped.pairs_on(relations, torch.device("cpu")), 1, "auto")
        alpha, x, w = torch.rand(2, 1, 4, 4), torch.randn(4, 2, 3), torch.randn(relations.count, 3, 2)
        job.backward(torch.randn(4, 2, 2), (alpha, x, w), ())
    assert seen == [False] * 3


def test_threads_ask_for_themselves():
    """Two threads with different backends at the same time, and a third that asks for nothing."""
    args, barrier, seen = operator("line", 1, "qkv", 2, 3, 4, 2), Barrier(3), {}

    def run(name):
        with backend(name) if name else ExitStack():
            barrier.wait()
            y = fn.translution(*args)
            seen[name] = asked(), y.detach()
            barrier.wait()

    with watched("padded") as calls:
        threads = [Thread(target=run, args=[name]) for name in ("padded", "torch", None)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls() == [1, 0, 1, 0] and asked() == "auto"
    assert {name: a for name, (a, _) in seen.items()} == {"padded": "padded", "torch": "torch", None: "auto"}
    torch.testing.assert_close(seen["padded"][1], seen["torch"][1])


def test_the_innermost_wins():
    args = operator("line", 1, "qkv", 2, 3, 4, 2)
    with backend("padded", keep=True):
        assert asked() == "padded" and switch.kept()
        with backend("torch"), watched("padded") as calls:
            fn.translution(*args)
            assert switch.kept() and calls() == [0] * 4
        with backend(keep=False):
            assert asked() == "auto" and not switch.kept()
        with pytest.raises(KeyError), backend("torch"):
            raise KeyError
        assert asked() == "padded"
    assert asked() == "auto" and not switch.kept()


def test_a_layers_own_backend_holds_where_nobody_asks():
    layer, x = Translution(offsets(4), 6, 2, backend="padded"), torch.randn(2, 4, 6)
    literal = Attention(offsets(4), 6, 2, backend="definition")
    with watched("padded") as calls:
        y = layer(x)
        assert calls() == [1, 0, 1, 0] and asked() == "auto"
        for name in ("torch", "auto", "definition"):
            with backend(name):
                torch.testing.assert_close(layer(x), y)
        assert calls() == [1, 0, 1, 0]
    with mock.patch.object(literal, "mix", side_effect=AssertionError):
        y = literal(x)
    with backend("torch"), mock.patch.object(literal, "values", side_effect=AssertionError):
        torch.testing.assert_close(literal(x), y)


@pytest.mark.parametrize("mixer", ["translution", "lor-translution", "self-attention", "performer"])
def test_a_model_hands_its_backend_to_its_layers(mixer):
    sizes = {"dim": 8, "depth": 2, "heads": 2, "ff": 12, "mixer": mixer, "backend": "definition"}
    for model in (ViT(6, 2, 2, 5, **sizes), GPT(11, 6, **sizes)):
        assert {block.mixer.backend for block in model.blocks} == {"definition"}


def test_recomputation_in_another_thread_runs_the_same_form():
    model = ViT(6, 2, 2, 5, dim=8, depth=2, heads=2, ff=12, mixer="translution", checkpoint=True)
    with watched("padded") as calls:
        with backend("padded"):
            loss = model(torch.randn(2, 2, 6, 6)).square().mean()
        assert calls() == [2, 0, 2, 0]
        in_a_thread(loss.backward)
        assert calls() == [4, 2, 4, 2]


@pytest.mark.parametrize("make", [backend, lambda name: Translution(offsets(3), 4, 1, backend=name)])
def test_what_cannot_run_says_so(make, monkeypatch, tmp_path):
    def enter(name):
        with made if hasattr(made := make(name), "__enter__") else ExitStack():
            pytest.fail("nothing runs inside")

    with pytest.raises(ValueError, match=r"backend must be one of \('auto', .*'triton'\), got 'fastest'"):
        enter("fastest")
    with mock.patch.object(fused, "_kernels", return_value=None), \
            pytest.raises(RuntimeError, match="needs Triton and an NVIDIA GPU"):
        enter("triton")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with mock.patch.object(library, "compiler", return_value=None), \
            mock.patch.object(library, "load", library.load.__wrapped__), \
            pytest.raises(RuntimeError, match="needs a C compiler"):
        enter("c")
    assert asked() == "auto"


def test_the_definition_is_not_grouped():
    layer, x = Translution(offsets(4), 6, 2), torch.randn(2, 4, 6)
    with mock.patch.object(grouped, "scores", side_effect=AssertionError), backend("definition"):
        assert layer(x).isfinite().all()
