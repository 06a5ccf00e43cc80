"""Mixers inside torch's own transformer, against its own attention."""

import copy

import pytest
import torch
from torch import nn

from tests.unit.strategies import DIM, EVERY, F64, HEADS, LINEAR, build
from translution_lib import SelfAttention, offsets, shared

N = 5
PADDED = torch.tensor([[False] * N, [False] * (N - 2) + [True] * 2])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(N, dtype=F64)
SPARSE = (torch.rand(2, N, N, generator=torch.Generator().manual_seed(0)) < 0.5) & ~torch.eye(N, dtype=torch.bool)


def with_mixer(layer, mixer):
    """Return a copy of torch's layer with this attention."""
    other = copy.deepcopy(layer)
    other.self_attn = SelfAttention(mixer, batch_first=layer.self_attn.batch_first)
    return other


def torch_and_ours(**options):
    """Return torch's layer and the same with the mixer "self-attention", which holds its weights."""
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 12, dropout=0.0, dtype=F64, **options)
    mixer = build("self-attention", shared(N))
    mixer.load_state_dict(weights_of(layer.self_attn), strict=True)
    return layer, with_mixer(layer, mixer)


def weights_of(attention):
    named = zip(("query", "key", "value"), attention.in_proj_weight.chunk(3), strict=True)
    return {**{f"{name}.weight": w for name, w in named},
            **{f"output.{k}": v for k, v in attention.out_proj.state_dict().items()}}


MASKS = {"none": {}, "padding": {"src_key_padding_mask": PADDED}, "causal": {"src_mask": CAUSAL, "is_causal": True},
         "pairs": {"src_mask": SPARSE[0]}, "by head": {"src_mask": SPARSE.repeat_interleave(HEADS, 0)},
         "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDED.to(F64).masked_fill(PADDED, -torch.inf)}}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_is_torchs_own(masks, norm_first, batch_first):
    """In training, in evaluation and on torch's fused path, wherever a token exists."""
    theirs, ours = torch_and_ours(norm_first=norm_first, batch_first=batch_first)
    x, there = torch.randn(2, N, DIM, dtype=F64, requires_grad=True), ~PADDED
    given = x if batch_first else x.transpose(0, 1)
    for training in (True, False):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                a, b = (layer.train(training)(given, **MASKS[masks]) for layer in (theirs, ours))
            if not batch_first:
                a, b = a.transpose(0, 1), b.transpose(0, 1)
            torch.testing.assert_close(b[there], a[there])
            if gradients:
                a, b = (torch.autograd.grad(y[there].square().sum(), x)[0] for y in (a, b))
                torch.testing.assert_close(b, a)


@pytest.mark.parametrize("given", [{"key_padding_mask": PADDED}, {"attn_mask": SPARSE[1]}, {"attn_mask": CAUSAL},
                                   {"attn_mask": SPARSE.repeat_interleave(HEADS, 0), "key_padding_mask": PADDED}])
@torch.no_grad()
def test_the_call_is_that_of_multihead_attention(given):
    """Masks as they come, of booleans too; torch gives NaN where nothing may be read, the mixer zero."""
    theirs, ours = (layer.self_attn for layer in torch_and_ours(batch_first=True))
    x = torch.randn(2, N, DIM, dtype=F64)
    a, b = theirs(x, x, x, need_weights=False, **given)[0], ours(x, x, x, **given)[0]
    known = ~PADDED & a.isfinite().all(-1)
    torch.testing.assert_close(b[known], a[known])
    assert known.sum() > N


@pytest.mark.parametrize(("name", "options"), EVERY)
@torch.no_grad()
def test_every_mixer_takes_the_place_of_self_attn(name, options):
    mixer = build(name, offsets(N), **options).eval()
    layer = with_mixer(nn.TransformerEncoderLayer(DIM, HEADS, 12, batch_first=True, norm_first=True, dtype=F64), mixer)
    x = torch.randn(2, N, DIM, dtype=F64)
    for given in ({}, {"src_key_padding_mask": PADDED}):
        y = layer.eval()(x, **given)
        residual = x + mixer(layer.norm1(x), *(~mask for mask in given.values()))
        torch.testing.assert_close(y, residual + layer.linear2(layer.linear1(layer.norm2(residual)).relu()))
    if name in LINEAR or name == "convolution":
        with pytest.raises(ValueError, match="mask must hold booleans of the shape"):
            layer(x, CAUSAL)


@torch.no_grad()
def test_an_encoder_is_a_stack_of_copies():
    theirs, ours = torch_and_ours(batch_first=True)
    x, given = torch.randn(2, N, DIM, dtype=F64), {"src_key_padding_mask": PADDED}
    a, b = (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()(x, **given) for layer in (theirs, ours))
    torch.testing.assert_close(b[~PADDED], a[~PADDED])
    with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):   # torch leaves its own path
        b = nn.TransformerEncoder(ours, 2).eval()(x, **given)
    torch.testing.assert_close(b[~PADDED], a[~PADDED])
    late = nn.TransformerEncoder(theirs, 1).eval()
    late.layers[0].self_attn = ours.self_attn
    with pytest.raises(RuntimeError, match="enable_nested_tensor=False"):
        late(x, **given)


@pytest.mark.parametrize(("given", "word"), [
    ({"key": torch.zeros(2, N, DIM)}, "key and value must be the query"), ({"need_weights": True}, "need_weights"),
    ({"value": torch.zeros(2, N, DIM)}, "key and value must be the query"), ({"is_causal": True}, "attn_mask must be"),
    ({"attn_mask": torch.randn(N, N)}, "attn_mask must hold booleans"),
    ({"attn_mask": (torch.rand(4, N, N) < 0.5)}, "attn_mask must be the same for all heads"),
    ({"key_padding_mask": torch.ones(2, N)}, "key_padding_mask must hold"),
    ({"key_padding_mask": PADDED[:, :3]}, "mask must hold booleans of the shape")])
def test_what_cannot_be_honoured_is_refused_by_name(plain_types, given, word):
    x = torch.randn(2, N, DIM)
    with pytest.raises(ValueError, match=word):
        SelfAttention(build("self-attention", shared(N)).float())(**{"query": x, "key": x, "value": x, **given})
