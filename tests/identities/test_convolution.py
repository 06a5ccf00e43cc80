"""The identities of the chapter "Convolution", on random grids, kernels and contents."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from translution_lib import Convolution, functional, offsets

BOTH = (functional.convolution, functional.convolution_definition)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

seeds = st.integers(0, 10_000)
channels = st.integers(1, 3)


@st.composite
def problems(draw, dims=(1, 2, 3), odd=False):
    """A grid, the sides of a kernel, and random tokens (1 n c) and matrices (k… c e)."""
    d = draw(st.sampled_from(dims))
    shape = tuple(draw(st.integers(1, (6, 4, 3)[d - 1])) for _ in range(d))
    size = tuple(draw(st.sampled_from([1, 3, 5] if odd else [1, 2, 3, 4])) for _ in range(d))
    c, e = draw(channels), draw(channels)
    g = torch.Generator().manual_seed(draw(seeds))
    x = torch.randn(1, prod(shape), c, generator=g, dtype=torch.float64)
    kernel = torch.randn(*size, c, e, generator=g, dtype=torch.float64)
    return shape, size, x, kernel


def tap_matrices(kernel):
    """Each tap κ with its matrix, from the rule of eq-conv-taps and not from the library."""
    axes = [range(-((k - 1) // 2), k // 2 + 1) for k in kernel.shape[:-2]]
    return dict(zip(product(*axes), kernel.flatten(0, -3), strict=True))


def literal(x, kernel, shape):
    """The sum over taps, token by token."""
    at = {p: n for n, p in enumerate(product(*map(range, shape)))}
    out = x.new_zeros(1, len(at), kernel.shape[-1])
    for p, n in at.items():
        for tap, matrix in tap_matrices(kernel).items():
            q = tuple(a + b for a, b in zip(p, tap, strict=True))
            if q in at:
                out[0, n] += x[0, at[q]] @ matrix
    return out


def blocks(layer, n, c):
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], torch.zeros(n, c, dtype=torch.float64))
    return jacobian.permute(0, 2, 3, 1)


@pytest.mark.identity("eq-conv-sum", "eq-conv-taps")
@given(problems())
def test_convolution_is_the_sum_over_taps_and_torchs_layer(problem):
    shape, _, x, kernel = problem
    expected = literal(x, kernel, shape)
    for convolve in BOTH:
        assert_close(convolve(x, kernel, shape), expected)
    torch_conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape)]
    theirs = torch_conv(x.unflatten(1, shape).movedim(-1, 1), kernel.movedim((-1, -2), (0, 1)), padding="same")
    assert_close(theirs.movedim(1, -1).flatten(1, -2), expected)


@pytest.mark.identity("eq-conv-reflection")
@given(st.integers(2, 12), st.sampled_from([1, 3, 5]), seeds)
def test_the_mathematical_convolution_has_the_reflected_kernel(n, k, seed):
    g = torch.Generator().manual_seed(seed)
    signal = torch.randn(n + k, generator=g, dtype=torch.float64)
    kernel = torch.randn(k, generator=g, dtype=torch.float64)
    theirs = torch.from_numpy(np.convolve(signal.numpy(), kernel.numpy(), mode="same"))
    for convolve in BOTH:
        ours = convolve(signal[None, :, None], kernel.flip(0)[:, None, None], (n + k,))
        assert_close(ours.flatten(), theirs)


@pytest.mark.identity("eq-conv-pairs", "thm-conv-blocks")
@given(problems())
def test_the_block_of_a_pair_is_the_tap_at_minus_delta(problem):
    shape, _, x, kernel = problem
    taps, table = tap_matrices(kernel), offsets(shape)
    for convolve in BOTH:
        a = blocks(lambda y, f=convolve: f(y, kernel, shape), *x.shape[1:])
        for r, delta in enumerate(table.labels):
            i, j = table.pairs_of(r)
            expected = taps.get(tuple(-d for d in delta), torch.zeros_like(a[0, 0]))
            assert_close(a[i, j], expected.expand(len(i), *expected.shape))
    assert_close(torch.einsum("bjc,ijce->bie", x, a), literal(x, kernel, shape))


@pytest.mark.identity("thm-conv-blocks")
@given(st.sampled_from([(4,), (2, 3), (2, 2, 2)]), channels, channels, seeds)
def test_blocks_that_depend_on_the_offset_alone_are_a_convolution(shape, c, e, seed):
    g = torch.Generator().manual_seed(seed)
    table, size = offsets(shape), [2 * s - 1 for s in shape]
    weight = torch.randn(table.count, c, e, generator=g, dtype=torch.float64)
    x = torch.randn(2, table.n, c, generator=g, dtype=torch.float64)
    linear = torch.einsum("bjc,ijce->bie", x, weight[table.index])
    kernel = weight.unflatten(0, size).flip(*range(len(shape)))             # K[κ] = W[−κ]
    for convolve in BOTH:
        assert_close(convolve(x, kernel, shape), linear)


@pytest.mark.identity("thm-conv-blocks")
@given(st.sampled_from([(5,), (3, 2), (2, 2, 2)]), seeds, st.booleans())
def test_a_linear_map_follows_one_moving_token_exactly_when_its_blocks_repeat(shape, seed, shares):
    g, table = torch.Generator().manual_seed(seed), offsets(shape)
    a = torch.randn(table.count, generator=g)[table.index] if shares else torch.randn(table.n, table.n, generator=g)
    p, axes = table.positions, [range(1 - s, s) for s in shape]
    at = {tuple(place): n for n, place in enumerate(p.tolist())}
    worst = 0.0
    for j, tau in product(range(table.n), product(*axes)):
        there = [at.get(tuple(place)) for place in (p + torch.tensor(tau)).tolist()]
        if there[j] is not None:
            still, moved = a @ torch.eye(table.n)[j], a @ torch.eye(table.n)[there[j]]
            worst = max(worst, *(float((moved[q] - still[n]).abs()) for n, q in enumerate(there) if q is not None))
    assert (worst == 0) == shares


@pytest.mark.identity("eq-conv-inside", "eq-conv-cost")
@given(problems())
def test_taps_inside_the_grid_and_the_cost(problem):
    shape, size, x, kernel = problem
    p = offsets(shape).positions
    k, n = torch.tensor(size), torch.tensor(shape)
    inside = (1 + torch.minimum((k - 1) // 2, p) + torch.minimum(k // 2, n - 1 - p)).prod(dim=1)
    ones = torch.ones(1, prod(shape), 1, dtype=torch.float64)
    for convolve in BOTH:
        counted = convolve(ones, torch.ones(*size, 1, 1, dtype=torch.float64), shape)
        assert_close(counted.flatten(), inside.double())
    c, e = kernel.shape[-2:]
    a = blocks(lambda y: functional.convolution(y, kernel, shape), x.shape[1], c)
    assert int(a.count_nonzero()) == c * e * int(inside.sum())
    with FlopCounterMode(display=False) as counter:
        functional.convolution(x, kernel, shape)
    assert counter.get_total_flops() == 2 * prod(shape) * kernel.numel()


@st.composite
def moved_objects(draw, room):
    """A canvas (H, W), an object's height and width, two corners at least `room` away from the border."""
    h, w = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    canvas = (2 * room + h + draw(st.integers(0, 4)), 2 * room + w + draw(st.integers(0, 4)))
    room_at = [st.integers(room, s - o - room) for s, o in zip(canvas, (h, w), strict=True)]
    corners = [tuple(draw(place) for place in room_at) for _ in range(2)]
    return canvas, (h, w), corners, draw(seeds)


