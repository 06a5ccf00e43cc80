"""Shifts: what moves, what takes part, and a whole run on the embedded digits whose record has the curve."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from translution_runs import ImageClassificationConfig, Run, read_record, shift_curve, wilson_interval
from translution_runs.data import ImageSet, digits, place
from translution_runs.shifts import evaluate_shifts, keeps_ink, shiftable, shifted

SMALL = {"canvas": 16, "patch_size": 4, "epochs": 1, "train_samples": 64, "test_samples": 0, "threads": 1, "dim": 8,
         "heads": 1, "depth": 1, "ff": 8, "mixer": "self-attention", "shift": 4, "shift_class": 1}


def config(**changes) -> ImageClassificationConfig:
    return ImageClassificationConfig.of({**SMALL, **changes})


@given(st.integers(1, 6), st.integers(1, 9), st.integers(-10, 10), st.integers(0, 2**31))
def test_a_shift_moves_every_pixel_and_fills_with_zeros(height, width, by, seed):
    images = torch.randint(1, 256, (2, 1, height, width), generator=torch.Generator().manual_seed(seed))
    moved = shifted(images, by)
    for column in range(width):
        source = column - by
        expected = images[..., source] if 0 <= source < width else torch.zeros_like(images[..., 0])
        assert torch.equal(moved[..., column], expected)


@given(st.integers(0, 6), st.integers(1, 12), st.integers(0, 2**31))
def test_an_image_keeps_its_ink_where_no_shift_loses_a_pixel(reach, width, seed):
    generator = torch.Generator().manual_seed(seed)
    images = (torch.rand(8, 1, 2, width, generator=generator) < 0.08).to(torch.uint8)
    reach = min(reach, width - 1)
    whole = torch.stack([shifted(images, by).flatten(1).sum(1) == images.flatten(1).sum(1)
                         for by in range(-reach, reach + 1)]).all(0)
    assert torch.equal(keeps_ink(images, reach), whole)


def test_only_images_of_the_class_that_keep_their_ink_take_part():
    images = digits("test")
    found, labels = shiftable(config(canvas=9, patch_size=3, shift=2, shift_class=1), images)
    ones = place(images.images[images.labels == 1], 9, "static")
    columns = (ones != 0).any(2)[:, 0]
    expected = [one for one, inked in zip(ones, columns, strict=True) if not (inked[:2].any() or inked[-2:].any())]
    assert 0 < len(found) < len(ones) and torch.equal(found, torch.stack(expected)) and (labels == 1).all()


def test_images_that_cannot_move_are_refused_before_training(tmp_path):
    run = Run(config(canvas=8, shift=7), tmp_path, None)
    with pytest.raises(ValueError, match="shift: got 7, but none of 36 images of class 1 can move so far on a canvas"):
        run.load()


class Leftmost(nn.Module):
    """Calls an image a one while its leftmost ink is within the first columns."""

    def forward(self, images):
        first = (images[:, 0] > 0).any(1).int().argmax(1)
        return nn.functional.one_hot(torch.where(first <= 5, 1, 7), 10).float()


def test_the_curve_counts_what_is_right_at_each_shift():
    dot = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    dot[:, :, 3, 3] = 200
    images = ImageSet(dot, torch.tensor([1, 1, 1, 1, 1, 2]), "dots", "test", {})
    found = evaluate_shifts(config(canvas=8, shift=3, batch_size=2), Leftmost(), images)
    assert [e.accuracy for e in found.values()] == [1, 1, 1, 1, 1, 1, 0]                    # columns 0 to 6
    assert all(e.n == 5 and e.interval == wilson_interval(e.correct, 5) for e in found.values())
    assert list(found) == ["shift -3", "shift -2", "shift -1", "shift +0", "shift +1", "shift +2", "shift +3"]


def test_the_curve_of_all_classes_counts_every_image_that_keeps_its_ink():
    dot = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    dot[:, :, 3, 3] = 200
    dot[5, :, 3, 7] = 9                                                  # this one cannot move to the right
    images = ImageSet(dot, torch.tensor([1, 7, 7, 1, 2, 2]), "dots", "test", {})
    found = evaluate_shifts(config(canvas=8, shift=3, batch_size=4, shift_all=True), Leftmost(), images)
    assert len(found) == 14 and {e.n for e in found.values()} == {2, 5}
    assert [found[f"shift {by:+d}, all classes"].correct for by in (-3, 2, 3)] == [2, 2, 2]
    assert [found[f"shift {by:+d}"].correct for by in (-3, 2, 3)] == [2, 2, 0]
    assert found["shift +3, all classes"].loss == pytest.approx((2 * LOST + 2 * WON + LOST) / 5)


E1 = 2.718281828459045
WON, LOST = math.log(E1 + 9) - 1, math.log(E1 + 9)                        # logits of 1 and nine of 0


def test_shifts_of_all_classes_need_a_shift():
    with pytest.raises(ValueError, match="shift_all: got True with shift 0, expected a shift of at least 1"):
        config(shift=0, shift_all=True)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_run_records_its_curve_and_a_model_without_positions_is_flat(tmp_path, pool):
    run = config(results_dir=str(tmp_path), pool=pool)
    Run.begin(run).complete()
    record = read_record(tmp_path / f"{run.name}.json")
    curve = shift_curve(record)
    assert list(curve) == list(range(-4, 5)) and {e.n for e in curve.values()} == {36}
    # shifts by a patch permute the tokens
    assert curve[-4].correct == curve[0].correct == curve[4].correct
    assert curve[-4].loss == pytest.approx(curve[4].loss, rel=1e-4)
    assert list(record.evaluations) == run.evaluations and {"static", "dynamic"} <= set(run.evaluations)


FLAT = {"performer", "performer-s2"}
"""No position, and distances in one layer, whose CLS token reads all pixels alike."""


@pytest.mark.parametrize("mixer", ["performer", "performer-absolute", "performer-s1", "performer-s2"])
def test_performers_with_one_token_a_pixel_have_a_curve(tmp_path, mixer):
    run = config(results_dir=str(tmp_path), mixer=mixer, canvas=10, patch_size=1, shift=1, heads=2)
    curve = shift_curve(Run.begin(run).complete())
    assert [(by, e.n) for by, e in curve.items()] == [(-1, 36), (0, 36), (1, 36)]
    losses = [e.loss for e in curve.values()]
    assert (max(losses) - min(losses) < 1e-4) == (mixer in FLAT)


def test_a_run_without_shifts_has_no_curve(tmp_path):
    record = Run.begin(config(results_dir=str(tmp_path), shift=0)).complete()
    assert shift_curve(record) == {} and set(record.evaluations) == {"static", "dynamic"}


def test_the_evaluations_of_a_run_are_known_before_it(tmp_path):
    run = config(results_dir=str(tmp_path), shift_all=True)
    assert sorted(Run.begin(run).complete().evaluations) == sorted(run.evaluations)
    assert "shift -4, all classes" in run.evaluations and "shift +5" not in run.evaluations
