"""Checks of what the Translution paper and its preprint say about convolution, attention and their operators."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from translution_book.facts.ledger.checks.registry import Three, check, equal, normal, weights
from translution_lib.functional import convolution, lor_translution_definition, self_attention, shift_error, translution
from translution_lib.functional.convolution import relation_kernel
from translution_lib.functional.lor import lor_values_definition
from translution_lib.functional.rotary import turn
from translution_lib.mixers import Attention, LoRTranslution, Translution
from translution_lib.relations import offsets

GRID = (5, 4)


def _from_kernel(kernel: Tensor, x: Tensor) -> Tensor:
    """Value-only Translution with uniform weights and W^v_δ = N K_−δ, K_κ being the kernel's taps."""
    rel = offsets(GRID)
    nothing = x.new_zeros(x.shape[-1], kernel.shape[-1])
    return translution(x, nothing, nothing, rel.n * relation_kernel(kernel, rel), rel)


def _stack(w: Three, depth: int) -> Callable[[Tensor], Tensor]:
    """Layers of Translution with residuals on a 7 × 7 grid."""
    rel = offsets((7, 7))

    def operator(x: Tensor) -> Tensor:
        for _ in range(depth):
            x = x + translution(x, *w, rel)
        return x

    return operator


def _object(background: float) -> Tensor:
    """A 3 × 3 object at the upper left of a 7 × 7 grid."""
    grid = torch.full((7, 7, 4), background, dtype=torch.float64)
    grid[1:4, 1:4] = normal(3, 3, 4)
    return grid.view(1, 49, 4)


@check
def contains_convolution() -> bool:
    """Value-only Translution equals a zero-padded convolution, border included."""
    x, kernel = normal(2, 20, 3), normal(3, 3, 3, 2, seed=1)
    return equal(_from_kernel(kernel, x), convolution(x, kernel, GRID))


@check
def contains_attention() -> bool:
    """Translution with one matrix for all offsets equals self-attention without positions."""
    x, w, rel = normal(2, 20, 4), weights(4, 4), offsets(GRID)
    q, k, v = (m.expand(rel.count, 4, 4).contiguous() for m in w)
    return equal(translution(x, q, k, v, rel, heads=2), self_attention(x, *w, heads=2))


@check
def box_is_a_softmax() -> bool:
    """Some softmax row is 1 on two tokens and 0 on the others."""
    box = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    return any(torch.equal((b * box).softmax(0), box) for b in (0.0, 1.0, 10.0, 100.0, 1e4))


@check
def same_kernel_in_both_displays() -> bool:
    """The sum with W at p_i − p_j equals the convolution whose W multiplies the neighbour at x + δ."""
    x, kernel = normal(2, 20, 3), normal(3, 3, 3, 2, seed=1)
    return equal(_from_kernel(kernel.flip(0, 1), x), convolution(x, kernel, GRID))


