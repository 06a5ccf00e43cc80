"""Relation tables: numbering, counts, masks, errors; checked against a loop over the positions."""

import copy
import sys
from contextlib import suppress
from itertools import product
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.unit.strategies import grids, tables
from translution_lib import GPT, MIXERS, Relations, offsets, pairs, place_cls, shared
from translution_lib.relations import every_offset

ONE = torch.zeros(1, 1, dtype=torch.long)


def bounded(low: int, high: int) -> st.SearchStrategy:
    return st.none() | st.integers(low, high)


@given(grids(), st.booleans(), bounded(0, 3), bounded(0, 3))
def test_offsets_follow_the_convention(shape, cls, window, clip):
    """Ids number the offsets p_i − p_j in row-major order; the three CLS roles come last."""
    rel = offsets(shape, cls=cls, window=window, clip=clip)
    bounds = [b for b in (window, clip) if b is not None]
    axes = [range(-r, r + 1) for r in (min(s - 1, *bounds, s - 1) for s in shape)]
    expected = list(product(*axes))
    assert list(rel.labels[: len(expected)]) == expected
    assert rel.labels[len(expected):] == (("cls", "cls←image", "image←cls") if cls else ())
    positions = list(product(*(range(s) for s in shape)))
    image = rel.index[int(cls):, int(cls):]
    for (i, p), (j, q) in product(enumerate(positions), repeat=2):
        delta = tuple(int(v) for v in np.subtract(p, q))
        masked = window is not None and max(map(abs, delta)) > window
        clipped = delta if clip is None else tuple(int(v) for v in np.clip(delta, -clip, clip))
        assert image[i, j] == (-1 if masked else expected.index(clipped))
    if cls:
        n = len(expected)
        assert rel.index[0, 0] == n and (rel.index[0, 1:] == n + 1).all() and (rel.index[1:, 0] == n + 2).all()


@given(grids(), bounded(0, 3), bounded(0, 3))
def test_a_placed_cls_token_has_a_relation_with_every_token(shape, window, clip):
    """The grid's ids stay; every pair with CLS has an id of its own, and its label says which pair."""
    free = offsets(shape, cls=True, window=window, clip=clip)
    rel = place_cls(free)
    assert torch.equal(rel.index[1:, 1:], free.index[1:, 1:]) and rel.labels[: free.count - 2] == free.labels[:-2]
    assert rel.count == free.count - 2 + 2 * (free.n - 1)
    with_cls = [*rel.index[0].tolist(), *rel.index[1:, 0].tolist()]
    assert sorted(with_cls) == list(range(free.count - 3, rel.count))
    for token, p in enumerate(product(*(range(s) for s in shape)), start=1):
        assert rel.labels[rel.index[0, token]] == f"cls←{p}" and rel.labels[rel.index[token, 0]] == f"{p}←cls"


@pytest.mark.parametrize("table", [offsets((2, 3)), pairs(4), shared(3), place_cls(offsets(3, cls=True))])
def test_a_place_needs_a_cls_token_without_one(table):
    with pytest.raises(ValueError, match="relations must have a CLS token without a place"):
        place_cls(table)


@given(st.integers(1, 12), bounded(0, 5), bounded(0, 5))
def test_causal_offsets_are_zero_to_n_minus_one(n, window, clip):
    rel = offsets(n, causal=True, window=window, clip=clip)
    for i, j in product(range(n), repeat=2):
        delta = i - j
        masked = delta < 0 or (window is not None and delta > window)
        assert rel.index[i, j] == (-1 if masked else min(delta, n if clip is None else clip))
    assert rel.count == min(b for b in (n - 1, window, clip) if b is not None) + 1
    assert rel.labels == tuple((d,) for d in range(rel.count))


@given(grids())
def test_every_offset_has_its_number_of_pairs(shape):
    """Offset δ joins ∏(size − |δ|) pairs, and together they are all n² pairs."""
    rel = offsets(shape)
    expected = [int(np.prod([s - abs(v) for s, v in zip(shape, delta, strict=True)])) for delta in rel.labels]
    assert rel.sizes.tolist() == expected and sum(expected) == rel.n ** 2
    assert rel.count == int(np.prod([2 * s - 1 for s in shape]))


@given(tables())
def test_groups_list_every_pair_once(rel):
    i, j = rel.sorted_pairs
    assert torch.equal(rel.index[i, j], torch.repeat_interleave(torch.arange(rel.count), rel.sizes))
    assert len(set(zip(i.tolist(), j.tolist(), strict=True))) == len(i) == int(rel.mask.sum())
    for r in range(rel.count):
        a, b = rel.pairs_of(r)
        assert (rel.index[a, b] == r).all() and len(a) == rel.sizes[r]
        assert rel.id_of(rel.labels[r]) == r


