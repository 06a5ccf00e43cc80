"""The identities of the chapter "Making it fit", on random sizes, against programs that are run and watched."""

import re
from itertools import product
from math import ceil, isclose
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from translution_lib import Translution, backend, cost, functional, offsets
from translution_lib.backends import grouped

CPU = torch.device("cpu")
small = st.integers(1, 3)
sides = st.one_of(st.tuples(st.integers(2, 5)), st.tuples(small, small), st.tuples(st.integers(1, 2), small, small))


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


class Traffic(TorchDispatchMode):
    """Adds up the operations of all matrix products, and the bytes of their operands and results."""

    flops = bytes = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if op.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.flops += 2 * out.numel() * args[0].shape[-1]
            self.bytes += sum(t.numel() * t.element_size() for t in (*args[:2], out))
        return out


class Fresh(TorchDispatchMode):
    """Adds up the bytes of all new tensors of at least so many numbers, views left out."""

    def __init__(self, least):
        super().__init__()
        self.least, self.bytes = least, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        old = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.numel() >= self.least and t.untyped_storage()._cdata not in old:
                self.bytes += t.untyped_storage().nbytes()
        return out


def products(layer, x):
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    return counter.get_total_flops() / 2


@pytest.mark.identity("eq-fit-products", "eq-fit-recompute")
@given(sides, st.booleans(), small, small, st.integers(1, 3), st.booleans())
def test_products_and_kept_bytes_of_a_training_step(shape, cls, heads, d, b, keep_inside):
    c = e = heads * d
    layer = Translution(offsets(shape, cls=cls), c, heads, output=False).double()
    pairs = layer.relations.n ** 2
    x, kept = random(b, layer.relations.n, c).requires_grad_(), []
    for keep, count in ((True, 9 * b * pairs * c * e), (False, recomputed(layer, b))):
        with backend("auto", keep):
            assert products(layer, x) == count
            kept.append(cost.count_saved_bytes(layer, x))
    assert kept[0] - kept[1] == (3 if heads > 1 else 2) * 8 * b * pairs * e
    with backend("torch", keep_inside):     # a checkpointed block runs forward once more
        count = 12 * b * pairs * c * e if keep_inside else recomputed(layer, b) + forward(layer, b)
        assert products(lambda x: checkpoint(layer, x, use_reentrant=False), x) == count


def recomputed(layer, b):
    """Count the products of a step that keeps nothing: 12, or with one head 3 for values and 8 or 4 for scores."""
    c, rows = layer.dim, [b * size for size in layer.relations.sizes.tolist()]
    if layer.heads > 1:
        return 12 * sum(rows) * c * c
    return sum(c * c * (3 * m + (4 * m + 4 * c if m > c else 8 * m)) for m in rows)


def forward(layer, b):
    """Count the products of a forward run that keeps nothing: three, or with one head and many rows a form and two."""
    c, rows = layer.dim, [b * size for size in layer.relations.sizes.tolist()]
    return sum(c * c * (2 * m + c if layer.heads == 1 and m > c else 3 * m) for m in rows)


@pytest.mark.identity("eq-fit-intensity")
@given(sides, st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_intensity_is_that_of_the_rows_that_share_a_matrix(shape, b, c, e):
    rel = offsets(shape)
    x, w = random(b, rel.n, c), random(rel.count, c, e)

    def intensity(m):
        return 2 * m * c * e / (8 * (c * e + m * (c + e)))

    with Traffic() as gather:
        v = (x[:, None, :, None] @ w[rel.index]).squeeze(-2)
    assert isclose(gather.flops / gather.bytes, intensity(1))
    with Traffic() as query:
        torch.bmm(x.transpose(0, 1), w[rel.index[0]])
    assert isclose(query.flops / query.bytes, intensity(b))
    for r in range(rel.count):
        i, j = rel.pairs_of(r)
        with Traffic() as group:
            rows = x[:, j].flatten(0, 1) @ w[r]
        assert_close(rows.view(b, len(j), e), v[:, i, j])
        assert isclose(group.flops / group.bytes, intensity(b * len(j)))


@pytest.mark.identity("thm-fit-rows")
@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 10**6), st.sampled_from([2, 4, 8]))
def test_intensity_rises_to_its_limit(c, e, m, s):
    def intensity(m):
        return 2 * m * c * e / (s * (c * e + m * (c + e)))

    limit = 2 * c * e / (s * (c + e))
    assert intensity(m) < intensity(2 * m) < limit
    assert isclose(intensity(c * e / (c + e)), limit / 2)
    assert isclose(intensity(1e15), limit, rel_tol=1e-6)
    assert intensity(1) < 2 / s


