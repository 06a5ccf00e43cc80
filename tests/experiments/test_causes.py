"""Sorting by place, against loops over pixels and pairs of patches; the rule of the verdicts; clipped offsets."""

from itertools import product
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from translution_runs import causes, verdicts
from translution_runs.causes import Scene
from translution_runs.verdicts import Estimate

from translution_lib import ViT, offsets

sizes = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda pair: st.builds(Scene, st.just(pair[0] * pair[1]), st.integers(1, pair[0] * pair[1]), st.just(pair[1])))


def drawn(scene: Scene, seed: int, count: int = 12) -> torch.Tensor:
    return torch.randint(scene.room + 1, (count, 2), generator=torch.Generator().manual_seed(seed))


def patches(scene: Scene, corner, box=None) -> set:
    """The patches (row, column) of all pixels of an image, or of a box in it."""
    top, bottom, left, right = box or (0, scene.image - 1, 0, scene.image - 1)
    return {((corner[0] + y) // scene.patch, (corner[1] + x) // scene.patch)
            for y in range(top, bottom + 1) for x in range(left, right + 1)}


def met(scene: Scene, touched: set) -> list:
    """The offset of every pair of a touched patch and any patch."""
    return [(a - c, b - d) for a, b in touched for c, d in product(range(scene.grid), repeat=2)]


@given(sizes, st.integers(0, 2**31))
def test_places_are_measured_as_pixels_are_counted(scene, seed):
    corners = drawn(scene, seed)
    centred = patches(scene, (scene.centre, scene.centre))
    known = set(met(scene, centred))
    lattice = [p for p in range(-scene.canvas, 2 * scene.canvas) if (p - scene.centre) % scene.patch == 0]
    unseen = scene.unseen(corners)
    for k, (y, x) in enumerate(corners.tolist()):
        touched = patches(scene, (y, x))
        assert scene.span(corners)[k].tolist() == [len({p[axis] for p in touched}) for axis in (0, 1)]
        assert scene.phase_distance(corners)[k] == max(min(abs(v - p) for p in lattice) for v in (y, x))
        assert scene.margin(corners)[k] == min(y, x, scene.room - y, scene.room - x)
        assert scene.steps(corners)[k] == max(abs(v - scene.centre) // scene.patch for v in (y, x))
        pairs = met(scene, touched)
        assert abs(float(unseen[k]) - sum(p not in known for p in pairs) / len(pairs)) < 1e-12


@given(sizes, st.integers(0, 2**31))
def test_a_box_in_the_image_counts_alone(scene, seed):
    corners = drawn(scene, seed, 6)
    ends = torch.randint(scene.image, (6, 2, 2), generator=torch.Generator().manual_seed(seed + 1)).sort(2)[0]
    boxes = ends.flatten(1)  # n 4: first and last row, first and last column
    known = set(met(scene, patches(scene, (scene.centre, scene.centre))))
    for k in range(6):
        touched = patches(scene, corners[k].tolist(), boxes[k].tolist())
        assert scene.span(corners, boxes)[k].prod() == len(touched)
        pairs = met(scene, touched)
        assert abs(float(scene.unseen(corners, boxes)[k]) - sum(p not in known for p in pairs) / len(pairs)) < 1e-12


def test_everywhere_is_every_corner_and_the_paper_has_3249():
    scene = Scene()
    assert scene.everywhere().shape == (57**2, 2) == (3249, 2)
    assert int((scene.phase_distance(scene.everywhere()) == 0).sum()) == 25
    assert int((Scene(patch=7).phase_distance(scene.everywhere()) == 0).sum()) == 81


def test_bad_scenes_and_corners_are_refused():
    with pytest.raises(ValueError, match="image: got 29, expected 1 to 28"):
        Scene(28, 29, 7)
    with pytest.raises(ValueError, match="patch: got 5, expected a divisor"):
        Scene(28, 8, 5)
    with pytest.raises(ValueError, match="corners: got values from 0 to 57"):
        Scene().margin(torch.tensor([[0, 57]]))


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**31))
def test_sorting_counts_every_image_once(n, runs, seed):
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(4, (n,), generator=generator)
    outcomes = [torch.rand(n, generator=generator) < 0.5 for _ in range(runs)]
    groups = causes.sort(kinds, outcomes)
    assert list(groups) == sorted(set(kinds.tolist()))
    assert sum(g.images for g in groups.values()) == n * runs
    assert sum(g.correct for g in groups.values()) == sum(int(o.sum()) for o in outcomes)
    for kind, group in groups.items():
        rights = [[bool(o[k]) for k in range(n) if kinds[k] == kind] for o in outcomes]
        assert_close(torch.tensor(group.accuracies), torch.tensor([sum(r) / len(r) for r in rights]))
        assert_close(group.accuracy, sum(map(sum, rights)) / group.images)
        assert group.interval[0] <= group.accuracy <= group.interval[1]


