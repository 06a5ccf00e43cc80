"""Checks of what the RiemannFormer paper says about metrics, transport, rotary encodings and locality focusing."""

import math

import torch
from torch import Tensor

from translution_book import geometry
from translution_book.facts.ledger.checks.registry import check, equal, normal, weights
from translution_lib.functional import self_attention
from translution_lib.functional.transport import (
    Frame,
    frame,
    half_logs,
    log_scale,
    orthogonal,
    reflection_block,
    rotation_block,
    skew,
    transport_scores_definition,
)

N, D = 6, 4
PLACES = torch.arange(1.0, N + 1, dtype=torch.float64)[:, None]
ANGLES = torch.tensor([[0.4, 1.1]], dtype=torch.float64)
QUERY, KEY = (normal(1, 1, 1, D, seed=s).expand(1, 1, N, D) for s in (1, 2))   # the same features at every place


def _frame(s: float | int = 0.8, kind: str = "rotation", places: Tensor = PLACES, factor: float | int = 1) -> Frame:
    """The frames of (6) and (7) with a scalar metric s^m."""
    logs = torch.full((1, D), math.log(s), dtype=torch.float64)
    return frame(orthogonal(places * factor * ANGLES, kind), half_logs(places, logs))


def _scores(at: Frame) -> Tensor:
    return transport_scores_definition(QUERY, KEY, at)[0, 0]


def _relative(a: Tensor) -> bool:
    """Whether scores of one feature at every place depend on the difference of the places alone."""
    return equal(a[1:, 1:], a[:-1, :-1])


@check
def scalar_metric_is_kept() -> bool:
    """T_iᵀ M_i T_i is the same at every place for (7) with M_i = s^i."""
    at = _frame()
    return equal(at.map.mT @ at.metric @ at.map, torch.eye(D, dtype=torch.float64).expand(N, D, D))


@check
def diagonal_metric_is_kept() -> bool:
    """T_iᵀ M_i T_i is the same at every place for (7) with the diagonal metric (6), the s_i being different."""
    s = torch.tensor([0.5, 0.7, 0.8, 0.9], dtype=torch.float64)
    turns = torch.matrix_exp(PLACES[..., None] * skew(normal(D, D)))
    pulled = [turns[i].T @ torch.diag(s ** int(m)) @ turns[i] / 0.7 ** m for i, m in enumerate(PLACES)]
    return all(equal(m, pulled[0]) for m in pulled)


@check
def transports_multiply() -> bool:
    """T_m T_n⁻¹ = s^((n−m)/2) e^((m−n)X)."""
    x, s, m, n = skew(normal(D, D)), 0.8, 5, 2
    maps = {i: s ** (-i / 2) * torch.matrix_exp(i * x) for i in (m, n)}
    return equal(maps[m] @ torch.linalg.inv(maps[n]), s ** ((n - m) / 2) * torch.matrix_exp((m - n) * x))


@check
def score_is_an_inner_product() -> bool:
    """The score in the metric of the query is ⟨T_m⁻¹ q, T_n⁻¹ k⟩ = s^((m+n)/2) qᵀ e^((m−n)X) k."""
    at = _frame()
    common = (at.inverse @ QUERY[0, 0][..., None])[..., 0] @ (at.inverse @ KEY[0, 0][..., None])[..., 0].T
    power = 0.8 ** ((PLACES + PLACES.T) / 2)
    turned = power * _scores(_frame(1.0))
    return equal(_scores(at), common) and equal(_scores(at), turned)


@check
def without_scale_it_is_rotary() -> bool:
    """With s = 1 a score is that of rotary attention and depends on m − n alone."""
    a = _scores(_frame(1.0))
    rotary = torch.stack([QUERY[0, 0, 0] @ orthogonal(d * ANGLES, "rotation")[0] @ KEY[0, 0, 0]
                          for d in (PLACES - PLACES.T).flatten()[:, None, None]])
    return _relative(a) and equal(a, rotary.view(N, N))


@check
def scale_breaks_relativity() -> bool:
    """With s ≠ 1 a score does not depend on m − n alone."""
    return not _relative(_scores(_frame(0.8)))


@check
def scale_is_more_than_a_temperature() -> bool:
    """With s ≠ 1 a shift by τ does more to the scores than multiply all of them by s^τ."""
    return not equal(_scores(_frame(0.8, places=PLACES + 3)), 0.8 ** 3 * _scores(_frame(0.8)))


@check
def reflections_are_new() -> bool:
    """Scores with reflections differ from scores with rotations by twice the angles."""
    return not equal(_scores(_frame(kind="reflection")), _scores(_frame(factor=2)))


