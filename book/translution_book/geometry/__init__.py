"""Geometry of transport: how a vector is carried from one point of a curved space to another.

`sphere`: the unit sphere in closed form. `connection`: any metric, by automatic differentiation. `lattice`: the
discrete counterpart, one matrix per step on a grid. Chapter "Tangent spaces, metrics, parallel transport".
"""

from . import connection, lattice, sphere
from .connection import christoffel, curvature, induced, sectional, transport_along
from .lattice import along, plaquette
from .sphere import (
    carried,
    distance,
    exponential,
    holonomy,
    interior_angles,
    ladder,
    logarithm,
    spherical_area,
    transport,
    turn,
)

__all__ = [
    "along",
    "carried",
    "christoffel",
    "connection",
    "curvature",
    "distance",
    "exponential",
    "holonomy",
    "induced",
    "interior_angles",
    "ladder",
    "lattice",
    "logarithm",
    "plaquette",
    "sectional",
    "sphere",
    "spherical_area",
    "transport",
    "transport_along",
    "turn",
]
