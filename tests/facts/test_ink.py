"""Boxes of ink: against a loop over pixels; stored boxes and digits against MNIST where it is at hand."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_book.facts import ink
from translution_runs.data import mnist

REAL = os.environ.get("TRANSLUTION_MNIST", "")


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31))
def test_a_box_holds_all_ink_and_no_smaller_one_does(height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    images = (torch.rand(5, 1, height, width, generator=generator) < 0.2).to(torch.uint8) * 9
    images[:, 0, height // 2, width // 2] = 1
    for image, box in zip(images[:, 0], ink.ink_boxes(images).tolist(), strict=True):
        rows, columns = zip(*[(y, x) for y in range(height) for x in range(width) if image[y, x]], strict=True)
        assert box == [min(rows), max(rows), min(columns), max(columns)]


def test_an_image_without_ink_has_no_box():
    with pytest.raises(ValueError, match="no ink"):
        ink.ink_boxes(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))


def test_stored_boxes_lie_in_the_frame_and_agree_with_the_sides():
    boxes = ink.mnist_boxes()
    assert boxes.shape == (10_000, 4) and int(boxes.min()) >= 0 and int(boxes.max()) < ink.FRAME
    sides = (boxes[:, 1::2] - boxes[:, ::2]).amax(1) + 1
    assert {int(s): int((sides == s).sum()) for s in sides.unique()} == ink.longest_sides("test")
    assert sum(ink.longest_sides("train").values()) == 60_000
    with pytest.raises(ValueError, match="split: got 'valid'"):
        ink.longest_sides("valid")


def test_stored_digits_are_as_many_of_each_as_the_test_set_has():
    labels = ink.mnist_labels()
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]   # the ten that every tutorial shows


@pytest.mark.skipif(not REAL, reason="TRANSLUTION_MNIST does not name a folder with MNIST's four files")
def test_stored_boxes_are_those_of_mnist():
    test = mnist(REAL, "test")
    assert torch.equal(ink.ink_boxes(test.images), ink.mnist_boxes()) and torch.equal(test.labels, ink.mnist_labels())
    boxes = ink.ink_boxes(mnist(REAL, "train").images)
    sides = (boxes[:, 1::2] - boxes[:, ::2]).amax(1) + 1
    assert {int(s): int((sides == s).sum()) for s in sides.unique()} == ink.longest_sides("train")
