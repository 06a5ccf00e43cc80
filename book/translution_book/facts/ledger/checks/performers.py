"""Checks of what Horn et al. (2021) and the note on it say about random features and positions."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from translution_book.facts.ledger.checks.registry import check, equal, normal
from translution_lib.functional.positional_features import commuting_blocks, positional_features
from translution_lib.functional.random_features import positive, trigonometric, variance_trigonometric
from translution_lib.functional.window_sum import line_columns, window_columns, window_sum_definition

ALPHA, BETA = 0.7, -1.3


def _phi(places: Tensor, omega: float) -> Tensor:
    return positional_features(places[:, None], torch.tensor([[omega]], dtype=torch.float64))


def _invariant(matrix: Tensor, omega: float, places: Tensor, tau: float) -> bool:
    """Whether φ(z − τ) M φ(z′ − τ)ᵀ = φ(z) M φ(z′)ᵀ for all pairs of places."""
    still, moved = _phi(places, omega), _phi(places - tau, omega)
    return equal(moved @ matrix @ moved.T, still @ matrix @ still.T)


def _block() -> Tensor:
    return commuting_blocks(torch.tensor([ALPHA], dtype=torch.float64), torch.tensor([BETA], dtype=torch.float64))


PLACES = torch.arange(5, dtype=torch.float64)


@check
def lemma_1_if() -> bool:
    """With a matrix of the stated form the product of two positional features depends on their difference alone."""
    return _invariant(_block(), 0.9, PLACES, 2.0) and _invariant(_block(), 0.9, PLACES, 0.37)


@check
def lemma_1_only_if() -> bool:
    """A matrix of another form changes the product under some whole shift, for ω = 0.9 and for ω = π."""
    other = normal(2, 2)
    return not any(_invariant(other, omega, PLACES, 1.0) for omega in (0.9, math.pi))


@check
def second_line_of_the_proof() -> bool:
    """The row printed in the second line of the proof is φ(z) W_q W_kᵀ."""
    sin, cos = _phi(PLACES, 0.9).unbind(1)
    printed = torch.stack([ALPHA * sin + BETA * cos, BETA * sin + ALPHA * cos], 1)
    return equal(printed, _phi(PLACES, 0.9) @ _block())


def _queries_and_keys(tau: float) -> tuple[Tensor, Tensor]:
    """Strategy 1: content beside position, all places shifted by τ."""
    phi = _phi(PLACES - tau, 0.9)
    return torch.cat([normal(5, 2), phi @ _block()], 1) / 2, torch.cat([normal(5, 2, seed=1), phi], 1) / 2


@check
def expected_kernel_is_relative() -> bool:
    """The expectation of strategy 1's kernel, e^(q·k), does not change when all positions are shifted."""
    return equal(*((q @ k.T).exp() for q, k in map(_queries_and_keys, (0.0, 2.0))))


@check
def one_draw_sees_the_position() -> bool:
    """For one draw of the features strategy 1's kernel changes when all positions are shifted."""
    omega = normal(6, 4, seed=2)
    still, moved = (positive(q, omega) @ positive(k, omega).T for q, k in map(_queries_and_keys, (0.0, 2.0)))
    return not equal(still, moved)


@check
def first_strategy_has_no_mixed_term() -> bool:
    """In strategy 1 the effect of a position on a score does not depend on the content."""
    (q, k), (_, key) = _queries_and_keys(0.0), _queries_and_keys(2.0)
    contents, places = torch.stack([q, q + torch.tensor([1.0, -1.0, 0.0, 0.0])]), torch.stack([k, key])
    scores = torch.einsum("anc,bmc->abnm", contents, places)
    return equal(scores[0, 0] - scores[0, 1], scores[1, 0] - scores[1, 1])


@check
def four_terms() -> bool:
    """(e + u) W (e′ + u′)ᵀ is the sum of the four printed products."""
    e, u, w = normal(5, 3), normal(5, 3, seed=1), normal(3, 3, seed=2)
    return equal((e + u) @ w @ (e + u).T, e @ w @ e.T + e @ w @ u.T + u @ w @ e.T + u @ w @ u.T)