@pytest.mark.identity("eq-fit-slice")
@given(st.integers(1, 5), st.integers(1, 5), small, small)
def test_the_matrices_of_a_query_are_a_window_of_the_table(h, w, c, e):
    rel = offsets((h, w))
    table = random(2 * h - 1, 2 * w - 1, c, e)
    for u in range(h):
        for v in range(w):
            window = table[u:u + h, v:v + w]
            gathered = table.view(-1, c, e)[rel.index[u * w + v]].view(h, w, c, e)
            assert window.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
            assert_close(window, gathered.flip(0, 1))
    line = offsets(h)
    for i in range(h):
        assert [int(line.index[i, h - 1 - t]) for t in range(h)] == [i + t for t in range(h)]


@pytest.mark.identity("thm-fit-mirror", "eq-fit-mirror")
@given(sides, st.booleans())
def test_mirrored_relations_hold_the_same_pairs_exchanged(shape, cls):
    rel = offsets(shape, cls=cls)
    for r, label in enumerate(rel.labels):
        if isinstance(label, tuple):
            (i, j), (i2, j2) = rel.pairs_of(r), rel.pairs_of(rel.id_of(tuple(-k for k in label)))
            assert torch.equal(i2, j) and torch.equal(j2, i)
    groups = grouped.pairs_on(rel, CPU).groups
    own = rel.n                                                 # every token with itself
    assert 2 * sum(len(g.tokens) for g in groups) == 3 * (rel.n ** 2 - own) + 4 * own
    covered = [r for g in groups for r in range(rel.count)[g.relations]]
    assert sorted(covered) == [r for r in range(rel.count) if rel.sizes[r]]


@pytest.mark.identity("eq-fit-memory")
@given(sides, st.booleans(), small, small, st.integers(2, 3))
def test_bytes_that_each_form_keeps(shape, cls, heads, d, b):
    rel, c = offsets(shape, cls=cls), heads * d
    assume(rel.n > 1)
    layer, n = Translution(rel, c, heads).double(), rel.n
    x, common = random(b, n, c), heads * n * n + n * c
    with backend("definition"):
        assert cost.count_saved_bytes(layer, x) == 8 * b * (common + 3 * n * n * (c * c + 2 * c))
    for keep, more in ((True, (3 if heads > 1 else 2) * n * n * c), (False, 0)):
        with backend("auto", keep):
            assert cost.count_saved_bytes(layer, x) == 8 * b * (common + 2 * n * c + more)


@pytest.mark.identity("eq-fit-pages")
@given(sides, st.booleans(), st.integers(1, 2), st.integers(2, 3))
def test_bytes_of_the_new_pages_of_the_gather(shape, cls, heads, b):
    rel, c = offsets(shape, cls=cls), 4 * heads     # wider than the batch, so that rows are smaller than matrices
    assume(rel.count < rel.n ** 2)
    layer, x = Translution(rel, c, heads).double(), random(b, rel.n, c).requires_grad_()
    with backend("definition"), Fresh(rel.n ** 2 * c * c) as spy:
        layer(x).sum().backward()
    assert spy.bytes == 2 * 3 * (b + 1) * 8 * rel.n ** 2 * c * c


@pytest.mark.identity("eq-fit-value")
@given(sides, st.integers(1, 4), st.integers(1, 4))
def test_the_value_path_needs_no_values(shape, c, e):
    rel = offsets(shape)
    alpha, f, w = (t.requires_grad_() for t in (torch.rand(rel.n, rel.n, dtype=torch.float64),
                                                random(rel.n, c), random(rel.count, c, e)))
    out = functional.translution_values(alpha[None, None], f[None], w, rel)[0]
    g = random(rel.n, e)
    expected = torch.autograd.grad(out, (alpha, f, w), g)
    d_alpha, d_f, d_w = (torch.zeros_like(t) for t in (alpha, f, w))
    with torch.no_grad():
        other = torch.zeros_like(out)
        for r in range(rel.count):
            i, j = rel.pairs_of(r)
            weighted = alpha[i, j, None] * f[j]
            other.index_add_(0, i, weighted @ w[r])
            with Traffic() as spy:
                u, d_w[r] = g[i] @ w[r].mT, weighted.mT @ g[i]
            assert spy.flops == 2 * 2 * len(i) * c * e
            d_alpha[i, j] = (u * f[j]).sum(-1)
            d_f.index_add_(0, j, alpha[i, j, None] * u)
    assert_close(other, out.detach())
    assert_close((d_alpha, d_f, d_w), expected)