@given(st.integers(1, 5), st.integers(0, 30), st.integers(0, 2**31))
def test_a_map_is_a_mean_in_every_cell(side, n, seed):
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(side, (n, 2), generator=generator)
    outcomes = [torch.rand(n, generator=generator) < 0.5 for _ in range(2)]
    found = causes.accuracy_map(cells, outcomes, side)
    for y, x in product(range(side), repeat=2):
        inside = [float(o[k]) for o in outcomes for k in range(n) if cells[k].tolist() == [y, x]]
        assert (not inside and found[y, x].isnan()) or abs(float(found[y, x]) - sum(inside) / len(inside)) < 1e-12


def test_bad_outcomes_are_refused(plain_types):
    kinds = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="outcomes: got no runs"):
        causes.sort(kinds, [])
    with pytest.raises(ValueError, match="outcomes: got 2 images, expected 3"):
        causes.sort(kinds, [torch.ones(2, dtype=torch.bool)])
    with pytest.raises(ValueError, match="cells: got 0 to 3, expected 0 to 2"):
        causes.accuracy_map(torch.tensor([[0, 3]]), [torch.ones(1, dtype=torch.bool)], 3)


@given(*[st.floats(-1, 1) for _ in range(4)])
def test_shares_sum_to_the_whole_and_are_the_effects_where_these_add(neither, first, second, both):
    one, other, interaction = causes.shares(neither, first, second, both)
    assert abs(one + other - (both - neither)) < 1e-12
    assert causes.shares(neither, second, first, both)[:2] == pytest.approx((other, one))
    assert interaction == pytest.approx((both - second) - (first - neither))
    added = causes.shares(neither, first, second, first + second - neither)
    assert added == pytest.approx((first - neither, second - neither, 0), abs=1e-12)


@given(st.integers(1, 40), st.integers(0, 999))
def test_kinds_that_are_read_alike_are_weighted_to_other_shares(n, seed):
    """What is read by its kind alone gets the mean of the other images; equal shares change nothing."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.cat([torch.arange(4), torch.randint(4, (n,), generator=draw)])
    wanted = kinds[torch.randint(len(kinds), (len(kinds),), generator=draw)]
    by_kind = torch.rand(4, generator=draw, dtype=torch.float64)
    assert_close(causes.at_phases(kinds, wanted, by_kind[kinds]).mean(), by_kind[wanted].mean())
    right = torch.rand(len(kinds), generator=draw, dtype=torch.float64)
    assert_close(causes.at_phases(kinds, kinds, right).mean(), right.mean())


def test_shares_of_effects_are_effects():
    effects = [verdicts.Effect.of(value, value + 1.0) for value in (96.0, 40.0, 70.0, 30.0)]
    assert [one.mean for one in causes.shares(*effects)] == [-48.0, -18.0, 16.0]


def test_results_meet_by_seed():
    results = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {2: 5.0, 0: 4.0}}
    assert causes.by_seed(results, ["a", "b"]) == [(1.0, 4.0), (3.0, 5.0)]
    assert causes.by_seed(results, ["b", "a"]) == [(4.0, 1.0), (5.0, 3.0)]


def test_a_difference_is_decided_by_the_spread():
    low, high = Estimate.of([0.0, 1.0]), Estimate.of([3.0, 4.0])
    assert low is not None and high is not None
    gap = high - low
    assert (gap.mean, gap.runs) == (3.0, 2) and gap.deviation == pytest.approx(1.0)
    assert gap.above() is True and gap.above(1.5) is None and gap.above(6.0) is False
    assert (low - high).above() is False and str(low - high) == "−3.00 ± 1.00"
    assert Estimate.of([]) is None and verdicts.difference(None, low) is None
    one = Estimate.of([5.0])
    assert one is not None and one.deviation == inf and (one - low).above() is None and str(one) == "5.00"


def test_clipped_offsets_leave_no_relation_that_a_centred_image_does_not_meet():
    scene = Scene()
    vit = ViT(84, 12, 1, 10, 4, 1, 1, 4, clip_offsets=4)
    assert vit.relations.count == 81 + 3
    queries = [1 + y * 7 + x for y, x in patches(scene, (28, 28))]  # after CLS
    assert set(vit.relations.index[queries, 1:].flatten().tolist()) == set(range(81))
    assert torch.equal(vit.relations.index, offsets((7, 7), cls=True, clip=4).index)
    with pytest.raises(ValueError, match="clip_offsets must be None"):
        ViT(84, 12, 1, 10, 4, 1, 1, 4, encoding="pairs", clip_offsets=4)
