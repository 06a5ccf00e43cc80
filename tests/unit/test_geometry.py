"""Geometry: the sphere against geoopt, scipy and matrix exponentials, connections against sympy, errors."""

import math
import warnings
from functools import cache

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import SphericalVoronoi
from scipy.spatial.transform import Rotation
from sympy import diffgeom
from torch.testing import assert_close
from translution_book import geometry

from tests.unit.strategies import normal, points

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script
    import geoopt

SEEDS, SIZES = st.integers(0, 10**6), st.integers(2, 6)
OCTANT = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)


pytestmark = pytest.mark.usefixtures("double")


def tangent(seed, x, length=1.0):
    u = normal(seed, *x.shape)
    return length * torch.nn.functional.normalize(u - (u * x).sum(-1, keepdim=True) * x, dim=-1)


@given(seed=SEEDS, n=SIZES, length=st.floats(1e-3, 3.1))
def test_geodesics_are_geoopts(seed, n, length):
    sphere, x, y = geoopt.Sphere(), *points(seed, 2, 4, n)
    u = tangent(seed + 1, x, length)
    assert_close(geometry.exponential(x, u), sphere.expmap(x, u))
    assert_close(geometry.distance(x, y), sphere.dist(x, y))
    assert_close(geometry.logarithm(x, y), sphere.logmap(x, y))
    assert_close(geometry.logarithm(x, geometry.exponential(x, u)), u, atol=1e-9, rtol=1e-7)


@given(seed=SEEDS)
def test_transport_is_the_smallest_rotation_of_scipy(seed):
    (x, y), u = points(seed, 2, 3), tangent(seed + 1, points(seed, 2, 3)[0])
    rotation, _ = Rotation.align_vectors(y[None].numpy(), x[None].numpy())
    assert_close(geometry.transport(x, y, u), torch.from_numpy(rotation.apply(u.numpy())), atol=1e-7, rtol=0)


@given(seed=SEEDS, n=SIZES)
def test_transport_is_the_exponential_of_a_plane(seed, n):
    x, y = points(seed, 2, n)
    u, step = tangent(seed + 1, x), geometry.logarithm(x, y)
    turn = torch.matrix_exp(torch.outer(step, x) - torch.outer(x, step))
    assert_close(turn @ x, y)
    assert_close(geometry.transport(x, y, u), turn @ u)
    assert_close(geometry.ladder(torch.stack([x, y]), u, arm=0.3), turn @ u)


def test_close_points_keep_their_digits():
    x, u = OCTANT[0], 1e-9 * OCTANT[1]
    y = geometry.exponential(x, u)
    assert_close(geometry.logarithm(x, y), u, atol=1e-15, rtol=1e-6)
    assert_close(geometry.distance(x, y), torch.tensor(1e-9), atol=0, rtol=1e-6)
    assert geometry.distance(x, x) == 0 and not geometry.logarithm(x, x).any()
    assert_close(geometry.distance(x, -x), torch.tensor(math.pi))


@settings(max_examples=5)
@given(seed=SEEDS)
def test_areas_are_those_of_scipys_cells(seed):
    cells = SphericalVoronoi(points(seed, 12, 3).numpy())
    cells.sort_vertices_of_regions()
    for region, area in zip(cells.regions, cells.calculate_areas(), strict=True):
        corners = torch.from_numpy(cells.vertices[region])
        corners = torch.nn.functional.normalize(corners, dim=-1)
        assert abs(abs(float(geometry.spherical_area(corners))) - area) < 1e-9


@given(seed=SEEDS, k=st.integers(3, 7))
def test_loops_reverse_shift_and_come_in_batches(seed, k):
    loops = points(seed, 2, 3, k, 3)
    for measure in (geometry.holonomy, geometry.spherical_area):
        value = measure(loops)
        assert value.shape == (2, 3)
        assert_close(value[1, 2], measure(loops[1, 2]))
        full = 2 * math.pi if measure is geometry.holonomy else 4 * math.pi
        for other in (loops.roll(1, -2), -loops.flip(-2)):
            difference = (measure(other) - value) / full
            assert_close(difference, difference.round(), atol=1e-8, rtol=0)
        assert_close(measure(loops.flip(-2)), -value, atol=1e-8, rtol=0)


def test_the_octant():
    assert_close(geometry.holonomy(OCTANT), torch.tensor(math.pi / 2))
    assert_close(geometry.spherical_area(OCTANT), torch.tensor(math.pi / 2))
    assert_close(geometry.interior_angles(OCTANT), torch.full((3,), math.pi / 2))
    assert_close(geometry.interior_angles(OCTANT.flip(0)), torch.full((3,), 3 * math.pi / 2))
    assert abs(geometry.holonomy(OCTANT[:2])) < 1e-12  # there and back


