"""Parts of attention: they combine freely, are described by their own options, and obey masks; old names, cost."""

import math
from contextlib import nullcontext
from functools import partial
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call
from torch.testing import assert_close

from tests.unit.strategies import ANY_TABLE, DIM, EVERY, F64, HEADS, LINEAR, assert_forms_agree, build, gradients
from translution_lib import (
    GPT,
    MIXERS,
    Absolute,
    Attention,
    Encoded,
    Encoding,
    PositionalGate,
    Relations,
    Rotary,
    ScalarBias,
    Transport,
    Vectors,
    ViT,
    as_translution,
    backend,
    cost,
    offsets,
    shared,
)
from translution_lib.mixers.convert import NoTranslution
from translution_lib.mixers.renamed import renamed

PARTS = {"absolute": Absolute(), "turn": Rotary(angles="learned"), "origin": Rotary(cls_token="origin"),
         "bias": ScalarBias(), "alibi": ScalarBias(bias="alibi"), "vectors": Vectors(clip=1, per_head=False),
         "keys": Vectors(sides="k"), "gate": PositionalGate(), "carry": Transport(metric="pairs", focus="after"),
         "skew": Transport(transport="skew", form="covector", focus="before")}
TABLES = [offsets((2, 3), cls=True), offsets(5, causal=True), offsets((3, 3), window=1)]


def randomised(layer):
    """Move every parameter away from where it starts."""
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.3 * torch.randn_like(p)
    return layer


TURNING = {"turn", "origin", "carry", "skew"}
TOGETHER = [names for names in combinations(PARTS, 2) if not TURNING.issuperset(names)]


ALL_BUT_TURNS = [tuple(sorted(set(PARTS) - TURNING | {turn})) for turn in sorted(TURNING)]


@pytest.mark.parametrize("names", TOGETHER + ALL_BUT_TURNS, ids="+".join)
def test_any_parts_go_together(names):
    """Fast form and literal equations, outputs and gradients."""
    for table in TABLES:
        layer = randomised(Attention(table, DIM, HEADS, [PARTS[name] for name in names]).to(F64))
        x = torch.randn(2, table.n, DIM, dtype=F64, requires_grad=True)
        assert_forms_agree(layer, x)
        assert_close(layer.weights(x).sum(-1), torch.ones(2, HEADS, table.n, dtype=F64))


def test_two_turns_are_refused_by_name():
    with pytest.raises(ValueError, match="one part that turns queries and keys, got Rotary and Transport"):
        Attention(offsets(4), DIM, HEADS, [Rotary(), ScalarBias(), Transport()])


def test_two_parts_by_hand():
    """q_i R(p_i − p_j) k_j / √d + b[δ], with a rotation matrix and a number for every pair."""
    table = offsets(4)
    layer = randomised(Attention(table, 4, 1, [Rotary(), ScalarBias()]).to(F64))
    x = torch.randn(1, 4, 4, dtype=F64)
    q, k, v = (x[0] @ w for w in layer.matrices)
    a = torch.zeros(4, 4, dtype=F64)
    for i in range(4):
        for j in range(4):
            turn = torch.block_diag(*(torch.tensor([[math.cos(t), math.sin(t)], [-math.sin(t), math.cos(t)]], dtype=F64)
                                      for t in ((i - j) * 1.0, (i - j) * 0.01)))
            a[i, j] = q[i] @ turn @ k[j] / 2 + layer.table[0, table.id_of((i - j,))]
    assert_close(layer(x)[0], layer.output(a.softmax(1) @ v))


def test_a_part_is_not_shared(plain_types):
    """One description serves many layers, each of which draws its own parameters."""
    part = ScalarBias()
    one, two = (Attention(offsets(3), 4, 2, [part]) for _ in range(2))
    assert not list(part.parameters()) and one.table is not two.table and not torch.equal(one.table, two.table)
    with pytest.raises(ValueError, match="encodings must be parts such as"):
        Attention(offsets(3), 4, 2, [Rotary])
    with pytest.raises(AttributeError, match="no attribute 'thetas'"):
        _ = one.thetas


def test_attributes_of_parts_can_be_read_and_set():
    layer = Attention(offsets(3), 4, 2, [ScalarBias(), Transport(form="covector", angles="learned")])
    with torch.no_grad():
        layer.theta *= 2
    layer.form = "inner"
    assert layer.encodings[1].form == "inner" and layer.encodings[1].theta is layer.theta


