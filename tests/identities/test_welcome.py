"""The one formula of the welcome page, for random shapes: who shares parameters decides what the operator is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import functional, offsets, pairs, shared

seeds = st.integers(0, 2**31)
small = st.integers(1, 3)


pytestmark = pytest.mark.usefixtures("double")


def literally(x, w_q, w_k, w_v, rho):
    """f'_i = Σ_j α_ij f_j Wv[ρ(i, j)] for one example x (n c) and one head."""
    rows = []
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if rho[i, j] >= 0]
        a = [(x[i] @ w_q[rho[i, j]]) @ (x[j] @ w_k[rho[i, j]]) / math.sqrt(w_q.shape[-1]) for j in keys]
        alpha = torch.softmax(torch.stack(a), 0)
        rows.append(sum(w * (x[j] @ w_v[rho[i, j]]) for w, j in zip(alpha, keys, strict=True)))
    return torch.stack(rows)


@pytest.mark.identity("eq-welcome-one")
@given(seeds, st.sampled_from([offsets(4), offsets((2, 3)), offsets((2, 2), cls=True), offsets(4, causal=True),
                               shared(3), pairs(3)]), small, small, small)
def test_one_formula_for_every_table(seed, rel, c, d, e):
    torch.manual_seed(seed)
    x = torch.randn(rel.n, c)
    w_q, w_k, w_v = (torch.randn(rel.count, c, size) for size in (d, d, e))
    expected = literally(x, w_q, w_k, w_v, rel.index)
    for form in (functional.translution, functional.translution_definition):
        assert_close(form(x[None], w_q, w_k, w_v, rel)[0], expected)
    if rel.count == 1:
        assert_close(functional.self_attention(x[None], w_q[0], w_k[0], w_v[0])[0], expected)


@pytest.mark.identity("eq-welcome-one")
@given(seeds, st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 5]), small, small)
def test_uniform_attention_with_a_kernel_as_values_is_a_convolution(seed, height, width, side, c, e):
    torch.manual_seed(seed)
    grid, half = offsets((height, width)), side // 2
    x, kernel = torch.randn(2, grid.n, c), torch.randn(side, side, c, e)
    value = torch.zeros(grid.count, c, e)
    for r, delta in enumerate(grid.labels):
        if max(map(abs, delta)) <= half:
            value[r] = grid.n * kernel[half - delta[0], half - delta[1]]
    zero = torch.zeros(c, e)
    assert_close(functional.translution(x, zero, zero, value, grid),
                 functional.convolution(x, kernel, (height, width)))