def test_gradients_reach_points_and_vectors():
    x, y = points(3, 2, 4)
    u = tangent(4, x)

    def on_sphere(z, w):
        z = torch.nn.functional.normalize(z, dim=-1)
        return z, w - (w * z).sum() * z

    for call in (lambda z, w: geometry.exponential(*on_sphere(z, w)), lambda z, w: geometry.transport(
            on_sphere(z, w)[0], y, on_sphere(z, w)[1]), lambda z, w: geometry.logarithm(on_sphere(z, w)[0], y)):
        assert torch.autograd.gradcheck(call, (x.clone().requires_grad_(), u.clone().requires_grad_()))
    still = torch.zeros(4, requires_grad=True)
    geometry.exponential(x, still).sum().backward()
    assert still.grad.isfinite().all()


def test_single_precision_stays():
    x, y = points(5, 2, 3).float()
    u = tangent(6, x).float()
    for value in (geometry.exponential(x, u), geometry.logarithm(x, y), geometry.transport(x, y, u)):
        assert value.dtype == torch.float32
    assert abs(geometry.holonomy(OCTANT.float()) - math.pi / 2) < 1e-6


# Metrics: sympy's symbols, and the same entries as torch functions.
a, b, c = sympy.symbols("a b c")
METRICS = {
    "plane, polar": [1, a**2],
    "sphere": [1, sympy.sin(a) ** 2],
    "hyperbolic": [b**-2, b**-2],
    "torus": [1, (3 + sympy.cos(a)) ** 2],
    "scaled, 3-D": [2**a, 2**a, 2**a],
    "skew": [[1 + a**2, a * b], [a * b, 1 + b**2]],
    "skew, 3-D": [[1 + b**2, b, 0], [b, 1, 0], [0, 0, 1 + a**2]],
}
PLACE = (0.7, 0.9, 0.4)


@cache
def symbolic(name):
    """The matrix, and what sympy's differential geometry makes of it: Γ and R at PLACE."""
    entries = METRICS[name]
    matrix = sympy.Matrix(entries) if isinstance(entries[0], list) else sympy.diag(*entries)
    dim, symbols = matrix.shape[0], (a, b, c)
    patch = diffgeom.Patch("p", diffgeom.Manifold("m", dim))
    system = diffgeom.CoordSystem("c", patch, symbols[:dim])
    x, dx = system.coord_functions(), system.base_oneforms()
    at = dict(zip(symbols, x, strict=False))
    form = sum(matrix[i, j].subs(at, simultaneous=True) * diffgeom.TensorProduct(dx[i], dx[j])
               for i in range(dim) for j in range(dim))
    values = dict(zip(x, PLACE, strict=False))

    def numbers(array):
        return torch.tensor([float(e.subs(values)) for e in sympy.flatten(array)]).view([int(n) for n in array.shape])

    return (matrix, numbers(diffgeom.metric_to_Christoffel_2nd(form)),
            numbers(diffgeom.metric_to_Riemann_components(form)))


def as_torch(matrix):
    dim = matrix.shape[0]
    entries = [sympy.lambdify((a, b, c)[:dim], e, modules=[{"sin": torch.sin, "cos": torch.cos}, "math"])
               for e in matrix]
    return lambda x: torch.stack([torch.as_tensor(e(*x)) * torch.ones_like(x[0]) for e in entries]).view(dim, dim)


@pytest.mark.parametrize("name", METRICS)
def test_connections_are_sympys(name):
    matrix, gamma, riemann = symbolic(name)
    metric, x = as_torch(matrix), torch.tensor(PLACE[: matrix.shape[0]])
    assert_close(geometry.christoffel(metric, x), gamma)
    assert_close(geometry.curvature(metric, x), riemann)


def embedded_sphere(x):
    return torch.stack([x[0].sin() * x[1].cos(), x[0].sin() * x[1].sin(), x[0].cos()])


@settings(max_examples=6)
@given(seed=SEEDS)
def test_an_embedding_gives_its_metric_and_curvature(seed):
    x = 0.3 + 2.4 * torch.rand(2, generator=torch.Generator().manual_seed(seed))
    metric = geometry.induced(embedded_sphere)
    assert_close(metric(x), torch.diag(torch.stack([torch.ones(()), x[0].sin() ** 2])))
    u, v = normal(seed, 2, 2) + 2 * torch.eye(2)
    assert_close(geometry.sectional(metric, x, u, v), torch.tensor(1.0), atol=1e-8, rtol=1e-8)


@settings(max_examples=6)
@given(seed=SEEDS)
def test_transport_along_a_curve_is_the_closed_form_on_a_great_arc(seed):
    x, y = points(seed, 2, 3)
    x, y = x + torch.tensor([2.0, 0, 0]), y + torch.tensor([2.0, 0, 0])  # far from the poles
    x, y = x / x.norm(), y / y.norm()
    step = geometry.logarithm(x, y)
    basis = lambda z: torch.func.jacfwd(embedded_sphere)(z)  # noqa: E731

    def curve(t):
        z = torch.cos(t * step.norm()) * x + torch.sin(t * step.norm()) * step / step.norm()
        return torch.stack([torch.acos(z[2]), torch.atan2(z[1], z[0])])

    start, end = curve(torch.tensor(0.0)), curve(torch.tensor(1.0))
    u = normal(seed + 1, 2)
    path = geometry.transport_along(geometry.induced(embedded_sphere), curve, u, 20)
    assert path.shape == (21, 2)
    assert_close(basis(end) @ path[-1], geometry.transport(x, y, basis(start) @ u), atol=1e-5, rtol=1e-5)


