"""Relative key and value vectors: equations, fast form, two outside implementations, options, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.unit.strategies import F64, assert_forms_agree, tables
from translution_lib import MIXERS, Attention, cost, definition, offsets, pairs, shared
from translution_lib.mixers.encodings.vectors import SIDES
from translution_lib.mixers.positional import offset_count

PLACED = tables().filter(lambda rel: rel.shape is not None)
CLIPS = st.none() | st.integers(0, 4)


def build(relations, sides="kv", dim=6, heads=2, **options):
    """Build a layer whose vectors are large enough to matter."""
    layer = MIXERS["key-value-vector"](relations, dim, heads, sides=sides, **options).to(F64)
    for vectors in (layer.key_vector, layer.value_vector):
        if vectors is not None:
            torch.nn.init.normal_(vectors)
    return layer


@given(PLACED, st.sampled_from(SIDES), CLIPS, st.booleans())
def test_forward_equals_the_equations(rel, sides, clip, per_head):
    layer = build(rel, sides, clip=clip, per_head=per_head, head_dim=4)
    x = torch.randn(2, rel.n, 6, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)


@given(PLACED, CLIPS)
def test_the_equations_are_loops_over_pairs(rel, clip):
    layer = build(rel, dim=3, heads=1, clip=clip, output=False)
    x, (f_q, f_k, f_v) = torch.randn(1, rel.n, 3, dtype=F64), layer.matrices
    expected = torch.zeros(rel.n, 3, dtype=F64)
    for i in range(rel.n):
        scores, values = [], []
        for j in rel.mask[i].nonzero().flatten().tolist():
            label = rel.labels[rel.index[i, j]]
            if isinstance(label, tuple):
                near = tuple(d if clip is None else max(-clip, min(clip, d)) for d in label)
                r, r_v = (t[layer.near.id_of(near)] for t in (layer.key_vector, layer.value_vector))
            else:
                r = r_v = torch.zeros(3, dtype=F64)
            scores.append((x[0, i] @ f_q) @ (x[0, j] @ f_k + r) / 3 ** 0.5)
            values.append(x[0, j] @ f_v + r_v)
        expected[i] = torch.stack(scores).softmax(0) @ torch.stack(values)
    torch.testing.assert_close(layer(x)[0], expected)


@pytest.mark.parametrize(("n", "clip", "causal"), [(7, None, False), (7, 2, False), (9, 3, True), (5, None, True)])
def test_keys_are_those_of_wav2vec2_bert(n, clip, causal):
    """An outside layer with Shaw's relative keys: it clips j − i, shares vectors between heads, and has biases."""
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    reach = n - 1 if clip is None else clip
    config = Wav2Vec2BertConfig(hidden_size=6, num_attention_heads=2, position_embeddings_type="relative_key",
                                left_max_position_embeddings=reach, right_max_position_embeddings=reach,
                                attention_dropout=0.0, attn_implementation="eager")
    oracle = Wav2Vec2BertSelfAttention(config).to(F64)
    layer = build(offsets(n, causal=causal), "k", clip=clip, per_head=False, qkv_bias=True)
    _copy(layer, (oracle.linear_q, oracle.linear_k, oracle.linear_v, oracle.linear_out))
    table = oracle.distance_embedding.weight.data   # row r holds j − i = r − reach, that is δ = reach − r
    layer.key_vector.data = torch.stack([table[reach - delta] for (delta,) in layer.near.labels])
    x = torch.randn(2, n, 6, dtype=F64)
    mask = torch.zeros(n, n, dtype=F64).masked_fill(~layer.relations.mask, -torch.inf).expand(2, 1, n, n)
    expected, weights = oracle(x, attention_mask=mask if causal else None)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.weights(x), weights)


