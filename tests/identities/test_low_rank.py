"""The equations and theorems of the chapter "LoR-Translution", for random shapes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.testing import assert_close

from translution_lib import MIXERS, functional, offsets, shared
from translution_lib.functional.lor import VARIANTS, lor_values
from translution_lib.functional.tucker import low_rank_family, tucker

small = st.integers(1, 3)
seeds = st.integers(0, 2**31)
tables = st.sampled_from([offsets(4), offsets((2, 2)), offsets((2, 2), cls=True), offsets(4, causal=True),
                          offsets((2, 3), window=1), shared(3)])


pytestmark = pytest.mark.usefixtures("double")


def make(seed, rel, c, e, r1, r2):
    """Return x and the weights of one LoR-Translution with the given sizes."""
    torch.manual_seed(seed)
    low = tuple(torch.randn(c, r1) for _ in range(3))
    cores = tuple(torch.randn(rel.count, r1, r2) for _ in range(3))
    wide = tuple(torch.randn(c, e) for _ in range(3))
    return torch.randn(2, rel.n, c) / c, low, cores, torch.randn(r2, e), wide


def by_loops(x, low, cores, up, rel, heads, wide, half=1.0):
    """Equation (2) with heads, pair by pair."""
    out = torch.zeros(*x.shape[:2], up.shape[1])
    d = up.shape[1] // heads
    for b in range(x.shape[0]):
        for i in range(rel.n):
            keys = [j for j in range(rel.n) if rel.mask[i, j]]
            small, large = [], []
            for h in range(heads):
                one, two = slice(h * up.shape[0] // heads, (h + 1) * up.shape[0] // heads), slice(h * d, (h + 1) * d)
                a = []
                for j in keys:
                    r = rel.index[i, j]
                    q, k = x[b, i] @ low[0] @ cores[0][r], x[b, j] @ low[1] @ cores[1][r]
                    a.append(q[one] @ k[one] + (x[b, i] @ wide[0])[two] @ (x[b, j] @ wide[1])[two])
                alpha = torch.softmax(half * torch.stack(a) / math.sqrt(d), 0)
                small.append(sum(w * (x[b, j] @ low[2] @ cores[2][rel.index[i, j]])[one]
                                 for w, j in zip(alpha, keys, strict=True)))
                large.append(sum(w * (x[b, j] @ wide[2])[two] for w, j in zip(alpha, keys, strict=True)))
            out[b, i] = half * (torch.cat(small) @ up + torch.cat(large))
    return out


@pytest.mark.identity("eq-lor-score", "eq-lor-value")
@settings(max_examples=6)
@given(seeds, tables, small, small, small, st.integers(1, 4))
def test_definition_fast_form_and_loops_agree(seed, rel, heads, d, r, r1):
    x, low, cores, up, wide = make(seed, rel, 5, heads * d, r1, heads * r)
    for variant in VARIANTS:
        expected = by_loops(x, low, cores, up, rel, heads, wide, 0.5 if variant == "released" else 1.0)
        for form in (functional.lor_translution_definition, functional.lor_translution):
            assert_close(form(x, low, cores, up, rel, heads, wide, variant), expected)


@pytest.mark.identity("eq-lor-parameters")
@given(tables, small, st.integers(1, 4), st.integers(1, 4))
def test_parameters_of_a_layer(rel, heads, d, r):
    c, e, big = 6, heads * d, heads * r
    layer = MIXERS["lor-translution"](rel, c, heads, head_dim=d, relative_dim=r)
    own = [p for name, p in layer.named_parameters() if not name.startswith("output")]
    assert sum(p.numel() for p in own) == 3 * c * e + 3 * c * big + big * e + 3 * rel.count * big**2


@pytest.mark.identity("thm-lor-zero")
@given(seeds, tables, small, small)
def test_size_zero_is_self_attention(seed, rel, heads, d):
    x, low, cores, up, wide = make(seed, rel, 5, heads * d, 0, 0)
    expected = functional.self_attention(x, *wide, heads, rel.mask)
    for form in (functional.lor_translution_definition, functional.lor_translution):
        assert_close(form(x, low, cores, up, rel, heads, wide), expected)


@pytest.mark.identity("thm-lor-contained")
@given(seeds, tables, small, small, small, st.integers(1, 4))
def test_lor_is_a_translution_with_longer_heads(seed, rel, heads, d, r, r1):
    x, low, cores, up, wide = make(seed, rel, 5, heads * d, r1, heads * r)
    both = [torch.cat([w.expand(rel.count, -1, -1).unflatten(-1, (heads, d)),
                       (w1 @ core).unflatten(-1, (heads, r))], dim=-1).flatten(-2)
            for w, w1, core in zip(wide, low, cores, strict=True)]
    out = torch.zeros(heads * (d + r), heads * d)
    for h in range(heads):
        out[h * (d + r):h * (d + r) + d, h * d:(h + 1) * d] = torch.eye(d)
        out[h * (d + r) + d:(h + 1) * (d + r)] = up[h * r:(h + 1) * r]
    mixed = functional.translution(x, math.sqrt((d + r) / d) * both[0], both[1], both[2], rel, heads)
    assert_close(mixed @ out, functional.lor_translution(x, low, cores, up, rel, heads, wide))


@pytest.mark.identity("thm-lor-full")
@given(seeds, tables, small, small)
def test_full_size_is_translution(seed, rel, heads, d):
    c, e = 3, heads * d
    x, _, cores, _, wide = make(seed, rel, c, e, c, e)
    eyes, none = (torch.eye(c),) * 3, tuple(torch.zeros_like(w) for w in wide)
    expected = functional.translution(x, *cores, rel, heads)
    for given_shared in (none, None):
        assert_close(functional.lor_translution(x, eyes, cores, torch.eye(e), rel, heads, given_shared), expected)


@pytest.mark.identity("thm-lor-full")
@given(seeds, tables, st.integers(0, 2), small, small)
def test_one_head_of_lor_is_translution(seed, rel, extra, r1, r2):
    c, e = 3, 3 + extra
    x, low, cores, up, wide = make(seed, rel, c, e, r1, r2)
    m = low[0] @ cores[0] @ cores[1].mT @ low[1].mT + wide[0] @ wide[1].mT
    pad = torch.zeros(rel.count, c, extra)
    w_q, w_k = torch.cat([torch.eye(c).expand(rel.count, c, c), pad], -1), torch.cat([m.mT, pad], -1)
    w_v = wide[2] + low[2] @ cores[2] @ up
    assert_close(functional.translution(x, w_q, w_k, w_v, rel),
                 functional.lor_translution(x, low, cores, up, rel, 1, wide))


@pytest.mark.identity("thm-lor-half")
@given(seeds, tables, small, small, small)
def test_the_released_half_can_be_absorbed(seed, rel, heads, d, r):
    x, low, cores, up, wide = make(seed, rel, 4, heads * d, heads * r, heads * r)
    twice = (2 * wide[0], wide[1], 2 * wide[2])
    released = functional.lor_translution(x, low, (2 * cores[0], cores[1], cores[2]), 2 * up, rel, heads, twice,
                                          "released")
    assert_close(released, functional.lor_translution(x, low, cores, up, rel, heads, wide))


@pytest.mark.identity("eq-lor-appendix")
@given(seeds, tables, small, small)
def test_the_sum_over_keys_may_come_first(seed, rel, r1, r2):
    x, low, cores, up, wide = make(seed, rel, 4, 5, r1, r2)
    alpha = torch.rand(2, rel.n, rel.n) * rel.mask
    ids = rel.index.clamp(min=0)
    w = wide[2] + low[2] @ cores[2] @ up
    direct = torch.einsum("bij,bjc,ijce->bie", alpha, x, w[ids])
    relative = torch.einsum("bij,bjr,ijrs->bis", alpha, x @ low[2], cores[2][ids])
    assert_close(alpha @ x @ wide[2] + relative @ up, direct)
    assert_close(lor_values(alpha[:, None], x, low, cores, up, rel, wide), direct)


@pytest.mark.identity("thm-lor-tucker")
@given(seeds, st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_a_table_fits_if_and_only_if_two_ranks_fit(seed, count, c, e, r1, r2):
    torch.manual_seed(seed)
    table = torch.randn(c, r1) @ torch.randn(count, r1, r2) @ torch.randn(r2, e)
    one, two = (int(torch.linalg.matrix_rank(torch.cat(list(t), 1), rtol=1e-9)) for t in (table, table.mT))
    assert one <= r1 and two <= r2
    low, core, up = tucker(table, one, two)
    assert_close(low @ core @ up, table)
    for less in ((one - 1, two), (one, two - 1)):
        w1, g, w2 = tucker(table, *less, sweeps=5)
        assert (w1 @ g @ w2 - table).norm() > 1e-6 * table.norm()


def span(matrices):
    return int(torch.linalg.matrix_rank(matrices.flatten(1), rtol=1e-9))


@pytest.mark.identity("thm-lor-span")
@given(seeds, st.integers(2, 14), small, small)
def test_rank_and_span(seed, count, r1, r2):
    torch.manual_seed(seed)
    low, up = (torch.linalg.qr(torch.randn(5, r))[0] for r in (r1, r2))
    family = low_rank_family(torch.randn(5, 5) + low @ torch.randn(count, r1, r2) @ up.T, r1, r2).table()
    difference = family[1:] - family[0]
    assert int(torch.linalg.matrix_rank(difference, rtol=1e-9).max()) == min(r1, r2)
    assert span(difference) == min(count - 1, r1 * r2)
    w_q, w_k = (torch.linalg.qr(torch.randn(5, r1))[0] for _ in range(2))
    score = w_q @ torch.randn(count, r1, r2) @ torch.randn(count, r2, r1) @ w_k.T
    assert int(torch.linalg.matrix_rank(score, rtol=1e-9).max()) == min(r1, r2)
    assert span(score) == min(count, r1 * r1)


@pytest.mark.identity("thm-lor-best")
@given(seeds, st.integers(1, 8), st.integers(1, 5), st.integers(1, 5), st.data())
def test_the_best_family_lies_between_the_tails(seed, count, c, e, data):
    torch.manual_seed(seed)
    table = torch.randn(count, c, e)
    r1, r2 = data.draw(st.integers(0, c)), data.draw(st.integers(0, e))
    centred = table - table.mean(0)
    t1, t2 = (torch.linalg.svdvals(torch.cat(list(t), 1)).square()[r:].sum()
              for t, r in ((centred, r1), (centred.mT, r2)))
    first, best = (low_rank_family(table, r1, r2, sweeps) for sweeps in (0, 20))
    e_first, e_best = ((f.table() - table).square().sum() for f in (first, best))
    assert max(t1, t2) - 1e-9 <= e_best <= e_first + 1e-9 <= t1 + t2 + 2e-9
    assert_close(e_best, centred.square().sum() - best.core.square().sum(), atol=1e-9, rtol=1e-9)
    moved = best._replace(shared=best.shared + torch.randn(c, e), core=best.core + torch.randn(count, r1, r2))
    assert (moved.table() - table).square().sum() >= e_best - 1e-9


@pytest.mark.identity("thm-lor-shift")
@given(st.integers(2, 8), st.integers(1, 6), st.data())
def test_the_shift_needs_full_size(count, c, data):
    r, where = data.draw(st.integers(0, c)), data.draw(st.integers(0, count - 1))
    table = torch.zeros(count, c, c)
    table[where] = torch.eye(c)
    error = (low_rank_family(table, r, r).table() - table).square().sum()
    assert_close(error, torch.tensor((1 - 1 / count) * (c - r)))


@pytest.mark.identity("thm-lor-families")
@given(seeds, st.integers(3, 16), small, small)
def test_rank_one_tables_out_of_reach(seed, count, r1, r2):
    torch.manual_seed(seed)
    table = torch.eye(16)[torch.randperm(16)[:count]].view(count, 4, 4)
    assert span(table[1:] - table[0]) == count - 1
    family = low_rank_family(table, r1, r2)
    if r1 * r2 < count - 1:
        assert span(family.table()[1:] - family.table()[0]) <= r1 * r2
        assert (family.table() - table).norm() > 0.1


def test_tucker_refuses_bad_input():
    with pytest.raises((ValueError, TypeCheckError), match="table"):
        tucker(torch.zeros(3, 4), 1, 1)
    for r1, r2, name in ((5, 1, "r1"), (1, 4, "r2"), (-1, 1, "r1"), (True, 1, "r1")):
        with pytest.raises(ValueError, match=name):
            tucker(torch.zeros(2, 4, 3), r1, r2)
