"""Property tests of the identities of chapter "Equivariance"."""

import math
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from translution_lib import MIXERS, Relations, Translution, ViT, merge, offsets, translution
from translution_lib.functional import moved_tokens, shift_error, shifted
from translution_lib.models.blocks import Block

EXACT = 1e-11
BILINEAR = ["self-attention", "translution", "value-translution", "lor-translution", "rotary"]
BIASED = ["key-vector", "value-vector", "scalar-bias", "gated-bias"]
SHARED_VALUES = ["self-attention", "rotary", "key-vector", "scalar-bias", "gated-bias"]


pytestmark = pytest.mark.usefixtures("double")


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(layer, seed=0):
    """Every parameter of a layer drawn anew, large enough for the attention to be far from uniform."""
    torch.manual_seed(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer.requires_grad_(False)


@st.composite
def scenes(draw, least=2, most=5):
    """A grid, a shift τ, and a mask S of content with S and S + τ on the grid; features; a seed."""
    shape = draw(st.tuples(st.integers(least, most), st.integers(least, most)))
    box = tuple(draw(st.integers(1, side - 1)) for side in shape)
    start = tuple(draw(st.integers(0, side - b)) for side, b in zip(shape, box, strict=True))
    end = tuple(draw(st.integers(0, side - b)) for side, b in zip(shape, box, strict=True))
    seed = draw(st.integers(0, 10**6))
    ink = torch.zeros(shape, dtype=torch.bool)
    ink[start[0]:start[0] + box[0], start[1]:start[1] + box[1]] = True
    tau = tuple(b - a for a, b in zip(start, end, strict=True))
    return shape, tau, ink.flatten(), random(1, math.prod(shape), 4, seed=seed), seed


def scattered(positions, reach):
    """Relations of CLS and of tokens at any integer positions; ids are those of a grid of this reach, then CLS."""
    table = offsets((reach + 1,) * positions.shape[1], cls=True)
    delta = (positions[:, None] - positions[None]).reshape(-1, positions.shape[1]).tolist()
    index = torch.full((len(positions) + 1,) * 2, table.id_of("image←cls"))
    index[0], index[0, 0] = table.id_of("cls←image"), table.id_of("cls")
    index[1:, 1:] = torch.tensor([table.id_of(tuple(d)) for d in delta]).view(len(positions), -1)
    return Relations(index, table.count, table.labels)


def network(positions, reach, seed):
    torch.manual_seed(seed)
    blocks = [Block(Translution(scattered(positions, reach), 4, 2), 4, 6) for _ in range(2)]
    return filled(nn.Sequential(*blocks), seed)


@pytest.mark.identity("thm-equivariance-sets")
@settings(max_examples=8)
@given(n=st.integers(1, 4), dims=st.integers(1, 2), seed=st.integers(0, 999), data=st.data())
def test_a_stack_on_a_set_sees_no_shift_and_cls_is_invariant(n, dims, seed, data):
    places = data.draw(st.lists(st.tuples(*[st.integers(0, 2)] * dims), min_size=n, max_size=n, unique=True))
    tau = data.draw(st.tuples(*[st.integers(-50, 50)] * dims))
    p, x = torch.tensor(places), random(2, n + 1, 4, seed=seed)
    y = network(p, 2, seed)(x)
    assert torch.equal(network(p + torch.tensor(tau), 2, seed)(x), y)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    rows = torch.cat([torch.tensor([0]), order + 1])
    assert_close(network(p[order], 2, seed)(x[:, rows]), y[:, rows])
    assert_close(network(p[order], 2, seed)(x[:, rows])[:, 1:].mean(1), y[:, 1:].mean(1))


@pytest.mark.identity("thm-equivariance-sets")
@pytest.mark.parametrize("name", [*BILINEAR, *BIASED])
@settings(max_examples=6)
@given(scene=scenes(most=4))
def test_every_relative_encoding_is_equivariant_on_a_set(name, scene):
    shape, tau, ink, x, seed = scene
    grid, goal = offsets(shape), torch.zeros_like(ink)
    still, moved = moved_tokens(shape, tau)
    goal[moved] = ink[still]

    def only(members):
        index = grid.index.clone()
        index[~members], index[:, ~members] = -1, -1
        index.diagonal()[~members] = grid.index[0, 0]
        return Relations(index, grid.count, grid.labels, shape)

    before = filled(MIXERS[name](only(ink), dim=4, heads=1), seed)(x)[:, ink]
    after = filled(MIXERS[name](only(goal), dim=4, heads=1), seed)(shifted(x, shape, tau))[:, goal]
    assert_close(after, before)


@pytest.mark.identity("thm-equivariance-criterion")
@given(n=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_weights_are_unchanged_exactly_if_the_change_of_the_scores_is_constant_along_rows(n, seed):
    a, rows, one = random(n, n, seed=seed), random(n, 1, seed=seed + 1), torch.zeros(n, n)
    assert_close((a + rows).softmax(-1), a.softmax(-1))
    one[0, 1] = 1.0
    assert (a + rows + one).softmax(-1)[0].sub(a.softmax(-1)[0]).abs().max() > 1e-6
    changed = random(n, n, seed=seed + 2)
    alpha, beta = a.softmax(-1), changed.softmax(-1)
    assert_close((beta / alpha).log() - (beta / alpha).log()[:, :1], (changed - a) - (changed - a)[:, :1])


@pytest.mark.identity("thm-equivariance-zero")
@pytest.mark.parametrize("name", BILINEAR)
@settings(max_examples=8)
@given(scene=scenes())
def test_one_layer_follows_on_an_empty_background(name, scene):
    shape, tau, ink, x, seed = scene
    layer = filled(MIXERS[name](offsets(shape), dim=4, heads=2 if name != "rotary" else 1), seed)
    assert shift_error(layer, x * ink[:, None], shape, tau) < EXACT


@pytest.mark.identity("thm-equivariance-zero")
@pytest.mark.parametrize("name", BIASED)
def test_the_hypothesis_on_zero_keys_is_needed(name):
    x = torch.zeros(1, 16, 4)
    x[0, 5] = random(4, seed=1)
    layer = filled(MIXERS[name](offsets((4, 4)), dim=4, heads=1))
    assert shift_error(layer, x, (4, 4), (1, 2)) > 1e-6


@pytest.mark.identity("eq-equivariance-halo")
@given(scene=scenes())
def test_an_empty_token_averages_the_values_of_the_object(scene):
    shape, _, ink, x, seed = scene
    grid = offsets(shape)
    w = random(3, grid.count, 4, 4, seed=seed)
    x = x * ink[:, None]
    y = translution(x, *w, grid, heads=2)
    for i in (~ink).nonzero()[:, 0].tolist():
        terms = [x[0, j] @ w[2, grid.index[i, j]] for j in ink.nonzero()[:, 0].tolist()]
        assert_close(y[0, i], torch.stack(terms).sum(0) / grid.n)


@pytest.mark.identity("thm-equivariance-constant")
@settings(max_examples=10)
@given(scene=scenes())
def test_a_periodic_response_to_the_background_keeps_the_layer_exact(scene):
    shape, tau, ink, x, seed = scene
    grid = offsets(shape)
    c = torch.tensor([1.0, 0, 0, 0])
    residue = torch.tensor([a % shape[0] * shape[1] + b % shape[1] for a, b in grid.labels])
    w_q, w = random(4, 4, seed=seed), random(2, grid.count, 4, 4, seed=seed + 1)
    w[:, :, 0] = random(2, grid.n, 4, seed=seed + 2)[:, residue]
    x = torch.where(ink[:, None], x, c)
    assert shift_error(lambda f: translution(f, w_q, *w, grid), x, shape, tau, fill=c) < EXACT
    tied = random(3, 1, 4, 4, seed=seed).expand(-1, grid.count, -1, -1)
    twice = lambda f: translution(translution(f, *tied, grid), *tied, grid)  # noqa: E731
    assert shift_error(twice, x, shape, tau, fill=c) < EXACT


@pytest.mark.identity("thm-equivariance-constant")
def test_without_periodicity_a_constant_background_breaks_the_layer():
    grid, x = offsets((4, 4)), torch.ones(1, 16, 4)
    x[0, 5] = random(4, seed=1)
    w = random(3, grid.count, 4, 4, seed=2)
    assert shift_error(lambda f: translution(f, *w, grid), x, (4, 4), (1, 2), fill=1.0) > 1e-2


@pytest.mark.identity("thm-equivariance-constant")
@given(n=st.integers(2, 7), seed=st.integers(0, 10**6), data=st.data())
def test_on_a_line_a_single_token_follows_only_if_zero_keys_score_periodically(n, seed, data):
    """With a periodic bias on zero keys a token answers alike everywhere; with one offset changed it does not."""
    half = random(n, seed=seed)
    bias = torch.cat([half[1:], half])                                   # ids of δ = 1 − n … n − 1; δ and δ − n agree
    delta = offsets(n).index

    def answers(b):
        scores = b[delta].masked_fill(torch.eye(n, dtype=torch.bool), 0.0)  # the token itself scores 0
        return scores.softmax(-1).diagonal()                             # at place p: its weight on itself, its value 1

    assert_close(answers(bias), answers(bias)[:1].expand(n))
    changed = data.draw(st.sampled_from([r for r in range(2 * n - 1) if r != n - 1]))
    bias[changed] += 1.0
    assert answers(bias).max() - answers(bias).min() > 1e-6


@pytest.mark.identity("thm-equivariance-blank")
@pytest.mark.parametrize("name", SHARED_VALUES)
@given(side=st.integers(2, 5), window=st.sampled_from([None, 1]), causal=st.booleans(), seed=st.integers(0, 999))
def test_shared_values_answer_a_blank_image_alike_everywhere(name, side, window, causal, seed):
    table = offsets(side, causal=True) if causal else offsets((side, side), window=window)
    layer = filled(MIXERS[name](table, dim=4, heads=1), seed)
    y = layer(random(1, 1, 4, seed=seed).expand(1, table.n, 4))
    assert_close(y, y[:, :1].expand_as(y))


@pytest.mark.identity("thm-equivariance-blank")
@pytest.mark.parametrize("name", ["translution", "value-vector", "lor-translution"])
def test_relative_values_show_the_border_of_a_blank_image(name):
    y = filled(MIXERS[name](offsets((3, 3)), dim=4, heads=1))(random(1, 1, 4, seed=3).expand(1, 9, 4))
    assert (y - y[:, :1]).abs().max() > 1e-3


@pytest.mark.identity("thm-equivariance-border")
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 30))
def test_offsets_as_values_give_the_place_on_a_full_grid(shape):
    grid, zero = offsets(tuple(shape)), torch.zeros(1, 1)
    value = torch.tensor(grid.labels, dtype=torch.float64)[:, None]
    p = grid.positions.to(torch.float64)
    assert_close(translution(torch.ones(1, grid.n, 1), zero, zero, value, grid)[0], p - p.mean(0))