@pytest.mark.identity("eq-fit-bilinear")
@given(sides, small, small, st.integers(1, 5), st.integers(1, 3))
def test_the_bilinear_form_and_its_count(shape, heads, d, c, b):
    rel, e = offsets(shape), heads * d
    x, w_q, w_k = random(b, rel.n, c), random(rel.count, c, e), random(rel.count, c, e)
    scores = functional.translution_scores(x, w_q, w_k, rel, heads) * d**0.5
    split = [w.unflatten(-1, (heads, d)).transpose(1, 2) for w in (w_q, w_k)]      # r h c d
    for r in range(rel.count):
        i, j = rel.pairs_of(r)
        m = b * len(i)
        with Traffic() as two:
            q, _ = x[:, i].flatten(0, 1) @ w_q[r], x[:, j].flatten(0, 1) @ w_k[r]
        assert two.flops / 2 + q.numel() == m * (2 * c * e + e)
        with Traffic() as one:
            form = split[0][r] @ split[1][r].mT                                    # h c c
            rows = x[:, i].reshape(1, m, c).expand(heads, m, c) @ form             # h m c
        dots = (rows * x[:, j].reshape(1, m, c))
        assert one.flops / 2 + dots.numel() == m * heads * (c * c + c) + c * c * e
        assert_close(dots.sum(-1).view(heads, b, -1).transpose(0, 1), scores[:, :, i, j])


@pytest.mark.identity("eq-fit-causal")
@given(st.integers(1, 9), small, small, st.integers(1, 3))
def test_a_causal_layer_computes_the_pairs_that_exist(n, heads, d, b):
    layer = Translution(offsets(n, causal=True), heads * d, heads, output=False)
    x = torch.randn(b, n, heads * d, requires_grad=True)
    with backend(keep=True):
        assert products(layer, x) == 9 * b * (n * (n + 1) // 2) * (heads * d) ** 2


@pytest.mark.identity("eq-fit-fused")
@given(sides, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_a_tile_moves_rows_and_scores_only(shape, c, e, t):
    rel = offsets(shape)
    f, w_q, w_k = random(rel.n, c), random(rel.count, c, e), random(rel.count, c, e)
    raw = functional.translution_scores(f[None], w_q, w_k, rel)[0, 0] * e**0.5
    for r in range(rel.count):
        i, j = rel.pairs_of(r)
        m, read, stored = len(i), 0, 0
        for i_t, j_t in zip(i.split(t), j.split(t), strict=True):
            operands = w_q[r], w_k[r], f[i_t], f[j_t]
            a = ((operands[2] @ operands[0]) * (operands[3] @ operands[1])).sum(-1)
            assert_close(a, raw[i_t, j_t])
            read += sum(x.numel() for x in operands) + a.numel()
        q, k = f[i] @ w_q[r], f[j] @ w_k[r]
        stored = sum(x.numel() for x in (w_q[r], w_k[r], f[i], f[j], q, k, q, k, (q * k).sum(-1)))
        assert read == 2 * c * e * ceil(m / t) + 2 * m * c + m
        assert stored == 2 * c * e + 2 * m * c + 4 * m * e + m


@pytest.mark.identity("eq-fit-tile")
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
def test_loads_of_a_tile_for_each_multiply_add(r, v, down, right, inner):
    x, w = random(r * down, inner), random(inner, 2 * v * right)
    y, loads, steps = torch.zeros(len(x), w.shape[1], dtype=x.dtype), 0, 0
    for rows, columns in product(torch.arange(len(x)).split(r), torch.arange(w.shape[1]).split(2 * v)):
        held = torch.zeros(r, v, 2, dtype=x.dtype)
        for c in range(inner):
            vectors = list(w[c, columns].view(v, 2))
            numbers = list(x[rows, c])
            loads += len(vectors) + len(numbers)
            for (i, number), (j, vector) in product(enumerate(numbers), enumerate(vectors)):
                held[i, j] += number * vector
                steps += 1
        y[rows[:, None], columns] = held.flatten(1)
    assert_close(y, x @ w)
    assert isclose(loads / steps, 1 / r + 1 / v)


def test_the_tile_in_c_is_the_best_for_sixteen_registers():
    """Sums, vectors and one number are in registers at once; of all that fit, the tile has the fewest loads."""
    header = (Path(grouped.__file__).parent / "compiled_products.h").read_text()
    tall, wide = (int(re.search(rf"#define {name} (\d+)", header)[1]) for name in ("TALL", "WIDE"))
    fitting = [(r, v) for r in range(1, 17) for v in range(1, 17) if r * v + v + 1 <= 16]
    assert min(fitting, key=lambda tile: 1 / tile[0] + 1 / tile[1]) == (tall, wide)