def _expectation(function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return E f(ω) over ω ~ N(0, 1) by Gauss–Hermite quadrature with 60 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    values = [w * function(torch.tensor([[v]])) for v, w in zip(nodes, weights, strict=True)]
    return torch.stack(values).sum(0) / math.sqrt(2 * math.pi)


def _unbiased(feature: Callable[[Tensor, Tensor], Tensor]) -> bool:
    x, y = normal(4, 1), normal(3, 1, seed=1)
    return equal(_expectation(lambda omega: feature(x, omega) @ feature(y, omega).T), (x @ y.T).exp())


@check
def sine_and_cosine_are_unbiased() -> bool:
    """The expected product of the sine and cosine features is e^(x·y)."""
    return _unbiased(trigonometric)


@check
def only_sine_and_cosine_are_unbiased() -> bool:
    """The expected product of positive features differs from e^(x·y)."""
    return not _unbiased(positive)


@check
def estimated_attention_is_unbiased() -> bool:
    """The expected attention weights, from one positive feature, are the softmax weights."""
    q, k = normal(2, 1), normal(3, 1, seed=1)

    def weights(omega: Tensor) -> Tensor:
        kernel = positive(q, omega) @ positive(k, omega).T
        return kernel / kernel.sum(1, keepdim=True)

    return equal(_expectation(weights), (q @ k.T).softmax(1))


@check
def more_features_are_more_precise() -> bool:
    """The variance of the estimate falls as 1/m."""
    x, y = normal(4, 3), normal(4, 3, seed=1)
    return equal(variance_trigonometric(x, y, 8), 4 * variance_trigonometric(x, y, 32))


def _window(k: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Kernel values of every query with the distances 0 … k on a 5 × 6 grid, values, and the column of every pair."""
    return normal(1, 1, 30, k + 1).exp(), normal(1, 1, 30, 2, seed=1), window_columns((5, 6), k)


@check
def printed_window_sum() -> bool:
    """The far value for all keys, mended within distance k − 1, is the sum over all pairs of unsigned distances."""
    rho, v, column = _window()
    pairs = rho[0, 0].gather(1, column)
    mended = rho[0, 0, :, -1:] * v.sum(2)[0] + ((pairs - rho[0, 0, :, -1:]) * (column < 3)) @ v[0, 0]
    return equal(mended, window_sum_definition(rho, v, (5, 6))[0][0, 0])


@check
def signed_clip_has_one_far_field() -> bool:
    """With the signed clip of the display the same formula, with one far value, is the sum over all pairs."""
    k, n = 2, 9
    rho, v = normal(n, 2 * k + 1).exp(), normal(n, 2, seed=1)
    column = line_columns(n, k)
    near = ((column - k).abs() < k) * (rho.gather(1, column) - rho[:, -1:])
    return equal(rho[:, -1:] * v.sum(0) + near @ v, rho.gather(1, column) @ v)


@check
def numerator_is_attention() -> bool:
    """The printed sum over the keys has weights that sum to one in every row."""
    rho, v, _ = _window()
    weights = window_sum_definition(rho, v, (5, 6))[1]
    return equal(weights, torch.ones_like(weights))


@check
def heads_apart_are_the_sum_of_scores() -> bool:
    """Weights of e^(a + b) are a mixture of the weights of e^a and of e^b with one factor for all pairs."""
    a, b = normal(1, 6), normal(1, 6, seed=1)
    heads = torch.cat([a.softmax(1), b.softmax(1)]).T
    both = (a + b).softmax(1).T
    solved = torch.linalg.lstsq(heads, both).solution
    return equal(heads @ solved, both)


@check
def window_sum_of_the_note() -> bool:
    """The note's window sum, without − w_k and with v_m put back, is the sum over all pairs."""
    rho, v, column = _window()
    pairs = rho[0, 0].gather(1, column)
    noted = rho[0, 0, :, -1:] * v.sum(2)[0] + (pairs * (column < 3)) @ v[0, 0]
    return equal(noted, window_sum_definition(rho, v, (5, 6))[0][0, 0])


@check
def clip_cuts_off() -> bool:
    """max(−k, min(k, x)) is x within [−k, k] and the nearer end outside."""
    return all(max(-3, min(3, x)) == (x if abs(x) <= 3 else int(math.copysign(3, x))) for x in range(-9, 10))