@pytest.mark.parametrize(("n", "window", "causal"), [(6, 5, False), (4, 7, False), (8, 2, False), (7, 6, True)])
def test_keys_and_values_are_those_of_vits(n, window, causal):
    """An outside layer with both vectors; beyond its window they are zero, so our farthest clipped ones are too."""
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsAttention

    oracle = VitsAttention(VitsConfig(hidden_size=6, num_attention_heads=2, window_size=window,
                                      attention_dropout=0.0)).to(F64)
    layer = build(offsets(n, causal=causal), clip=window + 1, per_head=False, qkv_bias=True)
    _copy(layer, (oracle.q_proj, oracle.k_proj, oracle.v_proj, oracle.out_proj))
    for own, theirs in ((layer.key_vector, oracle.emb_rel_k), (layer.value_vector, oracle.emb_rel_v)):
        own.data = torch.stack([theirs[0, window - delta] if abs(delta) <= window else torch.zeros(3, dtype=F64)
                                for (delta,) in layer.near.labels]).detach()
    x = torch.randn(2, n, 6, dtype=F64)
    mask = torch.zeros(n, n, dtype=F64).masked_fill(~layer.relations.mask, -torch.inf).expand(2, 1, n, n)
    expected, _ = oracle(x, attention_mask=mask if causal else None)
    torch.testing.assert_close(layer(x), expected)


def _copy(layer, linears):
    """Copy an outside layer's maps, with their biases."""
    for own, theirs in zip((layer.query, layer.key, layer.value, layer.output), linears, strict=True):
        torch.nn.init.normal_(theirs.bias)
        own.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("sides", SIDES)
def test_zero_vectors_give_self_attention(sides):
    rel = offsets((2, 3), cls=True)
    layer, plain = build(rel, sides), Attention(rel, 6, 2).to(F64)
    for vectors in (layer.key_vector, layer.value_vector):
        if vectors is not None:
            vectors.data.zero_()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "_vector" not in k})
    x = torch.randn(2, 7, 6, dtype=F64)
    torch.testing.assert_close(layer(x), plain(x))


@pytest.mark.parametrize(("made", "sides"), [(MIXERS["key-vector"], "k"), (MIXERS["value-vector"], "v")])
def test_the_named_layers(made, sides):
    layer = made(offsets((7, 7), cls=True), 192, 3)
    assert layer.sides == sides
    assert cost.count_parameters(layer) == 4 * 192 ** 2 + 192 + 13 ** 2 * 192
    assert layer.key_vector is None or layer.value_vector is None


def test_the_absolute_embedding_stands_beside_the_vectors():
    layer = build(offsets(5, causal=True), absolute=True)
    x = torch.randn(1, 5, 6, dtype=F64)
    expected = layer(x)
    placed = x + layer.position
    layer.position.data.zero_()
    torch.testing.assert_close(layer(placed), expected)


@pytest.mark.parametrize("sides", ["v", "kv"])
def test_dropout_drops_attention_weights(sides):
    layer = build(offsets(5), sides, dropout=0.5)
    x = torch.randn(2, 5, 6, dtype=F64)
    torch.manual_seed(3)
    fast = layer(x)
    torch.manual_seed(3)
    with definition():
        torch.testing.assert_close(layer(x), fast)


class Largest(TorchDispatchMode):
    """Remember the number of entries of the largest tensor that an operation returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return out


@pytest.mark.parametrize("sides", SIDES)
def test_the_fast_form_never_holds_a_vector_per_pair(sides):
    n, heads, head_dim = 20, 2, 32
    layer, x = build(offsets(n), sides, dim=heads * head_dim, heads=heads), torch.randn(1, n, 64, dtype=F64)
    with Largest() as fast:
        layer(x)
    with Largest() as slow, definition():
        layer(x)
    assert slow.entries >= n * n * heads * head_dim
    gathered = heads * n * (offset_count(layer.near) + 1)
    assert fast.entries <= max(gathered, n * heads * head_dim, (heads * head_dim) ** 2)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: MIXERS["key-value-vector"](pairs(4), 6, 2), "relations"),
    (lambda: MIXERS["key-value-vector"](shared(4), 6, 2), "relations"),
    (lambda: MIXERS["key-value-vector"](offsets(4), 6, 2, sides="q"), "sides"),
    (lambda: MIXERS["key-value-vector"](offsets(4), 6, 2, sides=""), "sides"),
    (lambda: MIXERS["key-value-vector"](offsets(4), 6, 2, clip=-1), "clip"),
    (lambda: MIXERS["key-value-vector"](offsets(4), 6, 2, clip=1.5), "clip"),
    (lambda: MIXERS["key-vector"](offsets(4), 6, 4), "heads"),
    (lambda: MIXERS["value-vector"](offsets(4), 6, 2)(torch.zeros(1, 5, 6)), "5 tokens"),
    (lambda: MIXERS["value-vector"](offsets(4), 6, 2)(torch.zeros(1, 4, 5)), "5 channels"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()
