"""The forms that stack their rows equal the definition, and so do all gradients, whatever is padded, cut or empty."""

import math
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.strategies import doubled, operators, tables
from tests.unit.test_backends import CASES, WAYS, and_gradients, check, operator
from translution_lib import Relations, backend, offsets, pairs, shared
from translution_lib import functional as fn
from translution_lib.backends import stacked
from translution_lib.backends.grouped import HALF_TYPES, pairs_on
from translution_lib.backends.layout import common_sizes, layout
from translution_lib.backends.products import pair_scores
from translution_lib.backends.stacked import grouped_mm, padded

CPU = torch.device("cpu")
FORMS = {"padded": padded, "grouped_mm": grouped_mm}


@pytest.mark.parametrize(("name", "most"), [("padded", 200), ("grouped_mm", 2**11)])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_pieces_equal_the_definition(case, name, most):
    """A relation in several pieces, and a table in many chunks."""
    _, _, dtype, bound, times = WAYS[name]
    args = operator(*case, dtype=dtype, times=times)
    assert FORMS[name].takes(*args[:4])
    with mock.patch.object(stacked, "MOST_BYTES", most):
        check(fn.translution, fn.translution_definition, args, bound, name)


@given(operators(), st.sampled_from([1, 64, 500, 2**28]))
def test_padded_in_double_precision(args, most):
    given = list(args.values())
    with mock.patch.object(stacked, "MOST_BYTES", most), backend("padded"):
        found = and_gradients(fn.translution(*given), given[:4])
    exact = doubled(given)
    for a, b in zip(found, and_gradients(fn.translution_definition(*exact), exact[:4]), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_TYPES])
