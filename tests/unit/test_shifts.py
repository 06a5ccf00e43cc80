"""Tests of moving the content of a grid: against torch.roll and against loops over positions."""

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import functional
from translution_lib.functional.shifts import moved_tokens, shift_error, shifted


@st.composite
def grids(draw):
    """A grid of one to three dimensions, a shift and features on it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    tau = tuple(draw(st.integers(-5, 5)) for _ in shape)
    b, c = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return shape, tau, torch.randn(b, prod(shape), c, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))


def by_loops(x, shape, tau, fill):
    """The definition of a shift, position by position."""
    places = list(product(*map(range, shape)))
    source = [tuple(a - t for a, t in zip(p, tau, strict=True)) for p in places]
    rows = [x[:, places.index(s)] if s in places else torch.full_like(x[:, 0], fill) for s in source]
    return torch.stack(rows, dim=1)


@given(problem=grids(), fill=st.sampled_from([0.0, -1.5]))
def test_shifted_is_the_definition_position_by_position(problem, fill):
    shape, tau, x = problem
    assert_close(shifted(x, shape, tau, fill=fill), by_loops(x, shape, tau, fill), rtol=0, atol=0)


@given(problem=grids())
def test_a_cyclic_shift_is_a_roll(problem):
    shape, tau, x = problem
    grid = x.unflatten(1, shape)
    rolled = torch.roll(grid, tau, dims=tuple(range(1, 1 + len(shape)))).flatten(1, len(shape))
    assert_close(shifted(x, shape, tau, cyclic=True), rolled, rtol=0, atol=0)


@given(problem=grids())
def test_a_shift_and_its_reverse_give_back_what_stayed_on_the_grid(problem):
    shape, tau, x = problem
    still, moved = moved_tokens(shape, tau)
    assert len(still) == prod(max(0, s - abs(t)) for s, t in zip(shape, tau, strict=True)) == len(moved)
    back = shifted(shifted(x, shape, tau), shape, [-t for t in tau])
    assert_close(back[:, still], x[:, still], rtol=0, atol=0)


def test_one_background_for_each_channel():
    x, fill = torch.ones(1, 3, 2), torch.tensor([5.0, 7.0])
    assert shifted(x, (3,), (2,), fill=fill).tolist() == [[[5, 7], [5, 7], [1, 1]]]


@given(problem=grids())
def test_the_error_is_zero_for_maps_of_one_token_and_relative_for_others(problem):
    shape, tau, x = problem
    assert shift_error(torch.tanh, x, shape, tau) == 0.0
    place = torch.arange(float(x.shape[1]))[None, :, None].expand_as(x)
    still, moved = moved_tokens(shape, tau)
    expected = float((moved - still).abs().max()) / max(1, x.shape[1] - 1) if len(still) else 0.0
    assert shift_error(lambda y: place.clone(), x, shape, tau) == pytest.approx(expected)
    assert shift_error(lambda y: 3 * place, x, shape, tau) == pytest.approx(
        expected if x.shape[1] > 1 else 0.0)


def test_a_convolution_on_zeros_moves_and_on_grey_does_not():
    torch.set_default_dtype(torch.float64)
    kernel, x = torch.randn(3, 3, 2, 4), torch.zeros(1, 36, 2)
    x[:, 14] = torch.randn(2)
    layer = lambda y: functional.convolution(y, kernel, (6, 6))  # noqa: E731
    assert shift_error(layer, x, (6, 6), (1, 2)) < 1e-12
    assert shift_error(layer, x + 1, (6, 6), (1, 2), fill=1.0) > 0.01
    assert shift_error(layer, x, (6, 6), (9, 0)) == 0.0


@pytest.mark.parametrize(("shape", "tau"), [((3, 3), (1,)), ((4,), (1, 0))])
def test_a_shift_of_another_dimension_is_refused(shape, tau):
    with pytest.raises(ValueError, match="tau must have"):
        moved_tokens(shape, tau)


def test_features_of_another_length_are_refused():
    with pytest.raises(ValueError, match="x has 5 tokens, expected 6"):
        shifted(torch.zeros(1, 5, 2), (2, 3), (1, 0))