@check
def sum_has_as_many_taps_as_the_kernel() -> bool:
    """The sum from −⌊h/2⌋ to ⌊h/2⌋ has h terms for every h up to 8."""
    return all(2 * (h // 2) + 1 == h for h in range(1, 9))


@check
def attention_ignores_positions() -> bool:
    """Self-attention without an embedding permutes its outputs when its inputs are permuted."""
    x, w, moved = normal(2, 6, 4), weights(4, 4), torch.tensor([3, 0, 5, 1, 4, 2])
    return equal(self_attention(x[:, moved], *w), self_attention(x, *w)[:, moved])


@check
def embedding_breaks_shifts() -> bool:
    """A shift changes self-attention with an absolute embedding, and leaves it unchanged without."""
    w, embedding, rel = weights(4, 4), normal(49, 4, seed=4), (7, 7)
    plain = shift_error(lambda x: self_attention(x, *w), _object(0.0), rel, (2, 2))
    placed = shift_error(lambda x: self_attention(x + embedding, *w), _object(0.0), rel, (2, 2))
    return plain < 1e-12 and placed > 1e-3


@check
def three_axes_are_axes() -> bool:
    """Translution on a grid of three axes sums f_j W_δ by the pair's difference of all three coordinates."""
    rel, x, w = offsets((2, 3, 2)), normal(12, 3), weights(45, 3, 3)
    places = [tuple(map(int, place)) for place in torch.cartesian_prod(*map(torch.arange, (2, 3, 2)))]
    deltas = product((-1, 0, 1), (-2, -1, 0, 1, 2), (-1, 0, 1))
    of: dict[tuple[int, ...], int] = {delta: k for k, delta in enumerate(deltas)}
    ids = [[of[tuple(a - b for a, b in zip(p, q, strict=True))] for q in places] for p in places]
    scores = torch.stack([torch.stack([(x[i] @ w[0][r]) @ (x[j] @ w[1][r]) for j, r in enumerate(row)])
                          for i, row in enumerate(ids)]) / 3 ** 0.5
    values = torch.stack([torch.stack([x[j] @ w[2][r] for j, r in enumerate(row)]) for row in ids])
    return equal(translution(x[None], *w, rel)[0], (scores.softmax(-1)[..., None] * values).sum(1))


@check
def convolution_follows_the_object() -> bool:
    """On a zero background a convolution's output moves with the object."""
    kernel = normal(3, 3, 4, 4, seed=1)
    return shift_error(lambda x: convolution(x, kernel, (7, 7)), _object(0.0), (7, 7), (2, 2)) < 1e-12


@check
def translution_follows_the_object() -> bool:
    """On a grey background the output of two Translution layers moves with the object."""
    w = weights(offsets((7, 7)).count, 4, 4)
    return shift_error(_stack(w, 2), _object(0.5), (7, 7), (2, 2), fill=0.5) < 1e-9


@check
def relative_scores_make_the_network_follow() -> bool:
    """Two layers whose positions enter through relative scores alone follow an object on a grey background."""
    w = normal(offsets((7, 7)).count, 4, 4), normal(4, 4, seed=1), normal(4, 4, seed=2)
    return shift_error(_stack(w, 2), _object(0.5), (7, 7), (2, 2), fill=0.5) < 1e-9


@check
def weight_is_a_function_of_the_pair() -> bool:
    """The weight of a pair stays the same when another token changes."""
    scores = normal(3, 3)
    other = scores.clone()
    other[0, 2] += 1.0
    return equal(scores.softmax(1)[0, :2], other.softmax(1)[0, :2])


@check
def weights_hide_the_displacement() -> bool:
    """A row of weights that prefers one offset does not tell which one."""
    line = offsets(9)
    alpha = torch.where(line.index == line.id_of((-2,)), 20.0, 0.0).softmax(1)
    places = torch.arange(9.0)
    return float((alpha @ places - places)[:7].sub(2).abs().max()) > 1e-3


@check
def related_tokens_weigh_one() -> bool:
    """The weight of a related key tends to 1 also where a second key is related as much."""
    return float(torch.tensor([100.0, 100.0, 0.0]).softmax(0)[0]) > 0.99


@check
def weights_lie_between_zero_and_one() -> bool:
    """Every softmax weight of finite scores lies strictly between 0 and 1."""
    alpha = normal(50, 7).softmax(1)
    return bool(((alpha > 0) & (alpha < 1)).all())


@check
def shape_of_the_output_is_the_same() -> bool:
    """A Translution layer takes and gives the shapes that a self-attention layer takes and gives."""
    rel, x = offsets((3, 3), cls=True), torch.zeros(2, 10, 8)
    made = (layer(rel, 8, 2).to(x) for layer in (Translution, Attention))
    return len({tuple(layer(x).shape) for layer in made}) == 1


def _lor(width: int) -> tuple[Tensor, Three, Three, Tensor, Three]:
    """Features, W1, cores, W2 and the shared matrices of LoR-Translution."""
    return (normal(2, 20, 4), weights(4, width), weights(offsets(GRID).count, width, width),
            normal(width, 4, seed=7), weights(4, 4))


@check
def lor_without_dimensions_is_attention() -> bool:
    """LoR-Translution of relative dimension 0 equals self-attention without positions."""
    x, _, _, _, shared = _lor(1)
    low, cores, up = weights(4, 0), weights(offsets(GRID).count, 0, 0), normal(0, 4)
    without = lor_translution_definition(x, low, cores, up, offsets(GRID), shared=shared)
    return equal(without, self_attention(x, *shared))


@check
def appendix_d_is_the_definition() -> bool:
    """The sum that multiplies by W2 last equals the sum of α_ij f_j (W + W1 W_δ W2)."""
    (x, low, cores, up, shared), rel = _lor(2), offsets(GRID)
    alpha = normal(2, 1, 20, 20, seed=11).softmax(-1)
    matrices = shared[2] + low[2] @ cores[2] @ up
    literal = torch.einsum("bhij,bjc,ijce->bie", alpha, x, matrices[rel.index])
    return equal(lor_values_definition(alpha, x, low, cores, up, rel, shared), literal)


@check
def pair_values_have_eight_channels() -> bool:
    """The values that LoR-Translution of dimension 8 keeps for each pair have 8 channels in ViT-A/56."""
    with torch.device("meta"):
        layer = LoRTranslution(offsets((4, 4), cls=True), 192, 3, relative_dim=8)
    return layer.value_core.shape[-1] == 8


@check
def rotary_scores_depend_on_distance() -> bool:
    """A rotary score is the same one step to the left and one step to the right."""
    q, k, angle = normal(1, 4), normal(1, 4, seed=1), torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    left, right = (q @ turn(k, (s * angle).cos(), (s * angle).sin()).T for s in (-1, 1))
    return equal(left, right)