@pytest.mark.parametrize("name", FORMS)
def test_equal_inputs_give_equal_bits(name, dtype):
    args = operator("cls-window", 2, "qkv", 3, 8, 8, 8, dtype=dtype)
    with backend(name):
        first, second = (and_gradients(fn.translution(*args), args[:4]) for _ in range(2))
    assert all(torch.equal(a, b) and a.dtype == dtype for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_half_precision_is_summed_wide(dtype):
    """Many pieces of one relation, whose gradients alternate: a half-precision sum would lose the small ones."""
    rel, b, c = shared(24), 1, 8
    ones = torch.ones(rel.n, b, c, dtype=dtype)
    grad = torch.ones(b, 1, rel.n, rel.n, dtype=dtype)
    w = torch.eye(c, dtype=dtype)[None].contiguous()
    with mock.patch.object(stacked, "MOST_BYTES", 2 * c * 2):       # two pairs a piece
        _, _, dw, _ = padded.scores_backward(grad, ones, ones, w, None, pairs_on(rel, CPU), 1)
    assert torch.equal(dw, torch.full_like(dw, rel.n**2))           # 2 + 2 + … stops at 256 in bfloat16


def unread() -> Relations:
    """A table whose last key no query reads, and in which relations have different numbers of pairs."""
    index = offsets(5).index.clone()
    index[:, -1] = -1
    return Relations(index, 9, tuple(range(9)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", FORMS)
def test_what_no_pair_reads_does_not_spread(name, bad):
    """Neither a token that is nobody's key nor, through rows that only fill up, any token at all."""
    rel, g = unread(), torch.Generator().manual_seed(2)
    s, t, grad = (torch.randn(*shape, generator=g).bfloat16() for shape in ((5, 2, 8), (5, 2, 8), (2, 1, 5, 5)))
    w = torch.randn(9, 8, 8, generator=g).bfloat16()
    spoiled, found = t.clone(), pairs_on(rel, CPU)
    spoiled[-1] = bad
    form = FORMS[name]
    for x in (t, spoiled):
        results = [*form.scores(s, x, w, w, found, 1), *form.scores_backward(grad, s, x, w, w, found, 1),
                   *form.values(grad, x, w, found), *form.values_backward(s, grad, x, w, found)]
        assert all(bool(result.isfinite().all()) for result in results)


@pytest.mark.parametrize("name", FORMS)
def test_a_bad_token_spoils_the_relations_of_its_own_pairs_alone(name):
    """A row that fills up must not read a token: the first one, say, which is infinite here."""
    rel, g = offsets(5, causal=True), torch.Generator().manual_seed(2)
    s, grad, w = (torch.randn(*shape, generator=g).bfloat16() for shape in ((5, 2, 8), (2, 1, 5, 5), (5, 8, 8)))
    s[0] = math.inf
    _, _, dw_q, dw_k = FORMS[name].scores_backward(grad, s, s, w, w, pairs_on(rel, CPU), 1)
    assert not dw_q[:, 0].isfinite().all()
    s[0], index = 0, rel.index.clone()
    index[1:, 0] = -1                                               # only token 0 itself reads it: relation 0
    alone, spoiled = Relations(index, 5, tuple(range(5))), s.clone()
    spoiled[0] = math.inf
    for x, finite in ((s, True), (spoiled, False)):
        _, _, dw_q, dw_k = FORMS[name].scores_backward(grad, x, x, w, w, pairs_on(alone, CPU), 1)
        assert bool(dw_q[0].isfinite().all()) == bool(dw_k[0].isfinite().all()) == finite
        assert dw_q[1:].isfinite().all() and dw_k[1:].isfinite().all()


def test_what_they_take():
    x, w = torch.ones(3, 2, 8), torch.ones(5, 8, 16)
    assert padded.takes(x, x, w, None) and padded.takes(x.double()) and padded.takes(x.half(), w.half())
    assert not any(padded.takes(*some) for some in [(x, x.half()), (x.to("meta"),), (x[:0],), (x.int(),)])
    x, w = x.bfloat16(), w.bfloat16()
    assert grouped_mm.takes(x, x, w, None)
    assert not any(grouped_mm.takes(*some) for some in [(x.float(),), (x[..., :4],), (x, w[..., :12]), (x.half(),)])
    with backend("grouped_mm"):                                # what it does not take goes to the loop
        assert pair_scores(x[..., :4], x[..., :4], None, None, pairs(2), 1).shape == (3, 1, 2, 2)


class Largest(TorchDispatchMode):
    """Within this context, the bytes of the largest tensor that an operation makes, by its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                self.bytes = max(self.bytes, t.nbytes)
        return result


@pytest.mark.parametrize("table", [offsets((6, 6), cls=True), shared(36), offsets(36, causal=True)],
                         ids=["grid", "shared", "causal"])
@pytest.mark.parametrize("name", FORMS)
def test_no_tensor_is_larger_than_the_bound(name, table):
    """The projected pairs of the whole table are many times larger."""
    b, c, most = 16, 32, 2**16
    x = torch.ones(table.n, b, c).bfloat16()
    w = torch.ones(table.count, c, c).bfloat16()
    numbers = torch.ones(b, 1, table.n, table.n).bfloat16()
    allowed = max(most, w.nbytes, 2 * numbers.nbytes, 2 * x.nbytes)
    assert b * c * 2 * int(table.mask.sum()) > 2 * allowed
    found, form = pairs_on(table, CPU), FORMS[name]
    with mock.patch.object(stacked, "MOST_BYTES", most), Largest() as largest:
        form.scores(x, x, w, w, found, 1)
        form.scores_backward(numbers, x, x, w, w, found, 1)
        form.values(numbers, x, w, found)
        form.values_backward(x, numbers, x, w, found)
    assert most // 4 < largest.bytes <= allowed


class Waits(TorchDispatchMode):
    """Sees what reads a tensor on the host, has a size that depends on numbers, or brings numbers from the host."""

    BAD = {"_local_scalar_dense", "nonzero", "bincount", "unique", "_unique2", "unique_dim", "unique_consecutive",
           "item", "masked_select", "lift_fresh", "repeat_interleave", "equal", "is_nonzero", "index", "index_put_"}

    def __init__(self) -> None:
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rel", [offsets((2, 3), cls=True), offsets(6, causal=True).for_length(3),
                                 offsets(5, window=1)], ids=["cls", "prefix", "window"])
@pytest.mark.parametrize("name", ["torch", *FORMS])
def test_after_the_first_step_nothing_waits_for_the_host(name, rel):
    """So that a CUDA graph can hold a step."""
    x = torch.randn(4, rel.n, 8).bfloat16().requires_grad_()
    w = torch.randn(rel.count, 8, 8).bfloat16().requires_grad_()

    def step():
        fn.translution(x, w, w, w, rel, 2).sum().backward()

    with backend(name):
        step()
        with Waits() as waits:
            step()
    assert "index_select" in waits.seen and not waits.seen & Waits.BAD


@given(tables(), st.sampled_from([1, 2, 16]), st.sampled_from([16, 32, 2**10]), st.sampled_from([1, 4, 2**10]),
       st.booleans())
@example(shared(7), 1, 16, 1, True)
def test_a_layout_has_every_pair_once_in_its_relation(rel, step, rows, parts, uniform):
    plan, n, seen = layout(rel, CPU, rows, parts, step, uniform), rel.n, []
    for chunk in plan.chunks:
        ids = torch.arange(rel.count)[chunk.relations]
        ends = chunk.ends.tolist()
        assert ends == sorted({*ends}) and len(ids) == len(ends) <= parts and len(chunk.flat) == ends[-1] <= rows
        assert all(end % step == 0 for end in ends)
        assert [len(ids[run.parts]) for run in chunk.runs] == [run.size for run in chunk.runs]
        assert [k for run in chunk.runs for k in range(len(chunk.flat))[run.rows]] == list(range(len(chunk.flat)))
        place = torch.bucketize(torch.arange(len(chunk.flat)), chunk.ends, right=True)
        filled = chunk.flat < n * n
        assert torch.equal(filled, chunk.queries < n) and torch.equal(filled, chunk.keys < n)
        assert filled.any()
        i, j = chunk.queries[filled], chunk.keys[filled]
        assert torch.equal(rel.index[i, j], ids[place[filled]]) and torch.equal(i * n + j, chunk.flat[filled])
        for tokens, (order, starts) in ((chunk.queries, chunk.by_query), (chunk.keys, chunk.by_key)):
            assert torch.equal(tokens[order], torch.arange(n).repeat_interleave(starts.diff()))
            assert len(order) == int(filled.sum()) == starts[-1]
        seen += chunk.flat.tolist()
    assert sorted(p for p in seen if p < n * n) == rel.mask.flatten().nonzero().flatten().tolist()
    assert [seen[row] if row < len(seen) else None for row in plan.inverse.tolist()] == [
        p if kept else None for p, kept in enumerate(rel.mask.flatten().tolist())]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_common_sizes_are_the_cheapest(sizes):
    """Against every way to end the stretches of sorted sizes."""
    each = sorted({*sizes})[:9]
    sizes = [size for size in sizes if size in each]
    found = common_sizes(sizes)
    price = sum(sizes) / 16

    def cost(ends):
        return sum(min(end for end in ends if end >= size) for size in sizes) + price * len(ends)

    every = [[e for k, e in enumerate(each[:-1]) if bits >> k & 1] + each[-1:] for bits in range(2 ** (len(each) - 1))]
    assert all(found[size] >= size for size in sizes)
    assert cost({*found.values()}) == pytest.approx(min(map(cost, every)))


def test_a_grid_has_a_handful_of_sizes_and_little_is_filled_up():
    rel = offsets((14, 14), cls=True)
    plan = layout(rel, CPU, 2**20, 2**20, 1, True)
    (chunk,) = plan.chunks
    assert len(chunk.runs) <= 12 and len(chunk.flat) < 1.35 * int(rel.mask.sum())


def test_layouts_are_made_once():
    rel, x, w = offsets(4), torch.ones(4, 2, 8), torch.ones(7, 8, 8)
    padded.scores(x, x, w, w, pairs_on(rel, CPU), 1)
    made = dict(rel._cache)
    padded.scores_backward(torch.ones(2, 1, 4, 4), x, x, w, w, pairs_on(rel, CPU), 1)
    assert rel._cache == made