def test_known_tables():
    assert offsets((7, 7), cls=True).count == 13 * 13 + 3
    assert offsets((14, 14)).count == 729
    assert pairs(50).count == 2500
    assert shared(5).index.tolist() == [[0] * 5] * 5
    assert offsets(3).index.tolist() == [[2, 1, 0], [3, 2, 1], [4, 3, 2]]
    assert offsets(3, causal=True).index.tolist() == [[0, -1, -1], [1, 0, -1], [2, 1, 0]]


@given(st.integers(1, 9), st.data())
def test_a_causal_prefix_is_the_table_of_the_shorter_text(n, data):
    m = data.draw(st.integers(1, n))
    prefix = offsets(n, causal=True).for_length(m)
    assert torch.equal(prefix.index, offsets(m, causal=True).index)
    assert prefix.count == n and prefix.n == m


def test_a_causal_prefix_keeps_window_and_clip():
    rel = offsets(8, causal=True, window=3, clip=2)
    assert torch.equal(rel.for_length(5).index, offsets(5, causal=True, window=3, clip=2).index)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: offsets(0), "shape"), (lambda: offsets((3, -1)), "shape"), (lambda: offsets((3, 2.0)), "shape"),
    (lambda: offsets(()), "shape"), (lambda: offsets(True), "shape"), (lambda: offsets((500, 500)), "shape"),
    (lambda: offsets(3, clip=1.5), "clip"), (lambda: offsets(3, clip=-1), "clip"),
    (lambda: offsets(3, clip=True), "clip"),
    (lambda: offsets(3, window="2"), "window"), (lambda: offsets(3, window=-2), "window"),
    (lambda: offsets(3, causal=True, cls=True), "causal"), (lambda: offsets((3, 3), causal=True), "causal"),
    (lambda: pairs(0), "n must"), (lambda: pairs(2.5), "n must"), (lambda: shared(-1), "n must"),
    (lambda: offsets(3).for_length(2), "tokens"), (lambda: offsets(3, causal=True).for_length(4), "tokens"),
    (lambda: offsets(3).pairs_of(5), "relation"), (lambda: offsets(3).id_of((7,)), "label"),
    (lambda: Relations(torch.zeros(2, 3, dtype=torch.long), 1, ("a",)), "index"),
    (lambda: Relations(torch.zeros(2, 2, dtype=torch.long), 2, ("a",)), "labels"),
    (lambda: Relations(torch.full((2, 2), 4), 1, ("a",)), "index"),
    (lambda: Relations(torch.tensor([[0, 0], [-1, -1]]), 1, ("a",)), "row"),
    (lambda: Relations(torch.zeros(2, 2), 1, ("a",)), "index must be a tensor of integers, got torch.float32"),
    (lambda: Relations(torch.ones(2, 2, dtype=torch.bool), 2, ("a", "b")), "index must be a tensor of integers"),
    (lambda: Relations([[0]], 1, ("a",)), "index must be a tensor of integers, got list"),
    (lambda: Relations(torch.zeros(0, 0, dtype=torch.long), 1, ("a",)), "index"),
    (lambda: Relations(torch.zeros(0, dtype=torch.long), 1, ("a",)), "index"),
    (lambda: Relations(ONE, 1, ("a",), ()), "shape"), (lambda: Relations(ONE, 1, ("a",), (0,)), "shape"),
    (lambda: Relations(ONE, 1, ("a",), (3,)), "positions must say where 1 tokens stand on a grid of 3 cells"),
    (lambda: Relations(ONE, 1, ("a",), positions=ONE), "positions must be None where shape is None"),
    (lambda: Relations(ONE, 1, ("a",), (3,), positions=torch.tensor([[0.0]])), "positions must be a tensor of integ"),
    (lambda: Relations(ONE, 1, ("a",), (3,), positions=torch.tensor([[3]])), "positions must lie on the grid"),
    (lambda: Relations(ONE, 1, ("a",), (3,), positions=torch.tensor([[-1]])), "positions must lie on the grid"),
    (lambda: Relations(ONE, 1, ("a",), (3,), positions=torch.tensor([[0, 0]])), "positions must have the shape"),
    (lambda: Relations(ONE, 1, ("a",), (3,), cls=True, positions=ONE), "positions must have the shape"),
    (lambda: offsets(3).select([]), "tokens"), (lambda: offsets(3).select([0.5]), "tokens must be integers"),
    (lambda: offsets(3).select([3]), "tokens must be integers from 0 to 2"),
    (lambda: offsets(3).select([True, False]), "tokens must be integers"),
    (lambda: offsets(3, cls=True).select([1, 0]), "tokens must have CLS"),
    (lambda: offsets(3, causal=True).select([1, 0]), "tokens of a causal table must ascend"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()


@given(tables(), st.data())
def test_selected_tokens_keep_their_relations_and_places(rel, data):
    """Against the definition, pair by pair; whoever has a place takes it along."""
    order = st.permutations(range(rel.n)) if not rel.causal else st.just(range(rel.n))
    kept = list(data.draw(order))[: data.draw(st.integers(1, rel.n))]
    kept = sorted(kept) if rel.causal or rel.cls else kept
    if (rel.index[kept][:, kept] == -1).all(1).any():
        return
    part = rel.select(kept)
    assert part.index.tolist() == [[int(rel.index[i, j]) for j in kept] for i in kept]
    assert (part.labels, part.shape, part.causal) == (rel.labels, rel.shape, rel.causal)
    assert part.cls == (rel.cls and 0 in kept)
    places = [None] * rel.cls + (rel.positions.tolist() if rel.shape else [])
    assert part.shape is None or part.positions.tolist() == [places[i] for i in kept if places[i] is not None]
    assert part.whole == (rel.whole and kept == list(range(rel.n)))


@given(grids(), st.booleans(), st.data())
def test_every_offset_of_some_tokens_is_that_of_their_places(shape, cls, data):
    rel = offsets(shape, cls=cls, clip=1)
    part = rel.select(sorted(data.draw(st.sets(st.integers(0, rel.n - 1), min_size=1))))
    full = every_offset(part)
    places = [None] * part.cls + part.positions.tolist()
    for (i, p), (j, q) in product(enumerate(places), repeat=2):
        if p is not None and q is not None:
            assert full.labels[full.index[i, j]] == tuple(np.subtract(p, q))


def test_prefixes_of_some_tokens_of_a_text_know_their_places():
    part = offsets(9, causal=True).select([1, 4, 6])
    assert part.for_length(2).positions.tolist() == [[1], [4]] and part.for_length(2).shape == (9,)
    assert part.for_length(2).index.tolist() == [[0, -1], [3, 0]]


def kept_bytes(relations: Relations) -> int:
    """Bytes of all tensors that a table keeps beside its ids, each storage once."""
    seen, found, todo = {relations.index.untyped_storage().data_ptr()}, 0, [relations]
    while todo:
        one = todo.pop()
        name = one.untyped_storage().data_ptr() if isinstance(one, torch.Tensor) else id(one)
        if name in seen:
            continue
        seen.add(name)
        if isinstance(one, torch.Tensor):
            found += one.untyped_storage().nbytes()
        elif isinstance(one, (list, tuple)):
            todo += one
        elif isinstance(one, dict):
            todo += one.values()
        elif type(one).__module__.startswith("translution_lib"):
            todo += vars(one).values()
    return found


@pytest.mark.parametrize("mixer", ["translution", "key-vector", "lor-translution", "rotary"])
def test_writing_a_text_keeps_no_table_per_token(mixer):
    """What a growing text leaves behind is a constant times its table of ids, not a table for each of its tokens."""
    model, n = GPT(5, 48, 8, 1, 2, 8, mixer=mixer).eval(), 48
    with torch.no_grad():
        for length in range(1, n):
            model(torch.zeros(1, length, dtype=torch.long))
    tables = [model.relations, getattr(model.blocks[0].mixer, "near", model.relations)]
    assert max(map(kept_bytes, tables)) <= 4 * model.relations.index.nbytes


def test_threads_share_one_table():
    """Each asks for rows and prefixes of its own, and for copies of them, while the others do."""
    whole, wrong = offsets(24, causal=True), []

    def read(start):
        for step in range(300):
            n = 2 + (start + step) % 22
            prefix, row = whole.for_length(n), whole.rows(n - 1, n)
            like = torch.ones((), dtype=(torch.float32, torch.float64, torch.float16, torch.bfloat16)[step % 4])
            made = prefix.on(("ids", step % 5), lambda table=prefix: table.index.double(), like)
            whole.on(("ids", step), lambda: whole.index, like)
            if not (torch.equal(prefix.index_on("cpu"), whole.index[:n, :n]) and made.shape == (n, n)
                    and torch.equal(row.index_on("cpu"), whole.index[n - 1: n, :n])):
                wrong.append(n)

    def reading(start):
        try:
            read(start)
        except Exception as error:
            wrong.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=reading, args=[3 * k]) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_tables_survive_the_meta_device_and_copies():
    with torch.device("meta"):
        rel = offsets((3, 2), cls=True)
    assert rel.index.device.type == "cpu" and int(rel.index.max()) == rel.count - 1
    assert torch.equal(copy.deepcopy(rel).index, rel.index)
    assert "count=18" in repr(rel)


@pytest.mark.parametrize("name", ["general-translution", "translution", "gated-bias", "performer-s1"])
@pytest.mark.parametrize("causal", [False, True])
def test_who_looks_at_shapes_leaves_nothing_in_the_tables(name, causal):
    table = offsets(6, causal=True) if causal else offsets((2, 3), cls=True)
    layer, x = MIXERS[name](table, 12, 2).eval(), torch.randn(2, table.n, 12)
    expected = copy.deepcopy(layer)(x)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, suppress(Exception):
        layer(mode.from_tensor(x))
    with suppress(Exception):
        make_fx(layer, tracing_mode="fake")(x)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("option", ["clip", "window"])
def test_a_reach_that_no_integer_of_64_bits_holds_is_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be an integer from 0 to"):
        offsets(3, **{option: 10**30})