@pytest.mark.identity("thm-equivariance-border")
@given(n=st.integers(1, 12))
def test_causal_offsets_as_values_give_half_the_place(n):
    lag, zero = torch.arange(float(n))[:, None, None], torch.zeros(1, 1)
    y = translution(torch.ones(1, n, 1), zero, zero, lag, offsets(n, causal=True))
    assert_close(y.flatten(), torch.arange(n) / 2)


@pytest.mark.identity("thm-equivariance-window")
@pytest.mark.parametrize("name", ["translution", "rotary", "key-vector", "scalar-bias"])
@settings(max_examples=8)
@given(depth=st.integers(1, 2), tau=st.tuples(st.integers(-1, 1), st.integers(-1, 1)), seed=st.integers(0, 999))
def test_windows_follow_with_margin_on_zeros_and_inside_on_any_background(name, depth, tau, seed):
    r, side = 1, 2 * (depth + 2) + 3
    grid = offsets((side, side), window=r)
    layers = [filled(MIXERS[name](grid, dim=4, heads=1, output=False), seed + k) for k in range(depth)]
    x, middle = torch.zeros(side, side, 4), side // 2
    x[middle:middle + 1, middle:middle + 2] = random(2, 4, seed=seed)
    x = x.view(1, -1, 4)

    def run(f, bias):
        for layer in layers:
            f = f + torch.tanh(layer(f) + bias)
        return f

    if min(middle - 1, side - middle - 3) >= (depth + 1) * r:
        assert shift_error(lambda f: run(f, 0.0), x, (side, side), tau) < EXACT
    grey = x + 0.3
    before, after = run(grey, 0.2), run(shifted(grey, (side, side), tau, fill=0.3), 0.2)
    still, moved = moved_tokens((side, side), tau)
    p, q = grid.positions[still], grid.positions[moved]
    inside = [((a >= depth * r) & (a < side - depth * r)).all(-1) for a in (p, q)]
    keep = inside[0] & inside[1]
    assert keep.any()
    assert_close(after[:, moved[keep]], before[:, still[keep]])


