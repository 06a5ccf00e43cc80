"""Clouds of points: they lie on their outlines, repeat with the seed, and move as a whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from translution_runs.data.shapes import SHAPES, sample_shapes

NAMES = tuple(SHAPES)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def on_outline(name, p):
    """Return how far each point is from its outline, by the outline's own equation."""
    x, y = p.unbind(-1)
    r = p.norm(dim=-1)
    triangle = torch.maximum(-0.6 - y, (1 / 0.9) * (1.6 * x.abs() + 0.9 * y - 0.9) / (1.6**2 / 0.81 + 1) ** 0.5)
    return {
        "circle": (r - 1).abs(), "square": (p.abs().amax(-1) - 0.85).abs(), "cross": p.abs().amin(-1),
        "spiral": (x * torch.sin(3 * torch.pi * r) - y * torch.cos(3 * torch.pi * r)).abs(),
        "triangle": triangle.abs(),
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_points_lie_on_the_outline(name):
    p = SHAPES[name](torch.linspace(0, 0.999, 401, dtype=torch.float64))
    assert on_outline(name, p).max() < 1e-6 and p.norm(dim=-1).max() < 1.21
    assert p.norm(dim=-1).max() > 0.99 and p.std(dim=0).min() > 0.3


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 2**16))
def test_clouds_repeat_with_the_seed(count, points, seed):
    a, b = (sample_shapes(count, points, shift=2.0, generator=seeded(seed)) for _ in range(2))
    assert torch.equal(a.positions, b.positions) and torch.equal(a.labels, b.labels)
    assert a.positions.shape == (count, points, 2) and len(a) == count and a.labels.max() < 4


def test_size_place_and_classes():
    clouds = sample_shapes(400, 8, names=("circle",), shift=3.0, noise=0.0, generator=seeded())
    middle = torch.linalg.lstsq(torch.cat([2 * clouds.positions, torch.ones(400, 8, 1)], -1),
                                clouds.positions.square().sum(-1, keepdim=True)).solution[:, :2, 0]
    radius = (clouds.positions - middle[:, None]).norm(dim=-1)
    assert radius.min() > 0.79 and radius.max() < 1.21                              # sizes from 0.8 to 1.2
    assert middle.abs().max() < 3.01 and middle.abs().max() > 2.8 and middle.mean(0).abs().max() < 0.3
    assert sample_shapes(400, 2, names=NAMES, generator=seeded()).labels.bincount().min() > 50


def test_shifted():
    clouds = sample_shapes(5, 4, generator=seeded())
    moved = clouds.shifted((2, -1))
    assert_close(moved.positions - clouds.positions, torch.tensor([2.0, -1.0]).expand(5, 4, 2))
    assert moved.labels is clouds.labels


@pytest.mark.parametrize(("arguments", "message"), [
    ({"count": 0}, "count"), ({"count": 2, "points": True}, "points"), ({"count": 2, "names": ("blob",)}, "names"),
    ({"count": 2, "names": ()}, "names"), ({"count": 2, "shift": -1.0}, "shift"),
    ({"count": 2, "noise": -0.1}, "noise"),
])
def test_bad_input(plain_types, arguments, message):
    with pytest.raises(ValueError, match=message):
        sample_shapes(**arguments)


def test_a_shift_has_two_numbers(plain_types):
    with pytest.raises(ValueError, match="by must hold"):
        sample_shapes(1).shifted((1,))
