"""The operators: fast form = definition, values and gradients, and both = oracles that are not ours."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.strategies import F64, gradients, grids, operators, tables
from translution_lib import functional as fn
from translution_lib import offsets, pairs, shared


def by_hand(x, w_q, w_k, w_v, relations, heads):
    """Translution by a loop over batch, head, query and key, in the words of eq. (1)."""
    b, n, _ = x.shape
    d, d_v = w_q.shape[-1] // heads, w_v.shape[-1] // heads
    out = torch.zeros(b, n, heads * d_v, dtype=x.dtype)
    for s in range(b):
        for h in range(heads):
            for i in range(n):
                keys = [j for j in range(n) if relations.index[i, j] >= 0]
                at = [int(relations.index[i, j]) for j in keys]
                q, k, v = ([w if w.ndim == 2 else w[r] for r in at] for w in (w_q, w_k, w_v))
                logits = torch.stack([(x[s, i] @ q[m])[h * d:(h + 1) * d] @ (x[s, j] @ k[m])[h * d:(h + 1) * d]
                                      for m, j in enumerate(keys)]) / math.sqrt(d)
                alpha = logits.exp() / logits.exp().sum()
                rows = torch.stack([(x[s, j] @ v[m])[h * d_v:(h + 1) * d_v] for m, j in enumerate(keys)])
                out[s, i, h * d_v:(h + 1) * d_v] = alpha @ rows
    return out


@given(operators())
def test_translution_equals_its_definition_and_the_loop(args):
    slow, fast = fn.translution_definition(**args), fn.translution(**args)
    torch.testing.assert_close(fast, slow)
    with torch.no_grad():
        torch.testing.assert_close(slow, by_hand(**args))
    inputs = [args[k] for k in ("x", "w_q", "w_k", "w_v")]
    for a, b in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(a, b)


@given(operators())
def test_scores_and_values_compose(args):
    alpha = fn.translution_scores(args["x"], args["w_q"], args["w_k"], args["relations"], args["heads"]).softmax(-1)
    torch.testing.assert_close(alpha.sum(-1), torch.ones(alpha.shape[:-1], dtype=F64))
    assert (alpha[..., ~args["relations"].mask] == 0).all()
    torch.testing.assert_close(fn.translution_values(alpha, args["x"], args["w_v"], args["relations"]),
                               fn.translution(**args))


@given(grids(max_dims=1) | grids(max_dims=3), st.data())
def test_convolution_equals_torch(shape, data):
    c, e, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(0, 999))
    size = [data.draw(st.integers(1, 4)) for _ in shape]
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, math.prod(shape), c, dtype=F64, generator=g)
    kernel = torch.randn(*size, c, e, dtype=F64, generator=g)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape)]
    image = x.mT.reshape(2, c, *shape)
    oracle = conv(image, torch.einsum("...ce->ec...", kernel), padding="same").flatten(2).mT
    torch.testing.assert_close(fn.convolution_definition(x, kernel, shape), oracle)
    torch.testing.assert_close(fn.convolution(x, kernel, shape), oracle)


@given(grids(), st.integers(1, 2), st.integers(0, 999))
def test_theorem_a1_translution_is_a_convolution(shape, c, seed):
    """W^q = W^k = 0 and W^v[δ] = N·K[−δ] is torch's zero-padded convolution, at the border too."""
    g = torch.Generator().manual_seed(seed)
    rel, n = offsets(shape), math.prod(shape)
    kernel = torch.randn(*(3 for _ in shape), c, 2, dtype=F64, generator=g)
    x = torch.randn(2, n, c, dtype=F64, generator=g)
    w_v = torch.zeros(rel.count, c, 2, dtype=F64)
    for index, tap in fn.taps(kernel.shape[:-2]):
        delta = tuple(-k for k in tap)
        if delta in rel.labels:
            w_v[rel.id_of(delta)] = n * kernel[index]
    zero = torch.zeros(c, 1, dtype=F64)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape)]
    oracle = conv(x.mT.reshape(2, c, *shape), torch.einsum("...ce->ec...", kernel), padding=1).flatten(2).mT
    torch.testing.assert_close(fn.translution(x, zero, zero, w_v, rel), oracle)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(0, 999))
