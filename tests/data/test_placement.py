import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from translution_runs.data import corners, paste, place


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
rooms = st.tuples(st.integers(0, 7), st.integers(0, 7))
seeds = st.integers(0, 2**31)


@given(shapes, rooms, seeds, st.sampled_from(["static", "dynamic"]))
def test_the_image_is_on_the_canvas_whole_and_nothing_else_is(shape, room, seed, mode):
    images = torch.rand(shape, generator=seeded(seed)) + 0.1  # no zero inside: the support is visible
    canvas = (shape[2] + room[0], shape[3] + room[1])
    placed = place(images, canvas, mode, seeded(seed + 1))
    assert placed.shape == (*shape[:2], *canvas)
    for image, full in zip(images, placed, strict=True):
        inked = torch.nonzero(full[0])
        top, left = inked.min(0).values.tolist()
        torch.testing.assert_close(full[:, top:top + shape[2], left:left + shape[3]], image, rtol=0, atol=0)
        assert int((full != 0).sum()) == image.numel()  # mass: these pixels and no others


@given(shapes, rooms, seeds)
def test_static_is_the_centre_for_every_image(shape, room, seed):
    images = torch.rand(shape, generator=seeded(seed))
    height, width = shape[2] + room[0], shape[3] + room[1]
    top, left = (height - shape[2]) // 2, (width - shape[3]) // 2
    expected = torch.nn.functional.pad(images, (left, width - shape[3] - left, top, height - shape[2] - top))
    assert torch.equal(place(images, (height, width), "static"), expected)


def test_the_papers_canvas_has_the_digit_at_pixels_28_to_55():
    inked = torch.nonzero(place(torch.ones(1, 1, 28, 28), 84, "static")[0, 0])
    assert inked.min(0).values.tolist() == [28, 28] and inked.max(0).values.tolist() == [55, 55]


@given(st.integers(1, 50), rooms, seeds)
def test_dynamic_corners_keep_the_image_on_the_canvas(count, room, seed):
    found = corners(count, room, "dynamic", seeded(seed))
    assert found.shape == (count, 2)
    assert bool(((found >= 0) & (found <= torch.tensor(room))).all())


@pytest.mark.parametrize("room", [(0, 0), (3, 5), (16, 16)])
def test_dynamic_corners_are_uniform_over_all_positions(room):
    cells = (room[0] + 1) * (room[1] + 1)
    draws = 200 * cells
    found = corners(draws, room, "dynamic", seeded(7))
    counts = torch.bincount(found[:, 0] * (room[1] + 1) + found[:, 1], minlength=cells).double()
    statistic = float(((counts - draws / cells) ** 2 / (draws / cells)).sum())
    assert len(counts) == cells
    assert statistic <= chi2.isf(1e-6, max(cells - 1, 1))  # a right program fails once in a million seeds
    if cells > 1:  # a wrong one, that never draws the last row, is found
        counts[-1] = 0
        assert float(((counts - draws / cells) ** 2 / (draws / cells)).sum()) > statistic + 100


def test_each_image_has_its_own_position():
    assert len(torch.unique(corners(64, (56, 56), "dynamic", seeded(0)), dim=0)) > 60


@given(shapes, rooms, seeds)
def test_the_same_generator_gives_the_same_canvases(shape, room, seed):
    images, canvas = torch.rand(shape), (shape[2] + room[0], shape[3] + room[1])
    assert torch.equal(place(images, canvas, "dynamic", seeded(seed)), place(images, canvas, "dynamic", seeded(seed)))


def test_static_leaves_the_generator_alone():
    generator = seeded(3)
    place(torch.ones(4, 1, 2, 2), 5, "static", generator)
    assert torch.equal(generator.get_state(), seeded(3).get_state())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.bfloat16])
def test_the_dtype_stays(dtype):
    assert place(torch.ones(2, 1, 2, 2, dtype=dtype), 4, "dynamic").dtype is dtype


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_places_as_the_cpu_does():
    images = torch.rand(5, 1, 4, 4)
    here, there = (place(x, 9, "dynamic", seeded(1)) for x in (images, images.cuda()))
    assert there.device.type == "cuda" and torch.equal(here, there.cpu())


def test_paste_overlaps_no_images():
    out = paste(torch.tensor([[[[1.0]]], [[[2.0]]]]), (2, 2), torch.tensor([[0, 1], [1, 0]]))
    assert out[:, 0].tolist() == [[[0, 1], [0, 0]], [[0, 0], [2, 0]]]


@pytest.mark.parametrize(("canvas", "mode", "message"), [
    (27, "static", "canvas: got 27 by 27, expected at least 28 by 28"),
    ((28, 20), "dynamic", "canvas: got 28 by 20"),
    (84, "flying", "mode: got 'flying'"),
])
def test_wrong_arguments_are_named(canvas, mode, message):
    with pytest.raises(ValueError, match=message):
        place(torch.ones(1, 1, 28, 28), canvas, mode)
