"""The unit sphere in closed form: geodesics, parallel transport along great circles, loops and areas.

Points are unit vectors x of Rⁿ, tangent vectors at x are vectors u with u·x = 0. Both lie in the last axis, and the
axes before it are broadcast. What turns (loops, areas, angles) needs n = 3: the sphere is seen from outside and
counterclockwise is positive. Chapter "Tangent spaces, metrics, parallel transport".
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

LADDERS = ("pole", "schild")


def exponential(x: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*_ n"]:
    """Walk the distance ‖u‖ from x in the direction u: cos‖u‖ x + sin‖u‖ u/‖u‖.

    Raises:
        ValueError: an x that is not a unit vector, a u that is not tangent at x.

    Label: eq-transport-exponential.
    """
    check_points(x=x)
    check_tangent("u", x, u)
    length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
    return length.cos() * x + torch.sinc(length / math.pi) * u


def logarithm(x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"]) -> Float[Tensor, "*_ n"]:
    """Return the tangent vector at x that leads to y on the shortest way: the inverse of :func:`exponential`.

    Raises:
        ValueError: points that are not unit vectors, antipodal points (every direction leads there).

    Label: eq-transport-exponential.
    """
    check_points(x=x, y=y)
    check_not_antipodal(x, y)
    chord = y - x
    across = chord + x * (chord * chord).sum(-1, keepdim=True) / 2  # y − (x·y) x, exact for close points too
    angle = distance(x, y)[..., None]
    return across / torch.sinc(angle / math.pi)


def distance(x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"]) -> Float[Tensor, "*_"]:
    """Return the length of the shorter great arc from x to y, the angle between them, in [0, π]."""
    check_points(x=x, y=y)
    return 2 * torch.atan2(torch.linalg.vector_norm(y - x, dim=-1), torch.linalg.vector_norm(y + x, dim=-1))


def transport(x: Float[Tensor, "*#b n"], y: Float[Tensor, "*#b n"], u: Float[Tensor, "*#b n"]) -> Float[Tensor, "*_ n"]:
    """Carry u from x to y along the shorter great arc: u − (u·y)/(1 + x·y) (x + y).

    Raises:
        ValueError: points that are not unit vectors or are antipodal, a u that is not tangent at x.

    Label: eq-transport-great-circle, thm-transport-great-circle.
    """
    check_points(x=x, y=y)
    check_not_antipodal(x, y)
    check_tangent("u", x, u)
    return _carry(x, y, u)


def _carry(x: Tensor, y: Tensor, u: Tensor) -> Tensor:
    """`transport` of what has been checked."""
    both = x + y
    return u - 2 * (u * y).sum(-1, keepdim=True) / (both * both).sum(-1, keepdim=True) * both


def carried(points: Float[Tensor, "k *b n"], u: Float[Tensor, "*b n"]) -> Float[Tensor, "k *b n"]:
    """Return at every point the vector u, given at points[0] and carried along great arcs from point to point.

    Raises:
        ValueError: as :func:`transport`, for any of the steps.
    """
    check_points(points=points)
    check_not_antipodal(points[:-1], points[1:])
    check_tangent("u", points[0], u)
    vectors = [u]
    for x, y in zip(points[:-1], points[1:], strict=True):
        v = _carry(x, y, vectors[-1])
        vectors.append(v - (v * y).sum(-1, keepdim=True) * y)  # rounding stays in the tangent plane
    return torch.stack(vectors)


def ladder(points: Float[Tensor, "k n"], u: Float[Tensor, "n"], arm: float | int = 0.1,
           kind: str = "pole") -> Float[Tensor, "n"]:
    """Carry u along the points by geodesic parallelograms: only geodesics and midpoints are used.

    Args:
        points: the way, one rung between neighbours.
        u: a tangent vector at points[0].
        arm: how much of u a rung erects.
        kind: "pole" reflects the arm's end at the midpoint of the rung; "schild" completes a parallelogram with the
            midpoint of its diagonal.

    Raises:
        ValueError: an unknown kind, an arm that is not above zero, and what the geodesics refuse.

    Label: thm-transport-ladder.
    """
    if kind not in LADDERS:
        raise ValueError(f"kind must be one of {LADDERS}, got {kind!r}")
    if not arm > 0:
        raise ValueError(f"arm must be above zero, got {arm!r}")
    rung = _pole if kind == "pole" else _schild
    for x, y in zip(points[:-1], points[1:], strict=True):
        u = rung(x, y, arm * u) / arm
    return u


def _pole(x: Tensor, y: Tensor, u: Tensor) -> Tensor:
    return -logarithm(y, _beyond(exponential(x, u), _midpoint(x, y)))


def _schild(x: Tensor, y: Tensor, u: Tensor) -> Tensor:
    return logarithm(y, _beyond(x, _midpoint(exponential(x, u), y)))


def _midpoint(x: Tensor, y: Tensor) -> Tensor:
    return exponential(x, logarithm(x, y) / 2)


def _beyond(x: Tensor, middle: Tensor) -> Tensor:
    """Walk from x to the middle and as far again."""
    return exponential(x, 2 * logarithm(x, middle))


def turn(x: Float[Tensor, "*#b 3"], u: Float[Tensor, "*#b 3"], w: Float[Tensor, "*#b 3"]) -> Float[Tensor, "*_"]:
    """Return the angle from u to w in the tangent plane at x, counterclockwise, in (−π, π].

    Raises:
        ValueError: an x that is not a unit vector, a u or w that is not tangent at x.
    """
    check_points(x=x)
    check_tangent("u", x, u)
    check_tangent("w", x, w)
    return torch.atan2((x * torch.linalg.cross(u, w)).sum(-1), (u * w).sum(-1))


def holonomy(polygon: Float[Tensor, "*b k 3"]) -> Float[Tensor, "*b"]:
    """Return the angle by which a vector turns when carried around the polygon of great arcs, in (−π, π].

    Raises:
        ValueError: fewer than 2 corners, corners that are not unit vectors, antipodal neighbours.

    Label: thm-transport-holonomy.
    """
    check_corners(polygon, 2)
    corners = polygon.movedim(-2, 0)
    u = carried(torch.cat([corners, corners[:1]]), _any_tangent(corners[0]))
    return turn(corners[0], u[0], u[-1])


def interior_angles(polygon: Float[Tensor, "*b k 3"]) -> Float[Tensor, "*b k"]:
    """Return the angle at each corner, from the next edge counterclockwise to the one before, in [0, 2π).

    These are the angles inside a polygon that runs counterclockwise, and outside one that runs clockwise.

    Raises:
        ValueError: fewer than 3 corners, corners that are not unit vectors, antipodal neighbours.
    """
    check_corners(polygon, 3)
    before, after = polygon.roll(1, -2), polygon.roll(-1, -2)
    return turn(polygon, logarithm(polygon, after), logarithm(polygon, before)) % (2 * math.pi)


def spherical_area(polygon: Float[Tensor, "*b k 3"]) -> Float[Tensor, "*b"]:
    """Return the area to the left of the polygon, in (−2π, 2π]: negative where the right side is the smaller one.

    The triangles from corner 0 are added with sign: tan(E/2) = det(a, b, c) / (1 + a·b + b·c + c·a) (Euler; see
    Van Oosterom and Strackee, 1983). Areas that differ by 4π, the whole sphere, belong to the same polygon.

    Raises:
        ValueError: fewer than 3 corners, corners that are not unit vectors, antipodal corners 0 and i.

    Label: thm-transport-girard.
    """
    check_corners(polygon, 3)
    a, b, c = polygon[..., :1, :], polygon[..., 1:-1, :], polygon[..., 2:, :]
    check_not_antipodal(a, polygon[..., 1:, :])
    volume = (a * torch.linalg.cross(b, c)).sum(-1)
    area = (2 * torch.atan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))).sum(-1)
    return area - 4 * math.pi * torch.ceil((area - 2 * math.pi) / (4 * math.pi))


def _any_tangent(x: Tensor) -> Tensor:
    """A unit vector orthogonal to x: the axis that is farthest from x, projected."""
    axis = torch.nn.functional.one_hot(x.abs().argmin(-1), x.shape[-1]).to(x)
    across = axis - (axis * x).sum(-1, keepdim=True) * x
    return across / torch.linalg.vector_norm(across, dim=-1, keepdim=True)


def check_points(**points: Tensor) -> None:
    """Refuse points that are not unit vectors."""
    for name, x in points.items():
        off = (torch.linalg.vector_norm(x, dim=-1) - 1).abs().max() if x.numel() else 0.0
        if not off <= _tolerance(x):
            raise ValueError(f"{name} must be unit vectors, got lengths that differ from 1 by up to {float(off):.1e}")


def check_tangent(name: str, x: Tensor, u: Tensor) -> None:
    """Refuse vectors that stick out of the tangent space at x."""
    out = (x * u).sum(-1).abs() - _tolerance(u) * torch.linalg.vector_norm(u, dim=-1).clamp(min=1)
    if not bool((out <= 0).all()):
        raise ValueError(f"{name} must be tangent, {name}·x = 0, got {float((x * u).sum(-1).abs().max()):.1e}")


def check_not_antipodal(x: Tensor, y: Tensor) -> None:
    """Refuse pairs without a shortest great arc."""
    if bool((torch.linalg.vector_norm(x + y, dim=-1) <= _tolerance(x)).any()):
        raise ValueError("x and y must not be antipodal: no great arc between them is the shortest")


def check_corners(polygon: Tensor, least: int) -> None:
    """Refuse polygons with too few corners, or whose corners are not unit vectors."""
    if polygon.ndim < 2 or polygon.shape[-1] != 3 or polygon.shape[-2] < least:
        raise ValueError(f"polygon must have the shape (…, corners ≥ {least}, 3), got {tuple(polygon.shape)}")
    check_points(polygon=polygon)


def _tolerance(x: Tensor) -> float:
    return 8 * math.sqrt(torch.finfo(x.dtype).eps)
