"""Property tests of the identities of chapter "Static and dynamic MNIST"."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from translution_runs.causes import Scene, shares

from translution_lib import MIXERS, Translution, ViT, functional, offsets

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.identity("eq-static-span")
@given(st.integers(1, 6), st.integers(2, 6), st.integers(2, 30))
def test_an_object_spans_at_most_so_many_patches(patch, grid, size):
    scene = Scene(patch * grid, min(size, patch * grid), patch)
    if scene.room < patch - 1:  # not every phase fits on the canvas
        return
    spans = scene.span(scene.everywhere())
    touched = [len({p // patch for p in range(o, o + scene.image)}) for o in range(scene.room + 1)]
    assert int(spans.max()) == max(touched) == (scene.image - 2) // patch + 2


def network(grid: int, depth: int, seed: int, mixer: str = "translution") -> ViT:
    """A vision transformer of patches of 2 by 2 pixels, with every weight and bias drawn anew."""
    torch.manual_seed(seed)
    net = ViT(2 * grid, 2, 1, 3, dim=6, depth=depth, heads=2, ff=5, mixer=mixer)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.5)
    return net


@st.composite
def scenes(draw):
    """A grid, the patches of a box of content in it, and canvases with content there and one grey elsewhere."""
    grid, seed = draw(st.integers(2, 4)), draw(st.integers(0, 10**6))
    first = [draw(st.integers(0, grid - 1)) for _ in range(2)]
    last = [draw(st.integers(start, grid - 1)) for start in first]
    canvases = torch.full((3, 1, 2 * grid, 2 * grid), draw(st.sampled_from([0.0, 0.4])))
    rows, columns = (slice(2 * a, 2 * b + 2) for a, b in zip(first, last, strict=True))
    shape = canvases[..., rows, columns].shape
    canvases[..., rows, columns] = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    content = [(y, x) for y in range(first[0], last[0] + 1) for x in range(first[1], last[1] + 1)]
    return grid, content, canvases, seed


@pytest.mark.identity("thm-static-rank")
@settings(max_examples=12)
@given(scenes(), st.sampled_from(["translution", "value-translution"]))
def test_background_trains_one_direction(scene, mixer):
    grid, content, canvases, seed = scene
    net = network(grid, 2, seed, mixer)
    (net(canvases) * torch.randn(3, 3)).sum().backward()
    layer, background = net.blocks[0], [(y, x) for y in range(grid) for x in range(grid) if (y, x) not in content]
    everything = content + background
    queries = {(a - c, b - d) for a, b in content for c, d in everything}
    keys = {(a - c, b - d) for a, b in everything for c, d in content}
    if not background:
        return
    place = 1 + background[0][0] * grid + background[0][1]  # CLS is token 0
    f0 = layer.norm(net.tokens(canvases))[0, place].detach()
    for r, label in enumerate(net.relations.labels[:(2 * grid - 1) ** 2]):
        for name, met in (("query", queries), ("key", keys), ("value", keys)):
            weight = getattr(layer.mixer, name)
            gradient = getattr(weight, "grad", None)            # a table's: a shared map has none of its own
            if gradient is not None and label not in met:
                along = gradient[r].T @ f0 / (f0 @ f0)  # the row g
                assert_close(gradient[r], torch.outer(f0, along), atol=1e-9, rtol=1e-9)


@pytest.mark.identity("thm-static-last")
@settings(max_examples=8)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 10**6), st.sampled_from(
    ["translution", "value-translution", "lor-translution", "key-vector", "scalar-bias"]))
def test_the_last_layer_reads_cls_alone(grid, depth, seed, mixer):
    assert mixer in MIXERS
    net = network(grid, depth, seed, mixer)
    images = torch.rand(2, 1, 2 * grid, 2 * grid)
    before = net(images)
    read = torch.tensor([label in ("cls", "cls←image") for label in net.relations.labels])
    with torch.no_grad():
        for parameter in net.blocks[-1].mixer.parameters():
            axis = [k for k, size in enumerate(parameter.shape) if size == len(read)]
            if axis and len(read) not in (2, 3, 5, 6):  # not a number of channels
                index = [slice(None)] * parameter.ndim
                index[axis[0]] = ~read
                parameter[tuple(index)] += 7.0
    assert_close(net(images), before)


@pytest.mark.identity("eq-static-released")
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 2), st.integers(0, 10**6))
def test_the_authors_start_is_smaller_by_the_width(rows, columns, dim, heads, seed):
    table, width = offsets((rows, columns), cls=True), 3
    layers = []
    for init in ("fan_in", "released"):
        torch.manual_seed(seed)
        layers.append(Translution(table, dim, heads, head_dim=width, init=init))
    inner = heads * width
    x = torch.randn(2, table.n, dim)
    scores = [functional.translution_scores(x, a.query, a.key, table, heads) for a in layers]
    assert_close(scores[1], scores[0] / inner)
    alpha = torch.randn(2, heads, table.n, table.n).softmax(-1)
    values = [functional.translution_values(alpha, x, a.value, table) for a in layers]
    assert_close(values[1], values[0] / inner**0.5)


@pytest.mark.identity("eq-static-shares")
@given(*[st.floats(0, 100) for _ in range(4)])
def test_contributions_sum_to_the_gap_and_do_not_depend_on_the_order(static, near, aligned, dynamic):
    phase, place, interaction = shares(static, near, aligned, dynamic)
    assert phase == pytest.approx(((near - static) + (dynamic - aligned)) / 2, abs=1e-9)
    assert phase + place == pytest.approx(dynamic - static, abs=1e-9)
    assert interaction == pytest.approx((dynamic - aligned) - (near - static), abs=1e-9)
    assert shares(static, aligned, near, dynamic) == pytest.approx((place, phase, interaction), abs=1e-9)


@pytest.mark.identity("eq-static-shares")
@given(*[st.floats(1, 99) for _ in range(4)])
def test_which_part_is_larger_is_the_same_on_every_rising_scale(static, near, aligned, dynamic):
    for scale in (float, math.log, lambda a: math.log(a / (100 - a))):
        phase, place, _ = shares(*map(scale, (static, near, aligned, dynamic)))
        assert phase - place == pytest.approx(scale(near) - scale(aligned), abs=1e-9)
        if abs(near - aligned) > 1e-6:
            assert (phase > place) == (near > aligned)