def test_the_error_of_transport_falls_with_the_fourth_power():
    metric = lambda x: torch.diag(torch.stack([torch.ones_like(x[0]), x[0].sin() ** 2]))  # noqa: E731
    circle = lambda t: torch.stack([math.pi / 3 + 0 * t, 2 * math.pi * t])  # noqa: E731
    error = [(geometry.transport_along(metric, circle, torch.eye(2), n)[-1] + torch.eye(2)).abs().max()
             for n in (20, 40, 80)]
    assert 14 < error[0] / error[1] < 18 and 14 < error[1] / error[2] < 18
    there = geometry.transport_along(metric, circle, torch.eye(2), 80, (0.0, 0.3))
    back = geometry.transport_along(metric, circle, there[-1], 80, (0.3, 0.0))
    assert_close(back[-1], torch.eye(2), atol=1e-6, rtol=0)
    one = geometry.transport_along(metric, circle, torch.eye(2)[:, 1], 80, (0.0, 0.3))
    assert_close(one, there[..., 1])


@given(seed=SEEDS, d=st.integers(1, 4), moves=st.lists(st.sampled_from([1, 2, 3, -1, -2, -3]), max_size=6))
def test_moves_on_a_grid_multiply_from_the_left(seed, d, moves):
    steps = torch.eye(d) + 0.2 * normal(seed, 3, d, d) / d
    u = normal(seed + 1, d)
    for move in moves:
        matrix = steps[abs(move) - 1]
        u = matrix @ u if move > 0 else matrix.inverse() @ u
    assert_close(geometry.along(moves, steps) @ normal(seed + 1, d), u)
    inverse = [-m for m in reversed(moves)]
    assert_close(geometry.along([*moves, *inverse], steps), torch.eye(d))
    x, y = steps[:2]
    assert_close(geometry.plaquette(x, y), y.inverse() @ x.inverse() @ y @ x)


@pytest.mark.parametrize(("call", "message"), [
    (lambda g: g.exponential(2 * OCTANT[0], OCTANT[1]), "x must be unit vectors"),
    (lambda g: g.exponential(OCTANT[0], OCTANT[0]), "u must be tangent"),
    (lambda g: g.logarithm(OCTANT[0], -OCTANT[0]), "antipodal"),
    (lambda g: g.distance(OCTANT[0], 2 * OCTANT[0]), "y must be unit vectors"),
    (lambda g: g.distance(OCTANT[0], OCTANT[0] * math.nan), "y must be unit vectors"),
    (lambda g: g.transport(OCTANT[0], -OCTANT[0], OCTANT[1]), "antipodal"),
    (lambda g: g.transport(OCTANT[0], OCTANT[1], OCTANT[0] + OCTANT[1]), "u must be tangent"),
    (lambda g: g.turn(OCTANT[0], OCTANT[1], OCTANT[0]), "w must be tangent"),
    (lambda g: g.ladder(OCTANT, OCTANT[1], kind="rope"), "kind must be one of"),
    (lambda g: g.ladder(OCTANT, OCTANT[1], arm=0.0), "arm must be above zero"),
    (lambda g: g.holonomy(OCTANT[:1]), "corners ≥ 2"),
    (lambda g: g.spherical_area(OCTANT[:2]), "corners ≥ 3"),
    (lambda g: g.interior_angles(OCTANT[:2]), "corners ≥ 3"),
    (lambda g: g.holonomy(torch.stack([OCTANT[0], -OCTANT[0]])), "antipodal"),
    (lambda g: g.christoffel(lambda x: x, OCTANT[0]), "3 × 3 matrix"),
    (lambda g: g.sectional(lambda x: torch.eye(3), OCTANT[0], OCTANT[1], 2 * OCTANT[1]), "span a plane"),
    (lambda g: g.transport_along(lambda x: torch.eye(3), lambda t: t * OCTANT[0], OCTANT[0], 0), "steps must be"),
    (lambda g: g.transport_along(lambda x: torch.eye(3), lambda t: t * OCTANT[0, :2], OCTANT[0]), "3 coordinates"),
    (lambda g: g.along([1, 0], torch.eye(2)[None]), "moves must be ±1"),
    (lambda g: g.along([2], torch.eye(2)[None]), "moves must be ±1"),
])
def test_bad_input_is_named(call, message, plain_types):
    with pytest.raises(ValueError, match=message):
        call(geometry)
