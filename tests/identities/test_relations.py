"""The identities of the chapter "Relations", on random grids, tables and weights."""

import math
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import Relations, Translution, functional, offsets, pairs, shared, translution

seeds = st.integers(0, 10_000)
shapes = st.one_of(
    st.tuples(st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
)
reaches = st.one_of(st.none(), st.integers(0, 4))


kinds = st.sampled_from(["offsets", "causal", "cls", "shared", "shared causal", "pairs"])
cases = st.tuples(kinds, shapes, reaches, reaches)


def table_of(kind, shape, window, clip):
    """Any table of the library."""
    n = prod(shape)
    if kind == "pairs":
        return pairs(n)
    if kind.startswith("shared"):
        return shared(n, causal=kind == "shared causal")
    if kind == "causal":
        return offsets(n, causal=True, window=window, clip=clip)
    return offsets(shape, cls=kind == "cls", window=window, clip=clip)


def random_table(n, count, generator):
    """Any sharing at all, with a few masked pairs off the diagonal."""
    index = torch.randint(-1, count, (n, n), generator=generator)
    index[torch.arange(n), torch.arange(n)] = 0
    return Relations(index, count, tuple(range(count)))


def weights(table, c, e, generator):
    return [torch.randn(table.count, c, e, generator=generator, dtype=torch.float64) for _ in range(3)]


def literal(x, w_q, w_k, w_v, rho):
    """The operator pair by pair, one sequence, one head."""
    out = []
    for i in range(len(x)):
        seen = [j for j in range(len(x)) if rho[i][j] >= 0]
        a = [(x[i] @ w_q[rho[i][j]]) @ (x[j] @ w_k[rho[i][j]]) / math.sqrt(w_q.shape[-1]) for j in seen]
        alpha = torch.stack(a).exp() / torch.stack(a).exp().sum()
        out.append(sum(alpha[m] * (x[j] @ w_v[rho[i][j]]) for m, j in enumerate(seen)))
    return torch.stack(out)


def linear(x, w, table):
    return torch.einsum("bjc,ijce->bie", x, w[table.index.clamp(min=0)] * table.mask[..., None, None])


@pytest.mark.identity("eq-rel-operator")
@given(cases, seeds)
def test_the_operator_reads_its_matrices_from_the_table(case, seed):
    table, g = table_of(*case), torch.Generator().manual_seed(seed)
    x, w = torch.randn(1, table.n, 2, generator=g, dtype=torch.float64), weights(table, 2, 3, g)
    expected = literal(x[0], *w, table.index.tolist())
    assert_close(translution(x, *w, table)[0], expected)
    assert_close(functional.translution_definition(x, *w, table)[0], expected)
    if table.count == 1:
        mask = None if table.complete else table.mask
        assert_close(functional.self_attention(x, *(m[0] for m in w), mask=mask)[0], expected)


@pytest.mark.identity("eq-rel-linear")
@given(shapes, st.sampled_from([1, 3, 5]), seeds)
def test_a_window_without_scores_is_a_convolution(shape, k, seed):
    g = torch.Generator().manual_seed(seed)
    table = offsets(shape, window=k // 2)
    x = torch.randn(2, table.n, 2, generator=g, dtype=torch.float64)
    kernel = torch.randn(*[k] * len(shape), 2, 3, generator=g, dtype=torch.float64)
    middle = tuple(slice(k // 2 - min(k // 2, s - 1), k // 2 + min(k // 2, s - 1) + 1) for s in shape)
    w = kernel.flip(*range(len(shape)))[middle].flatten(0, -3)             # taps that no pair uses have no relation
    assert_close(linear(x, w, table), functional.convolution(x, kernel, shape))


@pytest.mark.identity("eq-rel-operator", "eq-rel-linear", "eq-rel-small")
@given(cases, seeds)
def test_without_scores_and_at_small_features_the_softmax_operator_is_a_mean(case, seed):
    table, g = table_of(*case), torch.Generator().manual_seed(seed)
    x, w = torch.randn(1, table.n, 2, generator=g, dtype=torch.float64), weights(table, 2, 3, g)
    mean = linear(x, w[2], table) / table.mask.sum(1)[:, None]
    assert_close(translution(x, 0 * w[0], 0 * w[1], w[2], table), mean)
    zero = torch.zeros_like(x)
    slope = torch.autograd.functional.jvp(lambda x: translution(x, *w, table), zero, x)[1]
    assert_close(slope, mean)


@pytest.mark.identity("eq-rel-id")
@given(shapes, reaches)
def test_offsets_are_numbered_in_row_major_order_of_their_box(shape, w):
    table, windowed, clipped = offsets(shape), offsets(shape, window=w), offsets(shape, clip=w)
    reach = [n - 1 if w is None else min(w, n - 1) for n in shape]

    def number(delta, reach):
        ids = 0
        for d, r in zip(delta, reach, strict=True):
            ids = ids * (2 * r + 1) + d + r
        return ids

    places = list(product(*map(range, shape)))
    for (i, p), (j, q) in product(enumerate(places), repeat=2):
        delta = tuple(a - b for a, b in zip(p, q, strict=True))
        ids = number(delta, [n - 1 for n in shape])
        assert int(table.index[i, j]) == ids == table.id_of(delta)
        assert table.labels[ids] == delta
        near = tuple(max(-r, min(r, d)) for d, r in zip(delta, reach, strict=True))
        assert int(clipped.index[i, j]) == number(near, reach) == clipped.id_of(near)
        assert int(windowed.index[i, j]) == (number(near, reach) if near == delta else -1)


@pytest.mark.identity("thm-rel-count")
@given(shapes, st.integers(0, 5))
def test_numbers_of_relations(shape, w):
    n, full = prod(shape), prod(2 * s - 1 for s in shape)
    near = prod(2 * min(w, s - 1) + 1 for s in shape)
    expected = [
        (offsets(shape), full), (offsets(shape, cls=True), full + 3), (offsets(shape, window=w), near),
        (offsets(shape, clip=w), near), (offsets(n, causal=True), n), (pairs(n), n * n), (shared(n), 1),
        (offsets(n, causal=True, window=w), min(w, n - 1) + 1), (offsets(n, causal=True, clip=w), min(w, n - 1) + 1),
    ]
    for table, count in expected:
        used = set(table.index.flatten().tolist()) - {-1}
        assert table.count == count == len(table.labels)
        assert used == set(range(count))


@pytest.mark.identity("eq-rel-sizes")
@given(shapes)
def test_pairs_per_relation(shape):
    table = offsets(shape)
    expected = [prod(n - abs(d) for n, d in zip(shape, delta, strict=True)) for delta in table.labels]
    assert table.sizes.tolist() == expected
    assert sum(expected) == table.n**2
    assert [len(table.pairs_of(r)[0]) for r in range(table.count)] == expected


def shift_invariant(index, places):
    at = {p: n for n, p in enumerate(places)}
    span = range(-max(map(max, places)), max(map(max, places)) + 1)
    for tau in product(span, repeat=len(places[0])):
        moved = {n: at.get(tuple(a + t for a, t in zip(p, tau, strict=True))) for p, n in at.items()}
        stay = [n for n, m in moved.items() if m is not None]
        if any(index[i][j] != index[moved[i]][moved[j]] for i, j in product(stay, repeat=2)):
            return False
    return True


@pytest.mark.identity("thm-rel-invariance")
@given(st.sampled_from([(4,), (2, 3), (3, 3), (2, 2, 2)]), st.integers(0, 3), seeds)
def test_shift_invariant_tables_are_the_functions_of_the_offset(shape, w, seed):
    g = torch.Generator().manual_seed(seed)
    base, places = offsets(shape), list(product(*map(range, shape)))
    merged = torch.randint(-1, 4, (base.count,), generator=g)[base.index]    # any function of δ
    for index in (merged, base.index, offsets(shape, window=w).index, offsets(shape, clip=w).index):
        assert shift_invariant(index.tolist(), places)
    for r in range(base.count):                                              # spoil one pair of a relation with several
        i, j = base.pairs_of(r)
        if len(i) > 1:
            spoilt = merged.clone()
            spoilt[i[0], j[0]] = 7
            assert not shift_invariant(spoilt.tolist(), places)
    assert shift_invariant(pairs(base.n).index.tolist(), places) == (base.n == 1)


@given(st.integers(2, 7), st.integers(1, 4), st.booleans(), seeds)
def test_on_a_ring_the_operators_follow_a_shift_if_and_only_if_the_table_does(n, count, cyclic, seed):
    g, i = torch.Generator().manual_seed(seed), torch.arange(n)
    if cyclic:
        g_of = torch.randint(-1, count, (n,), generator=g)
        g_of[0] = 0
        index = g_of[(i[:, None] - i) % n]
    else:
        index = random_table(n, count, g).index
    table = Relations(index, count, tuple(range(count)))
    invariant = torch.equal(index.roll((1, 1), (0, 1)), index)
    assert invariant or not cyclic
    x, w = torch.randn(1, n, 3, generator=g, dtype=torch.float64), weights(table, 3, 3, g)
    for operator in (lambda x: translution(x, *w, table), lambda x: linear(x, w[2], table)):
        assert torch.allclose(operator(x.roll(1, 1)), operator(x).roll(1, 1), rtol=1e-9, atol=1e-9) == invariant


@pytest.mark.identity("eq-rel-tying")
@given(shapes, st.integers(0, 3), seeds)
def test_a_finer_table_contains_the_coarser_by_repeating_matrices(shape, w, seed):
    g = torch.Generator().manual_seed(seed)
    n = prod(shape)
    chain = [shared(n), offsets(shape, clip=w), offsets(shape, clip=w + 1), offsets(shape), pairs(n)]
    x = torch.randn(2, n, 2, generator=g, dtype=torch.float64)
    for k, coarse in enumerate(chain):
        weight = weights(coarse, 2, 4, g)
        expected = translution(x, *weight, coarse, heads=2)
        for fine in chain[k:]:
            first = torch.stack([(fine.index == r).flatten().long().argmax() for r in range(fine.count)])
            tied = [m[coarse.index.flatten()[first]] for m in weight]
            assert_close(translution(x, *tied, fine, heads=2), expected)


@pytest.mark.identity("thm-rel-refinement")
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4), st.booleans(), seeds)
def test_containment_of_linear_operators_is_refinement(n, a, b, refined, seed):
    g = torch.Generator().manual_seed(seed)
    rho, sigma = random_table(n, a, g), random_table(n, b, g)
    if refined:                                                              # make sigma a refinement of rho
        both = torch.where(rho.mask | sigma.mask, rho.index * 7 + sigma.index, -99)
        names, ids = both.unique(return_inverse=True)
        ids = torch.where(both == -99, -1, ids - int(-99 in names.tolist()))
        sigma = Relations(ids, int(ids.max()) + 1, tuple(range(int(ids.max()) + 1)))
    images = {}
    for r, s in zip(rho.index.flatten().tolist(), sigma.index.flatten().tolist(), strict=True):
        images.setdefault(s, {-1} if s == -1 else set()).add(r)
    refines = all(len(image) == 1 for image in images.values())
    assert refines or not refined
    spans = [torch.stack([(t.index == r).double().flatten() for r in range(t.count)]) for t in (sigma, rho)]
    rank = torch.linalg.matrix_rank
    assert refines == bool(rank(torch.cat(spans)) == rank(spans[0]))
    # The slopes at zero of softmax operators: each row of blocks is divided by the number of keys that it sees.
    slopes = [(each.view(-1, n, n) / t.mask.sum(1)[:, None]).flatten(1)
              for each, t in zip(spans, (sigma, rho), strict=True)]
    inside = bool(rank(torch.cat(slopes)) == rank(slopes[0]))
    assert refines or not inside
    if torch.equal(rho.mask, sigma.mask):
        assert inside == refines
    if refines:
        ratio = sigma.mask.sum(1) / rho.mask.sum(1)
        shared_by = [{float(ratio[i]) for i, j in (sigma.index == s).nonzero().tolist() if rho.mask[i, j]}
                     for s in range(sigma.count)]
        assert inside == all(len(each) <= 1 for each in shared_by)


@pytest.mark.identity("eq-rel-parameters")
@given(cases, st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_parameters_of_queries_keys_and_values(case, dim, heads, head_dim):
    table = table_of(*case)
    with torch.device("meta"):
        layer = Translution(table, dim=dim, heads=heads, head_dim=head_dim)
    assert layer.query.numel() + layer.key.numel() + layer.value.numel() == 3 * table.count * dim * heads * head_dim


@pytest.mark.identity("eq-rel-gradient")
@given(cases, seeds)
def test_the_gradient_of_a_relation_is_the_sum_over_its_pairs(case, seed):
    table, g = table_of(*case), torch.Generator().manual_seed(seed)
    x = torch.randn(1, table.n, 2, generator=g, dtype=torch.float64)
    probe = torch.randn(1, table.n, 4, generator=g, dtype=torch.float64)
    w, flat = weights(table, 2, 4, g), table.index.flatten()
    own = Relations(torch.where(table.mask, pairs(table.n).index, -1), table.n**2, tuple(range(table.n**2)))
    copies = [m[flat.clamp(min=0)].requires_grad_() for m in w]
    each = torch.autograd.grad((translution(x, *copies, own, heads=2) * probe).sum(), copies)
    ours = [m.requires_grad_() for m in w]
    total = torch.autograd.grad((translution(x, *ours, table, heads=2) * probe).sum(), ours)
    for whole, parts in zip(total, each, strict=True):
        assert_close(whole, torch.zeros_like(whole).index_add(0, flat[flat >= 0], parts[flat >= 0]))
