"""Augmentation: shifts and mirrorings of the right size, decided image by image."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs.data.augment import augment


def candidates(image, margin=4):
    """Every window of the padded image, as it is and mirrored: 2 * 9 * 9 possible outcomes."""
    height, width = image.shape[-2:]
    padded = torch.nn.functional.pad(image, (margin,) * 4)
    windows = [padded[:, r:r + height, c:c + width] for r in range(2 * margin + 1) for c in range(2 * margin + 1)]
    return windows + [window.flip(-1) for window in windows]


def which(result, image):
    return [k for k, candidate in enumerate(candidates(image)) if torch.equal(candidate, result)]


def test_each_image_becomes_one_window_of_its_padded_self():
    images = torch.rand(6, 3, 32, 32)
    outcomes = [which(result, image) for result, image in zip(augment(images, "crop-flip", 1), images, strict=True)]
    assert all(len(outcome) == 1 for outcome in outcomes) and len({outcome[0] for outcome in outcomes}) > 3


def test_windows_and_mirrorings_are_uniform():
    ramp = torch.arange(1.0, 65.0).view(1, 1, 8, 8).expand(4000, -1, -1, -1)  # 8 by 8: a margin of one pixel
    found = augment(ramp, "crop-flip", 0)
    centre = found[:, 0, 3:5, 3:5].flatten(1)
    mirrored = centre[:, 1] < centre[:, 0]
    assert 0.46 < mirrored.double().mean() < 0.54
    rows, columns = ((torch.where(mirrored, centre[:, 1], centre[:, 0]) - 1) // 8,
                     (torch.where(mirrored, centre[:, 1], centre[:, 0]) - 1) % 8)
    for moved in (rows - rows.min(), columns - columns.min()):
        assert torch.bincount(moved.long()).tolist() == pytest.approx([4000 / 3] * 3, abs=130)  # 4 standard deviations


@given(st.integers(0, 2**62), st.integers(1, 9), st.data())
def test_a_part_of_a_batch_is_changed_as_in_the_whole(seed, count, data):
    cut = data.draw(st.integers(0, count))
    images = torch.rand(count, 1, 16, 24)
    whole = augment(images, "crop-flip", seed)
    parts = [augment(images[:cut], "crop-flip", seed, 0, count), augment(images[cut:], "crop-flip", seed, cut, count)]
    assert torch.equal(torch.cat(parts), whole) and whole.shape == images.shape


def test_the_seed_decides_and_nothing_else():
    images, state = torch.rand(8, 3, 32, 32), torch.get_rng_state()
    first = augment(images, "crop-flip", 5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(augment(images, "crop-flip", 5), first)
    assert not torch.equal(augment(images, "crop-flip", 6), first)


def test_none_leaves_the_images():
    images = torch.rand(2, 1, 4, 4)
    assert augment(images, "none", 0) is images


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_changes_as_the_cpu_does():
    images = torch.rand(8, 3, 32, 32)
    there = augment(images.cuda(), "crop-flip", 3)
    assert there.device.type == "cuda" and torch.equal(there.cpu(), augment(images, "crop-flip", 3))


@pytest.mark.parametrize(("arguments", "message"), [
    (("mixup", 0), "name: got 'mixup', expected one of"),
    (("crop-flip", 0, 3, 4), "first: got 3, expected 0 to 2 for 2 of 4 images"),
    (("crop-flip", 0, -1), "first: got -1"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        augment(torch.rand(2, 1, 8, 8), *arguments)


@given(st.integers(0, 2**62), st.integers(1, 40), st.sampled_from([(32, 32), (16, 24), (8, 8), (7, 9)]))
def test_the_numbers_and_the_windows_are_those_of_kornia(seed, count, sides):
    """The committed records were made with kornia's crops and mirrorings."""
    kornia = pytest.importorskip("kornia.augmentation")
    height, width = sides
    changes = kornia.AugmentationSequential(
        kornia.RandomCrop(sides, padding=(width // 8, height // 8)), kornia.RandomHorizontalFlip(p=0.5),
        data_keys=["input"])
    images = torch.rand(count, 3, *sides)
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        theirs = changes(images, params=changes.forward_parameters(images.shape))
    assert torch.equal(augment(images, "crop-flip", seed), theirs)
