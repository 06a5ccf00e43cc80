"""Transports and metrics against torch.matrix_exp, sympy and one another; schedules, attenuation, errors."""

import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import F64
from translution_lib.functional import transport
from translution_lib.functional.rotary import rotation
from translution_lib.functional.transport import (
    Frame,
    block_diagonal,
    exponents,
    frame,
    half_logs,
    log_attenuation,
    log_scale,
    orthogonal,
    reflection_block,
    rotation_block,
    schedule_angles,
    skew,
    transport_scores,
    transport_scores_definition,
    turned_back,
)

KINDS, SEEDS = ("rotation", "reflection", "blocks4"), st.integers(0, 10**6)


def normal(seed, *shape):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@st.composite
def frames(draw, heads=2, n=4, planes=2):
    """A frame per head and token, with any transport and either order of scaling and turning."""
    seed, kind = draw(SEEDS), draw(st.sampled_from((*KINDS, "skew")))
    t = torch.arange(1.0, n + 1, dtype=F64)[:, None]
    turns = (torch.matrix_exp(t[:, :, None] * skew(normal(seed, heads, 1, 2 * planes, 2 * planes))) if kind == "skew"
             else orthogonal(schedule_angles(t, normal(seed, heads, 1, planes)), kind))
    return frame(turns, half_logs(t, normal(seed + 1, heads, 1, 2 * planes)), draw(st.booleans()))


# Outside oracles


def test_the_blocks_are_those_of_sympy():
    a, b = sympy.symbols("a b", real=True)
    turn, mirror = sympy.Matrix([[0, -a], [a, 0]]).exp(), lambda x: sympy.Matrix(
        [[sympy.cos(2 * x), sympy.sin(2 * x)], [sympy.sin(2 * x), -sympy.cos(2 * x)]])
    axis = sympy.Matrix([sympy.cos(a), sympy.sin(a)])
    householder = 2 * axis * axis.T - sympy.eye(2)                       # reflection about the axis, another way
    assert sympy.simplify(mirror(a) - householder) == sympy.zeros(2)
    assert sympy.simplify(mirror(a) * mirror(b) - turn.subs(a, 2 * (a - b))) == sympy.zeros(2)
    assert sympy.simplify(mirror(b) * turn - mirror(b - a / 2)) == sympy.zeros(2)
    assert sympy.simplify(mirror(a).det()) == -1
    for value in (0.3, -2.0):
        at = torch.tensor(value, dtype=F64)
        for block, symbolic in ((rotation_block, turn), (reflection_block, householder)):
            expected = torch.tensor(symbolic.subs(a, value).evalf(20).tolist(), dtype=F64)
            assert_close(block(at), expected)


@given(SEEDS, st.integers(1, 4))
def test_rotation_blocks_are_matrix_exponentials(seed, planes):
    angles = normal(seed, 1, planes)
    x = block_diagonal(angles[0][:, None, None] * torch.tensor([[0.0, -1], [1, 0]], dtype=F64))
    t = torch.arange(-3.0, 4, dtype=F64)[:, None]
    assert_close(x, -x.T)
    assert_close(orthogonal(schedule_angles(t, angles), "rotation"), torch.matrix_exp(t[:, :, None] * x))
    # The rows of the book's rotations turn in the same sense.
    assert_close(orthogonal(schedule_angles(t, angles), "rotation").mT, rotation(t, angles))


def test_the_metric_of_the_appendix_is_that_of_sympy():
    s1, s2, m, θ = 0.9, 0.7, 3, 0.4
    turn = sympy.Matrix([[sympy.cos(m * θ), -sympy.sin(m * θ)], [sympy.sin(m * θ), sympy.cos(m * θ)]])
    metric = turn.T * sympy.diag(s1**m, s2**m) * turn
    t, log_s = torch.tensor([[3.0]], dtype=F64), torch.tensor([[s1, s2]], dtype=F64).log()
    at = frame(orthogonal(schedule_angles(t, torch.tensor([[-θ]], dtype=F64)), "rotation"), half_logs(t, log_s), True)
    assert_close(at.metric[0], torch.tensor(metric.tolist(), dtype=F64))
    assert_close(at.map[0], torch.tensor((turn.T * sympy.diag(s1 ** (-m / 2), s2 ** (-m / 2))).tolist(), dtype=F64))


# Identities