def test_shared_weights_are_torch_attention(heads, d, n, causal, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, n, 3, dtype=F64, generator=g)
    w = [torch.randn(3, heads * d, dtype=F64, generator=g) for _ in range(3)]
    q, k, v = ((x @ m).unflatten(-1, (heads, d)).transpose(1, 2) for m in w)
    oracle = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
    rel = shared(n, causal=causal)
    torch.testing.assert_close(fn.translution(x, *w, rel, heads), oracle)
    torch.testing.assert_close(fn.translution(x, *(m[None] for m in w), rel, heads), oracle)
    table = offsets(n, causal=causal)
    tied = [m.expand(table.count, -1, -1).contiguous() for m in w]
    torch.testing.assert_close(fn.translution(x, *tied, table, heads), oracle)
    for form in (fn.self_attention, fn.self_attention_definition):
        torch.testing.assert_close(form(x, *w, heads, rel.mask), oracle)


@given(operators())
def test_only_the_relation_matters(args):
    """Pairs of one relation share their parameters: untying a table into one relation per pair changes nothing."""
    rel = args["relations"]
    fine = pairs(rel.n)
    assume(rel.complete)
    untied = {k: args[k][rel.index.flatten()] if args[k].ndim == 3 else args[k] for k in ("w_q", "w_k", "w_v")}
    torch.testing.assert_close(fn.translution(args["x"], **untied, relations=fine, heads=args["heads"]),
                               fn.translution(**args))


