"""The statements of the chapter "Performers under shifts", on random pictures, sizes and weights."""

import os
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch.testing import assert_close
from translution_runs import wilson_interval
from translution_runs.data import mnist
from translution_runs.shifts import keeps_ink, shifted

from translution_lib import ViT
from translution_lib.functional.window_sum import corner_columns, corner_sum, kernel_per_pair

pytestmark = pytest.mark.usefixtures("double")
seeds = st.integers(0, 999)
REAL = os.environ.get("TRANSLUTION_MNIST", "")


def network(mixer: str, patch: int = 1, side: int = 6, pool: str = "cls", **options) -> ViT:
    return ViT(side, patch, 1, 4, 8, 2, 2, 8, mixer, pool=pool, **options).eval()


def drawn(n: int, side: int, margin: int) -> torch.Tensor:
    """Pictures with empty columns on both sides."""
    pictures = torch.zeros(n, 1, side, side)
    pictures[..., margin:side - margin] = torch.rand(n, 1, side, side - 2 * margin)
    return pictures


@pytest.mark.identity("thm-performers-bag")
@settings(max_examples=8)
@given(st.sampled_from(["performer", "self-attention"]), st.sampled_from(["cls", "mean"]), st.integers(1, 2), seeds)
@torch.no_grad()
def test_a_bag_of_patches_has_no_order_and_moves_by_whole_patches(mixer, pool, patch, seed):
    torch.manual_seed(seed)
    model, pictures = network(mixer, patch, pool=pool), drawn(3, 6, 2)
    logits = model(pictures)
    for by in (-2, 2):
        assert_close(model(shifted(pictures, by)), logits)
    tiles = pictures.unfold(2, patch, patch).unfold(3, patch, patch).flatten(2, 3)
    order = torch.randperm(tiles.shape[2])
    side = 6 // patch
    scrambled = tiles[:, :, order].unflatten(2, (side, side)).transpose(3, 4).reshape_as(pictures)
    assert_close(model(scrambled), logits)
    assert patch == 1 or not torch.allclose(model(shifted(pictures, 1)), logits)


@pytest.mark.identity("thm-performers-best")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_no_function_of_the_bag_beats_the_most_frequent_class(pictures):
    bags, counts = sorted({bag for bag, _ in pictures}), Counter(pictures)
    best = sum(max(counts[bag, c] for c in range(4)) for bag in bags)
    functions = torch.cartesian_prod(*[torch.arange(4)] * len(bags)).view(-1, len(bags)).tolist()
    right = [sum(answer[bags.index(bag)] == c for bag, c in pictures) for answer in functions]
    assert max(right) == best


@pytest.mark.identity("eq-performers-wilson")
@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_is_scipys(counts):
    found = binomtest(*counts).proportion_ci(0.95, method="wilson")
    assert wilson_interval(*counts) == pytest.approx((found.low, found.high), abs=1e-12)


@pytest.mark.identity("thm-performers-mirror", "eq-performers-mirror")
@settings(max_examples=8)
@given(st.integers(1, 7), st.sampled_from([-2, -1, 0, 2]), st.sampled_from(["cls", "mean"]), seeds)
@torch.no_grad()
def test_strategy_2_answers_a_shift_as_it_does_the_mirror_image(clip, by, pool, seed):
    torch.manual_seed(seed)
    pictures = drawn(4, 6, 2)
    model = network("performer-s2", clip=clip, pool=pool)
    assert_close(model(shifted(pictures, by)), model(shifted(pictures.flip(-1), -by)), atol=1e-9, rtol=1e-6)


@torch.no_grad()
def test_a_reader_below_a_corner_is_no_longer_symmetric_but_the_mirror_image_of_the_other():
    torch.manual_seed(0)
    pictures, left, right = drawn(4, 6, 0), *(network("performer-s2", clip=4, corner=c) for c in ("left", "right"))
    right.load_state_dict(left.state_dict())
    assert_close(left(pictures), right(pictures.flip(-1)))
    assert not torch.allclose(left(pictures), left(pictures.flip(-1)))


@pytest.mark.identity("eq-performers-corner")
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.sampled_from(["left", "right"]), seeds)
def test_the_reader_below_a_corner_reads_by_distance_and_is_far_for_all(height, width, k, corner, seed):
    torch.manual_seed(seed)
    columns = corner_columns((height, width), k, corner)
    for y in range(height):
        for x in range(width):
            steps = x if corner == "left" else width - 1 - x
            assert columns[0, 1 + y * width + x] == min(height - y + steps, k)
    assert (columns[:, 0] == k).all()
    assert k > min(height, width) or (columns[0] < k).sum() == k * (k - 1) // 2
    n = 1 + height * width
    rho, v = torch.rand(2, 3, n, k + 1), torch.randn(2, 3, n, 2)
    per_pair = kernel_per_pair(rho, columns)
    assert_close(corner_sum(rho, v, (height, width), corner), (per_pair @ v, per_pair.sum(-1)))


@pytest.mark.parametrize(("options", "expected"), [
    ({"corner": "top"}, "corner must be one of"),
    ({"corner": "left", "pool": "mean"}, "corner needs a CLS token and a grid of two axes"),
])
def test_a_wrong_corner_is_refused(options, expected):
    with pytest.raises(ValueError, match=expected):
        network("performer-s2", **options)


@pytest.mark.skipif(not REAL, reason="TRANSLUTION_MNIST does not name a folder with MNIST's four files")
def test_on_the_papers_canvas_most_digits_that_can_move_are_ones():
    digits = mnist(REAL, "test").scaled(32)
    kept, ones = keeps_ink(digits.images, 8), digits.labels == 1
    assert [int(n) for n in (ones.sum(), (kept & ones).sum(), (kept & ~ones).sum())] == [1135, 855, 709]
