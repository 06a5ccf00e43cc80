"""Sums by distance: the fast forms are the definitions, torch's convolutions, memory, precision, errors."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import F64, gradients, grids
from translution_lib.cost.tracking import count_peak_bytes
from translution_lib.functional.window_sum import (
    line_sum,
    line_sum_definition,
    window_columns,
    window_sum,
    window_sum_definition,
    window_sum_unfold,
)


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def inputs(n, columns, b=2, h=2, e=3):
    return randn(b, h, n, columns).requires_grad_(), randn(b, h, n, e).requires_grad_()


def assert_same(fast, literal, leaves):
    """Both sums and their gradients."""
    fast, literal = (torch.cat([part.flatten() for part in sums]) for sums in (fast, literal))
    assert_close(fast, literal)
    for x, y in zip(gradients(fast, leaves), gradients(literal, leaves), strict=True):
        assert_close(x, y)


@given(grids(max_tokens=30), st.integers(0, 9), st.booleans())
def test_balls_are_the_definition(shape, k, cls):
    leaves = inputs(prod(shape) + cls, k + 1 + cls)
    assert_same(window_sum(*leaves, shape, cls=cls), window_sum_definition(*leaves, shape, cls=cls), leaves)


@given(grids(max_tokens=16), st.integers(1, 5), st.booleans())
def test_the_printed_form_is_the_definition(shape, k, cls):
    leaves = inputs(prod(shape) + cls, k + 1 + cls)
    assert_same(window_sum_unfold(*leaves, shape, cls=cls), window_sum_definition(*leaves, shape, cls=cls), leaves)


@given(st.integers(1, 14), st.integers(1, 9), st.sampled_from([(False, False), (True, False), (False, True)]))
def test_a_line_is_the_definition(n, k, kind):
    causal, cls = kind
    leaves = inputs(n + cls, (k + 1 if causal else 2 * k + 1) + cls)
    options = {"causal": causal, "cls": cls}
    assert_same(line_sum(*leaves, **options), line_sum_definition(*leaves, **options), leaves)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 5))
def test_convolutions_with_rings(height, width, k):
    """Torch's convolution with the indicator of each ring, weighted by ρ; the far field is what remains of the sum."""
    rho, v = inputs(height * width, k + 1, b=1, h=1)
    steps = torch.arange(-k, k + 1).abs()
    norm = steps[:, None] + steps
    images = v[0, 0].mT.view(3, 1, height, width)
    rings = [F.conv2d(images, (norm == r).to(F64)[None, None], padding=k)[:, 0].flatten(1).mT for r in range(k)]
    rings.append(v[0, 0].sum(0) - sum(rings))
    numerator, _ = window_sum(rho, v, (height, width))
    assert_close(numerator[0, 0], sum(rho[0, 0, :, r:r + 1] * ring for r, ring in enumerate(rings)))


@given(st.integers(1, 12), st.integers(1, 6))
def test_one_vector_per_distance_on_a_line(n, k):
    """With the same values on both sides the signed line is the unsigned one."""
    rho, v = inputs(n, k + 1)
    mirrored = torch.cat([rho[..., 1:].flip(-1), rho], -1)
    assert_same(line_sum(mirrored, v), window_sum(rho, v, (n,)), [rho, v])


@pytest.mark.parametrize(("call", "columns"), [
    (lambda r, v: window_sum(r, v, (2, 3), cls=True), 4), (lambda r, v: line_sum(r, v), 5),
    (lambda r, v: line_sum(r, v, causal=True), 3)])
def test_gradients(call, columns):
    assert torch.autograd.gradcheck(call, inputs(7, columns, b=1, e=2))


def test_ones_count_the_tokens():
    """The denominator is the numerator of values one: on an interior token of a plane 2k² − 2k + 1 keys are near."""
    k, shape = 4, (9, 11)
    near = torch.zeros(1, 1, 99, k + 1, dtype=F64)
    near[..., :k] = 1
    numerator, denominator = window_sum(near, torch.ones(1, 1, 99, 1, dtype=F64), shape)
    assert_close(numerator[..., 0], denominator)
    assert float(denominator.view(shape)[4, 5]) == 2 * k * k - 2 * k + 1
    assert_close(denominator[0, 0], (window_columns(shape, k) < k).sum(1).to(F64))


def peak(function, side, k):
    """Bytes of a forward and a backward pass, and those of v and of ρ."""
    rho, v = torch.rand(1, 2, side**2, k + 1).requires_grad_(), torch.randn(1, 2, side**2, 32).requires_grad_()
    weight = torch.randn_like(v)

    def run():
        numerator, denominator = function(rho, v, (side, side))
        torch.autograd.grad((numerator * weight).sum() + denominator.sum(), [rho, v])

    run()
    return count_peak_bytes(run), v.nbytes, rho.nbytes


def test_memory_is_that_of_a_few_tensors_of_values():
    """Forward and backward: ten copies of v and six of ρ, whatever k and n; the copied windows take ten times that."""
    for side, k in ((12, 2), (12, 6), (24, 6), (24, 11)):
        total, values, kernel = peak(window_sum, side, k)
        assert total < 10 * values + 6 * kernel, (side, k, total / values, kernel / values)
    assert peak(window_sum_unfold, 24, 6)[0] > 10 * peak(window_sum, 24, 6)[0]


def test_half_precision_is_summed_in_single():
    rho, v = (t.detach().to(torch.bfloat16) for t in inputs(36, 6))
    for fast, literal in zip(window_sum(rho, v, (6, 6)), window_sum_definition(rho.double(), v.double(), (6, 6)),
                             strict=True):
        assert fast.dtype == torch.float32
        assert_close(fast.double(), literal, rtol=1e-4, atol=1e-4)


def test_counts_made_without_gradients_serve_a_training():
    rho, v = inputs(35, 4)
    with torch.inference_mode():
        window_sum(rho, v, (5, 7))
        line_sum(rho[..., :3], v)
    for sums in (window_sum(rho, v, (5, 7)), line_sum(rho[..., :3], v)):
        gradients(sums[1], [rho])


@pytest.mark.parametrize(("call", "word"), [
    (lambda r, v: window_sum(r, v, (2, 4)), "8 tokens"), (lambda r, v: window_sum(r[..., :0], v, (2, 3)), "rho"),
    (lambda r, v: window_sum(r[..., :1], v[:, :, :5], (2, 2), cls=True), "rho"),
    (lambda r, v: window_sum(r[:, :1], v, (2, 3)), "rho and v"),
    (lambda r, v: line_sum(r[..., :4], v), "2k \\+ 1"), (lambda r, v: line_sum(r[..., :1], v, causal=True), "k \\+ 1"),
    (lambda r, v: line_sum(r, v, causal=True, cls=True), "causal")])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call(*inputs(6, 5))
