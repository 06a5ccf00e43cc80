"""Texts written row by row: every step is a row of the full forward pass, for every mixer, table and part."""

import gc
import math
import weakref
from threading import Event, Thread, current_thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import DIM, EVERY, F64, build
from translution_lib import GPT, MIXERS, Attention, Encoding, Rotary, Translution, bucketed, offsets, relations, shared
from translution_lib.mixers import Mixer
from translution_lib.models.gpt import drawn

N = 7
SIZE = {"vocabulary": 11, "context": N, "dim": DIM, "depth": 2, "heads": 2, "ff": 12}
TABLES = {"offsets": offsets(N, causal=True), "window": offsets(N, causal=True, window=2),
          "clip": offsets(N, causal=True, clip=2), "buckets": bucketed(offsets(N, causal=True), 4, max_distance=6),
          "some": offsets(2 * N, causal=True).select(range(0, 2 * N, 2)), "shared": shared(N, causal=True)}


def stepwise(layer, x, cuts):
    """Return the rows of a layer, or of a model, from steps of these lengths."""
    rows, memory = [], None
    for part in x.split(cuts, dim=1):
        y, memory = layer.step(part, memory)
        rows.append(y)
    return torch.cat(rows, 1)


def assert_rows(layer, x, cuts):
    torch.testing.assert_close(stepwise(layer, x, cuts), layer(x), rtol=1e-10, atol=1e-10)


def served(name, options, table):
    """Whether a mixer takes a table."""
    try:
        build(name, table, **options)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("name", "options"), EVERY)
@torch.no_grad()
def test_steps_are_rows_of_the_forward_pass(name, options):
    for kind, table in TABLES.items():
        if not served(name, options, table):
            assert kind in ("window", "some", "shared")
            continue
        layer, x = build(name, table, **options).eval(), torch.randn(2, N, DIM, dtype=F64)
        for cuts in ([3, 1, 1, 2], [1] * N, [N]):
            assert_rows(layer, x, cuts)


@pytest.mark.parametrize("name", sorted(MIXERS))
@torch.no_grad()
def test_a_step_computes_no_old_row(name, monkeypatch):
    """After the first step no layer of the library runs its forward pass, but for one that no model has."""
    layer = build(name, TABLES["offsets"])
    _, memory = layer.step(torch.randn(1, 3, DIM, dtype=F64))
    monkeypatch.setattr(type(layer), "forward", None)
    if name == "absolute-translution":
        assert type(layer).step is Mixer.step
    else:
        assert layer.step(torch.randn(1, 1, DIM, dtype=F64), memory)[0].shape == (1, 1, DIM)


@pytest.mark.parametrize("features", ["positive", "trigonometric"])
@torch.no_grad()
def test_the_scale_of_a_performer_runs_along(features):
    """Keys that grow from token to token change the scale of the state at every step."""
    layer = build("performer", TABLES["offsets"], features=features, num_features=30)
    assert_rows(layer, torch.randn(1, N, DIM, dtype=F64) * torch.linspace(0.2, 3, N, dtype=F64)[:, None], [2] + [1] * 5)
    assert_rows(layer, torch.randn(1, N, DIM, dtype=F64) * torch.linspace(3, 0.2, N, dtype=F64)[:, None], [2] + [1] * 5)


class Nearer(Encoding):
    """A part as a reader writes it, over all pairs: it does not know of rows."""

    def bias(self, q, where):
        return -(where.positions[:, None] - where.positions).abs().sum(-1).to(q) * q.square().mean(-1, keepdim=True)


class Crossed(Rotary):
    """A part of the library whose equation is changed: its keys know the query before."""

    def queries_keys(self, q, k, where):
        return q, k + q.roll(1, dims=2) * (torch.arange(q.shape[2]) > 0)[:, None]


class Doubled(Translution):
    """A layer with a fast form of its own."""

    def mix(self, x, mask=None):
        return 2 * super().mix(x, mask)