@pytest.mark.identity("thm-equivariance-window")
def test_one_token_less_of_margin_breaks_a_window():
    grid, x = offsets((7, 7), window=1), torch.zeros(1, 49, 4)
    x[0, 24] = random(4, seed=1)
    w = random(3, grid.count, 4, 4, seed=2)
    layer = lambda f: translution(f, *w, grid)  # noqa: E731
    assert shift_error(layer, x, (7, 7), (1, 0)) < EXACT       # margin 2 = (L + 1) r after the shift
    assert shift_error(layer, x, (7, 7), (2, 0)) > 1e-4        # margin 1


@given(n=st.integers(2, 4), dim=st.integers(1, 3), seed=st.integers(0, 10**6), data=st.data())
def test_sharing_over_orbits_is_necessary_but_for_what_no_output_shows(n, dim, seed, data):
    """Matrices for each pair, under the cyclic move: what is not shared shows, but for what no output can show."""
    place = torch.arange(n)
    score, value = (random(n, dim, dim, seed=seed + k)[(place[:, None] - place) % n] for k in (0, 1))
    f = random(64, n, dim, seed=seed + 2)

    def layer(f, score, value):
        a = torch.einsum("bic,ijcd,bjd->bij", f, score, f)
        return torch.einsum("bij,bjc,ijce->bie", a.softmax(-1), f, value)

    def broken(score, value):
        return (layer(f.roll(1, 1), score, value) - layer(f, score, value).roll(1, 1)).abs().max()

    own = random(n, dim, dim, seed=seed + 3)
    score[place, place] += own - own.mT  # antisymmetric: never seen
    assert broken(score, value) < EXACT
    i, j = data.draw(st.tuples(*[st.integers(0, n - 1)] * 2))
    c, d = data.draw(st.tuples(*[st.integers(0, dim - 1)] * 2))
    for chosen in (score, value):
        before = chosen.clone()
        chosen[i, j, c, d] += 1.0  # on the diagonal this has a symmetric part, too
        assert broken(score, value) > 1e-8
        chosen.copy_(before)
    score[i, j] += 1.0
    assert broken(score, torch.zeros_like(value)) == 0.0


