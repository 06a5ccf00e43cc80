"""ImageNet: which pictures a step has, what is cut out of them, where a run goes on, and what accuracies can tell."""

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch.nn.functional import interpolate
from torch.utils.data import BatchSampler
from translution_book import facts
from translution_runs import ImageClassificationConfig
from translution_runs.budget import PASSES, pictures_per_second
from translution_runs.data.generated import generated
from translution_runs.data.lazy_images import central_box, random_box
from translution_runs.grids import read_grid
from translution_runs.intervals import wilson_interval
from translution_runs.paired import deviations, disagreement
from translution_runs.seeds import derive, generator
from translution_runs.streaming import StreamedBatches

from translution_lib import cost

SMALL = dict(data="imagenet", data_source="generated", data_classes=2, digit_size=8, canvas=8, patch_size=4,
             test_placements="static", augment="resized-crop", dim=8, depth=1, heads=1, ff=8)


def batches(count, batch, seed=0, epoch=0, **changes):
    config = ImageClassificationConfig.of({**SMALL, "batch_size": batch, "seed": seed, **changes})
    return StreamedBatches(config, generated("train", count, 2).scaled(8), epoch)


@pytest.mark.identity("eq-imagenet-order")
@settings(max_examples=10)
@given(st.integers(2, 40), st.integers(4, 9), st.integers(1, 4), st.integers(0, 99), st.integers(0, 5))
def test_the_steps_are_torchs_batches_of_a_permutation_and_the_pieces_numpys(count, batch, world, seed, epoch):
    one = batches(count, batch, seed, epoch)
    order = torch.randperm(count, generator=generator(seed, "order", epoch)).tolist()
    expected = list(BatchSampler(order, batch, drop_last=False))
    assert [step.tolist() for step in one.steps] == expected
    for step, numbers in enumerate(expected):
        pieces = [piece.tolist() for piece in np.array_split(numbers, world)]
        assert [one.shares(step, rank, world)[0].tolist() for rank in range(world)] == pieces


@pytest.mark.identity("eq-imagenet-crop")
@given(st.integers(8, 600), st.integers(8, 600), st.integers(0, 2**40))
def test_a_part_has_the_area_and_the_shape_that_were_drawn(height, width, seed):
    left, top, right, bottom = random_box(height, width, torch.Generator().manual_seed(seed))
    assume((left, top, right, bottom) != central_box(height, width))
    u, drawn = torch.Generator().manual_seed(seed), None
    while drawn is None:
        a, r, y, x = torch.rand(4, generator=u, dtype=torch.float64).tolist()
        area, shape = height * width * (0.08 + 0.92 * a), exp(log(3 / 4) + r * log(16 / 9))
        if area / shape <= height**2 and area * shape <= width**2:
            drawn = area, shape, y, x
    area, shape, y, x = drawn
    assert (right - left) * (bottom - top) == pytest.approx(area)
    assert (right - left) / (bottom - top) == pytest.approx(shape)
    assert top == pytest.approx(y * (height - (bottom - top)), abs=1e-9)
    assert left == pytest.approx(x * (width - (right - left)), abs=1e-9)


def test_the_seed_of_a_view_is_made_of_run_epoch_and_picture():
    one = batches(9, 4, seed=3, epoch=2)
    assert one.seeds(torch.tensor([5, 1])) == [derive(3, "view", 2, 5), derive(3, "view", 2, 1)]