@st.composite
def lor_arguments(draw, printed: bool = False) -> dict:
    rel, heads = draw(tables()), 1 if printed else draw(st.integers(1, 3))
    c, d, r1, r2 = (draw(st.integers(1, 3)) for _ in range(4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=F64, generator=g).requires_grad_()

    return {"x": new(2, rel.n, c), "low": tuple(new(c, heads * r1) for _ in range(3)),
            "cores": tuple(new(rel.count, heads * r1, heads * r2) for _ in range(3)), "up": new(heads * r2, heads * d),
            "relations": rel, "heads": heads,
            "variant": "printed" if printed else draw(st.sampled_from(["printed", "released"])),
            "shared": tuple(new(c, heads * d) for _ in range(3)) if printed or draw(st.booleans()) else None}


@given(lor_arguments())
def test_lor_equals_its_definition(args):
    slow, fast = fn.lor_translution_definition(**args), fn.lor_translution(**args)
    torch.testing.assert_close(fast, slow)
    inputs = [args["x"], *args["low"], *args["cores"], args["up"], *(args["shared"] or ())]
    for a, b in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(a, b)


@given(lor_arguments(printed=True))
def test_lor_with_one_head_is_eq_2(args):
    """With one head, LoR is Translution with the composed matrices of eq. (2)."""
    rel, (w_q, w_k, w_v) = args["relations"], args["shared"]
    x, d = args["x"], w_q.shape[1]
    m = args["low"][0] @ args["cores"][0] @ (args["low"][1] @ args["cores"][1]).mT + w_q @ w_k.T      # r c c
    v = args["low"][2] @ args["cores"][2] @ args["up"] + w_v
    r2 = x.shape[2]
    identity = torch.eye(r2, dtype=F64)
    scaled = m * math.sqrt(r2) / math.sqrt(d)
    torch.testing.assert_close(fn.lor_translution(**args), fn.translution(x, scaled, identity, v, rel))


def test_lor_at_zero_is_self_attention():
    g = torch.Generator().manual_seed(0)
    rel, x = offsets((2, 3), cls=True), torch.randn(2, 7, 4, dtype=F64, generator=g)
    shared_w = tuple(torch.randn(4, 6, dtype=F64, generator=g) for _ in range(3))
    nothing = (torch.zeros(4, 0, dtype=F64),) * 3, (torch.zeros(rel.count, 0, 0, dtype=F64),) * 3
    y = fn.lor_translution(x, *nothing, torch.zeros(0, 6, dtype=F64), rel, 2, shared_w)
    torch.testing.assert_close(y, fn.self_attention(x, *shared_w, 2))


def test_second_derivatives():
    g = torch.Generator().manual_seed(0)
    rel = offsets((2, 2))
    x = torch.randn(1, 4, 2, dtype=F64, generator=g, requires_grad=True)
    w = [torch.randn(rel.count, 2, 2, dtype=F64, generator=g, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *a: fn.translution(*a, rel, 2), (x, *w))
    assert torch.autograd.gradgradcheck(lambda *a: fn.translution(*a, rel, 2), (x, *w))


X, W, R = torch.zeros(1, 4, 3), torch.zeros(7, 3, 2), offsets(4)
LOW, CORE, UP = (torch.zeros(3, 2),) * 3, (torch.zeros(7, 2, 2),) * 3, torch.zeros(2, 4)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: fn.translution(torch.zeros(4, 3), W, W, W, R), "x must"),
    (lambda: fn.translution(torch.zeros(1, 5, 3), W, W, W, R), "x has 5 tokens, expected 4"),
    (lambda: fn.translution(X, torch.zeros(6, 3, 2), W, W, R), "w_q"),
    (lambda: fn.translution(X, W, torch.zeros(7, 3, 4), W, R), "w_k"),
    (lambda: fn.translution(X, W, W, torch.zeros(7, 4, 2), R), "w_v"),
    (lambda: fn.translution(X, W, W, W, R, heads=3), "heads"),
    (lambda: fn.translution(X, W, W, W, R, heads=0), "heads"),
    (lambda: fn.translution_definition(X, W, W, W, R, heads=4), "heads"),
    (lambda: fn.translution_values(torch.zeros(1, 3, 4, 4), X, W, R), "heads"),
    (lambda: fn.self_attention(X, torch.zeros(2, 2), W[0], W[0]), "w_q"),
    (lambda: fn.self_attention(X, W[0], W[0], W[0], heads=5), "heads"),
    (lambda: fn.convolution(X, torch.zeros(3, 3, 2), (5,)), "shape"),
    (lambda: fn.convolution(X, torch.zeros(3, 3, 3, 2), (4,)), "kernel"),
    (lambda: fn.convolution(X, torch.zeros(3, 2, 2), (4,)), "kernel"),
    (lambda: fn.lor_translution(X, LOW, CORE, UP, R, variant="paper"), "variant"),
    (lambda: fn.lor_translution(X, LOW, tuple(c[0] for c in CORE), UP, R), "cores"),
    (lambda: fn.lor_translution(X, LOW, CORE, UP, R, heads=3), "heads"),
    (lambda: fn.lor_translution(X, (torch.zeros(2, 2),) * 3, CORE, UP, R), "low"),
    (lambda: fn.lor_translution(X, LOW, CORE, UP, R, shared=(torch.zeros(3, 5),) * 3), "shared"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()


@given(grids(), st.integers(1, 4), st.booleans(), st.integers(0, 999))
def test_relation_kernel_puts_every_tap_at_its_offset(shape, size, cls, seed):
    """Summing f_j K[relation of ij] over all pairs is the convolution."""
    g = torch.Generator().manual_seed(seed)
    rel, kernel = offsets(shape, cls=cls), torch.randn(*(size for _ in shape), 2, 3, dtype=F64, generator=g)
    x = torch.randn(1, math.prod(shape), 2, dtype=F64, generator=g)
    table = fn.relation_kernel(kernel, rel)[rel.index][int(cls):, int(cls):]
    torch.testing.assert_close(torch.einsum("bjc,ijce->bie", x, table), fn.convolution_definition(x, kernel, shape))


def test_relation_kernel_names_bad_input(plain_types):
    with pytest.raises(ValueError, match="kernel"):
        fn.relation_kernel(torch.zeros(3, 1, 1), offsets((2, 2)))
    with pytest.raises(ValueError, match="kernel"):
        fn.relation_kernel(torch.zeros(3, 1, 1), pairs(3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("form", ["", "_definition"])
@pytest.mark.parametrize("name", ["self_attention", "translution", "lor_translution"])
def test_a_spoilt_token_reaches_those_alone_that_may_read_it(name, form, bad):
    """A causal text whose third token is not finite: the first two are as before, the others are NaN."""
    table, operator = offsets(5, causal=True), getattr(fn, name + form)
    x, *w = (torch.randn(size, dtype=F64) for size in ((2, 5, 4), (4, 4), (4, 4), (4, 4)))
    cores = [torch.randn(table.count, 4, 4, dtype=F64) for _ in range(3)]
    arguments = {"self_attention": (*w, 1, table.mask), "translution": (cores[0], *w[1:], table),
                 "lor_translution": (tuple(w), tuple(cores), w[0], table, 2, tuple(w))}[name]
    whole, spoilt = operator(x, *arguments), x.clone()
    spoilt[:, 2, 1] = bad
    found = operator(spoilt, *arguments)
    torch.testing.assert_close(found[:, :2], whole[:, :2])
    assert found[:, 2:].isnan().all() and whole.isfinite().all()
