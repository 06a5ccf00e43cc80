"""The groups of pairs that the grouped products go through."""

import pytest
import torch
from hypothesis import given

from tests.unit.strategies import tables
from translution_lib import offsets, pairs, place_cls
from translution_lib.backends.grouped import pairs_on

CPU = torch.device("cpu")


@given(tables())
def test_every_pair_is_in_one_group_under_its_own_matrix(relations):
    found = pairs_on(relations, CPU)
    places = []
    for group in found.groups:
        ids = torch.arange(relations.count)[group.relations].repeat_interleave(group.pairs)
        assert torch.equal(relations.index[group.queries, group.keys], ids)
        assert group.rows(torch.zeros(relations.n, 2, 3), group.keys).shape == (group.size, 2 * group.pairs, 3)
        assert {*group.tokens.tolist()} == {*group.queries.tolist(), *group.keys.tolist()}
        places.append(group.queries * relations.n + group.keys)
    assert torch.equal(torch.cat(places), found.flat)
    assert sorted(found.flat.tolist()) == relations.mask.flatten().nonzero().flatten().tolist()
    assert found.absent.tolist() == [r for r, size in enumerate(relations.sizes.tolist()) if not size]


@pytest.mark.parametrize(("relations", "groups"), [
    (pairs(7), 7),                                   # a row of the attention matrix each
    (offsets(7), 7),                                 # 0, and six offsets with their opposites
    (place_cls(offsets((3, 3), cls=True)), 13 + 1 + 9),  # and CLS with itself and, both ways, with nine tokens
])
def test_relations_of_one_pair_go_row_by_row(relations, groups):
    assert len(pairs_on(relations, CPU).groups) == groups