def pictures(canvas, shape, corners, channels, generator):
    content = torch.randn(*shape, channels, generator=generator, dtype=torch.float64)
    out = torch.zeros(len(corners), *canvas, channels, dtype=torch.float64)
    for picture, (r, c) in zip(out, corners, strict=True):
        picture[r:r + shape[0], c:c + shape[1]] = content
    return out.flatten(1, 2)


def assert_shifted(still, moved, canvas, tau):
    """moved[p + τ] = still[p] wherever both lie on the canvas."""
    still, moved = still.unflatten(0, canvas), moved.unflatten(0, canvas)
    here, there = ([slice(max(0, s * t), n + min(0, s * t)) for t, n in zip(tau, canvas, strict=True)] for s in (-1, 1))
    assert_close(moved[tuple(there)], still[tuple(here)])


@pytest.mark.identity("thm-conv-equivariance")
@given(moved_objects(room=0), st.integers(1, 4), st.integers(1, 4))
def test_one_layer_moves_with_an_object_on_zero_background(case, k1, k2):
    canvas, shape, corners, seed = case
    g = torch.Generator().manual_seed(seed)
    x = pictures(canvas, shape, corners, 2, g)
    kernel = torch.randn(k1, k2, 2, 3, generator=g, dtype=torch.float64)
    tau = [b - a for a, b in zip(*corners, strict=True)]
    for convolve in BOTH:
        assert_shifted(*convolve(x, kernel, canvas), canvas, tau)