class Kerple(Encoding):
    """A new part, as a stranger writes it: −a·log(1 + ‖δ‖)."""

    def __init__(self, *, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = rate

    def start(self, relations, dim, heads, head_dim):
        self.slope = torch.nn.Parameter(torch.full((heads, 1, 1), self.rate))

    def bias(self, q, where):
        p = where.positions.double()
        far = torch.cdist(p, p).log1p().to(q)
        return -self.slope * torch.nn.functional.pad(far, (int(where.cls), 0) * 2)


def test_a_new_part_needs_one_line(monkeypatch):
    """Models, options, masks, costs by counting; as_translution refuses what it does not know."""
    monkeypatch.setitem(MIXERS, "kerple", Encoded(Kerple))
    vit = ViT(6, 3, 2, 5, 8, 2, 2, 16, mixer="kerple", rate=0.5).double()
    gpt = GPT(7, 6, 8, 2, 2, 16, mixer=["kerple", "riemann"], options={"kerple": {"rate": 0.5}})
    assert float(vit.blocks[0].mixer.slope[0]) == float(gpt.blocks[0].mixer.slope[0]) == 0.5
    for model in (vit, gpt):
        assert cost.parameters(model) == cost.count_parameters(model)
        assert cost.macs_products(model) == cost.count_macs(model)
    images = torch.rand(2, 2, 6, 6, dtype=F64)
    with backend("definition"):
        literal = vit(images)
    assert_close(vit(images), literal)
    with pytest.raises(NoTranslution, match="no rule is registered"):
        as_translution(vit.blocks[0].mixer)
    with pytest.raises(ValueError, match="speed"):
        ViT(6, 3, 2, 5, 8, 2, 2, 16, mixer="kerple", speed=1)


@pytest.mark.parametrize("names", [("turn", "bias"), ("turn", "vectors"), ("bias", "vectors"), ("keys", "alibi"),
                                   ("turn", "keys", "bias", "vectors")], ids="+".join)
def test_combinations_are_translution(names):
    for table in TABLES[:2]:
        layer = randomised(Attention(table, DIM, HEADS, [PARTS[name] for name in names]).to(F64))
        x = torch.randn(2, table.n, DIM, dtype=F64)
        assert_close(as_translution(layer)(x), layer(x), atol=1e-10, rtol=0)


# Masks of samples


@pytest.mark.parametrize(("name", "options"), EVERY)
@pytest.mark.parametrize("table", [offsets((2, 3), cls=True), offsets((2, 3)), offsets(5, causal=True)], ids=repr)
def test_tokens_that_do_not_exist_influence_nothing(name, options, table):
    """Whatever they hold, in both forms; their rows are zero, and so are their gradients."""
    if name == "convolution" and table.cls:
        return
    layer, n = build(name, table, **options), table.n
    keep = torch.ones(3, n, dtype=torch.bool)
    keep[1, n - 2:], keep[2] = False, False
    x = torch.randn(3, n, DIM, dtype=F64)
    for context in (nullcontext, partial(backend, "definition")):
        for filling in (0.0, 7.0, math.nan, math.inf):
            filled = x.masked_fill(~keep[..., None], filling).requires_grad_()
            with context():
                y = layer(filled, mask=keep)
            assert (y[~keep] == 0).all() and y.isfinite().all()
            grads = gradients(y, [filled, *layer.parameters()])
            assert all(g.isfinite().all() for g in grads) and (grads[0][~keep] == 0).all()
            if filling == 0:
                expected = y
            assert_close(y, expected, atol=0, rtol=0)
        assert_close(y[0], layer(x[:1])[0])


@pytest.mark.parametrize("name", sorted(set(MIXERS) - LINEAR - {"convolution"}))
@given(seed=st.integers(0, 99))
def test_masked_tokens_are_as_if_absent(name, seed):
    """A text and its padding: the weights are those of the text alone."""
    table = offsets(6, causal=True)
    layer, n = build(name, table), torch.Generator().manual_seed(seed)
    x = torch.randn(2, 6, DIM, dtype=F64, generator=n)
    keep = torch.arange(6) < torch.tensor([[4], [6]])
    assert_close(layer(x, mask=keep)[0, :4], layer(x[:1, :4])[0])


@pytest.mark.parametrize("name", sorted(set(MIXERS) - LINEAR - {"convolution"}))
def test_pairs_may_be_masked(name):
    """A mask of pairs is a table of its own: a window, beside a row that may attend to nothing."""
    wide, narrow = offsets((3, 3)), offsets((3, 3), window=1)
    if name in ANY_TABLE:
        wide, narrow = shared(4), shared(4, causal=True)
    layer = build(name, wide)
    x = torch.randn(2, wide.n, DIM, dtype=F64, requires_grad=True)
    pairs = narrow.mask.expand(2, -1, -1).clone()
    pairs[1, 2] = False
    for context in (nullcontext, partial(backend, "definition")):
        with context():
            y = layer(x, mask=pairs)
        assert (y[1, 2] == 0).all() and all(g.isfinite().all() for g in gradients(y, [x, *layer.parameters()]))
        alpha = layer.scores(x[:1]).masked_fill(~narrow.mask, -math.inf).softmax(-1)
        if name not in ("gated-bias",):
            assert_close(y[:1], layer.output(layer.values(alpha, x[:1])))


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_masks_that_do_not_fit_are_named(name):
    layer = build(name)
    x, n = torch.randn(2, layer.relations.n, DIM, dtype=F64), layer.relations.n
    for mask in (torch.ones(2, n), torch.ones(2, n + 1, dtype=torch.bool), torch.ones(n, dtype=torch.bool)):
        with pytest.raises(ValueError, match="mask must hold booleans"):
            layer(x, mask=mask)
    if name in LINEAR or name == "convolution":
        with pytest.raises(ValueError, match="mask must hold booleans of the shape .*: (the pairs|a kernel)"):
            layer(x, mask=torch.ones(2, n, n, dtype=torch.bool))


def test_models_take_masks():
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[0, 3:] = False
    for pool in ("cls", "mean"):
        vit = ViT(6, 3, 2, 3, 8, 2, 2, 16, mixer="rotary", pool=pool).double().eval()
        exists = keep if pool == "cls" else keep[:, :4]
        images = torch.rand(2, 2, 6, 6, dtype=F64)
        other = images.clone()
        other[0, :, 3:, 3:] = 9                                             # the last patch is not there
        assert_close(vit(other, mask=exists), vit(images, mask=exists))
        assert not torch.allclose(vit(other), vit(images))
    gpt = GPT(7, 5, 8, 2, 2, 16, mixer="translution", checkpoint=True).double()
    tokens = torch.randint(7, (2, 5))
    assert_close(gpt(tokens, mask=keep)[0, :3], gpt(tokens[:, :3])[0])


# Names of the first edition


OLD = {"rotary": {"theta": "encodings.0.theta"}, "scalar-bias": {"bias": "encodings.0.table"},
       "gated-bias": {"gate": "encodings.0.gate", "position_weight": "encodings.0.position_weight"},
       "key-value-vector": {"position": "encodings.0.position", "key_vector": "encodings.1.key_vector",
                            "value_vector": "encodings.1.value_vector"},
       "riemann": {"scale": "encodings.0.scale", "log_sigma": "encodings.0.log_sigma"},
       "absolute-translution": {"position": "position"}, "performer-absolute": {"position": "encodings.0.position"}}
OPTIONS: dict = {"rotary": {"angles": "learned"}, "key-value-vector": {"absolute": True},
                 "riemann": {"focus": "before"}, "absolute-translution": {"relative": "v"},
                 "translution": {"relative": "qk"}}


@pytest.mark.parametrize(("name", "options"), [
    *((name, OPTIONS.get(name, {})) for name in MIXERS),
    ("lor-translution", {"shared": False}), ("translution", {"relative": "qkv"})])
def test_parameters_under_their_old_names_load(name, options):
    """A layer with its old names and matrices, alone and in a model, gives the same outputs after renaming."""
    layer = build(name, **options)
    back = {new: old for old, new in OLD.get(name, {}).items()}
    shared = [key for key in layer.state_dict() if key.count(".") == 1 and key.endswith(".weight") and "out" not in key]
    old = {back.get(key, key.partition(".")[0] if key in shared else key): (table.T if key in shared else table) + 1
           for key, table in layer.state_dict().items()}
    assert back.keys() <= layer.state_dict().keys()
    assert bool(shared) == (name not in ("convolution", "general-translution") and options.get("relative") != "qkv")
    expected = functional_call(layer, {key: table + 1 for key, table in layer.state_dict().items()},
                               torch.ones(1, layer.relations.n, DIM, dtype=F64))
    layer.load_state_dict(renamed(old))
    assert_close(layer(torch.ones(1, layer.relations.n, DIM, dtype=F64)), expected)
    inside = renamed({f"blocks.0.mixer.{key}": table for key, table in old.items()} | {"position": torch.ones(2, 2)})
    assert inside.keys() == {f"blocks.0.mixer.{key}" for key in layer.state_dict()} | {"position"}
    assert renamed(layer.state_dict()).keys() == layer.state_dict().keys()


@pytest.mark.parametrize("labels", [("all",), (0,), ((0, 0, 0),)])
@pytest.mark.parametrize("name", ["scalar-bias", "gated-bias", "key-vector", "value-vector"])
def test_relations_of_ones_own_on_a_grid_are_no_offsets(name, labels):
    table = Relations(torch.zeros(6, 6, dtype=torch.long), 1, labels, (2, 3))
    with pytest.raises(ValueError, match="relations must be a table of offsets, .* got the labels"):
        MIXERS[name](table, 8, 2)
