"""Random features: two feature maps φ whose inner products are unbiased estimates of exp(x yᵀ).

No 1/√d is hidden here: a layer scales its queries and keys first.
Source: Choromanski et al. (2021); Horn et al. (2021), section 2.1; chapter "Random features".
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from translution_lib.functional.checks import check_choice, check_sizes

FEATURES = ("positive", "trigonometric")
DRAWS = ("orthogonal", "gaussian")


def trigonometric(x: Float[Tensor, "*b d"], omega: Float[Tensor, "m d"],
                  shift: Tensor | float = 0.0) -> Float[Tensor, "*b f"]:
    """φ(x) = e^{‖x‖²/2 − shift} [sin ω_1 x … sin ω_m x, cos ω_1 x … cos ω_m x] / √m.

    Args:
        x: one row vector per token.
        omega: the m draws, one per row. They make f = 2m features.
        shift: subtracted from the logarithm of the scale, shape (…, 1). A shift per query, and one that all keys
            share, cancel in the ratio of the attention; :func:`stabilised` chooses both.

    Label: eq-features-trigonometric.
    """
    wave = _product(x, omega)
    scale = _exponential(x.square().sum(-1, keepdim=True) / 2, shift, len(omega))
    return scale * torch.cat([wave.sin(), wave.cos()], dim=-1)


def positive(x: Float[Tensor, "*b d"], omega: Float[Tensor, "m d"],
             shift: Tensor | float = 0.0) -> Float[Tensor, "*b m"]:
    """φ⁺(x) = e^{ω_r x − ‖x‖²/2 − shift} / √m, r = 1 … m (FAVOR+).

    Args:
        x: one row vector per token.
        omega: the m draws, one per row.
        shift: subtracted from the logarithms of the features, shape (…, 1) or (…, m): for the queries any, if the keys
            take the opposite of the part that depends on the feature; see :func:`stabilised`.

    Label: eq-features-positive.
    """
    return _exponential(log_positive(x, omega), shift, len(omega))


def log_positive(x: Float[Tensor, "*b d"], omega: Float[Tensor, "m d"]) -> Float[Tensor, "*b m"]:
    """Return ω_r x − ‖x‖²/2."""
    return _product(x, omega) - x.square().sum(-1, keepdim=True) / 2


def stabilised(q: Float[Tensor, "*b n d"], k: Float[Tensor, "*c k d"], omega: Float[Tensor, "m d"],
               features: str = "positive") -> tuple[Tensor, Tensor]:
    """Return the features of queries and keys, scaled so that nothing overflows.

    For each query the product with all keys changes by one factor, which cancels in the ratio of the attention.
    Positive: log-features of the keys lose their largest value over the keys, feature by feature; the queries gain it
    and lose their own largest value over the features. So each query's sum over all keys is from 1/m to n.
    Trigonometric: queries lose their scale; keys share the scale of the longest.

    Raises:
        ValueError: features that are neither "positive" nor "trigonometric".

    Label: eq-features-shift, thm-features-stable.
    """
    check_choice("features", features, FEATURES)
    if features == "trigonometric":
        a, c = (t.square().sum(-1, keepdim=True).detach() / 2 for t in (q, k))
        return trigonometric(q, omega, a), trigonometric(k, omega, c.amax(-2, keepdim=True))
    log_q, log_k = log_positive(q, omega), log_positive(k, omega)
    # The shifts cancel, so that no gradient has to flow through them.
    c = log_k.detach().amax(-2, keepdim=True)                                      # … 1 m
    log_q = log_q + c                              # first, so that the largest is exactly zero after the next step
    a = log_q.detach().amax(-1, keepdim=True)                                      # … n 1
    return _exponential(log_q, a, len(omega)), _exponential(log_k, c, len(omega))


def gaussian_draw(m: int, d: int, generator: torch.Generator | None = None) -> Float[Tensor, "m d"]:
    """Return m independent draws ω_r ~ N(0, I_d), one per row, on the CPU in float64."""
    check_sizes(m=m, d=d)
    return torch.randn(m, d, generator=generator, dtype=torch.float64, device="cpu")


def orthogonal_draw(m: int, d: int, generator: torch.Generator | None = None, *,
                    haar: bool = True) -> Float[Tensor, "m d"]:
    """Return m draws, each N(0, I_d), that are orthogonal to each other within blocks of d; on the CPU in float64.

    A block is a uniformly distributed (Haar) orthogonal matrix whose rows get independent lengths of Gaussian vectors.
    ``haar=False`` leaves the factor as the QR decomposition gives it, without the correction of its signs: then the
    draws are not Gaussian, and positive features are biased. It is there to show that.

    Label: thm-features-haar.
    """
    check_sizes(m=m, d=d)
    q, r = torch.linalg.qr(gaussian_draw(math.ceil(m / d) * d, d, generator).unflatten(0, (-1, d)))   # blocks d d
    if haar:
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    directions = q.mT.flatten(0, 1)[:m]                                        # the columns of the factors
    return directions * gaussian_draw(m, d, generator).norm(dim=1, keepdim=True)


def draw_features(draw: str, m: int, d: int, generator: torch.Generator | None = None) -> Float[Tensor, "m d"]:
    """Return ``gaussian_draw`` or ``orthogonal_draw`` by its name.

    Label: thm-features-unbiased.
    """
    check_choice("draw", draw, DRAWS)
    return (orthogonal_draw if draw == "orthogonal" else gaussian_draw)(m, d, generator)


def variance_trigonometric(x: Float[Tensor, "*b d"], y: Float[Tensor, "*b d"], m: int,
                           draw: str = "gaussian") -> Float[Tensor, "*b"]:
    """Return the exact variance of φ(x) φ(y)ᵀ: K² (2/m) sinh²(u₋/2) for independent draws, u₋ = ‖x − y‖².

    Orthogonal draws add the covariances within a block, thm-features-orthogonal.

    Label: thm-features-variance, thm-features-which.
    """
    minus = (x - y).square().sum(-1)
    return _variance(x, y, m, draw, 2 * torch.sinh(minus / 2) ** 2, -minus)


def variance_positive(x: Float[Tensor, "*b d"], y: Float[Tensor, "*b d"], m: int,
                      draw: str = "gaussian") -> Float[Tensor, "*b"]:
    """Return the exact variance of φ⁺(x) φ⁺(y)ᵀ: K² (e^{u₊} − 1)/m for independent draws, u₊ = ‖x + y‖².

    Orthogonal draws add the covariances within a block, thm-features-orthogonal.

    Label: thm-features-variance, thm-features-which.
    """
    plus = (x + y).square().sum(-1)
    return _variance(x, y, m, draw, torch.expm1(plus), plus)


def pair_covariance(t: Float[Tensor, "*b"], d: int) -> Float[Tensor, "*b"]:
    """Return the covariance of two terms from one orthogonal block, relative to K²: e^{−t/2} ₁F₁(−d/2; d/2; −t/2) − 1.

    t = u₊ for positive features, t = −u₋ for trigonometric ones. For even d the series is a
    polynomial of degree d/2.

    Label: thm-features-orthogonal.
    """
    check_sizes(d=d)
    half, total, term = d / 2, torch.ones_like(t), torch.ones_like(t)
    for n in range(math.ceil(half) + 120):
        term = term * (n - half) / ((n + half) * (n + 1)) * (-t / 2)
        total = total + term
    return torch.exp(-t / 2) * total - 1


def pairs_in_blocks(m: int, d: int) -> int:
    """Return how many ordered pairs of different draws, of m, lie in one block of d."""
    return m // d * d * (d - 1) + (m % d) * (m % d - 1)


def _variance(x: Tensor, y: Tensor, m: int, draw: str, single: Tensor, t: Tensor) -> Tensor:
    check_sizes(m=m)
    check_choice("draw", draw, DRAWS)
    total, d = m * single, x.shape[-1]
    if draw == "orthogonal":
        total = total + pairs_in_blocks(m, d) * pair_covariance(t, d)
    return (2 * (x * y).sum(-1)).exp() * total / m**2


def _exponential(logs: Tensor, shift: Tensor | float, m: int) -> Tensor:
    """Return e^{logs − shift} / √m; backward keeps one tensor, since the root is part of the exponent."""
    return torch.exp(logs - shift - math.log(m) / 2)


def _product(x: Tensor, omega: Tensor) -> Tensor:
    if omega.ndim != 2 or x.shape[-1:] != omega.shape[1:]:
        raise ValueError(f"omega must have the shape (m, {x.shape[-1]}), got {tuple(omega.shape)}")
    return x @ omega.mT
