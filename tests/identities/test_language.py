"""The statements of the chapter "Language models", on random texts, sizes and weights."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torch.nn.functional import cross_entropy
from translution_runs import ngrams
from translution_runs.data import grammar

from translution_lib import GPT
from translution_lib.functional.rotary import frequencies

pytestmark = pytest.mark.usefixtures("double")
seeds = st.integers(0, 999)
SMALL = {"dim": 8, "depth": 2, "heads": 2, "ff": 8}
RELATIVE = {"translution": {}, "lor-translution": {"relative_dim": 2}, "scalar-bias": {}, "rotary": {},
            "key-vector": {}, "value-vector": {}, "self-attention": {}}
CONTEXT = 24


def model(mixer: str, depth: int = 2, vocabulary: int = 5, **options) -> GPT:
    """Return a small language model in evaluation."""
    return GPT(vocabulary, CONTEXT, **(SMALL | {"depth": depth}), mixer=mixer, **options).eval()


def random_text(n: int, vocabulary: int = 5) -> torch.Tensor:
    return torch.randint(vocabulary, (1, n))


@pytest.mark.identity("eq-language-perplexity")
@given(st.integers(1, 30), st.integers(2, 9), seeds)
def test_perplexity_is_a_geometric_mean(tokens, vocabulary, seed):
    torch.manual_seed(seed)
    logits, x = torch.randn(tokens, vocabulary), torch.randint(vocabulary, (tokens,))
    inverse = 1 / softmax(logits.numpy(), -1)[np.arange(tokens), x.numpy()]
    assert cross_entropy(logits, x).exp().item() == pytest.approx(scipy.stats.gmean(inverse))
    assert cross_entropy(0 * logits, x).exp().item() == pytest.approx(vocabulary)


@pytest.mark.identity("thm-language-floor")
@given(st.integers(2, 9), seeds)
def test_no_model_is_below_the_entropy(outcomes, seed):
    q, p = np.random.default_rng(seed).dirichlet(np.ones(outcomes), 2)
    loss = -(q * np.log(p)).sum()
    assert loss >= scipy.stats.entropy(q)
    assert loss - scipy.stats.entropy(q) == pytest.approx(scipy.stats.entropy(q, p))


@pytest.mark.identity("thm-language-floor")
def test_the_entropy_of_the_source_of_the_page():
    """Over all sentences: their entropy over their mean length."""
    sentences = [grammar.PATTERN.format(name=name, first=first, thing=thing, second=second)
                 for name in grammar.NAMES for first in grammar.VERBS for thing in grammar.THINGS
                 for second in grammar.VERBS]
    assert len(set(sentences)) == len(sentences) == 1024
    mean_length = np.mean([len(sentence) for sentence in sentences])
    assert scipy.stats.entropy(np.full(1024, 1 / 1024)) / mean_length == pytest.approx(grammar.entropy())


@pytest.mark.identity("eq-language-bits", "thm-language-tokens")
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 6), seeds)
def test_bits_do_not_depend_on_the_cut(vocabulary, size, tokens, seed):
    """A chain of letters, as it is and in groups of `size`."""
    chain = np.random.default_rng(seed).dirichlet(np.ones(vocabulary), vocabulary)
    groups = np.ones((vocabulary, 1))  # before, group
    last = np.arange(vocabulary)[:, None]
    for _ in range(size):
        groups = (groups[:, :, None] * chain[last]).reshape(vocabulary, -1)
        last = np.tile(np.arange(vocabulary), last.shape[1])[None].repeat(vocabulary, 0)
    np.testing.assert_allclose(groups.sum(1), 1)
    text = np.random.default_rng(seed + 1).integers(vocabulary, size=size * tokens + 1)
    letters = -np.log(chain[text[:-1], text[1:]])
    number = np.ravel_multi_index(tuple(text[1:].reshape(tokens, size).T), (vocabulary,) * size)
    grouped = -np.log(groups[text[:-1:size], number])
    bits = tokens * grouped.mean() / (size * tokens * math.log(2))
    assert bits == pytest.approx(letters.mean() / math.log(2))
    assert np.exp(grouped.mean()) == pytest.approx(np.exp(letters.mean()) ** size) == pytest.approx(2 ** (bits * size))


@pytest.mark.identity("thm-language-tokens")
@given(st.text("ab", min_size=1, max_size=7), seeds)
def test_one_spelling_costs_at_least_the_text(text, seed):
    """All spellings of a text with tokens of one and two letters, by recursion."""
    pieces = ["a", "b", "aa", "ab", "ba", "bb"]
    p = dict(zip(pieces, np.random.default_rng(seed).dirichlet(np.ones(6)), strict=True))

    def spellings(rest: str) -> list[float]:
        if not rest:
            return [1.0]
        return [p[piece] * more for piece in pieces if rest.startswith(piece) for more in spellings(rest[len(piece):])]

    each = spellings(text)
    assert max(each) <= sum(each)
    assert (len(each) == 1) == (len(text) == 1)


@pytest.mark.identity("thm-language-blocks")
@given(st.integers(2, 6), st.integers(1, 5), seeds)
def test_block_error_lacks_the_mean_covariance(blocks, size, seed):
    """The expectation of a quadratic form is the trace with the covariances; numpy computes the form itself."""
    draw, n = np.random.default_rng(seed), blocks * size
    root = draw.normal(size=(n, n))
    covariance = root @ root.T

    def squared_error(losses):
        return losses.reshape(blocks, size).mean(1).var(ddof=1) / blocks

    unit = np.eye(n)  # the form's matrix, by polarisation
    form = np.array([[(squared_error(a + b) - squared_error(a - b)) / 4 for b in unit] for a in unit])
    means = covariance.reshape(blocks, size, blocks, size).mean((1, 3))
    c = (means.sum() - means.trace()) / (blocks * (blocks - 1))
    assert (form * covariance).sum() == pytest.approx(covariance.mean() - c)
    assert squared_error(np.full(n, 3.0)) == pytest.approx(0)  # so that a common mean changes nothing


@pytest.mark.identity("thm-language-unread")
@settings(max_examples=6)
@given(st.sampled_from(["absolute", "translution", "scalar-bias", "key-vector"]), st.integers(1, CONTEXT - 1), seeds)
def test_rows_beyond_the_text_get_no_gradient(mixer, n, seed):
    torch.manual_seed(seed)
    one = model(mixer)
    table = {"absolute": lambda: one.position, "translution": lambda: one.blocks[0].mixer.value,
             "scalar-bias": lambda: one.blocks[0].mixer.table.mT, "key-vector": lambda: one.blocks[0].mixer.key_vector}
    rows, text = table[mixer], random_text(n + 1)
    before = rows().detach().clone()
    adam = torch.optim.AdamW(one.parameters(), 0.01, weight_decay=0.1)
    for _ in range(2):
        adam.zero_grad()
        cross_entropy(one(text[:, :-1])[0], text[0, 1:]).backward()
        adam.step()
    torch.testing.assert_close(rows()[n:].detach(), before[n:] * (1 - 0.01 * 0.1) ** 2)
    first = rows().detach()[0]  # moved by its gradient, unless it is the bias of a text of one token
    assert n == 1 or not torch.isclose(first, before[0] * (1 - 0.01 * 0.1) ** 2).all()


@pytest.mark.identity("thm-language-bag")
@settings(max_examples=15)
@given(st.integers(1, 8), st.integers(1, 3), seeds)
def test_one_layer_without_position_sees_proportions(n, times, seed):
    torch.manual_seed(seed)
    one, text = model("self-attention", depth=1), random_text(n)
    last = one(text)[:, -1]
    mixed = torch.cat([text[:, torch.randperm(n - 1)], text[:, n - 1:]], 1)
    torch.testing.assert_close(one(mixed)[:, -1], last)
    torch.testing.assert_close(one(text.repeat(1, times))[:, -1], last)


@pytest.mark.identity("thm-language-bag")
def test_two_layers_without_position_see_order():
    torch.manual_seed(0)
    two = model("self-attention")
    assert (two(torch.tensor([[0, 1, 2]])) - two(torch.tensor([[1, 0, 2]])))[0, -1].abs().max() > 1e-3


@pytest.mark.identity("thm-language-angles")
@given(st.integers(1, 40).map(lambda half: 2 * half), st.integers(8, 5000), st.floats(1.5, 1e6))
def test_planes_that_make_no_full_turn(dim, n, base):
    """Those whose phase, unwrapped by numpy's rule of a full turn, passes no multiple of 2π."""
    angle = frequencies(dim, 1, base)[0].numpy()
    edge = dim / 2 * math.log((n - 1) / (2 * math.pi), base)
    planes = np.arange(dim // 2)
    clear = abs(planes - edge) > 1e-6  # no rounding decides
    unfinished = np.floor(angle * (n - 1) / (2 * math.pi)) == 0
    assert (unfinished == (planes > edge))[clear].all()
    for slow in angle[unfinished & clear]:
        beyond = slow * n
        assert beyond >= 2 * math.pi or beyond % (2 * math.pi) > (slow * np.arange(n)).max()


@pytest.mark.identity("thm-language-same")
@settings(max_examples=20)
@given(st.sampled_from(sorted(RELATIVE)), st.integers(0, 4), st.integers(1, 3), seeds)
def test_a_window_is_one_function_at_every_place(mixer, w, depth, seed):
    torch.manual_seed(seed)
    one, text = model(mixer, depth, reach=w + 1, beyond="window", **RELATIVE[mixer]), random_text(CONTEXT)
    logits, sight = one(text), depth * w + 1
    for place in range(sight - 1, CONTEXT, 5):
        alone = one(text[:, place - sight + 1: place + 1])[:, -1]
        torch.testing.assert_close(alone, logits[:, place])


@pytest.mark.identity("thm-language-same")
def test_without_the_window_or_with_places_it_is_not():
    torch.manual_seed(0)
    text = random_text(CONTEXT)
    for one in (model("translution"), model("rotary"), model("rotary", absolute=True, reach=4, beyond="window")):
        alone = one(text[:, 10:])[:, -1]
        assert (alone - one(text)[:, -1]).abs().max() > 1e-4


@pytest.mark.identity("thm-language-temperature")
@given(st.integers(2, 9), st.floats(0.2, 5), seeds)
def test_entropy_grows_with_temperature(vocabulary, temperature, seed):
    z = np.random.default_rng(seed).normal(size=vocabulary)
    entropy = lambda t: scipy.stats.entropy(softmax(z / t))  # noqa: E731
    q, step = softmax(z / temperature), 1e-5 * temperature
    slope = (entropy(temperature + step) - entropy(temperature - step)) / (2 * step)
    variance = (q * z**2).sum() - (q * z).sum() ** 2
    assert slope == pytest.approx(variance / temperature**3, rel=1e-4, abs=1e-7)
    assert entropy(1e5) == pytest.approx(math.log(vocabulary))
    assert entropy(1e-5) == pytest.approx(0, abs=1e-6)


def counted(text: tuple[int, ...], n: int, context: tuple[int, ...], c: int, size: int) -> float:
    """Return p_n(c | context) by a loop over the text."""
    if n == 0:
        return 1 / size
    context = context[len(context) - n + 1:]
    after = [text[k + n - 1] for k in range(len(text) - n + 1) if text[k:k + n - 1] == context]
    smaller = counted(text, n - 1, context[1:], c, size)
    return (after.count(c) + len(set(after)) * smaller) / (len(after) + len(set(after))) if after else smaller


@pytest.mark.identity("eq-language-ngrams")
@given(seeds, st.integers(2, 4), st.integers(4, 40), st.integers(1, 4))
def test_a_table_of_counts_mixes_itself_with_the_next_smaller(seed, size, length, order):
    draw = np.random.default_rng(seed)
    train, test = draw.integers(size, size=length), draw.integers(size, size=8)
    (found,) = ngrams.probabilities(train, test, size, (order,))
    for k in range(order - 1, len(test)):
        if k:
            expected = counted(tuple(train.tolist()), order, tuple(test[:k].tolist()), int(test[k]), size)
            assert math.isclose(found[k - 1], expected)
