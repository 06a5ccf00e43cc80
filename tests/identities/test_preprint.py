"""The statements of the chapter "The value-only preprint", on random grids, sizes and weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from translution_lib import ViT, cost, offsets, place_cls
from translution_lib import functional as fn

pytestmark = pytest.mark.usefixtures("double")
seeds = st.integers(0, 999)
KINDS = {"transformer": ("absolute", "relative"), "free": ("value-translution", "relative"),
         "placed": ("value-translution", "placed")}


def vit(kind: str, side: int, depth: int, dim: int = 4, mixer: str = "", heads: int = 1) -> ViT:
    """Return a ViT over side × side patches of 2 × 2 pixels."""
    name, encoding = KINDS[kind]
    return ViT(2 * side, 2, 1, 3, dim, depth, heads, 2 * dim, mixer or name, encoding=encoding, output=False)


def scramble(images: torch.Tensor, side: int, order: torch.Tensor) -> torch.Tensor:
    """Place k receives the patch of place order[k]."""
    tiles = images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(2, 3)[:, :, order].unflatten(2, (side, side))
    return tiles.permute(0, 1, 2, 4, 3, 5).reshape_as(images)


@pytest.mark.identity("eq-preprint-count")
@given(st.integers(1, 6))
def test_number_of_value_matrices(side):
    free = offsets((side, side), cls=True)
    assert free.count == (2 * side - 1) ** 2 + 3
    assert place_cls(free).count == (2 * side - 1) ** 2 + 2 * side ** 2 + 1
    tokens = side ** 2
    assert side == 1 or offsets((side, side)).count < (2 * tokens - 1) ** 2


@pytest.mark.identity("eq-preprint-parameters", "eq-preprint-macs")
@given(st.sampled_from(["free", "placed"]), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_costs_beyond_a_transformer(kind, side, depth, dim):
    relative, plain = vit(kind, side, depth, dim), vit("transformer", side, depth, dim)
    n, count = relative.relations.n, relative.relations.count
    more = sum(p.numel() for p in relative.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == depth * (count - 1) * dim ** 2 - n * dim
    assert cost.macs_true(relative) - cost.macs_true(plain) == depth * (n ** 2 - n) * dim ** 2


@pytest.mark.identity("thm-preprint-last")
@settings(max_examples=10)
@given(st.sampled_from(["free", "placed"]), st.sampled_from(["value-translution", "translution"]), st.integers(1, 3),
       st.integers(1, 3), seeds)
def test_the_last_layer_shows_the_row_of_cls(kind, mixer, side, depth, seed):
    """Other matrices of the last layer change nothing, those of row 0 do."""
    torch.manual_seed(seed)
    model, images = vit(kind, side, depth, mixer=mixer), torch.randn(2, 1, 2 * side, 2 * side)
    before, row = model(images), model.relations.index[0].unique()
    last = model.blocks[-1].mixer
    shown = torch.zeros(last.value.shape[0], dtype=torch.bool)
    shown[row] = True
    relative = [w for w in last.matrices if w.ndim == 3]
    with torch.no_grad():
        for w in relative:
            w[~shown] = torch.randn_like(w[~shown])
    torch.testing.assert_close(model(images), before)
    with torch.no_grad():
        last.value[shown] = torch.randn_like(last.value[shown])
    assert not torch.allclose(model(images), before, atol=1e-6)


@pytest.mark.identity("thm-preprint-blind")
@settings(max_examples=8)
@given(st.integers(2, 3), st.integers(1, 3), seeds)
def test_a_bag_of_patches(side, depth, seed):
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    images = torch.randn(2, 1, 2 * side, 2 * side)
    mixed = scramble(images, side, torch.randperm(side ** 2, generator=g))
    for model in (vit("free", side, depth, mixer="self-attention"), vit("free", side, 1),
                  vit("free", side, 1, mixer="translution")):
        torch.testing.assert_close(model(mixed), model(images))
    rolled = scramble(images, side, torch.arange(side ** 2).roll(1))
    for model in (vit("free", side, 2), vit("placed", side, 1), vit("transformer", side, 1)):
        with torch.no_grad():
            for block in model.blocks:
                block.mixer.matrices.value.normal_()
        assert not torch.allclose(model(rolled), model(images), atol=1e-6)


@pytest.mark.identity("thm-preprint-dense")
@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_a_placed_row_is_any_linear_map(side, dim, seed):
    g = torch.Generator().manual_seed(seed)
    table = place_cls(offsets((side, side), cls=True))
    linear, f = torch.randn(side ** 2, dim, dim, generator=g), torch.randn(2, table.n, dim, generator=g)
    value = torch.randn(table.count, dim, dim, generator=g)
    value[table.index[0, 0]], value[table.index[0, 1:]] = 0, table.n * linear
    y = fn.translution(f, torch.zeros(dim, dim), torch.randn(dim, dim, generator=g), value, table)
    torch.testing.assert_close(y[:, 0], f[:, 1:].flatten(1) @ linear.flatten(0, 1))


@pytest.mark.identity("thm-preprint-scalar")
@given(st.lists(st.integers(1, 4), min_size=1, max_size=2), seeds)
def test_a_weight_names_its_offset(shape, seed):
    g = torch.Generator().manual_seed(seed)
    table = offsets(shape)
    b = torch.randn(table.count, generator=g)
    alpha = b[table.index].softmax(-1)
    logs = (alpha / alpha.diagonal()[:, None]).log()
    torch.testing.assert_close(logs, (b - b[table.id_of((0,) * len(shape))])[table.index])
    weights, order = alpha.flatten().sort()
    names = table.index.flatten()[order]
    assert (weights.diff()[names[1:] != names[:-1]] > 1e-12).all()


@pytest.mark.identity("eq-preprint-stream")
@given(st.integers(1, 4), st.integers(1, 3), seeds)
def test_the_embedding_stays_in_the_stream(depth, side, seed):
    torch.manual_seed(seed)
    model, added, seen = vit("transformer", side, depth), [], []
    for block in model.blocks:
        for part in (block.mixer, block.feed_forward):
            part.register_forward_hook(lambda _, __, y: added.append(y))
    model.norm.register_forward_hook(lambda _, x, __: seen.append(x[0]))
    images = torch.randn(2, 1, 2 * side, 2 * side)
    model(images)
    patches = model.tokens(images) - model.position
    torch.testing.assert_close(seen[0], (patches + model.position + sum(added))[:, 0])
