import pytest
import torch
from sklearn.datasets import load_digits
from translution_runs.data import ImageSet, digits
from translution_runs.data import embedded as embedded_module


def test_digits_are_scikit_learns_split_without_overlap_or_loss():
    train, test = digits("train"), digits("test")
    stored = torch.from_numpy(load_digits().images)
    both = torch.cat([train.images, test.images])[:, 0].double() * 16 / 255
    assert len(train) + len(test) == len(stored) == 1797
    ours, theirs = (sorted(map(tuple, x.round().flatten(1).int().tolist())) for x in (both, stored))
    assert ours == theirs


def test_every_fifth_image_of_each_class_is_a_test_image():
    train, test = digits("train"), digits("test")
    for label in range(10):
        ours = int((test.labels == label).sum())
        assert ours == (ours + int((train.labels == label).sum())) // 5
    labels = torch.from_numpy(load_digits().target)
    images = torch.from_numpy(load_digits().images)
    fifth = [int(torch.nonzero(labels == c)[4]) for c in range(10)]
    expected = (images[fifth] * 255 / 16).round().to(torch.uint8)
    found = torch.stack([test.images[test.labels == c][0, 0] for c in range(10)])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("factor", [2, 3])
def test_nearest_scaling_repeats_pixels(factor):
    small, large = digits("test"), digits("test", size=8 * factor)
    repeated = small.images.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    assert torch.equal(large.images, repeated)


def test_bilinear_scaling_keeps_the_ink_of_an_image():
    small, large = digits("test"), digits("test", size=16, interpolation="bilinear")
    assert large.images.shape[-2:] == (16, 16)
    ink, expected = (x.images.float().mean((1, 2, 3)) for x in (large, small))
    torch.testing.assert_close(ink, expected, atol=2, rtol=0)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"split": "valid"}, "split: got 'valid', expected 'train' or 'test'"),
    ({"size": 7}, "size: got 7, expected at least 8"),
    ({"interpolation": "cubic"}, "interpolation: got 'cubic'"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        digits(**arguments)


def test_other_digits_are_refused(monkeypatch):
    images, labels = embedded_module.stored()
    changed = images.copy()
    changed[0, 0, 0] += 1
    monkeypatch.setattr(embedded_module, "stored", lambda: (changed, labels))
    with pytest.raises(ValueError, match="sha256"):
        digits()


def test_first_takes_the_first_images_and_zero_means_all():
    images = digits("test")
    assert len(images.first(0)) == len(images) == 355
    assert torch.equal(images.first(7).images, images.images[:7])
    assert torch.equal(images.first(7).labels, images.labels[:7])


@pytest.mark.parametrize("count", [-1, 356])
def test_first_refuses_impossible_counts(count):
    with pytest.raises(ValueError, match=f"count: got {count}, expected 0 .all. to 355"):
        digits("test").first(count)


def test_pixels_run_from_zero_to_one():
    images = ImageSet(torch.tensor([[[[0, 51], [102, 255]]]], dtype=torch.uint8), torch.tensor([3]), "x", "train", {})
    pixels = images.pixels(torch.tensor([0]))
    torch.testing.assert_close(pixels, torch.tensor([[[[0.0, 0.2], [0.4, 1.0]]]]))
    assert images.size == 2 and images.classes == 4


@pytest.mark.parametrize("size", [8, 11, 16])
def test_scaled_images_are_those_of_bilinear_interpolation(size):
    images = digits("test")
    found = images.scaled(size)
    expected = digits("test", size=size, interpolation="bilinear")
    assert found.images.shape == (355, 1, size, size) and found.images.dtype == torch.uint8
    assert int((found.images.int() - expected.images.int()).abs().max()) <= 1   # bytes are rounded before or after
    assert torch.equal(found.labels, images.labels) and found.sha256 == images.sha256


def test_scaling_down_is_refused():
    with pytest.raises(ValueError, match="size: got 7, expected at least 8"):
        digits("test").scaled(7)