@given(frames())
def test_frames_are_isometries_of_their_metrics(at):
    eye = torch.eye(4, dtype=F64).expand_as(at.map)
    assert_close(at.map @ at.inverse, eye)
    assert_close(at.map.mT @ at.metric @ at.map, eye)                    # (5), with G = 1
    assert_close(at.metric, at.metric.mT)
    assert (torch.linalg.eigvalsh(at.metric) > 0).all()


@given(frames(), SEEDS, st.sampled_from(transport.FORMS))
def test_one_map_per_token_serves_all_pairs(at, seed, form):
    q, k = normal(seed, 2, 3, 2, 4, 4)
    literal = transport_scores_definition(q, k, at, form)
    assert_close(transport_scores(q, k, at, form), literal)
    m, n = 3, 1
    between = at.map[1, m] @ torch.linalg.inv(at.map[1, n])
    expected = q[0, 1, m] @ (at.metric[1, m] @ between if form == "inner" else between) @ k[0, 1, n]
    assert_close(literal[0, 1, m, n], expected)


@given(SEEDS, st.sampled_from(KINDS), st.integers(1, 3))
def test_turning_back_needs_no_matrix(seed, kind, half):
    phase, x = normal(seed, 3, 5, 2 * half), normal(seed + 1, 2, 3, 5, 4 * half)
    o = orthogonal(phase, kind)
    assert_close(o @ o.mT, torch.eye(4 * half, dtype=F64).expand_as(o))
    assert_close(turned_back(x, phase, kind), (o.mT @ x[..., None])[..., 0])
    sign = {"rotation": 1, "reflection": (-1) ** (2 * half), "blocks4": (-1) ** half}[kind]
    assert_close(torch.linalg.det(o), torch.full((3, 5), float(sign), dtype=F64))


@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_attenuation(seed, axes, heads, with_shape):
    delta, sigma = normal(seed, 4, 5, axes), normal(seed, heads).exp()
    root = normal(seed + 1, axes, axes)
    shape = root @ root.T + torch.eye(axes, dtype=F64) if with_shape else None
    got = log_attenuation(delta, sigma, shape).exp()
    a = torch.eye(axes, dtype=F64) if shape is None else shape
    for h in range(heads):
        square = torch.einsum("ijx,xy,ijy->ij", delta, a, delta)
        assert_close(got[h], torch.exp(-square / (2 * sigma[h] ** 2)))


# Scales and schedules


@given(st.floats(-20, 20), st.floats(1e-3, 10))
def test_scales(w, alpha):
    s = math.exp(w) / (math.exp(w) + alpha)
    assert math.exp(float(log_scale(torch.tensor(w, dtype=F64), alpha))) == pytest.approx(s, rel=1e-9)
    assert 0 < s <= 1 and float(log_scale(torch.tensor(w, dtype=F64), None)) == w


@given(st.integers(1, 10**6), st.floats(1.1, 100), st.floats(0.01, 3))
def test_a_logarithm_makes_a_power_of_the_place(m, base, s):
    power = float(exponents(torch.tensor([[m]], dtype=F64), "log", base))
    assert s**power == pytest.approx(m ** (math.log(s) / math.log(base)), rel=1e-6)


def test_factors_stay_finite():
    t = torch.tensor([[1.0], [1e9]], dtype=F64)
    halves = half_logs(t, torch.tensor([[0.1, -0.1]], dtype=F64))
    assert halves.tolist() == [[0.05, -0.05], [40, -40]]
    at = frame(torch.eye(2, dtype=F64).expand(2, 2, 2), halves)
    for values in (at.map, at.inverse, at.metric):
        for dtype in (torch.float32, torch.bfloat16):
            assert values.to(dtype).isfinite().all()
        assert (values.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.parametrize(("call", "word"), [
    (lambda: orthogonal(torch.zeros(2, 3), "spiral"), "kind"),
    (lambda: orthogonal(torch.zeros(2, 3), "blocks4"), "multiple of 4"),
    (lambda: log_scale(torch.zeros(1), 0.0), "alpha"),
    (lambda: exponents(torch.zeros(2, 1), "log"), "≥ 1"),
    (lambda: exponents(torch.ones(2, 1), "log", 1.0), "base"),
    (lambda: exponents(torch.ones(2, 1), "cubic"), "schedule"),
    (lambda: transport_scores(*torch.zeros(2, 1, 1, 2, 2), Frame(*torch.zeros(3, 2, 2, 2)), "outer"), "form"),
    (lambda: transport_scores_definition(*torch.zeros(2, 1, 1, 2, 2), Frame(*torch.zeros(3, 2, 2, 2)), ""), "form"),
])
def test_bad_input(call, word):
    with pytest.raises(ValueError, match=word):
        call()
