"""Linear attention: the fast form is the definition, its memory does not grow with n², an outside oracle, errors."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.strategies import F64, gradients
from translution_lib.functional import linear_attention as la

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from performer_pytorch import performer_pytorch as package

SEEDS = st.integers(0, 2**16)


@st.composite
def arguments(draw, low=0.1):
    """Positive features of queries and keys, and values of another size."""
    b, h, m, e = (draw(st.integers(1, 3)) for _ in range(4))
    n, g = draw(st.integers(1, 12)), torch.Generator().manual_seed(draw(SEEDS))
    fq, fk = (low + torch.rand(b, h, n, m, dtype=F64, generator=g) for _ in range(2))
    v = torch.randn(b, h, n, e, dtype=F64, generator=g)
    return [t.requires_grad_() for t in (fq, fk, v)]


@given(arguments(), st.booleans())
def test_the_fast_form_is_the_definition(given_, causal):
    fq, fk, v = given_
    n = fq.shape[2]
    mask = torch.ones(n, n, dtype=torch.bool).tril() if causal else None
    fast, literal = la.linear_attention(fq, fk, v, causal), la.linear_attention_definition(fq, fk, v, mask)
    assert_close(fast, literal)
    for a, b in zip(gradients(fast, given_), gradients(literal, given_), strict=True):
        assert_close(a, b)
    if causal:
        part = (n + 1) // 2
        assert_close(fast[:, :, :part], la.linear_attention(*(t[:, :, :part] for t in given_), causal=True))


@given(arguments(), st.integers(1, 15))
def test_the_length_of_the_chunks_does_not_matter(given_, chunk):
    fq, fk, v = given_
    assert_close(la.causal_sums(fq, fk, v, chunk), (fq @ fk.mT).tril() @ v)


@given(arguments(), st.booleans())
def test_an_established_package(given_, causal):
    fq, fk, v = (t.detach() for t in given_)
    if causal:
        theirs = package.causal_linear_attention_noncuda(fq, fk, v, chunk_size=2, eps=0.0)
    else:
        theirs = package.linear_attention(fq, fk, v)
    assert_close(la.linear_attention(fq, fk, v, causal), theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal):
    fq, fk = (0.2 + torch.rand(1, 2, 5, 3, dtype=F64) for _ in range(2))
    v = torch.randn(1, 2, 5, 2, dtype=F64)
    inputs = [t.requires_grad_() for t in (fq, fk, v)]
    assert torch.autograd.gradcheck(lambda *a: la.linear_attention(*a, causal=causal), inputs)


def saved_numbers(n, m, e, causal):
    """Count the numbers that autograd keeps for backward, each storage once."""
    fq, fk, v = (torch.rand(1, 1, n, s).requires_grad_() for s in (m, m, e))
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = la.linear_attention(fq, fk, v, causal)
    assert y.shape == (1, 1, n, e)
    return sum(kept.values())


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_number_of_tokens(causal):
    m, e, n = 16, 9, 1200
    once, twice = (saved_numbers(k * n, m, e, causal) for k in (1, 2))
    assert twice < 2.05 * once < 2.05 * 7 * n * (m + e)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_chunk_length_balances_states_and_triangles(m, e):
    def numbers(c):
        return c + m * e / c

    c = la.chunk_length(m, e)
    assert numbers(c) <= min(numbers(other) for other in (max(1, c - 1), c + 1, c + 2))
    assert numbers(c) <= m + e + 1e-9


def test_denominators_keep_their_sign_and_are_never_zero():
    least = torch.finfo(F64).tiny / torch.finfo(F64).eps
    sums = torch.tensor([3.0, -2.0, 0.0, -0.0, 1e-320, -1e-320, 1e-293, 1e-290], dtype=F64)
    assert la.denominators(sums).tolist() == [3.0, -2.0, least, -least, least, -least, least, 1e-290]
    zero, one = torch.zeros(1, 1, 2, 3, dtype=F64), torch.ones(1, 1, 2, 3, dtype=F64)
    assert_close(la.linear_attention(zero, one, one), zero)


def test_a_chunk_must_be_a_size():
    one = torch.ones(1, 1, 2, 3)
    with pytest.raises(ValueError, match="chunk must be an integer ≥ 1, got 0"):
        la.causal_sums(one, one, one, chunk=0)


def test_negative_kernel_values_stay_negative():
    """One query with the kernel values 3 and −1: the weights are 3/2 and −1/2 in both forms."""
    fq, fk = torch.tensor([[[[1.0, 0]]]], dtype=F64), torch.tensor([[[[3.0, 5], [-1, 2]]]], dtype=F64)
    assert_close(la.kernel_weights(fq @ fk.mT), torch.tensor([[[[1.5, -0.5]]]], dtype=F64))
    both = fq.expand(1, 1, 2, 2)
    v = torch.tensor([[[[1.0], [10]]]], dtype=F64)
    expected = torch.full((1, 1, 2, 1), -3.5, dtype=F64)
    assert_close(la.linear_attention_definition(both, fk, v), expected)
    assert_close(la.linear_attention(both, fk, v), expected)
