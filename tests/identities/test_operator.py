"""Property tests of the identities of chapter "The operator"."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from translution_lib import Attention, Relations, Translution, definition, functional, offsets, translution

FORMS = pytest.mark.parametrize("form", [functional.translution_definition, translution])
SUBSETS = ["", "q", "k", "v", "qk", "qv", "kv", "qkv"]


pytestmark = pytest.mark.usefixtures("double")


@st.composite
def shapes(draw, most=12):
    """A grid of one to three dimensions with at most `most` tokens."""
    sides = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    while math.prod(sides) > most:
        sides[sides.index(max(sides))] -= 1
    return tuple(sides)


@st.composite
def problems(draw, cls=(False, True)):
    """A grid, features and weights in the stored order: (relations, x, w_q, w_k, w_v, heads)."""
    relations = offsets(draw(shapes()), cls=draw(st.sampled_from(cls)))
    heads, d, d_v = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, c = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    x = torch.randn(b, relations.n, c, generator=generator)
    w_q, w_k, w_v = (torch.randn(relations.count, c, heads * e, generator=generator) for e in (d, d, d_v))
    return relations, x, w_q, w_k, w_v, heads


def minus(label):
    return tuple(-a for a in label)


def by_offset(w, relations):
    return {label: w[r] for r, label in enumerate(relations.labels)}


def pair_by_pair(x, wq, wk, wv, positions, heads, query=lambda δ: δ, key=minus):
    """The equation by loops over queries, keys and heads; `query` and `key` say at which offset a matrix is read."""
    out = []
    for i, p in enumerate(positions):
        δ = [tuple(a - b for a, b in zip(p, s, strict=True)) for s in positions]
        q = torch.stack([x[i] @ wq[query(o)] for o in δ]).unflatten(-1, (heads, -1))
        k = torch.stack([x[j] @ wk[key(o)] for j, o in enumerate(δ)]).unflatten(-1, (heads, -1))
        v = torch.stack([x[j] @ wv[o] for j, o in enumerate(δ)]).unflatten(-1, (heads, -1))
        weights = ((q * k).sum(-1) / math.sqrt(q.shape[-1])).softmax(0)
        out.append((weights[..., None] * v).sum(0).flatten())
    return torch.stack(out)


def positions_of(relations):
    return [tuple(p) for p in relations.positions.tolist()]


@FORMS
@pytest.mark.identity("eq-translution-definition")
@given(problem=problems(cls=(False,)))
def test_the_operator_is_the_equation_with_keys_read_at_minus_delta(form, problem):
    relations, x, w_q, w_k, w_v, heads = problem
    printed_k = {minus(label): w for label, w in by_offset(w_k, relations).items()}
    wq, wv = by_offset(w_q, relations), by_offset(w_v, relations)
    expected = torch.stack([pair_by_pair(s, wq, printed_k, wv, positions_of(relations), heads) for s in x])
    assert_close(form(x, w_q, w_k, w_v, relations, heads), expected)
    in_printed_order = torch.stack([printed_k[label] for label in relations.labels])
    assert_close(form(x, w_q, in_printed_order.flip(0), w_v, relations, heads), expected)


@FORMS
@pytest.mark.identity("thm-translution-reflection")
@given(problem=problems(cls=(False,)))
def test_the_released_indices_give_the_same_family(form, problem):
    relations, x, w_q, w_k, w_v, heads = problem
    reflected_q = {minus(r): w for r, w in by_offset(w_q, relations).items()}      # read at −δ
    released_k = by_offset(w_k, relations)                                          # read at +δ, as it is stored
    wv, places = by_offset(w_v, relations), positions_of(relations)
    released = [pair_by_pair(s, reflected_q, released_k, wv, places, heads, query=minus, key=lambda δ: δ) for s in x]
    assert_close(form(x, w_q, w_k, w_v, relations, heads), torch.stack(released))


@pytest.mark.identity("eq-translution-bilinear")
@given(problem=problems())
def test_scores_are_one_bilinear_form_per_relation_and_head(problem):
    relations, x, w_q, w_k, _, heads = problem
    q, k = (w.unflatten(-1, (heads, -1)) for w in (w_q, w_k))
    forms = torch.einsum("rchd,rehd->hrce", q, k) / math.sqrt(q.shape[-1])
    expected = torch.einsum("bic,hijce,bje->bhij", x, forms[:, relations.index], x)
    assert_close(functional.translution_scores(x, w_q, w_k, relations, heads), expected)
    assert_close(functional.scores_definition(x, w_q, w_k, relations, heads), expected)
    assert (torch.linalg.matrix_rank(forms) <= q.shape[-1]).all()


@pytest.mark.identity("eq-translution-pairs")
@given(shape=shapes(most=40))
def test_pairs_per_offset_are_windows_and_add_up_to_all_pairs(shape):
    relations = offsets(shape)
    windows = [math.prod(s - abs(a) for s, a in zip(shape, δ, strict=True)) for δ in relations.labels]
    assert relations.sizes.tolist() == windows
    assert sum(windows) == math.prod(shape) ** 2
    assert [len(relations.pairs_of(r)[0]) for r in range(relations.count)] == windows


@pytest.mark.identity("eq-translution-grouped")
@given(problem=problems())
def test_grouped_products_equal_the_definition_in_value_and_gradient(problem):
    relations, *tensors, heads = problem
    leaves = [t.requires_grad_() for t in tensors]
    outs = [form(*leaves, relations, heads) for form in (translution, functional.translution_definition)]
    assert_close(outs[0], outs[1])
    direction = torch.randn_like(outs[0])
    fast, literal = (torch.autograd.grad((y * direction).sum(), leaves, allow_unused=True) for y in outs)
    for one, two, leaf in zip(fast, literal, leaves, strict=True):
        assert_close(torch.zeros_like(leaf) if one is None else one, torch.zeros_like(leaf) if two is None else two)


@pytest.mark.identity("eq-translution-value")
@given(problem=problems())
def test_value_translution_is_shared_scores_and_relative_values(problem):
    relations, x, w_q, w_k, w_v, heads = problem
    q, k = ((x @ w[0]).unflatten(-1, (heads, -1)) for w in (w_q, w_k))
    alpha = (torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
    v = torch.einsum("bjc,ijce->bije", x, w_v[relations.index]).unflatten(-1, (heads, -1))
    expected = torch.einsum("bhij,bijhd->bihd", alpha, v).flatten(-2)
    assert_close(translution(x, w_q[0], w_k[0], w_v, relations, heads), expected)
    assert_close(functional.translution_definition(x, w_q[0], w_k[0], w_v, relations, heads), expected)


@pytest.mark.parametrize("relative", SUBSETS)
def test_every_kind_of_layer_runs_its_equation_and_none_is_self_attention(relative):
    relations = offsets((2, 3), cls=True)
    layer, x = Translution(relations, 6, 2, relative=relative), torch.randn(2, 7, 6)
    with definition():
        literal = layer(x)
    assert_close(layer(x), literal)
    assert [w.ndim == 3 for w in layer.matrices] == [u in relative for u in "qkv"]
    if not relative:
        plain = Attention(relations, 6, 2)
        plain.load_state_dict(layer.state_dict())
        assert_close(layer(x), plain(x))


@FORMS
@pytest.mark.identity("eq-translution-causal")
@given(n=st.integers(1, 7), heads=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_causal_translution_is_a_masked_softmax_over_offsets_from_zero(form, n, heads, seed):
    torch.manual_seed(seed)
    relations, x = offsets(n, causal=True), torch.randn(2, n, 3)
    w_q, w_k, w_v = torch.randn(3, n, 3, 2 * heads)
    assert relations.count == n
    rows = []
    for i in range(n):                                  # only keys j ≤ i, matrices of δ = i − j
        past = range(i + 1)
        q = torch.stack([x[:, i] @ w_q[i - j] for j in past], 1).unflatten(-1, (heads, -1))
        k, v = (torch.stack([x[:, j] @ w[i - j] for j in past], 1).unflatten(-1, (heads, -1)) for w in (w_k, w_v))
        weights = ((q * k).sum(-1) / math.sqrt(2)).softmax(1)
        rows.append((weights[..., None] * v).sum(1).flatten(1))
    assert_close(form(x, w_q, w_k, w_v, relations, heads), torch.stack(rows, 1))
    alpha = functional.translution_scores(x, w_q, w_k, relations, heads).softmax(-1)
    assert (alpha[..., torch.ones(n, n).triu(1) == 1] == 0).all()


@pytest.mark.identity("thm-translution-prefix")
@given(n=st.integers(2, 7), data=st.data())
def test_a_prefix_needs_no_other_weights(n, data):
    short = data.draw(st.integers(1, n))
    layer, x = Translution(offsets(n, causal=True), 4, 2), torch.randn(2, n, 4)
    alone = translution(x[:, :short], layer.query[:short], layer.key[:short], layer.value[:short],
                        offsets(short, causal=True), 2)
    assert_close(layer.output(alone), layer(x)[:, :short])
    assert_close(layer(x[:, :short]), layer(x)[:, :short])
    with pytest.raises(ValueError, match=f"expected from 1 to {n}"):
        layer(torch.randn(1, n + 1, 4))


@pytest.mark.identity("thm-translution-start")
@pytest.mark.parametrize("init", ["fan_in", "released"])
@pytest.mark.parametrize(("dim", "heads", "head_dim"), [(48, 3, None), (32, 1, 8)])
def test_scores_and_values_start_with_the_derived_spread(init, dim, heads, head_dim):
    relations = offsets(12)
    layer = Translution(relations, dim, heads, head_dim=head_dim, init=init)
    beta = 1 / math.sqrt(dim * (layer.inner if init == "released" else 1))
    norms = torch.linspace(1, 3, 12)
    x = F.normalize(torch.randn(20, 12, dim), dim=-1) * norms[:, None]
    a = layer.scores(x) / (norms[:, None] * norms)
    v = layer.values(torch.eye(12).expand(20, heads, 12, 12), x) / norms[:, None]
    assert layer.query.abs().max() <= beta
    assert_close(a.square().mean().sqrt().item(), beta**2 / 3, rtol=0.1, atol=0.0)
    assert_close(v.square().mean().sqrt().item(), beta / math.sqrt(3), rtol=0.1, atol=0.0)


@pytest.mark.identity("thm-translution-permutation")
@given(problem=problems(), data=st.data())
def test_reordering_tokens_reorders_outputs(problem, data):
    relations, *tensors, heads = problem
    x, *weights = tensors
    order = torch.tensor(data.draw(st.permutations(range(relations.n))))
    table = Relations(relations.index[order][:, order], relations.count, relations.labels)
    assert_close(translution(x[:, order], *weights, table, heads), translution(x, *weights, relations, heads)[:, order])


def table_of(positions, reach):
    """The relation table of tokens at any positions; ids as in the grid of all offsets within `reach`."""
    δ = positions[:, None] - positions[None]
    ids = (δ[..., 0] + reach) * (2 * reach + 1) + δ[..., 1] + reach
    grid = offsets((reach + 1, reach + 1))
    return Relations(ids, grid.count, grid.labels)


@pytest.mark.identity("thm-translution-shift")
@given(places=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=7, unique=True),
       shift=st.tuples(st.integers(-50, 50), st.integers(-50, 50)), seed=st.integers(0, 10**6))
def test_a_set_that_moves_as_a_whole_has_the_same_outputs_to_the_bit(places, shift, seed):
    torch.manual_seed(seed)
    p, x = torch.tensor(places), torch.randn(1, len(places), 3)
    w_q, w_k, w_v = torch.randn(3, 81, 3, 4)
    here, there = table_of(p, 4), table_of(p + torch.tensor(shift), 4)
    out = translution(x, w_q, w_k, w_v, here, 2)
    assert torch.equal(translution(x, w_q, w_k, w_v, there, 2), out)
    expected = pair_by_pair(x[0], *(by_offset(w, here) for w in (w_q, w_k, w_v)), places, 2, key=lambda δ: δ)
    assert_close(out[0], expected)


@pytest.mark.identity("eq-translution-general")
@given(problem=problems(cls=(False,)))
def test_the_general_form_with_tables_is_translution(problem):
    relations, x, w_q, w_k, w_v, _ = problem
    s = torch.einsum("bic,ijce,bje->bij", x, (w_q @ w_k.mT)[relations.index], x) / math.sqrt(w_q.shape[-1])
    v = torch.einsum("bjc,ijce->bije", x, w_v[relations.index])
    weights = s.exp() / s.exp().sum(-1, keepdim=True)
    assert_close(translution(x, w_q, w_k, w_v, relations), torch.einsum("bij,bije->bie", weights, v))


def test_a_normalised_weight_is_no_function_of_its_pair_alone():
    relations, w = offsets(3), torch.randn(2, 5, 2, 2)
    x = torch.eye(2)[torch.tensor([[0, 1, 0], [0, 1, 1]])]
    alpha = functional.translution_scores(x, *w, relations).softmax(-1)[:, 0, 1, 0]
    scores = functional.translution_scores(x, *w, relations)[:, 0, 1, 0]
    assert_close(scores[0], scores[1])
    assert abs(alpha[0] - alpha[1]) > 1e-3


@pytest.mark.parametrize("label", ["cls", "cls←image", "image←cls"])
def test_each_role_of_cls_reaches_the_tokens_that_its_label_names(label):
    relations = offsets((2, 3), cls=True)
    x, (w_q, w_k, w_v) = torch.randn(1, 7, 4), 0.3 * torch.randn(3, relations.count, 4, 4)
    other = w_v.clone()
    other[relations.id_of(label)] += 1
    moved = translution(x, w_q, w_k, other, relations) - translution(x, w_q, w_k, w_v, relations)
    changed = (moved.abs().amax(dim=(0, 2)) > 1e-9).tolist()
    assert changed == ([True] + [False] * 6 if label.startswith("cls") else [False] + [True] * 6)


@given(problem=problems())
def test_an_invertible_matrix_between_query_and_key_changes_nothing(problem):
    relations, x, w_q, w_k, w_v, heads = problem
    d = w_q.shape[-1] // heads
    a = torch.randn(relations.count, heads, d, d) + 3 * torch.eye(d)
    q = torch.einsum("rchd,rhde->rche", w_q.unflatten(-1, (heads, d)), a).flatten(-2)
    k = torch.einsum("rchd,rhed->rche", w_k.unflatten(-1, (heads, d)), torch.linalg.inv(a)).flatten(-2)
    assert_close(translution(x, q, k, w_v, relations, heads), translution(x, w_q, w_k, w_v, relations, heads))


@pytest.mark.identity("eq-translution-seen")
@given(n=st.integers(1, 40), more=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_far_offsets_are_rare_and_the_table_beyond_the_text_is_free(n, more, seed):
    relations = offsets(n, causal=True)
    assert relations.sizes.tolist() == [n - δ for δ in range(n)] and relations.sizes.sum() == n * (n + 1) // 2
    torch.manual_seed(seed)
    n = min(n, 6)
    w, x = torch.randn(3, n + more, 3, 2), torch.randn(1, n + more, 3)
    other = torch.cat([w[:, :n], torch.randn(3, more, 3, 2)], dim=1)
    long = offsets(n + more, causal=True)
    a, b = translution(x, *w, long), translution(x, *other, long)
    assert_close(a[:, :n], b[:, :n])
    assert ((a - b)[0, n:].abs().amax(1) > 0).all()


@pytest.mark.identity("thm-translution-window")
@given(w=st.integers(0, 4), depth=st.integers(1, 3), more=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_a_window_serves_any_length_and_reaches_as_far_as_its_layers(w, depth, more, seed):
    torch.manual_seed(seed)
    n = w + more
    short, long = (offsets(size, causal=True, window=w) for size in (n, n + 5))
    assert short.count == long.count == w + 1 and short.labels == long.labels
    weights = torch.randn(depth, 3, w + 1, 2, 2)

    def stack(x, relations):
        for each in weights:
            x = x + translution(x, *each, relations)
        return x

    x = torch.randn(1, n + 5, 2, requires_grad=True)
    y = stack(x, long)
    assert_close(y[:, :n], stack(x[:, :n], short))
    (seen,) = torch.autograd.grad(y[0, -1].square().sum(), x)
    first = max(0, n + 4 - depth * w)
    assert (seen[0, :first] == 0).all() and (seen[0, first:].abs().sum(1) > 0).all()
