"""Offsets that share relations, against loops over pairs and T5's buckets in transformers; layers that use them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers.models.t5.modeling_t5 import T5Attention

from tests.unit.strategies import F64, assert_forms_agree, grids
from translution_lib import (
    GPT,
    GeneralTranslution,
    LoRTranslution,
    Translution,
    ViT,
    as_translution,
    bucketed,
    merge,
    offsets,
    pairs,
    shared,
)

BUCKETS = st.sampled_from([2, 4, 6, 8, 14])


def same_groups(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tables of ids put the same pairs together, whatever the ids are called."""
    both = torch.stack([one.flatten(), other.flatten()])
    return len(both.unique(dim=1).T) == len(one.unique()) == len(other.unique())


@given(grids(), st.booleans(), st.none() | st.integers(0, 3), st.integers(0, 99))
def test_merged_offsets_are_the_groups(shape, cls, window, seed):
    table = offsets(shape, cls=cls, window=window)
    draw = torch.Generator().manual_seed(seed)
    group = {label: int(torch.randint(3, (), generator=draw)) for label in table.labels}
    made = merge(table, group.__getitem__)
    m = table.count - 3 * cls
    assert made.count == len({group[label] for label in table.labels[:m]}) + 3 * cls
    assert torch.equal(made.mask, table.mask) and made.labels[made.count - 3 * cls:] == table.labels[m:]
    for old, new in torch.stack([table.index, made.index]).flatten(1).T.unique(dim=0).tolist():
        if old < 0:
            assert new < 0
        elif old >= m:
            assert made.labels[new] == table.labels[old]
        else:
            assert group[made.labels[new]] == group[table.labels[old]]
            assert sum(map(abs, made.labels[new])) <= sum(map(abs, table.labels[old]))


@given(grids(), st.integers(0, 3))
def test_clipped_offsets_are_a_merged_table(shape, clip):
    made = merge(offsets(shape), lambda delta: tuple(max(-clip, min(clip, step)) for step in delta))
    expected = offsets(shape, clip=clip)
    assert made.labels == expected.labels and torch.equal(made.index, expected.index)


@given(grids(), BUCKETS, st.integers(8, 30))
def test_buckets_on_both_sides_of_every_axis_are_those_of_t5(shape, buckets, longest):
    made = bucketed(offsets(shape), buckets, max_distance=longest)
    delta = torch.tensor(offsets(shape).labels)[offsets(shape).index]                               # n n axes
    expected = T5Attention._relative_position_bucket(-delta, True, 2 * buckets, longest)
    assert same_groups(made.index, (expected * (2 * buckets) ** torch.arange(len(shape))).sum(-1))


