"""Flights of Moving MNIST: straight between walls, of constant speed, and over the whole canvas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs.data import corners, place
from translution_runs.data.flights import FRAMES, STEP, flights, fly


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 2 * math.pi))
def test_a_flight_is_the_one_of_a_loop_over_single_numbers(y, x, angle):
    step = [STEP * math.sin(angle), STEP * math.cos(angle)]
    path = fly(torch.tensor([[y, x]], dtype=torch.float64), torch.tensor([step], dtype=torch.float64), FRAMES)
    place = [y, x]
    for frame in range(FRAMES + 1):
        assert path[frame, 0].tolist() == pytest.approx(place, abs=1e-9)
        for axis in (0, 1):
            place[axis] = path[frame, 0, axis].item() + step[axis]  # from the exact place: a wall is met or not
            if place[axis] <= 0 or place[axis] >= 1:
                place[axis], step[axis] = (0.0 if place[axis] <= 0 else 1.0), -step[axis]


def test_free_steps_have_one_length_and_direction():
    start = torch.full((1, 2), 0.5, dtype=torch.float64)
    path = fly(start, torch.tensor([[0.03, 0.04]], dtype=torch.float64), 10)[:, 0]
    torch.testing.assert_close(path[1:] - path[:-1], torch.tensor([[0.03, 0.04]], dtype=torch.float64).expand(10, 2))


def test_it_turns_back_at_the_wall():
    path = fly(torch.tensor([[0.85, 0.5]], dtype=torch.float64), torch.tensor([[0.1, 0.0]], dtype=torch.float64), 3)
    torch.testing.assert_close(path[:, 0, 0], torch.tensor([0.85, 0.95, 1.0, 0.9], dtype=torch.float64))


@given(st.integers(1, 50), st.tuples(st.integers(0, 40), st.integers(0, 40)), st.integers(0, 2**31))
def test_corners_keep_the_image_on_the_canvas_and_repeat_with_the_seed(count, room, seed):
    found = corners(count, room, "moving", seeded(seed))
    assert found.shape == (count, 2) and found.dtype == torch.int64
    assert bool(((found >= 0) & (found <= torch.tensor(room))).all())
    assert torch.equal(found, flights(count, room, seeded(seed)))


def test_the_walls_are_met_as_often_as_the_speed_says():
    """A wall is reached in one frame by the digits nearer than their step: mean speed 0.1 * 2 / pi, half of them."""
    found = flights(100_000, (36, 36), seeded())
    assert len(torch.unique(found, dim=0)) == 37 * 37
    wall, first = STEP / math.pi, 1 / 36
    assert (found == 36).double().mean(0).tolist() == pytest.approx([wall] * 2, abs=2e-3)
    near = (found == 0).double().mean(0)  # the wall and the pixel beside it, where half are missing: those it stopped
    assert bool(((near > wall + first / 2) & (near < wall + first * 0.75)).all())
    assert ((found >= 9) & (found < 27)).all(1).double().mean().item() == pytest.approx(0.25 * (1 - 2 * wall), abs=6e-3)


def test_place_takes_it():
    canvas = place(torch.ones(8, 1, 28, 28), 64, "moving", seeded(3))
    assert canvas.shape == (8, 1, 64, 64) and canvas.sum((1, 2, 3)).tolist() == [784.0] * 8
