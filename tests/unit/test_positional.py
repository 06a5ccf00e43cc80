"""What positional encodings read from a relation table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import F64, grids, tables
from translution_lib import offsets, pairs, shared
from translution_lib.mixers.positional import along_keys, clipped, offset_count, offset_vectors, per_offset, per_pair

PLACED = tables().filter(lambda rel: rel.shape is not None)


@given(PLACED)
def test_offsets_come_first(rel):
    m = offset_count(rel)
    assert all(isinstance(label, tuple) for label in rel.labels[:m])
    assert len(rel.labels[m:]) in ((3, 2 * rel.n - 1) if rel.cls else (0,))
    assert [tuple(row) for row in offset_vectors(rel).tolist()] == list(rel.labels[:m])


@given(grids(), st.booleans(), st.none() | st.integers(0, 3), st.none() | st.integers(0, 4))
def test_clipped_is_the_table_that_offsets_clips(shape, cls, window, clip):
    table = clipped(offsets(shape, cls=cls, window=window), clip)
    expected = offsets(shape, cls=cls, window=window, clip=clip)
    assert table.labels == expected.labels and torch.equal(table.index, expected.index)


@given(st.integers(1, 8), st.none() | st.integers(0, 3), st.none() | st.integers(0, 4), st.data())
def test_clipped_causal_table_and_its_prefix(n, window, clip, data):
    table, expected = (clipped(offsets(n, causal=True, window=window), clip),
                       offsets(n, causal=True, window=window, clip=clip))
    short = data.draw(st.integers(1, n))
    assert table.labels == expected.labels and table.causal
    assert torch.equal(table.for_length(short).index, expected.for_length(short).index)


@given(PLACED)
def test_per_pair_gathers_scalars_and_vectors(rel):
    m = offset_count(rel)
    scalars, vectors = torch.randn(2, m, dtype=F64), torch.randn(m, 3, dtype=F64)
    bias, r = per_pair(scalars, rel), per_pair(vectors, rel, dim=0)
    assert bias.shape == (2, rel.n, rel.n) and r.shape == (rel.n, rel.n, 3)
    for i in range(rel.n):
        for j in range(rel.n):
            delta = int(rel.index[i, j])
            placed = 0 <= delta < m
            assert torch.equal(r[i, j], vectors[delta] if placed else torch.zeros(3, dtype=F64))
            assert torch.equal(bias[:, i, j], scalars[:, delta] if placed else torch.zeros(2, dtype=F64))


@given(PLACED)
def test_gathering_along_keys_and_summing_per_offset_are_transposes(rel):
    u = torch.randn(2, 3, rel.n, offset_count(rel), dtype=F64)
    alpha = torch.randn(2, 3, rel.n, rel.n, dtype=F64)
    torch.testing.assert_close((along_keys(u, rel) * alpha).sum(), (u * per_offset(alpha, rel)).sum())
    one_hot = per_pair(torch.eye(offset_count(rel), dtype=F64), rel, dim=0)
    torch.testing.assert_close(along_keys(u, rel), torch.einsum("bhim,ijm->bhij", u, one_hot))
    torch.testing.assert_close(per_offset(alpha, rel), torch.einsum("bhij,ijm->bhim", alpha, one_hot))


def test_bad_input(plain_types):
    for rel in (pairs(3), shared(3)):
        with pytest.raises(ValueError, match="relations must be a table of offsets"):
            offset_count(rel)
    for clip in (-1, 1.5, True):
        with pytest.raises(ValueError, match="clip must be"):
            clipped(offsets(3), clip)
    with pytest.raises(ValueError, match="5 entries along axis -1"):
        per_pair(torch.zeros(5, 2), offsets(3))
    with pytest.raises(ValueError, match="axis 2"):
        per_pair(torch.zeros(5, 2), offsets(3), dim=2)