@check
def blocks_of_four_are_new() -> bool:
    """Scores with 4 × 4 blocks differ from rotary scores whose second angle is doubled."""
    doubled = frame(orthogonal(PLACES * ANGLES * torch.tensor([1.0, 2.0]), "rotation"),
                    half_logs(PLACES, torch.full((1, D), math.log(0.8), dtype=torch.float64)))
    return not equal(_scores(_frame(kind="blocks4")), _scores(doubled))


@check
def reflections_behave() -> bool:
    """A reflection has determinant −1 and is its own inverse; two make a rotation, with a rotation it reflects."""
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (0.6, 1.7))
    mirror, other = reflection_block(a), reflection_block(b)
    return (equal(torch.linalg.det(mirror), -torch.ones_like(a)) and equal(mirror @ mirror, rotation_block(0 * a))
            and equal(mirror @ other, rotation_block(2 * (a - b)))
            and equal(other @ rotation_block(a), reflection_block(b - a / 2)))


@check
def transport_turns_on_a_loop() -> bool:
    """A vector that is carried around a loop by T_m T_n⁻¹ comes back changed, for some maps T."""
    maps, loop = torch.eye(D) + 0.3 * normal(N, D, D), (0, 3, 1, 5, 0)
    product = torch.eye(D, dtype=torch.float64)
    for a, b in zip(loop, loop[1:], strict=False):
        product = maps[b] @ torch.linalg.inv(maps[a]) @ product
    return not equal(product, torch.eye(D, dtype=torch.float64))


@check
def sphere_depends_on_the_way() -> bool:
    """On a sphere the transport from one point to another depends on the way."""
    x, y, z = torch.eye(3, dtype=torch.float64)
    return not equal(geometry.transport(x, y, z), geometry.transport(z, y, geometry.transport(x, z, z)))


@check
def appendix_turns_the_same_way() -> bool:
    """The rotations of the appendix, by −mθ, give the scores of the main text, by mθ."""
    return equal(_scores(_frame(factor=-1)), _scores(_frame()))


@check
def appendix_may_print_numbers() -> bool:
    """Numbers s^(m/2) do in the last line of the appendix what the matrices S^(m/2) do."""
    s = torch.tensor([0.5, 0.7, 0.8, 0.9], dtype=torch.float64)
    q, k = (orthogonal(PLACES * ANGLES, "rotation") @ t[0, 0][..., None] for t in (QUERY, KEY))
    scaled = [(s ** (PLACES / 2))[..., None] * t for t in (q, k)]
    numbers = [(0.7 ** (PLACES / 2))[..., None] * t for t in (q, k)]
    return equal(scaled[0][..., 0] @ scaled[1][..., 0].T, numbers[0][..., 0] @ numbers[1][..., 0].T)


def _focused() -> tuple[Tensor, Tensor, Tensor]:
    """Softmax weights, attenuation and values of a line of tokens."""
    alpha, v = normal(N, N).softmax(1), normal(N, 3, seed=3)
    return alpha, torch.exp(-(PLACES - PLACES.T) ** 2 / 2), v


@check
def focusing_is_a_product_of_matrices() -> bool:
    """The sum over s_mn λ_mn v_n is row m of (S ⊙ Ω) V."""
    alpha, omega, v = _focused()
    rows = torch.stack([torch.stack([alpha[m, n] * omega[m, n] * v[n] for n in range(N)]).sum(0) for m in range(N)])
    return equal(rows, (alpha * omega) @ v)


@check
def focusing_is_a_bilateral_filter() -> bool:
    """The weights after locality focusing sum to one, as those of a bilateral filter do."""
    alpha, omega, _ = _focused()
    return equal((alpha * omega).sum(1), torch.ones(N, dtype=torch.float64))


@check
def order_does_not_matter_to_attention() -> bool:
    """The output of self-attention stays the same when its tokens are permuted."""
    x, w = normal(1, N, D), weights(D, D)
    return equal(self_attention(x.flip(1), *w), self_attention(x, *w))


@check
def scale_stays_below_one() -> bool:
    """e^w / (e^w + α) with α > 0 lies below one, and e^w may exceed it."""
    w = torch.linspace(-5, 5, 11, dtype=torch.float64)
    return bool((log_scale(w) < 0).all()) and bool((log_scale(w, None) > 0).any())


@check
def logarithm_slows_the_growth() -> bool:
    """s^(log_β m) is m^(log_β s): a power of m and not an exponential."""
    m, s, beta = PLACES, 0.8, 3.0
    return equal(s ** (m.log() / math.log(beta)), m ** (math.log(s) / math.log(beta)))


@check
def weights_have_one_entry_per_channel() -> bool:
    """The row s of softmax weights in (19) has D entries."""
    return (normal(1, D) @ normal(N, D, seed=1).T).softmax(1).shape == (1, D)
