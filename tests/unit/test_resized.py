"""Layers and models of another size: restricted they are what they were, and what is new is the nearest known."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import DIM, EVERY, F64, build
from translution_lib import (
    GPT,
    MIXERS,
    Attention,
    BilinearAttention,
    Encoding,
    Relations,
    Translution,
    ViT,
    bucketed,
    offsets,
    pairs,
    place_cls,
    shared,
)
from translution_lib.resizing import nearest_relations, nearest_tokens

SIZES = {"grid": [offsets(s, cls=True) for s in ((2, 3), (3, 5))], "turned": [offsets(s) for s in ((2, 2), (3, 2))],
         "text": [offsets(n, causal=True) for n in (4, 7)],
         "clip": [offsets(s, cls=True, clip=1) for s in ((2, 3), (4, 3))],
         "window": [offsets(n, causal=True, window=2) for n in (4, 6)],
         "buckets": [bucketed(offsets(s), 4, max_distance=6) for s in ((2, 4), (3, 6))],
         "radius": [bucketed(offsets(s), 4, max_distance=6, by="radius") for s in ((2, 4), (3, 6))],
         "placed": [place_cls(offsets(s, cls=True)) for s in ((2, 2), (3, 3))]}


def inside(small, big):
    """Return the tokens of a table that stand on the grid of a smaller one."""
    there = (big.positions < torch.tensor(small.shape)).all(-1)
    return torch.cat([there.new_ones(int(big.cls)), there])


def assert_restricted(big, small, x):
    """On the tokens of the smaller grid, with all others masked, both layers do the same."""
    kept = inside(small.relations, big.relations)
    wide = torch.zeros(len(x), big.relations.n, DIM, dtype=F64)
    wide[:, kept] = x
    torch.testing.assert_close(big(wide, kept.expand(len(x), -1))[:, kept], small(x))


def changed(layer):
    """Make every number of a layer different, so that a wrong one shows."""
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return layer


@pytest.mark.parametrize(("name", "options"), [*EVERY, ("riemann", {"schedule": "constant"})])
@torch.no_grad()
def test_a_resized_layer_is_the_layer_on_the_tokens_that_both_have(name, options):
    for kind, (small, big) in SIZES.items():
        try:
            layer = changed(build(name, big, **options))
        except ValueError:
            assert kind in ("grid", "clip", "window", "placed")
            continue
        if name == "gated-bias":
            continue        # its weights by position do not know the mask of a sample: below
        if (kind, name) == ("radius", "general-translution"):
            continue        # a function of the offset that names a bucket, which may be another one of the same length
        before, stream = copy.deepcopy(layer.state_dict()), torch.random.get_rng_state()
        shrunk = layer.resized(small)
        assert torch.equal(stream, torch.random.get_rng_state())
        assert_restricted(layer, shrunk, torch.randn(2, small.n, DIM, dtype=F64))
        grown = shrunk.resized(big)
        assert_restricted(grown, shrunk, torch.randn(2, small.n, DIM, dtype=F64))
        again = grown.resized(small)
        for a, b in zip(again.state_dict().items(), shrunk.state_dict().items(), strict=True):
            assert a[0] == b[0] and torch.equal(a[1], b[1])
        x = torch.randn(1, small.n, DIM, dtype=F64)
        assert torch.equal(again(x), shrunk(x)) and [*grown.state_dict()] == [*before]
        assert all(torch.equal(table, before[key]) for key, table in layer.state_dict().items())
        assert grown.relations is big and shrunk.relations is small


@pytest.mark.parametrize("form", ["printed", "original"])
@torch.no_grad()
def test_a_gate_keeps_its_position_scores(form):
    for small, big in (SIZES[kind] for kind in SIZES if (kind, form) != ("radius", "original")):
        layer = changed(build("gated-bias", big, form=form))
        shrunk = layer.resized(small)
        kept = inside(small, big)
        for a, b in ((layer, shrunk), (shrunk.resized(big), shrunk)):
            scores = [one.offset_scores()[:, table.index.clamp(min=0, max=len(one.encoding) - 1)]
                      for one, table in ((a, big), (b, small))]
            known = torch.as_tensor([not isinstance(label, str) for label in small.labels])[small.index] & small.mask
            torch.testing.assert_close(scores[0][:, kept][:, :, kept][:, known], scores[1][:, known])


def by_hand(old, new, table):
    """Return the entries for the offsets of a new table: of the same offset, or of the nearest on every axis."""
    low, high = (tuple(f(axis) for axis in zip(*old, strict=True)) for f in (min, max))
    return [table[old.index(tuple(max(a, min(b, step)) for step, a, b in zip(label, low, high, strict=True)))]
            for label in new]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=2), st.lists(st.integers(1, 5), min_size=2, max_size=2),
       st.booleans())
@torch.no_grad()
def test_new_offsets_are_the_nearest_known(old, new, cls):
    """Of the matrices of Translution and a table of scalars, offset by offset; CLS keeps its own."""
    small, big = offsets(old, cls=cls), offsets(new, cls=cls)
    m, k = (len([label for label in table.labels if not isinstance(label, str)]) for table in (small, big))
    layer, known = build("translution", small), small.labels[:m]
    expected = torch.stack(by_hand(known, big.labels[:k], layer.key) + [*layer.key[m:]])
    assert torch.equal(layer.resized(big).key, expected)
    layer = build("scalar-bias", small)
    assert torch.equal(layer.resized(big).table, torch.stack(by_hand(known, big.labels[:k], layer.table.T), 1))


def test_a_coarser_table_takes_the_shortest_offset_of_each_relation():
    full = offsets((4, 5), cls=True)
    for coarse in (offsets((4, 5), cls=True, clip=1), bucketed(full, 2), bucketed(full, 4, by="radius")):
        assert [full.labels[r] for r in nearest_relations(full, coarse)] == [*coarse.labels]


def test_tokens_and_relations_without_offsets():
    some = offsets((3, 3)).select([0, 4, 8])
    assert nearest_tokens(some, offsets((3, 3))).tolist() == [0, 0, 1, 0, 1, 1, 1, 1, 2]
    assert nearest_relations(shared(3), shared(5)).tolist() == [0]
    assert nearest_relations(pairs(2), pairs(3)).tolist() == [0, 1, 1, 2, 3, 3, 2, 3, 3]
    near = place_cls(offsets((1, 2), cls=True))
    wide = place_cls(offsets((1, 3), cls=True))
    told = {label: near.labels[r] for label, r in zip(wide.labels, nearest_relations(near, wide).tolist(), strict=True)}
    assert told["cls"] == "cls" and told["cls←(0, 2)"] == "cls←(0, 1)" and told["(0, 1)←cls"] == "(0, 1)←cls"
    # Offsets that no pair of the known tokens has, between those that they have.
    diagonal = Relations(torch.tensor([[0, 1], [2, 0]]), 3, ((0, 0), (-2, -2), (2, 2)), (3, 3),
                         positions=torch.tensor([[0, 0], [2, 2]]))
    assert [diagonal.labels[r] for r in nearest_relations(diagonal, offsets((3, 3)))][::6] == [
        (-2, -2), (0, 0), (0, 0), (0, 0), (2, 2)]
    # No token but CLS: roles without a pair keep their names.
    assert nearest_relations(offsets(2, cls=True), offsets(2, cls=True).select([0])).tolist() == [*range(6)]


@pytest.mark.parametrize("mixer", [*sorted(set(MIXERS) - {"convolution"}), ("translution", "rotary"), "convolution"])
@torch.no_grad()
def test_a_smaller_image_is_the_image_with_patches_masked(mixer):
    conv = {"heads": 1, "pool": "mean"} if mixer == "convolution" else {"heads": 2}
    model = changed(ViT((6, 8), 2, 1, 5, DIM, 2, ff=8, mixer=mixer, **conv).double().eval())
    if mixer == "gated-bias":
        for block in model.blocks:
            block.mixer.gate.fill_(-100)        # content alone: see above
    image = torch.randn(2, 1, 6, 8, dtype=F64)
    small = model.resized((4, 6))
    there = torch.zeros(3, 4, dtype=torch.bool)
    there[:2, :3] = True
    mask = torch.cat([torch.ones(int(model.cls is not None), dtype=torch.bool), there.flatten()]).expand(2, -1)
    torch.testing.assert_close(small(image[..., :4, :6]), model(image, mask))
    grown = small.resized((6, 8))
    torch.testing.assert_close(grown(image, mask), small(image[..., :4, :6]))
    assert grown.config == model.config and [*grown.state_dict()] == [*model.state_dict()]
    assert not small.training and small.config.grid == (2, 3) and small.relations.n == mask[0].sum()
    assert all(block.mixer.relations is small.relations for block in small.blocks)


@pytest.mark.parametrize("options", [{"embedding": "sinusoidal", "absolute": True}, {"encoding": "placed"},
                                     {"embedding": "sinusoidal", "absolute": True, "embedding_trains": True},
                                     {"bucket_offsets": 4}, {"clip_offsets": 1}, {"window": 1}, {"pool": "mean"}])
@torch.no_grad()
def test_images_of_models_with_other_tables(options):
    model = changed(ViT(8, 2, 1, 5, DIM, 1, 2, 8, **options).double())
    small, image = model.resized(4), torch.randn(1, 1, 8, 8, dtype=F64)
    there = torch.zeros(4, 4, dtype=torch.bool)
    there[:2, :2] = True
    mask = torch.cat([torch.ones(int(model.cls is not None), dtype=torch.bool), there.flatten()])[None]
    torch.testing.assert_close(small(image[..., :4, :4]), model(image, mask))
    again = small.resized(8)
    torch.testing.assert_close(again(image, mask), small(image[..., :4, :4]))
    if "embedding" in options and "embedding_trains" not in options:
        assert torch.equal(again.position, model.position)


@pytest.mark.parametrize(("mixer", "options"), [*((name, {}) for name in sorted(MIXERS)),
                                                ("translution", {"bucket_offsets": 4}), ("rotary", {"absolute": True}),
                                                ("lor-translution", {"reach": 3, "beyond": "window"})])
@torch.no_grad()
def test_a_longer_text_begins_as_the_shorter_one(mixer, options):
    model = changed(GPT(7, 6, DIM, 2, 1 if mixer == "convolution" else 2, 8, mixer=mixer, **options).double())
    ids = torch.randint(7, (2, 9))
    longer = model.resized(9)
    torch.testing.assert_close(longer(ids)[:, :6], model(ids[:, :6]))
    assert longer.config.context == 9 and longer.resized(6).config == model.config
    torch.testing.assert_close(longer.resized(6)(ids[:, :6]), model(ids[:, :6]))


def test_what_is_new_learns_apart_from_what_is_old():
    model = GPT(7, 4, DIM, 1, 2, 8, mixer="translution", absolute=True)
    model.blocks[0].mixer.key.requires_grad_(False)
    longer = model.resized(6)
    longer(torch.randint(7, (1, 6))).square().sum().backward()
    learns = {name: p.requires_grad for name, p in longer.named_parameters()}
    assert learns == {name: p.requires_grad for name, p in model.named_parameters()} and longer.training
    assert all((p.grad is not None) == p.requires_grad for p in longer.parameters())
    layer = longer.blocks[0].mixer
    assert (layer.query.grad.flatten(1).abs().sum(1) > 0).all() and (longer.position.grad.abs().sum(1) > 0).all()
    assert layer.query.is_leaf and layer.query.data_ptr() != model.blocks[0].mixer.query.data_ptr()
    clipped = model.resized(6, reach=4)
    assert clipped.blocks[0].mixer.query.shape[0] == 4 and clipped.config.reach == 4
    ids = torch.randint(7, (2, 6))
    torch.testing.assert_close(clipped(ids), model.resized(6)(ids))


@pytest.mark.parametrize("mixer", ["translution", "self-attention", "lor-translution"])
def test_what_is_shared_stays_shared(mixer):
    """Query and key of a layer, and the output maps of two layers, are one parameter each, before and after."""
    model = GPT(7, 4, DIM, 2, 2, 8, mixer=mixer)
    for block in model.blocks:
        block.mixer.key, block.mixer.output = block.mixer.query, model.blocks[0].mixer.output
    longer = model.resized(6)
    assert len([*longer.parameters()]) == len([*model.parameters()])
    for block in longer.blocks:
        assert block.mixer.key is block.mixer.query
        assert block.mixer.output.weight is longer.blocks[0].mixer.output.weight
    assert longer.blocks[0].mixer.query is not longer.blocks[1].mixer.query


@pytest.mark.parametrize("name", ["scalar-bias", "rotary", "riemann", "performer-absolute", "lor-translution"])
def test_type_and_mode_stay(name):
    layer = MIXERS[name](offsets((2, 2)), dim=DIM, heads=2).bfloat16().eval().resized(offsets((3, 2)))
    assert {t.dtype for t in layer.state_dict().values() if t.is_floating_point()} == {torch.bfloat16}
    assert not any(part.training for part in layer.modules())
    assert layer(torch.randn(1, 6, DIM).bfloat16()).dtype == torch.bfloat16


@torch.no_grad()
def test_form_star():
    layer = BilinearAttention(offsets((2, 3)), DIM, 2).double()
    assert_restricted(layer, layer.resized(offsets((2, 2))), torch.randn(1, 4, DIM, dtype=F64))


class PerPlace(Encoding):
    """A part of a reader with a number for each token."""

    def start(self, relations, dim, heads, head_dim):
        self.weight = torch.nn.Parameter(torch.zeros(relations.n))

    def bias(self, q, where):
        return self.weight[: where.n]


class Added(Translution):
    """A layer of a reader that does not say what it has by relation."""

    def __init__(self, relations, dim, heads):
        super().__init__(relations, dim, heads)


SQUARE = offsets((2, 2))


@pytest.mark.parametrize(("call", "error", "word"), [
    (lambda: Attention(SQUARE, DIM, 2, [PerPlace()]).resized(offsets((3, 2))), ValueError, "PerPlace must name weight"),
    (lambda: Added(SQUARE, DIM, 2).resized(offsets((3, 2))), NotImplementedError, "Added must say by_relation"),
    (lambda: build("translution", SQUARE).resized(offsets(4)), ValueError, "relations must have the axes"),
    (lambda: build("translution", SQUARE).resized(offsets((3, 3), cls=True)), ValueError, "the CLS token"),
    (lambda: build("rotary", offsets(4)).resized(offsets(5, causal=True)), ValueError, "the order"),
    (lambda: build("convolution", SQUARE).resized(offsets(4)), ValueError, "relations"),
    (lambda: build("convolution", SQUARE).resized(offsets((3, 3)).select([0, 1])), ValueError, "all cells"),
    (lambda: build("performer", SQUARE).resized(offsets((3, 3), window=1)), ValueError, "relations must allow all"),
    (lambda: build("performer-s2", SQUARE).resized(offsets((3, 3)).select([0, 1])), ValueError, "all cells"),
    (lambda: build("translution", SQUARE).resized(pairs(4)), ValueError, "relations"),
    (lambda: ViT(4, 2, 1, 2, DIM, 1, 2, 8, encoding="pairs").resized(6), ValueError, "encoding"),
    (lambda: ViT(4, 2, 1, 2, DIM, 1, 2, 8).resized(5), ValueError, "patch_size must divide image_size = 5"),
    (lambda: GPT(4, 2, DIM, 1, 2, 8).resized(0), ValueError, "context"),
    (lambda: GPT(4, 2, DIM, 1, 2, 8).resized(4, reach=2, beyond="x"), ValueError, "beyond"),
    (lambda: GPT(4, 2, DIM, 1, 2, 8).resized(4, beyond="window"), ValueError, "beyond must be None without a reach"),
    (lambda: torch.nn.utils.parametrizations.weight_norm(build("translution", SQUARE), "query").resized(
        offsets((3, 3))), ValueError, "query must be a parameter"),
])
def test_what_cannot_be_resized_is_refused_by_name(plain_types, call, error, word):
    with pytest.raises(error, match=word):
        call()
