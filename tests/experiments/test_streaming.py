"""Streamed pictures: which ones a step has, what is cut out of them, and that nothing else decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler
from translution_runs import ImageClassificationConfig
from translution_runs.data.generated import generated
from translution_runs.streaming import StreamedBatches, centred

SMALL = dict(data="imagenet", data_source="generated", data_classes=3, digit_size=8, canvas=8, patch_size=4,
             test_placements="static", augment="resized-crop", batch_size=4, dim=8, depth=1, heads=1, ff=8, threads=1)


def configuration(**changes):
    return ImageClassificationConfig.of({**SMALL, **changes})


def images(count=10, size=8):
    return generated("train", count, 3).scaled(size)


def batches(epoch=0, count=10, **changes):
    return StreamedBatches(configuration(**changes), images(count), epoch)


def epoch_of(one, rank=0, world=1, first=0):
    return [part for step in range(first, len(one)) for part in one.parts(step, rank, world)]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))


def test_an_epoch_has_every_picture_once_in_an_order_of_its_own():
    orders = [torch.cat(batches(epoch, seed=seed).steps) for epoch in (0, 1) for seed in (0, 1)]
    assert all(sorted(order.tolist()) == list(range(10)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert [len(step) for step in batches().steps] == [4, 4, 2]


def test_a_part_holds_the_views_of_its_pictures_between_0_and_1():
    one = batches(epoch=3)
    (pixels, labels), = one.parts(1)
    index = one.steps[1]
    expected = images().bytes(index, one.seeds(index))
    assert pixels.dtype == torch.float32 and torch.equal((pixels * 255).round().byte(), expected)
    assert torch.equal(labels, images().labels[index]) and 0 <= pixels.min() < pixels.max() <= 1


def test_a_view_depends_on_seed_epoch_and_picture_alone():
    index = torch.tensor([3, 7])
    seeds = {(seed, epoch, n): s for seed in (0, 1) for epoch in (0, 1)
             for n, s in zip(index.tolist(), batches(epoch, seed=seed).seeds(index), strict=True)}
    assert len(set(seeds.values())) == 8
    assert batches(seed=1, batch_size=2, accumulate=2, count=8).seeds(index.flip(0)) == [seeds[1, 0, 7], seeds[1, 0, 3]]
    assert batches(augment="none").seeds(index) is None


@settings(max_examples=25)
@given(st.integers(1, 23), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_the_shares_of_all_processes_are_the_step(count, batch, world, accumulate):
    batch = max(batch, world * accumulate)
    one = batches(count=max(3, count), batch_size=batch, processes=world, accumulate=accumulate)
    for step, whole in enumerate(one.steps):
        shares = [one.shares(step, rank, world) for rank in range(world)]
        assert torch.equal(torch.cat([part for share in shares for part in share]), whole)
        sizes = [len(part) for share in shares for part in share]
        assert len(sizes) == world * accumulate and max(sizes) - min(sizes) <= 1


def test_shares_are_as_large_as_torchs_distributed_sampler_gives_but_repeat_no_picture():
    one = batches(count=10, batch_size=10, processes=3)
    theirs = [list(DistributedSampler(range(10), 3, rank, shuffle=False)) for rank in range(3)]
    ours = [torch.cat(one.shares(0, rank, 3)).tolist() for rank in range(3)]
    assert [len(share) for share in theirs] == [4, 4, 4] and [len(share) for share in ours] == [4, 3, 3]
    assert sorted(sum(theirs, [])) == [0, 0, 1, 1, *range(2, 10)] and sorted(sum(ours, [])) == list(range(10))


def test_neither_workers_nor_processes_change_a_picture():
    whole = epoch_of(batches())
    assert same(whole, epoch_of(batches(workers=2)))
    shares = [epoch_of(batches(processes=2), rank, 2) for rank in (0, 1)]
    for step, (pixels, labels) in enumerate(whole):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), pixels)
        assert torch.equal(torch.cat([share[step][1] for share in shares]), labels)


def test_an_epoch_goes_on_where_it_was_left():
    whole = epoch_of(batches(1, accumulate=2))
    assert same(whole[2:], epoch_of(batches(1, accumulate=2), first=1))
    one = batches(1, accumulate=2)
    assert same(whole[4:], list(one.parts(2))) and same(whole[:2], list(one.parts(0))) and same(
        whole[2:4], list(one.parts(1)))


def test_torchs_own_stream_stays_where_it_was():
    before = torch.random.get_rng_state()
    epoch_of(batches(workers=1))
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_picture_is_read_before_its_turn():
    read = []

    def watched(number):
        read.append(number)
        return generated("train", 10, 3).read(number)

    one = batches()
    one.images = type(one.images)(watched, one.images.labels, 3, "watched", "train", {}, 8)
    list(one.parts(0))
    assert read == one.steps[0].tolist()
    list(one.parts(1))
    assert read == torch.cat(one.steps[:2]).tolist()


def test_pictures_are_judged_by_their_central_squares_in_their_order():
    found = list(centred(configuration(), images()))
    assert [len(labels) for _, labels in found] == [4, 4, 2]
    assert torch.equal(torch.cat([pixels for pixels, _ in found]), images().pixels(torch.arange(10)))
    assert torch.equal(torch.cat([labels for _, labels in found]), images().labels)


def test_a_damaged_picture_is_named_through_a_worker(tmp_path):
    path = tmp_path / "broken.JPEG"
    path.write_bytes(generated("train", 10, 3).read(0)[0][:200])
    one = batches(workers=1)
    one.images = type(one.images)(Broken(path), one.images.labels, 3, "broken", "train", {}, 8)
    with pytest.raises(ValueError, match="broken.JPEG: the picture is truncated or corrupted"):
        list(one.parts(0))


class Broken:
    def __init__(self, path):
        self.path = path

    def __call__(self, number):
        return self.path.read_bytes(), str(self.path)


@pytest.mark.parametrize(("changes", "message"), [
    (dict(canvas=12), "canvas: got 12, expected 8, to which imagenet's pictures are cut"),
    (dict(train_placement="dynamic"), "train_placement, test_placements, shift: got 'dynamic'"),
    (dict(test_placements="static,dynamic"), "expected 'static', 'static' or"),
    (dict(augment="crop-flip"), "augment, data_source: got 'crop-flip'"),
    (dict(data_source="huggingface"), "and 'huggingface' for imagenet"),
    (dict(data="digits", canvas=8, digit_size=0), "augment: got 'resized-crop' for digits"),
    (dict(data="digits", canvas=8, digit_size=0, augment="none"), "data_source: got 'generated' for digits"),
    (dict(data="digits", canvas=8, digit_size=0, augment="none", data_source="folder"), "data_classes: got 3"),
])
def test_what_does_not_go_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        configuration(**changes)


def test_workers_leave_the_fingerprint_of_a_run_alone():
    assert configuration().fingerprint() == configuration(workers=8).fingerprint()
    assert configuration().classes == 3 and configuration(data_classes=0).classes == 1000
    assert configuration(test_placements="static,static top-5").placements == ["static"]
    assert np.isclose(configuration(digit_size=0, canvas=224, patch_size=56).image_size, 224)