@pytest.mark.parametrize("added", [Nearer, Crossed, Doubled])
@torch.no_grad()
def test_what_a_reader_adds_is_right_without_a_step(added):
    table = TABLES["offsets"]
    layer = (Doubled(table, DIM, 2) if added is Doubled else Attention(table, DIM, 2, [added()])).to(F64)
    assert_rows(layer, torch.randn(2, N, DIM, dtype=F64), [2, 1, 3, 1])


class Sum(torch.nn.Module):
    """A module that is no mixer."""

    def forward(self, x):
        return x.cumsum(1)


def test_a_table_of_rows():
    for table in TABLES.values():
        part = table.rows(2, 5)
        assert torch.equal(part.index, table.index[2:5, :5]) and torch.equal(part.mask, table.mask[2:5, :5])
        assert (part.first, part.n, part.count) == (2, 5, table.count) and part.index_on("cpu").shape == (3, 5)
        assert part.complete == bool(part.mask.all()) and table.rows(2, 5) is part and table.rows(0, 4).n == 4
    for first, n in ((2, 2), (3, N + 1), (-1, 3)):
        with pytest.raises(ValueError, match="rows needs a causal table and"):
            TABLES["offsets"].rows(first, n)
    with pytest.raises(ValueError, match="rows needs a causal table"):
        offsets(4).rows(1, 4)


MODELS = [*((name, {}) for name in sorted(MIXERS)), ("rotary", {"absolute": True}), ("translution", {"reach": 3}),
          ("translution", {"reach": 3, "beyond": "window"}), ("lor-translution", {"bucket_offsets": 4}),
          (("translution", "performer-s2"), {}), (("absolute", "riemann"), {"dropout": 0.5})]


@pytest.mark.parametrize(("mixer", "options"), MODELS)
@torch.no_grad()
def test_a_model_writes_what_its_forward_pass_expects(mixer, options):
    model = GPT(**{**SIZE, "heads": 1 if mixer == "convolution" else 2}, mixer=mixer, **options).double().train()
    model.blocks[0].eval()
    modes, ids = [part.training for part in model.modules()], torch.randint(11, (3, 2))
    written = model.generate(ids, N - 1, temperature=0)
    assert [part.training for part in model.modules()] == modes
    logits = model.eval()(written[:, :N])
    assert torch.equal(written[:, :2], ids) and torch.equal(written[:, 2:], logits[:, 1:].argmax(-1))
    torch.testing.assert_close(stepwise(model, written[:, :N], [2, 1, 3, 1]), logits, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_block_of_any_module_is_run_again():
    model = GPT(**SIZE).double()
    model.blocks[1].mixer = Sum()
    ids = torch.randint(11, (1, N))
    torch.testing.assert_close(stepwise(model, ids, [3, 1, 1, 2]), model(ids))


@given(st.sampled_from([0.1, 1.0, 3]), st.sampled_from([None, 1, 3, 20]), st.integers(0, 9))
@torch.no_grad()
def test_tokens_are_drawn_from_the_softmax(temperature, top_k, seed):
    """One row at a time, by hand: torch's own draw from the k best logits of the full forward pass."""
    model = GPT(**SIZE).double().eval()
    ids = torch.randint(11, (2, 1))
    first, draw, by_hand = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed), ids
    written = model.generate(ids, 4, temperature=temperature, top_k=top_k, generator=first)
    for _ in range(4):
        best, which = model(by_hand)[:, -1].topk(min(top_k or 11, 11))
        weights = torch.zeros(2, 11, dtype=F64).scatter(1, which, (best / temperature).softmax(-1))
        by_hand = torch.cat([by_hand, torch.multinomial(weights, 1, generator=draw)], 1)
    assert torch.equal(written, by_hand)
    if top_k == 1:
        assert torch.equal(written, model.generate(ids, 4, temperature=0))


