"""States of positive features, chunk by chunk: equal to the features all at once, in values and gradients."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib.functional import feature_states, running_states
from translution_lib.functional.linear_attention import linear_attention
from translution_lib.functional.random_features import gaussian_draw, positive, stabilised

sizes = st.tuples(*(st.integers(1, high) for high in (2, 3, 9, 4, 6, 3)))     # b h n d m e
chunks = st.integers(1, 200)


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def chunk(monkeypatch):
    return lambda size: monkeypatch.setattr(feature_states, "CHUNK", size)


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def gradients(y: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return list(torch.autograd.grad(y, inputs, torch.randn_like(y)))


@given(sizes, chunks)
def test_attention_is_that_of_all_features_at_once(size, length):
    b, h, n, d, m, e = size
    inputs, omega = drawn((b, h, n, d), (b, h, n, d), (b, h, n, e)), gaussian_draw(m, d)
    usual = feature_states.CHUNK
    feature_states.CHUNK = length
    try:
        ours = feature_states.positive_attention(*inputs, omega)
        found = [ours, *gradients(ours, inputs)]
    finally:
        feature_states.CHUNK = usual
    q, k, v = inputs
    theirs = linear_attention(*stabilised(q, k, omega), v)
    assert_close(found, [theirs, *gradients(theirs, inputs)])


@given(sizes, chunks)
def test_a_kernel_with_a_few_vectors_is_right_up_to_a_factor_for_each_query(size, length):
    b, h, n, d, m, r = size
    (q, w), omega = drawn((b, h, n, d), (r, d)), gaussian_draw(m, d)
    usual = feature_states.CHUNK
    feature_states.CHUNK = length
    try:
        rho = feature_states.positive_kernel(q, w, omega)
        shares = rho / rho.sum(-1, keepdim=True)
        found = [shares, *gradients(shares, [q, w])]
    finally:
        feature_states.CHUNK = usual
    rho = positive(q, omega) @ positive(w, omega).mT
    shares = rho / rho.sum(-1, keepdim=True)
    assert_close(found, [shares, *gradients(shares, [q, w])])


def test_the_state_is_the_sum_over_the_keys_with_its_scale(chunk):
    chunk(8)
    (k, v), omega = drawn((2, 7, 3), (2, 7, 4)), gaussian_draw(5, 3)
    state, scale = feature_states.write_state(k, omega, v)
    assert_close(state * scale.mT.exp(), positive(k, omega).mT @ v)
    assert_close(scale, (k @ omega.mT - k.square().sum(-1, keepdim=True) / 2).amax(-2, keepdim=True))
    assert not scale.requires_grad


def test_gradients_are_those_of_finite_differences(chunk):
    chunk(20)
    inputs, omega = drawn((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 2)), gaussian_draw(4, 3)
    assert torch.autograd.gradcheck(lambda *a: feature_states.positive_attention(*a, omega), inputs)


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_no_size_of_queries_and_keys_overflows(chunk, scale):
    chunk(30)
    torch.set_default_dtype(torch.float32)
    q, k, v = (t.detach().requires_grad_() for t in (scale * torch.randn(1, 1, 20, 4), scale * torch.randn(1, 1, 20, 4),
                                                     torch.randn(1, 1, 20, 2)))
    y = feature_states.positive_attention(q, k, v, gaussian_draw(9, 4).float())
    assert y.isfinite().all() and all(g.isfinite().all() for g in gradients(y, [q, k, v]))
    assert y.amax() <= v.amax() + 1e-4 and y.amin() >= v.amin() - 1e-4               # weights are positive, sum 1


def test_features_are_not_kept():
    q, k, v = drawn((1, 2, 400, 8), (1, 2, 400, 8), (1, 2, 400, 8))
    kept: set[int] = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.add(t.numel()) or t, lambda t: t):
        feature_states.positive_attention(q, k, v, gaussian_draw(64, 8))
    assert max(kept) <= 2 * 400 * 9                                                  # never 2 · 400 · 64


@given(sizes, st.integers(1, 4), st.integers(1, 4))
def test_causal_attention_is_that_of_all_features_at_once(size, length, count):
    b, h, rest, d, m, e = size
    n, m = length * count + rest % length, m + 1                     # most of them in several chunks, the last one cut
    inputs, omega = drawn((b, h, n, d), (b, h, n, d), (b, h, n, e)), gaussian_draw(m, d)
    with patch.object(running_states, "chunk_length", lambda *_: length):
        ours = running_states.causal_attention(*inputs, omega)
        found = [ours, *gradients(ours, inputs)]
    q, k, v = inputs
    theirs = linear_attention(*stabilised(q, k, omega), v, causal=True)
    assert_close(found, [theirs, *gradients(theirs, inputs)])


@pytest.mark.parametrize("length", [1, 2, 9])
def test_causal_gradients_are_those_of_finite_differences(length):
    inputs, omega = drawn((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 2)), gaussian_draw(4, 3)
    with patch.object(running_states, "chunk_length", lambda *_: length):
        assert torch.autograd.gradcheck(lambda *a: running_states.causal_attention(*a, omega), inputs)


def test_a_key_of_the_future_does_not_hide_the_past():
    """One scale for all keys makes the sums of the early queries underflow; a scale that runs along does not."""
    torch.set_default_dtype(torch.float32)
    q, k, v = torch.randn(1, 1, 40, 4), torch.randn(1, 1, 40, 4), torch.randn(1, 1, 40, 2)
    omega = gaussian_draw(6, 4).float()
    k[:, :, :32] *= 30 / k[:, :, :32].norm(dim=-1, keepdim=True)           # their features are below e⁻³⁰⁰
    k[:, :, -1] = 0                                                        # its features are one
    with patch.object(running_states, "chunk_length", lambda *_: 8):
        ours = running_states.causal_attention(q, k, v, omega)
    early = linear_attention(*stabilised(q[:, :, :8], k[:, :, :8], omega), v[:, :, :8], causal=True)
    assert_close(ours[:, :, :8], early, rtol=1e-4, atol=1e-5)
    assert linear_attention(*stabilised(q, k, omega), v, causal=True)[:, :, :8].abs().max() < 1e-3 < early.abs().min()


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0, 300.0])
def test_no_size_of_causal_queries_and_keys_overflows(scale):
    """Later keys of a chunk hide early ones at these sizes; those rows are lost, and their gradients stay finite."""
    torch.set_default_dtype(torch.float32)
    omega = gaussian_draw(16, 8).float()
    for _ in range(12):
        q, k, v = (t.requires_grad_() for t in (scale * torch.randn(1, 1, 40, 8), scale * torch.randn(1, 1, 40, 8),
                                                torch.randn(1, 1, 40, 4)))
        y = running_states.causal_attention(q, k, v, omega)
        assert y.isfinite().all() and y.abs().amax() <= v.abs().amax() + 1e-4
        assert all(g.isfinite().all() for g in gradients(y, [q, k, v]))


def test_causal_features_are_not_kept():
    q, k, v = drawn((1, 2, 400, 8), (1, 2, 400, 8), (1, 2, 400, 8))
    kept: set[int] = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.add(t.numel()) or t, lambda t: t):
        running_states.causal_attention(q, k, v, gaussian_draw(256, 8))
    assert max(kept) <= 2 * 400 * 55                                # √(256 · 9) = 48 numbers a token, never 256
