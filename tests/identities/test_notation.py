"""The conventions of the notation page, on random shapes."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import Translution, functional, offsets
from translution_lib.mixers.init import relation_bound

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 12).map(tuple)
SIZES = {"c": st.integers(1, 4), "d": st.integers(1, 3), "heads": st.integers(1, 3)}


def by_loops(x, w_q, w_k, w_v, positions, heads):
    """Equation eq-notation-pair for one example; each weight is a dictionary under the index that is printed."""
    n, e = len(x), next(iter(w_v.values())).shape[1]
    d = e // heads
    out = torch.zeros(n, e, dtype=x.dtype)
    for h, i in product(range(heads), range(n)):
        part, scores, values = slice(h * d, (h + 1) * d), [], []
        for j in range(n):
            delta = tuple(int(a - b) for a, b in zip(positions[i], positions[j], strict=True))
            q, k = x[i] @ w_q[delta][:, part], x[j] @ w_k[tuple(-s for s in delta)][:, part]
            scores.append((q @ k / math.sqrt(d)).exp())
            values.append(x[j] @ w_v[delta][:, part])
        out[i, part] = sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)
    return out


@pytest.mark.identity("eq-notation-pair", "eq-notation-key")
@given(shape=SHAPES, **SIZES)
def test_the_library_reads_the_pair_equation(shape, c, d, heads):
    rel = offsets(shape)
    tables = [{delta: 0.5 * torch.randn(c, d * heads, dtype=torch.float64) for delta in rel.labels} for _ in range(3)]
    x = torch.randn(1, rel.n, c, dtype=torch.float64)
    w_q, w_v = (torch.stack([table[delta] for delta in rel.labels]) for table in (tables[0], tables[2]))
    w_k = torch.stack([tables[1][tuple(-s for s in delta)] for delta in rel.labels])
    expected = by_loops(x[0], *tables, rel.positions, heads)[None]
    assert_close(functional.translution_definition(x, w_q, w_k, w_v, rel, heads), expected)
    assert_close(functional.translution(x, w_q, w_k, w_v, rel, heads), expected)


@pytest.mark.identity("eq-notation-tap")
@given(data=st.data(), shape=SHAPES)
def test_a_tap_sits_at_minus_its_offset(data, shape):
    rel = offsets(shape)
    index, tap = data.draw(st.sampled_from(list(functional.taps([3] * len(shape)))))
    kernel = torch.zeros(*[3] * len(shape), 1, 1, dtype=torch.float64)
    kernel[index] = 1
    impulses = torch.eye(rel.n, dtype=torch.float64)[:, :, None]                     # one impulse per example
    matrix = functional.convolution(impulses, kernel, shape)[..., 0].T                # row i reads column j
    assert_close(functional.convolution_definition(impulses, kernel, shape)[..., 0].T, matrix)
    queries, keys = matrix.nonzero(as_tuple=True)
    delta = rel.positions[queries] - rel.positions[keys]
    assert (delta == -torch.tensor(tap)).all()
    assert len(delta) == math.prod(max(0, size - abs(k)) for size, k in zip(shape, tap, strict=True))


@pytest.mark.identity("eq-notation-id")
@given(shape=SHAPES)
def test_offsets_are_numbered_in_row_major_order(shape):
    rel = offsets(shape)
    assert rel.count == math.prod(2 * size - 1 for size in shape)
    for i, j in product(range(rel.n), repeat=2):
        delta = (rel.positions[i] - rel.positions[j]).tolist()
        number = sum((s + shape[a] - 1) * math.prod(2 * b - 1 for b in shape[a + 1:]) for a, s in enumerate(delta))
        assert rel.index[i, j] == number == rel.id_of(delta)


@pytest.mark.identity("eq-notation-init")
@given(heads=st.integers(1, 4), head_dim=st.integers(8, 24), dim=st.integers(8, 40))
def test_the_two_initial_bounds_differ_by_the_root_of_the_columns(heads, head_dim, dim):
    e = heads * head_dim
    assert relation_bound(dim, e, "fan_in") / relation_bound(dim, e, "released") == pytest.approx(math.sqrt(e))
    largest = {}
    for init in ("fan_in", "released"):
        layer = Translution(offsets(4), dim, heads, head_dim=head_dim, init=init)
        largest[init] = layer.value.abs().max().item()
        assert largest[init] <= relation_bound(dim, e, init) * (1 + 1e-6)
    by_torch = torch.nn.init.kaiming_uniform_(torch.empty(7, dim, e), a=math.sqrt(5)).abs().max().item()
    assert largest["fan_in"] == pytest.approx(1 / math.sqrt(dim), rel=0.05)
    assert largest["released"] == pytest.approx(by_torch, rel=0.05)