@pytest.mark.identity("thm-conv-equivariance")
@given(st.integers(3, 6), st.integers(3, 6), st.sampled_from([1, 3, 5]), seeds)
def test_on_a_ring_any_content_moves_with_any_shift(h, w, k, seed):
    """Three copies side by side and below each other: what lies in the middle one has a ring around it."""
    g = torch.Generator().manual_seed(seed)
    image = torch.randn(1, 2, h, w, generator=g, dtype=torch.float64)
    kernel = torch.randn(k, k, 2, 3, generator=g, dtype=torch.float64)
    weight = kernel.movedim((-1, -2), (0, 1))
    theirs = F.conv2d(F.pad(image, (k // 2,) * 4, mode="circular"), weight)
    tau = [int(torch.randint(s, (), generator=g)) for s in (h, w)]
    for convolve in BOTH:
        def ring(x, convolve=convolve):
            tokens = x.repeat(1, 1, 3, 3).flatten(2).mT
            return convolve(tokens, kernel, (3 * h, 3 * w)).mT.unflatten(2, (3 * h, 3 * w))[..., h:2 * h, w:2 * w]

        assert_close(ring(image), theirs)
        assert_close(ring(image.roll(tau, (2, 3))), ring(image).roll(tau, (2, 3)))


@pytest.mark.identity("thm-conv-equivariance")
@given(st.integers(2, 5), st.integers(3, 6), st.sampled_from([1, 3]), seeds)
def test_on_closed_rows_any_content_moves_along_them(h, w, k, seed):
    """Three copies side by side, zeros above and below."""
    g = torch.Generator().manual_seed(seed)
    image = torch.randn(1, 2, h, w, generator=g, dtype=torch.float64)
    kernel = torch.randn(k, k, 2, 3, generator=g, dtype=torch.float64)
    tau = int(torch.randint(w, (), generator=g))
    around = F.pad(F.pad(image, (k // 2, k // 2, 0, 0), mode="circular"), (0, 0, k // 2, k // 2))
    theirs = F.conv2d(around, kernel.movedim((-1, -2), (0, 1)))
    for convolve in BOTH:
        def closed(x, convolve=convolve):
            tokens = x.repeat(1, 1, 1, 3).flatten(2).mT
            return convolve(tokens, kernel, (h, 3 * w)).mT.unflatten(2, (h, 3 * w))[..., w:2 * w]

        assert_close(closed(image), theirs)
        assert_close(closed(image.roll(tau, 3)), closed(image).roll(tau, 3))


@pytest.mark.identity("thm-conv-equivariance")
@given(st.lists(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 3, 5])), min_size=1, max_size=3),
       st.tuples(st.integers(0, 3), st.integers(0, 3)), seeds)
def test_equal_receptive_fields_give_equal_outputs_in_any_depth(kernels, tau, seed):
    """Biases, maps of each token alone, and anything outside the fields; F.conv2d says the same."""
    g = torch.Generator().manual_seed(seed)
    reach = [sum(k // 2 for k in sides) for sides in zip(*kernels, strict=True)]
    canvas = [2 * r + 1 + t for r, t in zip(reach, tau, strict=True)]
    weights = [torch.randn(*sides, 2, 2, generator=g, dtype=torch.float64) for sides in kernels]
    biases = torch.randn(len(kernels), 2, generator=g, dtype=torch.float64)
    one, other = torch.randn(2, 1, 2, *canvas, generator=g, dtype=torch.float64)
    field = one[..., :2 * reach[0] + 1, :2 * reach[1] + 1]
    other[..., tau[0]:, tau[1]:] = field

    def stack(x, convolve):
        tokens = x.flatten(2).mT
        for weight, bias in zip(weights, biases, strict=True):
            tokens = torch.tanh(convolve(tokens, weight, tuple(canvas)) + bias)
        return tokens.mT.unflatten(2, canvas)

    def theirs(x):
        for weight, bias in zip(weights, biases, strict=True):
            x = torch.tanh(F.conv2d(x, weight.movedim((-1, -2), (0, 1)), bias, padding="same"))
        return x

    for convolve in BOTH:
        still, moved = stack(one, convolve), stack(other, convolve)
        assert_close(still, theirs(one))
        assert_close(moved[..., reach[0] + tau[0], reach[1] + tau[1]], still[..., reach[0], reach[1]])


@pytest.mark.identity("thm-conv-depth")
@given(moved_objects(room=2))
def test_three_layers_need_two_tokens_of_room(case):
    canvas, shape, corners, seed = case
    g = torch.Generator().manual_seed(seed)
    x = pictures(canvas, shape, corners, 2, g)
    for _ in range(3):
        kernel = torch.randn(3, 3, 2, 2, generator=g, dtype=torch.float64)
        x = torch.tanh(functional.convolution(x, kernel, canvas))
    assert_shifted(*x, canvas, [b - a for a, b in zip(*corners, strict=True)])


def test_less_room_a_background_or_a_bias_break_the_shift():
    g = torch.Generator().manual_seed(3)
    kernel = torch.randn(3, 2, 2, generator=g, dtype=torch.float64)
    run = lambda x, bias=0.0: functional.convolution(x, kernel, (8,)) + bias  # noqa: E731
    x = torch.zeros(2, 8, 2, dtype=torch.float64)
    x[0, 3], x[1, 0] = 1.0, 1.0                                            # from the middle to the border
    deep, grey, biased = run(run(x)), run(x + 0.5), run(run(x, 0.1))
    for still, moved in (deep, grey, biased):
        assert (moved[:5] - still[3:]).abs().max() > 1e-3


@pytest.mark.identity("eq-conv-receptive-field")
@given(st.sampled_from([1, 3, 5]), st.integers(1, 4), seeds)
def test_the_receptive_field_grows_by_k_minus_one_per_layer(k, m, seed):
    g = torch.Generator().manual_seed(seed)
    n = 2 * m * (k - 1) + 3
    x = torch.randn(1, n, 2, generator=g, dtype=torch.float64).requires_grad_()
    y = x
    for _ in range(m):
        y = functional.convolution(y, torch.rand(k, 2, 2, generator=g, dtype=torch.float64) + 0.1, (n,))
    (grad,) = torch.autograd.grad(y[0, n // 2].sum(), x)
    seen = grad[0].abs().sum(-1).nonzero().flatten()
    reach = m * (k - 1) // 2
    assert seen.tolist() == list(range(n // 2 - reach, n // 2 + reach + 1))


@pytest.mark.identity("eq-conv-causal")
@given(st.integers(1, 8), st.integers(1, 5), seeds)
def test_a_causal_convolution_sums_over_the_past(n, k, seed):
    torch.manual_seed(seed)
    layer = Convolution(offsets(n, causal=True), dim=2, kernel_size=k, output=False).double()
    weight = layer.kernel.detach().flip(0)                                 # W[δ]
    x = torch.randn(2, n, 2, dtype=torch.float64)
    for i in range(n):
        assert_close(layer(x)[:, i].detach(), sum(x[:, i - d] @ weight[d] for d in range(min(k - 1, i) + 1)))
