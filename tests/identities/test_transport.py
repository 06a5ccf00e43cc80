"""Property tests of the identities of chapter "Tangent spaces, metrics, parallel transport"."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacfwd, vmap
from torch.testing import assert_close
from translution_book import geometry

from tests.unit.strategies import normal, points
from translution_lib.functional.rotary import rotation

SEEDS = st.integers(0, 10**6)
few = settings(max_examples=5)


pytestmark = pytest.mark.usefixtures("double")


def tangent(seed, x):
    u = normal(seed, *x.shape)
    return u - (u * x).sum(-1, keepdim=True) * x


def surface(seed):
    """A bumpy surface in R³ over two coordinates."""
    w = normal(seed, 3, 2)

    def embed(x):
        bumps = torch.sin(w @ x)
        return torch.stack([x[0] + 0.2 * bumps[0], x[1] + 0.2 * bumps[1], bumps[2]])

    return embed


def smooth_metric(seed, dim):
    """A positive definite matrix that depends on all coordinates."""
    w = normal(seed, dim, dim, dim)

    def metric(x):
        b = torch.sin(w @ x) / dim
        return torch.eye(dim) + b @ b.mT

    return metric


def curve(seed, dim):
    a, b, c = normal(seed, 3, dim)
    return lambda t: a + b * t + 0.5 * c * torch.sin(3 * t)


def sphere_point(x):
    return torch.stack([x[0].sin() * x[1].cos(), x[0].sin() * x[1].sin(), x[0].cos()])


def round_metric(x):
    return torch.diag(torch.stack([torch.ones_like(x[0]), x[0].sin() ** 2]))


def whole(turns, atol=1e-8):
    assert_close(turns, turns.round(), atol=atol, rtol=0)


@pytest.mark.identity("eq-transport-metric")
@given(seed=SEEDS)
def test_the_metric_measures_in_space(seed):
    embed, x, (u, w) = surface(seed), normal(seed + 1, 2), normal(seed + 2, 2, 2)
    step = 1e-6
    basis = torch.stack([(embed(x + step * e) - embed(x - step * e)) / (2 * step) for e in torch.eye(2)], 1)
    assert_close(u @ geometry.induced(embed)(x) @ w, (basis @ u) @ (basis @ w), atol=1e-7, rtol=1e-7)


@pytest.mark.identity("eq-transport-christoffel", "thm-transport-levi-civita")
@few
@given(seed=SEEDS, dim=st.integers(1, 4))
def test_no_torsion_compatible_and_nothing_else(seed, dim):
    metric, x = smooth_metric(seed, dim), normal(seed + 1, dim)
    gamma, g, dg = geometry.christoffel(metric, x), metric(x), jacfwd(metric)(x)
    lowered = torch.einsum("ea,abc->ebc", g, gamma)
    assert_close(gamma, gamma.mT)
    assert_close(dg, torch.einsum("ebc->ecb", lowered) + torch.einsum("cbe->ecb", lowered))
    # Uniqueness: the linear system "symmetric and compatible" for Γ_ebc has full rank.
    count = dim**3
    unknown = torch.eye(count).view(count, dim, dim, dim)
    equations = torch.cat([(unknown - unknown.mT).flatten(1),
                           (unknown.permute(0, 1, 3, 2) + unknown.permute(0, 3, 1, 2)).flatten(1)], 1)
    assert torch.linalg.matrix_rank(equations) == count


@pytest.mark.identity("eq-transport-christoffel")
@few
@given(seed=SEEDS)
def test_symbols_are_the_tangential_part_of_second_derivatives(seed):
    embed, x = surface(seed), normal(seed + 1, 2)
    basis, second = jacfwd(embed)(x), jacfwd(jacfwd(embed))(x)  # 3 × 2, 3 × 2 × 2
    projected = torch.linalg.lstsq(basis, second.flatten(1)).solution.view(2, 2, 2)
    assert_close(geometry.christoffel(geometry.induced(embed), x), projected)


@pytest.mark.identity("eq-transport-equation")
@few
@given(seed=SEEDS)
def test_a_carried_vector_changes_across_the_surface_only(seed):
    embed, way, n = surface(seed), curve(seed + 1, 2), 200
    path = geometry.transport_along(geometry.induced(embed), way, normal(seed + 2, 2), n)
    times = torch.linspace(0, 1, n + 1)
    basis = vmap(jacfwd(embed))(vmap(way)(times))
    u = (basis @ path[..., None])[..., 0]
    slope = (u[2:] - u[:-2]) / (2 / n)
    inside = basis[1:-1].mT @ slope[..., None]
    assert inside.abs().max() < 2e-3 * (1 + slope.abs().max())
    turning = (vmap(jacfwd(way))(times)[1:-1] * path[1:-1]).abs().max()
    assert slope.norm(dim=-1).max() > 1e-3 * turning


@pytest.mark.identity("thm-transport-isometry")
@few
@given(seed=SEEDS, dim=st.integers(2, 3))
def test_transport_is_an_isometry_of_the_way_alone(seed, dim):
    metric, way = smooth_metric(seed, dim), curve(seed + 1, dim)

    def carry(c, a, b):
        return geometry.transport_along(metric, c, torch.eye(dim), 80, (a, b))[-1]

    start, end, close = metric(way(torch.tensor(0.0))), metric(way(torch.tensor(1.0))), {"atol": 1e-4, "rtol": 1e-4}
    p = carry(way, 0.0, 1.0)
    assert_close(p.T @ end @ p, start, **close)
    assert_close(carry(lambda t: way(t * (1 + t) / 2), 0.0, 1.0), p, **close)
    assert_close(carry(way, 1.0, 0.0) @ p, torch.eye(dim), **close)
    assert_close(carry(way, 0.3, 1.0) @ carry(way, 0.0, 0.3), p, **close)


@pytest.mark.identity("eq-transport-exponential")
@given(seed=SEEDS, n=st.integers(2, 6))
def test_exponential_and_logarithm_walk_the_great_circle(seed, n):
    x, y = points(seed, 2, n)
    u = geometry.logarithm(x, y)
    rho = torch.acos(x @ y)
    assert_close(u.norm(), rho)
    assert_close(u, rho / rho.sin() * (y - (x @ y) * x))
    assert_close(geometry.exponential(x, u), rho.cos() * x + rho.sin() * u / rho)
    assert_close(geometry.exponential(x, u), y)
    velocity = jacfwd(lambda t: torch.cos(t * rho) * x + torch.sin(t * rho) * u / rho)(torch.tensor(1.0))
    assert_close(geometry.transport(x, y, u), velocity)  # a geodesic carries its velocity


@pytest.mark.identity("eq-transport-great-circle", "thm-transport-great-circle")
@given(seed=SEEDS, n=st.integers(2, 6))
def test_transport_along_a_great_arc_solves_the_equation(seed, n):
    x, y = points(seed, 2, n)
    u, step = tangent(seed + 1, x), geometry.logarithm(x, y)
    assert_close(geometry.transport(x, y, u), u - (u @ y) / (1 + x @ y) * (x + y))

    def carried(t):
        place = geometry.exponential(x, float(t) * step)
        return place, geometry.transport(x, place, u)

    h = 1e-5
    (_, before), (place, vector), (_, after) = (carried(t) for t in (0.4 - h, 0.4, 0.4 + h))
    slope = (after - before) / (2 * h)
    assert abs(vector @ place) < 1e-12
    assert_close(slope - (slope @ place) * place, torch.zeros(n), atol=1e-8, rtol=0)


@pytest.mark.identity("thm-transport-girard", "thm-transport-holonomy")
@given(seed=SEEDS)
def test_excess_area_and_turn_of_triangles(seed):
    t = points(seed, 200, 3, 3)
    t = t[geometry.spherical_area(t).abs() > 1e-3]
    t = torch.where(geometry.spherical_area(t)[:, None, None] > 0, t, t.flip(1))
    area = geometry.spherical_area(t)
    assert_close(geometry.interior_angles(t).sum(-1) - math.pi, area, atol=1e-7, rtol=0)
    whole((geometry.holonomy(t) - area) / (2 * math.pi))


def test_area_by_counting_points():
    corners, cloud = points(11, 3, 3), points(12, 200_000, 3)
    corners = corners if torch.det(corners) > 0 else corners.flip(0)
    sides = torch.linalg.cross(corners, corners.roll(-1, 0))
    share = (cloud @ sides.T > 0).all(-1).double().mean()
    area = geometry.spherical_area(corners) / (4 * math.pi)
    assert abs(share - area) < 5 * math.sqrt(area * (1 - area) / 200_000)  # five standard deviations: 6e-7


@pytest.mark.identity("thm-transport-girard", "thm-transport-holonomy")
@given(seed=SEEDS, k=st.integers(4, 8))
def test_polygons_around_the_pole(seed, k):
    generator = torch.Generator().manual_seed(seed)
    gaps = 0.5 + torch.rand(k, generator=generator)
    longitude = 2 * math.pi * gaps.cumsum(0) / gaps.sum()
    colatitude = 0.3 + torch.rand(k, generator=generator)
    p = torch.stack([sphere_point(x) for x in torch.stack([colatitude, longitude], 1)])
    pole = torch.tensor([0.0, 0, 1])
    slices = torch.stack([torch.stack([pole, a, b]) for a, b in pairwise([*p, p[0]])])
    area = geometry.spherical_area(slices).sum()
    assert_close(geometry.interior_angles(p).sum() - (k - 2) * math.pi, area, atol=1e-8, rtol=0)
    whole((geometry.spherical_area(p) - area) / (4 * math.pi))
    whole((geometry.holonomy(p) - area) / (2 * math.pi))


@pytest.mark.identity("thm-transport-latitude")
@few
@given(colatitude=st.floats(0.2, 2.9))
def test_a_lap_turns_by_the_cap(colatitude):
    frame = torch.diag(torch.tensor([1, math.sin(colatitude)]))
    lap = geometry.transport_along(round_metric, lambda t: torch.stack([colatitude + 0 * t, t]),
                                   frame.inverse(), 120, (0, 2 * math.pi))[-1]
    cap = 2 * math.pi * (1 - math.cos(colatitude))
    turned = rotation(torch.tensor([[1.0]]), torch.tensor([[cap]]))[0].T  # columns: south and east
    assert_close(frame @ lap, turned, atol=1e-4, rtol=0)
    corners = torch.stack([sphere_point(torch.tensor([colatitude, 2 * math.pi * k / 100])) for k in range(100)])
    whole((geometry.holonomy(corners) - cap) / (2 * math.pi), atol=2e-3)


@pytest.mark.identity("thm-transport-ladder")
@given(seed=SEEDS, h=st.floats(0.01, 1.5), arm=st.floats(0.01, 1.5), n=st.integers(3, 5))
def test_rungs(seed, h, arm, n):
    x = points(seed, n)
    e = torch.nn.functional.normalize(tangent(seed + 1, x), dim=-1)
    any_u = torch.nn.functional.normalize(tangent(seed + 2, x), dim=-1)
    y = geometry.exponential(x, h * e)
    rung = torch.stack([x, y])
    assert_close(geometry.ladder(rung, any_u, arm, "pole"), geometry.transport(x, y, any_u), atol=1e-7, rtol=0)
    u = any_u - (any_u @ e) * e
    u = u / u.norm()
    w = geometry.ladder(rung, u, arm, "schild")
    ahead, aside = w @ geometry.transport(x, y, e), w @ geometry.transport(x, y, u)
    tilt = math.sin(h) * math.sin(arm) / (math.cos(h) + math.cos(arm))
    assert_close(ahead / aside, torch.tensor(tilt), atol=1e-7, rtol=1e-7)


@few
@given(seed=SEEDS)
def test_the_order_of_schilds_ladder_is_that_of_its_arm(seed):
    x, y = points(seed, 2, 3)
    y = geometry.exponential(x, 1.2 * torch.nn.functional.normalize(geometry.logarithm(x, y), dim=0))
    u = torch.nn.functional.normalize(torch.linalg.cross(x, y), dim=0)
    step = geometry.logarithm(x, y)

    def error(n, arm):
        way = geometry.exponential(x.expand(n + 1, 3), torch.linspace(0, 1, n + 1)[:, None] * step)
        return (geometry.ladder(way, u, arm, "schild") - geometry.transport(x, y, u)).norm()

    for power, order in ((0, 0), (1, 1), (2, 2)):
        ratio = error(8, 0.5 * 8.0**-power) / error(16, 0.5 * 16.0**-power)
        assert abs(math.log2(ratio) - order) < 0.15


@pytest.mark.identity("eq-transport-curvature", "eq-transport-sectional", "thm-transport-square")
@few
@given(seed=SEEDS, dim=st.integers(2, 3))
def test_a_small_square_turns_by_the_curvature(seed, dim):
    metric, x = smooth_metric(seed, dim), normal(seed + 1, dim)
    r = geometry.curvature(metric, x)
    gamma = geometry.christoffel(metric, x)
    slope = jacfwd(lambda z: geometry.christoffel(metric, z))(x)
    c, d = 0, dim - 1
    by_matrices = (slope[:, d, :, c] - slope[:, c, :, d] + gamma[:, c] @ gamma[:, d] - gamma[:, d] @ gamma[:, c])
    assert_close(r[..., c, d], by_matrices)

    g, (u, w) = metric(x), normal(seed + 2, 2, dim)
    turned = torch.einsum("acbd,b,d,c->a", r, u, w, w) @ g @ u
    area = (u @ g @ u) * (w @ g @ w) - (u @ g @ w) ** 2
    assert_close(geometry.sectional(metric, x, u, w), turned / area)

    def rest(h):
        p, z = torch.eye(dim), x
        for axis, sign in ((c, 1), (d, 1), (c, -1), (d, -1)):
            side = sign * h * torch.eye(dim)[axis]
            p = geometry.transport_along(metric, lambda t, z=z, side=side: z + t * side, p, 4)[-1]
            z = z + side
        return (p - torch.eye(dim) + h**2 * r[..., c, d]).abs().max()

    assert all(rest(h) < 10 * h**3 for h in (0.02, 0.01, 0.005))  # of third order; a wrong curvature shows in h²


@few
@given(seed=SEEDS)
def test_symmetries_of_the_curvature(seed):
    metric, x = smooth_metric(seed, 3), normal(seed + 1, 3)
    r = torch.einsum("ae,ebcd->abcd", metric(x), geometry.curvature(metric, x))
    close = {"atol": 1e-10, "rtol": 1e-8}
    assert_close(r, -r.transpose(2, 3), **close)
    assert_close(r, -r.transpose(0, 1), **close)
    assert_close(r, r.permute(2, 3, 0, 1), **close)
    assert_close(r + r.permute(0, 2, 3, 1) + r.permute(0, 3, 1, 2), torch.zeros_like(r), **close)


def invertible(seed, count, d):
    return torch.eye(d) + 0.4 * normal(seed, count, d, d) / d


@pytest.mark.identity("thm-transport-flat")
@given(seed=SEEDS, n=st.integers(2, 5), d=st.integers(1, 4), chain=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_one_matrix_per_position_means_no_turn(seed, n, d, chain):
    t = invertible(seed, n, d)
    p = torch.einsum("mab,nbc->nmac", t, torch.linalg.inv(t))
    chain = [c % n for c in chain]

    def loop(maps):
        total = torch.eye(d)
        for a, b in pairwise([*chain, chain[0]]):
            total = maps[a, b] @ total
        return total

    assert_close(loop(p), torch.eye(d))
    assert_close(torch.einsum("nmab,lnbc->lnmac", p, p), p[:, None].expand(n, n, n, d, d))
    found = p[0]  # T up to the common factor T_0⁻¹
    assert_close(found, t @ torch.linalg.inv(t[0]))
    assert_close(torch.einsum("mab,nbc->nmac", found, torch.linalg.inv(found)), p)
    bent = p.clone()  # one map changed: some chain through it turns
    bent[0, n - 1] = 1.5 * p[0, n - 1]
    assert not torch.allclose(bent[n - 1, 0] @ bent[0, n - 1], torch.eye(d))


@pytest.mark.identity("thm-transport-line")
@given(seed=SEEDS, n=st.integers(2, 6), d=st.integers(1, 4))
def test_a_row_has_one_matrix_per_position(seed, n, d):
    steps = invertible(seed, n - 1, d)
    t = [torch.eye(d)]
    for step in steps:
        t.append(step @ t[-1])
    for a in range(n):
        for b in range(n):
            total = torch.eye(d)
            for k in range(a, b):
                total = steps[k] @ total
            for k in reversed(range(b, a)):
                total = steps[k].inverse() @ total
            assert_close(total, t[b] @ t[a].inverse())


@pytest.mark.identity("eq-transport-plaquette", "thm-transport-grid")
@given(seed=SEEDS, d=st.integers(1, 4), moves=st.lists(st.sampled_from([1, 2, -1, -2]), max_size=8))
def test_constant_steps_are_flat_if_they_commute(seed, d, moves):
    a, b = invertible(seed, 2, d)
    commuting = torch.stack([a, 0.5 * a @ a + torch.eye(d)])  # polynomials of one matrix
    x, y = sum((m == 1) - (m == -1) for m in moves), sum((m == 2) - (m == -2) for m in moves)
    power = torch.linalg.matrix_power
    assert_close(geometry.plaquette(*commuting), torch.eye(d))
    assert_close(geometry.along(moves, commuting), power(commuting[0], x) @ power(commuting[1], y),
                 atol=1e-6, rtol=1e-6)
    square = b.inverse() @ a.inverse() @ b @ a
    assert_close(geometry.plaquette(a, b), square)
    up_last = geometry.along([1, 2], torch.stack([a, b]))
    right_last = geometry.along([2, 1], torch.stack([a, b]))
    assert torch.allclose(up_last, right_last) == torch.allclose(a @ b, b @ a)
    assert torch.allclose(square, torch.eye(d)) == torch.allclose(a @ b, b @ a)


@pytest.mark.identity("thm-transport-grid")
@given(seed=SEEDS, rows=st.integers(2, 4), columns=st.integers(2, 4))
def test_trivial_squares_make_every_path_alike(seed, rows, columns):
    """Edges chosen so that squares are trivial, row by row, have the form T_q T_p⁻¹."""
    d = 3
    up = invertible(seed, rows * columns, d).view(rows, columns, d, d)  # from (i, j) to (i + 1, j)
    right = invertible(seed + 1, rows * columns, d).view(rows, columns, d, d)
    for i in range(1, rows):
        for j in range(columns - 1):  # X above follows from the square below it
            right[i, j] = up[i - 1, j + 1] @ right[i - 1, j] @ up[i - 1, j].inverse()
    paths = {}
    for moves in range(2 ** (rows + columns - 2)):  # all monotone paths to the far corner
        choice = [(moves >> k) & 1 for k in range(rows + columns - 2)]
        if sum(choice) != rows - 1:
            continue
        i = j = 0
        total = torch.eye(d)
        for c in choice:
            total = (up[i, j] if c else right[i, j]) @ total
            i, j = (i + 1, j) if c else (i, j + 1)
        paths[moves] = total
    first = next(iter(paths.values()))
    assert all(torch.allclose(p, first, atol=1e-7) for p in paths.values())


@pytest.mark.identity("thm-transport-powers")
@few
@given(seed=SEEDS, s=st.floats(0.3, 3), dim=st.integers(2, 4))
def test_the_metric_of_powers(seed, s, dim):
    rate = math.log(s) / 2
    metric = lambda x: torch.exp(2 * rate * x[0]) * torch.eye(dim)  # noqa: E731
    x = normal(seed, dim) / 2
    start, end = (float(v) for v in normal(seed + 1, 2))
    line = lambda t: t * torch.eye(dim)[0] + torch.cat([torch.zeros(1), x[1:]])  # noqa: E731
    p = geometry.transport_along(metric, line, torch.eye(dim), 40, (start, end))[-1]
    assert_close(p, s ** ((start - end) / 2) * torch.eye(dim), atol=1e-5, rtol=1e-5)
    assert_close(geometry.christoffel(metric, x)[:, 0], rate * torch.eye(dim))
    for c in range(dim):
        for d in range(c):
            k = geometry.sectional(metric, x, torch.eye(dim)[c], torch.eye(dim)[d])
            assert_close(k, torch.tensor(-(rate**2) * s ** -float(x[0]) if d else 0.0), atol=1e-9, rtol=1e-7)
