"""The statements of the chapter "Sharing far offsets", on random grids, rules, sizes and weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import grids
from translution_lib import GeneralTranslution, LoRTranslution, Translution, bucketed, cost, merge, offsets
from translution_lib import functional as fn
from translution_lib.functional.diagonal import diagonal_lor
from translution_lib.functional.shifts import moved_tokens
from translution_lib.sharing import t5_buckets

pytestmark = pytest.mark.usefixtures("double")
seeds = st.integers(0, 999)


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drawn(seed: int, labels, groups: int) -> dict:
    """Return a random group for every label."""
    numbers = torch.randint(groups, (len(labels),), generator=torch.Generator().manual_seed(seed)).tolist()
    return dict(zip(labels, numbers, strict=True))


@pytest.mark.identity("eq-sharing-merge")
@given(grids(max_dims=2), st.integers(1, 4), seeds)
def test_a_merged_table_is_the_table_with_copied_matrices(shape, groups, seed):
    full = offsets(shape)
    table = merge(full, drawn(seed, full.labels, groups).get)
    small, large = Translution(table, 3, 1).double(), Translution(full, 3, 1).double()
    to = torch.stack([table.index[full.index == r][0] for r in range(full.count)])
    state = small.state_dict()
    large.load_state_dict(state | {name: state[name][to] for name in ("query", "key", "value")})
    x = randn(seed, 1, full.n, 3)
    assert_close(small(x), large(x))
    tau = [int(t) for t in torch.randint(-2, 3, (len(shape),), generator=torch.Generator().manual_seed(seed))]
    here, there = moved_tokens(shape, tau)
    assert torch.equal(table.index[there][:, there], table.index[here][:, here])


@pytest.mark.identity("eq-sharing-buckets")
@given(st.integers(1, 80), st.sampled_from([2, 4, 6, 8, 16, 32]))
def test_buckets_and_their_number(side, buckets):
    near = buckets // 2
    longest = max(side, near + 1)

    def bucket(d: int) -> int:
        if d < near:
            return d
        power = (buckets - near) * math.log(d / near) / math.log(longest / near)
        return min(buckets - 1, near + math.floor(power))

    distances = torch.arange(side)
    found = t5_buckets(distances, buckets, longest, causal=True)
    assert found.tolist() == [bucket(d) for d in range(side)]
    used = len(set(found.tolist()))
    assert bucketed(offsets(side, causal=True), buckets).count == used
    if side <= 6:
        assert bucketed(offsets((side, side)), buckets).count == (2 * used - 1) ** 2
    if (buckets - near) * math.log(1 + 1 / near) <= math.log(longest / near):
        assert used == int(found[-1]) + 1


@pytest.mark.identity("thm-sharing-lost")
@given(grids(max_dims=2), st.integers(1, 5), seeds)
def test_the_nearest_shared_table_is_the_mean(shape, groups, seed):
    full = offsets(shape)
    table = merge(full, drawn(seed, full.labels, groups).get)
    to = torch.stack([table.index[full.index == r][0] for r in range(full.count)])
    one_hot = torch.nn.functional.one_hot(to, table.count).double()
    assert torch.linalg.matrix_rank(one_hot) == table.count
    weight, w = full.sizes.double(), randn(seed, full.count, 2, 3)
    root = weight.sqrt()[:, None]
    best = torch.linalg.lstsq(root * one_hot, root * w.flatten(1)).solution.view(-1, 2, 3)
    mean = torch.stack([(weight[to == r, None, None] * w[to == r]).sum(0) / weight[to == r].sum()
                        for r in range(table.count)])
    assert_close(mean, best)
    alpha, x = torch.rand(1, 1, full.n, full.n) + 0.1, torch.eye(2 * full.n).view(2 * full.n, full.n, 2)
    outputs = [fn.translution_values(alpha.expand(2 * full.n, -1, -1, -1), x, *pair)
               for pair in ((w, full), (mean, table), (mean[to], full))]
    assert_close(outputs[1], outputs[2])
    assert torch.allclose(outputs[0], outputs[1]) == torch.allclose(w, mean[to])


@pytest.mark.identity("thm-sharing-window")
@given(grids(max_dims=2), st.integers(0, 2), seeds)
def test_a_window_is_a_convolution_times_a_factor(shape, window, seed):
    near, full = offsets(shape, window=window), (2 * window + 1) ** len(shape)
    kernel, x = randn(seed, *[2 * window + 1] * len(shape), 2, 2), randn(seed + 1, 1, near.n, 2)
    zero = torch.zeros(2, 1)
    values = torch.stack([full * kernel[tuple(window - step for step in delta)] for delta in near.labels])
    made = fn.translution(x, zero, zero, values, near)
    expected = fn.convolution(x, kernel, shape)
    assert_close(made, expected * (full / near.mask.sum(1))[:, None])


@pytest.mark.identity("thm-sharing-window")
@given(grids(max_dims=2), st.integers(0, 2), seeds)
def test_no_window_has_one_slope_at_tokens_with_different_windows(shape, window, seed):
    """At small features a head is linear with W_0 / N_i on the diagonal, whatever its queries and keys."""
    near = offsets(shape, window=window)
    letters = [randn(seed + i, near.count, 2, 2) for i in range(3)]
    slope = torch.autograd.functional.jacobian(lambda x: fn.translution(x, *letters, near), torch.zeros(1, near.n, 2))
    own = slope[0].diagonal(dim1=0, dim2=3)[:, 0]  # out, in, token
    expected = letters[2][near.id_of((0,) * len(shape))].T[..., None] / near.mask.sum(1)
    assert_close(own, expected)


@pytest.mark.identity("eq-sharing-axes", "thm-sharing-axes")
@given(st.integers(2, 4), st.integers(2, 4), seeds)
def test_sums_over_two_axes_are_the_tables_without_mixed_differences(a, b, seed):
    layer = GeneralTranslution(offsets((a, b)), 2, 1, kernel="axes").double()
    table = layer.tables()[0].unflatten(0, (2 * a - 1, 2 * b - 1))
    rows, columns = layer.query.split([2 * a - 1, 2 * b - 1])
    assert_close(table, rows[:, None] + columns[None])
    assert table.diff(dim=0).diff(dim=1).abs().max() < 1e-12
    basis = torch.eye((2 * a - 1) * (2 * b - 1)).unflatten(0, (2 * a - 1, 2 * b - 1))
    mixed = basis.diff(dim=0).diff(dim=1).flatten(0, 1)
    assert basis.flatten(0, 1).shape[0] - torch.linalg.matrix_rank(mixed) == 2 * a - 1 + 2 * b - 1 - 1
    start = randn(seed, 2 * a - 1, 2 * b - 1)
    flat = start[:, :1] + start[:1] - start[:1, :1]                       # the rebuilt table of the proof
    assert_close(flat.diff(dim=0).diff(dim=1), torch.zeros(2 * a - 2, 2 * b - 2))


@pytest.mark.identity("eq-sharing-diagonal")
@given(st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), seeds)
def test_scores_and_values_with_diagonals_pair_by_pair(n, heads, rank, seed):
    rel, width, k = offsets(n, causal=True), 2 * heads, heads * rank
    draws = [randn(seed + i, *shape) for i, shape in enumerate(
        [(1, n, 3), (3, k), (3, k), (3, k), (n, k), (n, k), (k, width), (3, width), (3, width), (3, width)])]
    x, *low, a, b, up, w_q, w_k, w_v = draws
    made = diagonal_lor(x, (low[0], low[1], low[2]), (a, b), up, rel, heads, (w_q, w_k, w_v))[0]
    x, expected = x[0], torch.zeros(n, width)
    for h in range(heads):
        c, d = slice(h * rank, (h + 1) * rank), slice(2 * h, 2 * h + 2)
        for i in range(n):
            score = torch.stack([(x[i] @ w_q[:, d]) @ (x[j] @ w_k[:, d]) + (
                (x[i] @ low[0][:, c]) * a[i - j, c]) @ (x[j] @ low[1][:, c]) for j in range(i + 1)]) / math.sqrt(2)
            for j, weight in enumerate(score.softmax(0)):
                expected[i, d] += weight * (x[j] @ w_v[:, d])
                expected[i] += weight * ((x[j] @ low[2][:, c]) * b[i - j, c]) @ up[c]
    assert_close(made, expected)


@pytest.mark.identity("thm-sharing-diagonal")
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), seeds)
def test_enough_diagonals_are_any_family(c, e, r1, r2, seed):
    w1, core, w2 = randn(seed, c, r1), randn(seed + 1, 5, r1, r2), randn(seed + 2, r2, e)
    wide = w1.repeat_interleave(r2, 1) @ core.flatten(1).diag_embed() @ w2.repeat(r1, 1)
    assert_close(wide, w1 @ core @ w2)
    table, left, right = randn(seed, 5, c, e), torch.eye(c).repeat_interleave(e, 1), torch.eye(e).repeat(c, 1)
    assert_close(left @ table.flatten(1).diag_embed() @ right, table)


@pytest.mark.identity("eq-sharing-cost")
@given(grids(), st.integers(1, 2), st.integers(1, 4), st.sampled_from(["dense", "diagonal"]))
def test_costs_of_dense_and_diagonal_cores(shape, heads, rank, core):
    rel, c, k = offsets(shape), 4, heads * rank
    layer = LoRTranslution(rel, c, heads, relative_dim=rank, core=core)
    made, plain = cost.layer.of(layer), cost.layer.named("self-attention", rel, c, heads)
    numbers = 2 * rel.count * k if core == "diagonal" else 3 * rel.count * k**2
    work = 4 * k if core == "diagonal" else 3 * k**2 + 2 * k
    assert cost.count_parameters(layer) == made.parameters == plain.parameters + numbers + 4 * c * k
    assert made.macs_true() == plain.macs_true() + rel.n * 4 * c * k + rel.n**2 * work