@pytest.mark.parametrize(("change", "word"), [
    ({"ids": torch.zeros(1, 0, dtype=torch.long)}, "ids"), ({"ids": torch.zeros(3, dtype=torch.long)}, "ids"),
    ({"ids": torch.zeros(1, 2)}, "ids"), ({"new_tokens": N}, "new_tokens must be an integer from 0 to 6"),
    ({"new_tokens": -1}, "new_tokens"), ({"new_tokens": 1.5}, "new_tokens"), ({"temperature": -1}, "temperature"),
    ({"temperature": math.nan}, "temperature"), ({"top_k": 0}, "top_k"), ({"temperature": "1"}, "temperature"),
    ({"ids": torch.tensor([[11]])}, "ids must be from 0 to 10"), ({"ids": torch.tensor([[-1]])}, "ids must be from"),
    ({"ids": torch.zeros(1, 2, dtype=torch.uint8)}, "ids must be int32 or int64"), ({"ids": [[1]]}, "got list")])
def test_bad_input_is_named(plain_types, change, word):
    with pytest.raises(ValueError, match=word):
        GPT(**SIZE).generate(**{"ids": torch.zeros(1, 2, dtype=torch.long), "new_tokens": 2, **change})


def test_a_step_beyond_the_context_is_refused(plain_types):
    model = GPT(**SIZE)
    _, memory = model.step(torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"tokens must have the shape \(batch, 1 to 2\) after 5 others"):
        model.step(torch.zeros(1, 3, dtype=torch.long), memory)


def kept(table):
    """Return the bytes that a table of relations remembers beside itself."""
    seen, sizes, todo = {id(table)}, {}, list(table._cache.values())
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (str, int, type)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            todo += value.values()
        else:
            todo += value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
    own = (t.untyped_storage().data_ptr() for t in (table.index, table.mask, table.positions))
    return sum(sizes.values()) - sum(sizes.get(place, 0) for place in own)


@torch.no_grad()
def test_a_long_text_leaves_no_tables_behind(monkeypatch):
    """Rows leave nothing; of the prefixes that forward passes ask for, one alone stays, with its groups of pairs."""
    model, ids = GPT(5, 1024, 2, 1, 1, 2), torch.zeros(1, 128, dtype=torch.long)
    monkeypatch.setattr(relations, "TABLES", weakref.WeakValueDictionary())
    gc.disable()
    try:
        model.generate(ids[:, :1], 100)
        assert kept(model.relations) < 2**15 and len(relations.TABLES) <= 2
        for n in (128, 16, 32, 64):
            model(ids[:, :n])
        assert 0 < kept(model.relations) < 20 * 64**2 and len(relations.TABLES) <= 2
    finally:
        gc.enable()


def test_of_equal_tokens_no_more_than_asked_for_are_drawn():
    """Ties are common in half precision."""
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -1.0]]).expand(200, -1)
    for kept in (1, 2, 3):
        assert len(drawn(logits, 1.0, kept).unique()) == kept
    assert drawn(logits, 1e-320, None).unique().tolist() == [1, 2, 3]


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_no_numbers_are_refused(temperature):
    model = GPT(mixer="rotary", **SIZE)
    for wrong in (math.nan, math.inf):
        model.head.weight.data[3] = wrong
        with pytest.raises(ValueError, match="logits are not numbers"):
            model.generate(torch.tensor([[1]]), 2, temperature=temperature)


class Own(Translution):
    """A layer of a reader, whose step runs forward, where dropout would act in training."""

    def helper(self):
        return None


def test_two_threads_write_with_one_model_in_training(monkeypatch):
    """The first ends while the second is at work, which goes on in evaluation; then the model trains again."""
    monkeypatch.setitem(MIXERS, "own", Own)
    model, ids = GPT(mixer="own", dropout=0.9, **SIZE).train(), torch.tensor([[1, 2]])
    expected, found, step = model.generate(ids, 5, temperature=0), {}, model.step
    inside, entered = Event(), Event()

    def waiting(*given):
        if current_thread().name == "first":
            inside.set()
            entered.wait(10)
        else:
            entered.set()
            first.join(10)
        return step(*given)

    def write(name, count):
        found[name] = model.generate(ids, count, temperature=0)

    first = Thread(target=write, args=("first", 1), name="first")
    second = Thread(target=write, args=("second", 5), name="second")
    monkeypatch.setattr(model, "step", waiting)
    first.start()
    inside.wait()
    second.start()
    first.join()
    second.join()
    assert torch.equal(found["second"], expected) and torch.equal(found["first"], expected[:, :3])
    assert all(part.training for part in model.modules())