def turns(delta):
    """The offsets that an offset becomes by quarter turns."""
    y, x = delta
    return [(y, x), (-x, y), (-y, -x), (x, -y)]


@given(side=st.integers(1, 5), depth=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_matrices_shared_over_orbits_of_quarter_turns_commute_with_them(side, depth, seed):
    """The chapter's definition for the group of four turns; without the tie a layer does not commute."""
    grid = offsets((side, side))
    orbits = merge(grid, lambda delta: max(turns(delta)))
    assert orbits.count == 1 + (grid.count - 1) // 4
    x = random(1, side**2, 4, seed=seed)
    turn = lambda f: torch.rot90(f.unflatten(1, (side, side)), 1, (1, 2)).flatten(1, 2)  # noqa: E731

    def run(f, table):
        for weights in random(depth, 3, table.count, 4, 4, seed=seed + 1):
            f = f + torch.tanh(translution(f, *weights, table, heads=2))
        return f

    assert_close(run(turn(x), orbits), turn(run(x, orbits)))
    if side > 1:
        assert (run(turn(x), grid) - turn(run(x, grid))).abs().max() > 1e-4


def torus(shape):
    grid = offsets(shape)
    delta = (grid.positions[:, None] - grid.positions[None]) % torch.tensor(shape)
    labels = tuple(product(*map(range, shape)))
    index = torch.tensor([labels.index(tuple(d)) for d in delta.flatten(0, 1).tolist()]).view(grid.n, grid.n)
    return Relations(index, len(labels), labels, tuple(shape))


@pytest.mark.identity("thm-equivariance-cyclic")
@given(scene=scenes(), depth=st.integers(1, 3), turn=st.tuples(st.integers(-6, 6), st.integers(-6, 6)))
def test_a_stack_on_the_torus_commutes_with_cyclic_shifts(scene, depth, turn):
    shape, tau, ink, x, seed = scene
    table = torus(shape)
    w = random(depth, 3, table.count, 4, 4, seed=seed)

    def run(f):
        for weights in w:
            f = f + torch.tanh(translution(f, *weights, table, heads=2) + 0.3)
        return f

    assert shift_error(run, x, shape, turn, cyclic=True) < EXACT
    grey = torch.where(ink[:, None], x, torch.ones(4))
    assert shift_error(run, grey, shape, tau, fill=1.0) < EXACT


@pytest.mark.identity("thm-equivariance-cyclic")
def test_ordinary_offsets_do_not_commute_with_cyclic_shifts():
    grid, x = offsets((4, 4)), random(1, 16, 4, seed=1)
    w = random(3, grid.count, 4, 4, seed=2)
    assert shift_error(lambda f: translution(f, *w, grid), x, (4, 4), (1, 2), cyclic=True) > 1e-2


@pytest.mark.identity("thm-equivariance-patches")
@given(patch=st.integers(1, 4), grid=st.integers(2, 4), data=st.data())
def test_whole_patch_shifts_move_the_tokens(patch, grid, data):
    size = patch * grid
    torch.manual_seed(0)
    vit = ViT(size, patch, 1, 3, 4, 1, 1, 4, pool="mean").requires_grad_(False)
    width = data.draw(st.integers(1, size - 1))
    start, tau = data.draw(st.tuples(st.integers(0, size - width), st.integers(-3, 3)))
    end = start + patch * tau
    assume(0 <= end <= size - width)
    still, moved = torch.full((1, 1, size, size), 0.2), torch.full((1, 1, size, size), 0.2)
    still[..., start:start + width, :width] = moved[..., end:end + width, :width] = torch.rand(width, width)
    empty = vit.tokens(torch.full((1, 1, size, size), 0.2))[0, 0]
    assert_close(vit.tokens(moved), shifted(vit.tokens(still), (grid, grid), (tau, 0), fill=empty))


@pytest.mark.identity("eq-equivariance-phase")
@given(patch=st.integers(1, 20), room=st.integers(0, 60), data=st.data())
def test_the_number_of_corners_with_one_phase(patch, room, data):
    s = data.draw(st.integers(0, room))
    counted = sum((corner - s) % patch == 0 for corner in range(room + 1))
    assert counted == s // patch + (room - s) // patch + 1


@pytest.mark.identity("eq-equivariance-seen")
@given(n=st.integers(1, 6), data=st.data())
def test_the_share_of_offsets_that_a_query_on_the_object_meets(n, data):
    u = data.draw(st.integers(0, n - 1))
    v = data.draw(st.integers(u, n - 1))
    grid = offsets((n, n))
    queries = [y * n + x for y, x in product(range(u, v + 1), repeat=2)]
    met = len(set(grid.index[queries].flatten().tolist()))
    assert met / grid.count == pytest.approx(((n + v - u) / (2 * n - 1)) ** 2)