@pytest.mark.identity("thm-imagenet-resume")
@settings(max_examples=6)
@given(st.integers(4, 14), st.integers(2, 5), st.integers(0, 2), st.integers(1, 2), st.data())
def test_from_any_step_on_the_pictures_are_those_of_the_whole_epoch(count, batch, epoch, accumulate, data):
    first = data.draw(st.integers(0, -(-count // batch) - 1))
    whole, again = (batches(count, batch, epoch=epoch, accumulate=accumulate) for _ in range(2))
    unbroken = [part for step in range(len(whole)) for part in whole.parts(step)][first * accumulate:]
    resumed = [part for step in range(first, len(again)) for part in again.parts(step)]
    assert len(unbroken) == len(resumed) > 0
    assert all(torch.equal(a, b) for one, other in zip(unbroken, resumed, strict=True)
               for a, b in zip(one, other, strict=True))


@pytest.mark.identity("eq-imagenet-centre")
@pytest.mark.parametrize("sides", [(256, 256), (512, 512), (512, 768), (1024, 512)])
def test_the_central_square_is_torchs_resizing_and_cropping(sides):
    """A ramp, which every linear interpolation keeps: the places of the pixels are compared, not the filters."""
    height, width = sides
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    h, w = 256 * height // min(sides), 256 * width // min(sides)
    places = interpolate(torch.stack([x, y])[None], (h, w), mode="bilinear", align_corners=False)[0]
    places = places[:, (h - 224) // 2:(h + 224) // 2, (w - 224) // 2:(w + 224) // 2]
    left, top, right, bottom = central_box(height, width)
    step = (torch.arange(224) + 0.5) / 224
    torch.testing.assert_close(places[0], (left + step * (right - left)).expand(224, 224), atol=1e-3, rtol=0)
    torch.testing.assert_close(places[1, :, 0], top + step * (bottom - top), atol=1e-3, rtol=0)


@pytest.mark.identity("thm-imagenet-paired")
@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=80))
def test_answers_lie_within_the_bounds_and_some_attain_them(pairs):
    first, second = np.array(pairs, dtype=int).T
    n, p, q = len(pairs), first.mean(), second.mean()
    low, high = disagreement(p, q)
    assert low - 1e-12 <= np.abs(first - second).mean() <= high + 1e-12
    least, most = deviations(p, q, n)
    assert least - 1e-9 <= np.std(first - second) / np.sqrt(n) <= most + 1e-9
    nested = np.std(np.sort(first) - np.sort(second)) / np.sqrt(n)
    apart = np.std(np.sort(first) - np.sort(second)[::-1]) / np.sqrt(n)
    assert nested == pytest.approx(least, abs=1e-9) and apart == pytest.approx(most, abs=1e-9)


@pytest.mark.parametrize(("arguments", "message"), [
    ((1.2, 0.5, 10), "one, other: got 1.2 and 0.5"), ((0.2, 0.5, 0), "images: got 0")])
def test_wrong_accuracies_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        deviations(*arguments)


def test_wilsons_interval_for_fifty_thousand_is_scipys():
    for correct in (23_140, 39_455, 47_260):
        theirs = binomtest(correct, 50_000).proportion_ci(0.95, "wilson")
        assert wilson_interval(correct, 50_000) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.identity("eq-imagenet-pipeline")
@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_a_queue_settles_at_the_slower_side(a, b, workers):
    model = facts.config_of(facts.cells("translution", 3, "parameters")[0])
    ready, done = [], []
    for s in range(400):
        idle, room = ((times[s - k] if s >= k else 0) for times, k in ((ready, workers), (done, 2 * workers)))
        ready.append(max(idle, room) + a)
        done.append(max(ready[s], done[-1] if done else 0) + b)
    rate = 2.0 * PASSES * cost.macs_products(model) / b  # operations a second of a device that needs b for a picture
    found = pictures_per_second(rate, workers / a, model)
    assert 200 / (done[-1] - done[199]) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("wrong", [dict(rate=0.0, reading=1.0), dict(rate=1.0, reading=-1.0)])
def test_a_rate_that_is_not_positive_is_refused(wrong):
    with pytest.raises(ValueError, match="expected a finite number above 0"):
        pictures_per_second(**wrong, model=facts.config_of(facts.cells("translution", 3, "parameters")[0]))


def test_the_grid_has_every_line_of_table_3_and_its_models():
    grid = read_grid("table-3", "paper")
    cells = {(c.subject, c.method): c for c in facts.cells("translution", 3) if c.metric in ("parameters", "status")}
    assert len(cells) == len(grid.rows) == 27
    found = {}
    for row in grid.rows.values():
        config = row.cells["top-1"][0]
        found[f"ViT-{config.architecture}/{config.patch_size}", row.method] = config
        assert config.batch_size == 256 and config.canvas == 224 and len(row.cells["top-5"]) == 3
    assert found.keys() == cells.keys()
    for key, config in found.items():
        assert cost.parameters(skeleton(config)) == cost.parameters(facts.config_of(cells[key]))


def skeleton(config):
    from translution_runs.image_classification import model_without_numbers

    return model_without_numbers(config)