@given(st.integers(1, 90), BUCKETS, st.integers(8, 130))
def test_causal_buckets_are_those_of_t5(n, buckets, longest):
    made = bucketed(offsets(n, causal=True), buckets, max_distance=longest)
    expected = T5Attention._relative_position_bucket(-torch.arange(n), False, buckets, longest)
    assert same_groups(made.index[-1].flip(0), expected)
    assert torch.equal(made.index, made.index.tril() + made.mask.logical_not().int().mul(-1))
    assert made.for_length(max(1, n // 2)).count == made.count


@given(grids(), BUCKETS)
def test_radii_have_no_direction(shape, buckets):
    made, table = bucketed(offsets(shape), buckets, by="radius"), offsets(shape)
    radius = torch.tensor(table.labels).abs().amax(1)
    longest = max(max(shape), buckets // 2 + 1)
    expected = T5Attention._relative_position_bucket(-radius, False, buckets, longest)
    assert same_groups(made.index, expected[table.index])
    assert torch.equal(made.index, made.index.T)


@given(grids(), st.booleans())
def test_as_many_buckets_as_offsets_are_translution(shape, cls):
    table = offsets(shape, cls=cls)
    made = bucketed(table, 2 * max(shape))
    assert made.labels == table.labels and torch.equal(made.index, table.index)


@pytest.mark.parametrize(("option", "plain"), [({"bucket_offsets": 8}, {}), ({"window": 3}, {}),
                                               ({"clip_offsets": 3}, {}), ({"bucket_offsets": 4}, {"clip_offsets": 3})])
def test_a_vit_with_rules_that_share_nothing_more(option, plain):
    """On a grid of 4 × 4 these options are the plain model, or one another: the same numbers, bit for bit."""
    made = []
    for options in (option, plain):
        torch.manual_seed(0)
        made.append(ViT(8, 2, 1, 3, 8, 1, 2, 8, **options)(torch.ones(1, 1, 8, 8).tril()))
    assert torch.equal(*made)


def test_models_pass_the_rules_to_their_tables():
    assert ViT(14, 2, 1, 3, 8, 1, 2, 8, pool="mean", bucket_offsets=14, bucket_by="radius").relations.count == 7
    assert ViT(14, 2, 1, 3, 8, 1, 2, 8, window=1).relations.count == 9 + 3
    assert GPT(5, 64, 8, 1, 2, 8, bucket_offsets=16).relations.count == 16


@given(grids(), st.booleans(), st.integers(0, 3), st.sampled_from(["printed", "released"]))
def test_diagonal_cores_are_dense_ones(shape, causal, rank, variant):
    """Against the dense layer whose cores are these diagonals, for query and value, and the identity for the key."""
    table = offsets(max(shape), causal=True) if causal else offsets(shape, cls=True)
    layer = LoRTranslution(table, 4, 2, relative_dim=rank, core="diagonal", variant=variant).to(F64)
    dense = LoRTranslution(table, 4, 2, relative_dim=rank, variant=variant).to(F64)
    full = {"query_core": layer.query_core.diag_embed(), "value_core": layer.value_core.diag_embed(),
            "key_core": torch.eye(2 * rank, dtype=F64).expand(table.count, -1, -1)}
    dense.load_state_dict(layer.state_dict() | full)
    x = torch.randn(2, table.n, 4, dtype=F64, requires_grad=True)
    assert_close(layer(x), dense(x))
    assert_forms_agree(layer, x)
    assert_close(as_translution(layer)(x), layer(x))


@given(grids(max_dims=2), st.booleans())
def test_a_sum_over_the_axes_is_translution_with_these_matrices(shape, cls):
    layer = GeneralTranslution(offsets(shape, cls=cls), 4, 2, kernel="axes").to(F64)
    plain, starts = Translution(layer.relations, 4, 2).to(F64), [0]
    for side in shape:
        starts.append(starts[-1] + 2 * side - 1)
    with torch.no_grad():
        plain.output.load_state_dict(layer.output.state_dict())
        for name in ("query", "key", "value"):
            made, factors = getattr(plain, name), getattr(layer, name)
            for r, delta in enumerate(layer.relations.labels):
                if isinstance(delta, str):
                    made[r] = factors[r - layer.relations.count]
                else:
                    axes = zip(starts[:-1], shape, delta, strict=True)
                    made[r] = sum(factors[start + side - 1 + step] for start, side, step in axes)
    x = torch.randn(1, layer.relations.n, 4, dtype=F64, requires_grad=True)
    assert_close(layer(x), plain(x))
    assert_forms_agree(layer, x)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: merge(pairs(3), lambda delta: 0), "relations"), (lambda: bucketed(shared(3), 4), "relations"),
    (lambda: bucketed(offsets(3), 3), "num_buckets"), (lambda: bucketed(offsets(3), 0), "buckets"),
    (lambda: bucketed(offsets(3), True), "buckets"), (lambda: bucketed(offsets(3), 2.0), "buckets"),
    (lambda: bucketed(offsets(3), 4, max_distance=2), "max_distance"),
    (lambda: bucketed(offsets(3), 4, by="angle"), "by"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, bucket_by="radius"), "bucket_by must be 'axis' where there are no buckets"),
    (lambda: GPT(5, 4, 8, 1, 2, 8, beyond="window"), "beyond must be 'clip' where no reach is given"),
    (lambda: GPT(5, 4, 8, 1, 2, 8, bucket_distance=4), "bucket_distance must be None where there are no buckets"),
    (lambda: LoRTranslution(offsets(3), 8, 2, core="diagonal", init="released"), "init must be 'fan_in' where cores"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, bucket_offsets=4, clip_offsets=1), "bucket_offsets"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, bucket_offsets=4, bucket_by="angle"), "by"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, bucket_offsets=4, encoding="pairs"), "bucket_offsets"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, window=-1), "window"),
    (lambda: ViT(8, 2, 1, 3, 8, 1, 2, 8, window=1, encoding="pairs"), "window"),
    (lambda: GPT(5, 8, 8, 1, 2, 8, bucket_offsets=4, reach=3), "bucket_offsets"),
    (lambda: LoRTranslution(offsets(3), 4, 2, core="sparse"), "core"),
    (lambda: LoRTranslution(offsets(3), 4, 2, core="diagonal", relative_dim=(1, 2)), "relative_dim"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()
