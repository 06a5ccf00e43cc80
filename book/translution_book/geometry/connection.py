"""The Levi-Civita connection of any metric, by automatic differentiation.

A metric is a function of D coordinates x that gives the symmetric positive definite matrix g(x), D × D. It must be
made of torch operations that `torch.func.jacfwd` and `torch.func.vmap` understand (`torch.stack` of entries, not
`torch.tensor`). Tangent vectors are columns of components in the coordinate basis. Indices: first the upper one, then
the lower ones from left to right. Chapter "Tangent spaces, metrics, parallel transport".
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacfwd, vmap

Metric = Callable[[Tensor], Tensor]


def induced(embedding: Callable[[Tensor], Tensor]) -> Metric:
    """Return the metric of a surface X(x) in Euclidean space, g = JᵀJ with J = ∂X/∂x.

    Label: eq-transport-metric.
    """

    def metric(x: Tensor) -> Tensor:
        j = jacfwd(embedding)(x)
        return j.mT @ j

    return metric


def christoffel(metric: Metric, x: Float[Tensor, "d"]) -> Float[Tensor, "d d d"]:
    """Return Γᵃ_bc = ½ gᵃᵉ (∂_b g_ec + ∂_c g_eb − ∂_e g_bc) at x.

    Raises:
        ValueError: a metric that does not give a D × D matrix.

    Label: eq-transport-christoffel, thm-transport-levi-civita.
    """
    g = _metric_at(metric, x)
    dg = jacfwd(metric)(x)  # dg[a, b, c] = ∂_c g_ab
    lowered = (dg.permute(0, 2, 1) + dg - dg.permute(2, 0, 1)) / 2
    return torch.linalg.solve(g, lowered.flatten(1)).view_as(lowered)


def curvature(metric: Metric, x: Float[Tensor, "d"]) -> Float[Tensor, "d d d d"]:
    """Return Rᵃ_bcd = ∂_c Γᵃ_db − ∂_d Γᵃ_cb + Γᵃ_ce Γᵉ_db − Γᵃ_de Γᵉ_cb at x.

    Raises:
        ValueError: a metric that does not give a D × D matrix.

    Label: eq-transport-curvature, thm-transport-square.
    """
    gamma = christoffel(metric, x)
    slope = jacfwd(lambda z: christoffel(metric, z))(x)  # slope[a, d, b, c] = ∂_c Γᵃ_db
    half = slope.permute(0, 2, 3, 1) + torch.einsum("ace,edb->abcd", gamma, gamma)
    return half - half.permute(0, 1, 3, 2)


def sectional(metric: Metric, x: Float[Tensor, "d"], u: Float[Tensor, "d"], v: Float[Tensor, "d"]) -> Float[Tensor, ""]:
    """Return the curvature K of the plane of u and v, g(R(u, v)v, u) / (‖u‖²‖v‖² − ⟨u, v⟩²).

    Raises:
        ValueError: u and v that do not span a plane.

    Label: eq-transport-sectional, thm-transport-powers.
    """
    g = _metric_at(metric, x)
    area = (u @ g @ u) * (v @ g @ v) - (u @ g @ v) ** 2
    if not area > torch.finfo(area.dtype).eps * (u @ g @ u) * (v @ g @ v):
        raise ValueError(f"u and v must span a plane, got {u.tolist()} and {v.tolist()}")
    return torch.einsum("abcd,b,c,d,a->", curvature(metric, x), v, u, v, g @ u) / area


def transport_along(metric: Metric, curve: Callable[[Tensor], Tensor], u: Float[Tensor, "d *k"], steps: int = 200,
                    interval: tuple[float | int, float | int] = (0, 1)) -> Float[Tensor, "t d *k"]:
    """Carry u along the curve: solve u̇ᵃ = −Γᵃ_bc ẋᵇ uᶜ with the classical Runge–Kutta method.

    Args:
        metric: the metric g(x).
        curve: takes a time (a scalar tensor) and gives the coordinates x(t).
        u: components at the start, (D,) or several columns (D, k); the identity gives the transport matrix.
        steps: how many steps the interval is divided into; the error falls with their fourth power.
        interval: start and end; the end may be the smaller one.

    Returns:
        The components at the steps + 1 times, the start included: shape (steps + 1, D) or (steps + 1, D, k).

    Raises:
        ValueError: fewer than one step, a curve or a metric whose shape does not fit u.

    Label: eq-transport-equation, thm-transport-isometry, thm-transport-latitude.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer ≥ 1, got {steps!r}")
    times = torch.linspace(*interval, 2 * steps + 1, dtype=u.dtype, device=u.device)
    if (place := curve(times[0])).shape != u.shape[:1]:
        raise ValueError(f"curve must give {u.shape[0]} coordinates, as u has components, got {tuple(place.shape)}")
    _metric_at(metric, place)
    rate = vmap(lambda t: _generator(metric, curve, t))(times)
    return _runge_kutta(rate, u, (interval[1] - interval[0]) / steps)


def _generator(metric: Metric, curve: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """−Γᵃ_bc ẋᵇ, the matrix of the linear transport equation at time t."""
    return -torch.einsum("abc,b->ac", christoffel(metric, curve(t)), jacfwd(curve)(t))


def _runge_kutta(rate: Tensor, u: Tensor, h: float) -> Tensor:
    """Solve u̇ = A(t) u; `rate` holds A at the starts, middles and ends of the steps in turn."""
    path = [u]
    for start, middle, end in zip(rate[:-1:2], rate[1::2], rate[2::2], strict=True):
        a = start @ u
        b = middle @ (u + h / 2 * a)
        c = middle @ (u + h / 2 * b)
        d = end @ (u + h * c)
        u = u + h / 6 * (a + 2 * b + 2 * c + d)
        path.append(u)
    return torch.stack(path)


def _metric_at(metric: Metric, x: Tensor) -> Tensor:
    g = metric(x)
    if g.shape != 2 * x.shape:
        raise ValueError(f"metric must give a {x.shape[0]} × {x.shape[0]} matrix, got the shape {tuple(g.shape)}")
    return g
