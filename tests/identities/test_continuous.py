"""Property tests of the identities in the chapter "Continuous positions"."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.strategies import F64, grids
from translution_lib import functional, offsets
from translution_lib.functional.general import (
    differences,
    gaussians,
    general_translution,
    mixture_translution,
    mixture_translution_definition,
)
from translution_lib.mixers.general import GeneralTranslution, MLPBasis, PointTranslution, RadialBasis, TableBasis
from translution_lib.models.points import PointTransformer

SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**16)
WEIGHTINGS = st.sampled_from(["softmax", "sigmoid", "sum"])


@st.composite
def configurations(draw) -> dict:
    """Draw a batch of clouds, and random score and value functions of several heads."""
    b, n, m, c, d, heads = (draw(SIZES) for _ in range(6))
    torch.manual_seed(draw(SEEDS))
    u, w = torch.randn(heads, m + 2 * c, dtype=F64), torch.randn(m + c, heads * d, dtype=F64)

    def score(delta, f, g):
        both = torch.cat(torch.broadcast_tensors(f, g), -1).expand(*delta.shape[:-1], -1)
        return (torch.cat([delta, both], -1) @ u.T).movedim(-1, 1 if delta.ndim == 4 else -1).sin()

    def value(delta, g):
        return (torch.cat([delta, g.expand(*delta.shape[:-1], -1)], -1) @ w).tanh()

    return {"x": torch.randn(b, n, c, dtype=F64), "p": torch.randn(b, n, m, dtype=F64), "score": score,
            "value": value, "heads": heads}


def operate(z, mask=None, weighting="softmax", **changes):
    z = z | changes
    return general_translution(z["x"], z["p"], z["score"], z["value"], mask, weighting)


def terms(z, i):
    """Return the scores (b h n) and the values (b h n d) of one query by a loop over its keys."""
    x, p, heads = z["x"], z["p"], z["heads"]
    keys = range(x.shape[1])
    a = torch.stack([z["score"](p[:, i] - p[:, j], x[:, i], x[:, j]) for j in keys], dim=-1)
    v = torch.stack([z["value"](p[:, i] - p[:, j], x[:, j]) for j in keys], dim=1)
    return a, v.unflatten(-1, (heads, -1)).movedim(2, 1)


@pytest.mark.identity("eq-continuous-definition")
@given(configurations())
def test_general_translution_is_its_equation(z):
    y = operate(z)
    for i in range(y.shape[1]):
        a, v = terms(z, i)
        assert_close(y[:, i], (a.softmax(-1)[..., None] * v).sum(2).flatten(1))


@pytest.mark.identity("eq-continuous-sum")
@given(configurations(), st.sampled_from(["sigmoid", "sum"]))
def test_without_softmax_keys_contribute_on_their_own(z, weighting):
    y = operate(z, weighting=weighting)
    for i in range(y.shape[1]):
        a, v = terms(z, i)
        beta = a.sigmoid() if weighting == "sigmoid" else a
        assert_close(y[:, i], (beta[..., None] * v).sum(2).flatten(1))
    part = torch.rand(y.shape[1]) < 0.5
    if part.any() and not part.all():
        halves = [operate(z, m.expand(len(y), y.shape[1], -1), weighting) for m in (part, ~part)]
        assert_close(halves[0] + halves[1], y)


@pytest.mark.identity("eq-continuous-quotient")
@given(configurations())
def test_softmax_is_a_quotient_of_sums(z):
    def exponential(delta, f, g):
        return z["score"](delta, f, g).exp()

    def ones(delta, g):
        return torch.ones_like(z["value"](delta, g))

    total = operate(z, weighting="sum", score=exponential)
    norm = operate(z, weighting="sum", score=exponential, value=ones)
    assert_close(operate(z), total / norm)


@pytest.mark.identity("eq-continuous-quotient")
@given(SIZES, SEEDS)
def test_a_point_beyond_the_bells_dilutes_the_output(n, seed):
    torch.manual_seed(seed)
    layer = PointTranslution(RadialBasis(torch.randn(5, 2, dtype=F64), 0.5), 4).to(F64)
    layer.output = torch.nn.Identity()
    x, p = torch.randn(1, n, 4, dtype=F64), torch.randn(1, n, 2, dtype=F64)
    phi = layer.basis(differences(p))
    q = torch.einsum("bijk,kce,bic->bije", phi, layer.query, x)
    k = torch.einsum("bijk,kce,bjc->bije", phi, layer.key, x)
    z = ((q * k).sum(-1) / 2).exp().sum(-1)[..., None]
    far = layer(torch.cat([x, torch.randn(1, 1, 4, dtype=F64)], 1), torch.cat([p, torch.full((1, 1, 2), 99.0)], 1))
    assert_close(far[:, :n], layer(x, p) * z / (z + 1))


def weight_sums(x, p, weight):
    """Return the sum of the weights of every query of one cloud: n."""
    return general_translution(x[None], p[None], weight, lambda delta, g: torch.ones_like(delta[..., :1]),
                               weighting="sum")[0, :, 0]


@pytest.mark.identity("thm-continuous-pair")
@given(st.integers(2, 6), SIZES, SEEDS)
def test_an_exchanged_key_changes_the_sum_by_its_weight(n, c, seed):
    """Sums differ as soon as the weight depends on the key."""
    torch.manual_seed(seed)
    u = torch.randn(2 + 2 * c, dtype=F64)

    def gate(delta, f, g):
        parts = [t.expand(*delta.shape[:-1], -1) for t in (delta, f, g)]
        return torch.sigmoid(torch.cat(parts, -1) @ u)

    x, p = torch.randn(n, c, dtype=F64), torch.randn(n, 2, dtype=F64)
    x2, p2 = x.clone(), p.clone()
    x2[-1], p2[-1] = torch.randn(c, dtype=F64), torch.randn(2, dtype=F64)
    change = gate(p[0] - p2[-1], x[0], x2[-1]) - gate(p[0] - p[-1], x[0], x[-1])
    assert_close(weight_sums(x2, p2, gate)[0] - weight_sums(x, p, gate)[0], change)
    assert change != 0


@pytest.mark.identity("thm-continuous-pair")
@given(st.integers(2, 6), SIZES, SEEDS)
def test_a_weight_of_the_query_alone_is_normalised_at_one_size_of_distinct_points(n, c, seed):
    torch.manual_seed(seed)
    u = torch.randn(c, dtype=F64)

    def allowed(delta, f, g):
        share = torch.sigmoid(f @ u).expand(delta.shape[:-1])
        return torch.where(delta.any(-1), share, 1 - (n - 1) * share)

    x, p = torch.randn(n + 1, c, dtype=F64), torch.randn(n + 1, 2, dtype=F64)
    ones = torch.ones(n, dtype=F64)
    assert_close(weight_sums(x[:n], p[:n], allowed), ones)
    share = torch.sigmoid(x @ u)
    assert_close(weight_sums(x, p, allowed), 1 + share)                             # too much for one point more
    same_x, same_p = x[:1].expand(n, -1), p[:1].expand(n, -1)
    assert_close(weight_sums(same_x, same_p, allowed), n * (1 - (n - 1) * share[0]) * ones)


@pytest.mark.identity("thm-continuous-equivariance")
@given(configurations(), WEIGHTINGS)
def test_shifts_and_permutations(z, weighting):
    y, (n, m) = operate(z, weighting=weighting), z["p"].shape[1:]
    shift, order = 5 * torch.randn(m, dtype=F64), torch.randperm(n)
    assert_close(operate(z, weighting=weighting, p=z["p"] + shift), y)
    assert_close(operate(z, weighting=weighting, x=z["x"][:, order], p=z["p"][:, order]), y[:, order])
    dyadic = (z["p"] * 1024).round() / 1024
    assert torch.equal(operate(z, weighting=weighting, p=dyadic + 512.25), operate(z, weighting=weighting, p=dyadic))


@pytest.mark.identity("thm-continuous-equivariance")
@given(st.integers(1, 5), st.sampled_from(["radial", "mlp"]), SEEDS)
def test_a_stack_and_its_mean(n, kernel, seed):
    torch.manual_seed(seed)
    model = PointTransformer(3, 4, 2, 1, 8, kernel=kernel, centres=3).to(F64)
    p, order = torch.randn(2, n, 2, dtype=F64), torch.randperm(n)
    assert_close(model.points(p[:, order] - 3.3), model.points(p)[:, order])
    assert_close(model(p[:, order] - 3.3), model(p))


@st.composite
def mixtures(draw) -> dict:
    """Draw points, bells and matrices."""
    b, n, m, c, k, d, heads = (draw(SIZES) for _ in range(7))
    torch.manual_seed(draw(SEEDS))
    return {"x": torch.randn(b, n, c, dtype=F64), "p": torch.randn(b, n, m, dtype=F64),
            "centres": torch.randn(k, m, dtype=F64), "width": draw(st.floats(0.3, 2)),
            "w": torch.randn(3, k, c, heads * d, dtype=F64), "heads": heads}


@pytest.mark.identity("eq-continuous-mixture", "eq-continuous-bells")
@given(mixtures())
def test_a_mixture_has_the_mixed_matrices(z):
    x, p, heads = z["x"], z["p"], z["heads"]
    y = mixture_translution_definition(x, gaussians(differences(p), z["centres"], z["width"]), *z["w"], heads)
    for i in range(x.shape[1]):
        a, v = [], []
        for j in range(x.shape[1]):
            delta = p[:, i] - p[:, j]
            bells = [torch.exp(-((delta - centre) ** 2).sum(-1) / (2 * z["width"] ** 2)) for centre in z["centres"]]
            w_q, w_k, w_v = (sum(f[:, None, None] * w for f, w in zip(bells, some, strict=True)) for some in z["w"])
            q, k, u = x[:, i, None] @ w_q, x[:, j, None] @ w_k, x[:, j, None] @ w_v
            a.append((q * k).unflatten(-1, (heads, -1)).sum(-1)[:, 0] / math.sqrt(q.shape[-1] // heads))
            v.append(u.unflatten(-1, (heads, -1))[:, 0])
        alpha = torch.stack(a, -1).softmax(-1)                                      # b h n
        assert_close(y[:, i], (alpha[..., None] * torch.stack(v, 2)).sum(2).flatten(1))


@pytest.mark.identity("eq-continuous-bias")
@given(SIZES, SIZES, SIZES, SEEDS)
def test_a_bias_is_a_mixture_of_numbers_in_front_of_one_value(n, k, c, seed):
    """A constant channel carries the numbers b_u through query and key, and one matrix serves all values."""
    torch.manual_seed(seed)
    x, p, w, b = (torch.randn(*size, dtype=F64) for size in ((1, n, c), (1, n, 2), (c, c), (k,)))
    phi = gaussians(differences(p), torch.randn(k, 2, dtype=F64), 0.8)                      # 1 n n k
    marked, functions = torch.cat([x, torch.ones_like(x[..., :1])], -1), F.pad(phi, (0, 1), value=1.0)
    query, key, value = torch.zeros(3, k + 1, c + 1, c + 1, dtype=F64)
    query[-1, -1, 0] = math.sqrt(c + 1)
    key[:-1, -1, 0] = b
    value[-1, :c, :c] = w
    y = mixture_translution(marked, functions, query, key, value)
    for i in range(n):
        a = torch.stack([sum(phi[0, i, j, u] * b[u] for u in range(k)) for j in range(n)])
        assert_close(y[0, i, :c], sum(weight * f @ w for weight, f in zip(a.softmax(0), x[0], strict=True)))


@pytest.mark.identity("eq-continuous-product")
@given(SIZES, st.floats(0.3, 2), SEEDS)
def test_the_product_of_two_bells_is_a_bell_in_the_middle(m, width, seed):
    torch.manual_seed(seed)
    delta, centres = 2 * torch.randn(20, m, dtype=F64), torch.randn(2, m, dtype=F64)
    middle = gaussians(delta, centres.mean(0, keepdim=True), width / math.sqrt(2))[:, 0]
    height = math.exp(-(centres[0] - centres[1]).square().sum() / (4 * width**2))
    assert_close(gaussians(delta, centres, width).prod(-1), height * middle)


@pytest.mark.identity("eq-continuous-lean")
@given(mixtures(), st.integers(1, 4))
def test_the_lean_form_never_builds_a_matrix_per_pair(z, rows):
    phi = gaussians(differences(z["p"]), z["centres"], z["width"])
    lean = mixture_translution(z["x"], phi, *z["w"], z["heads"], rows=rows)
    assert_close(lean, mixture_translution_definition(z["x"], phi, *z["w"], z["heads"]))


@pytest.mark.identity("eq-continuous-lean")
def test_no_temporary_is_as_large_as_the_mixed_vectors_of_all_pairs():
    """The largest result of any operation stays below n·n·c′ numbers."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            out = operation(*args, **(kwargs or {}))
            outputs = out if isinstance(out, (tuple, list)) else [out]
            sizes = [t.untyped_storage().nbytes() // t.element_size() for t in outputs if isinstance(t, torch.Tensor)]
            self.numbers = max(self.numbers, *sizes, 0)
            return out

    n, k, c = 40, 4, 32
    x, phi, w = torch.randn(1, n, c), torch.rand(1, n, n, k), torch.randn(3, k, c, c)
    with Largest() as largest:
        mixture_translution(x, phi, *w, rows=8)
    assert largest.numbers < n * n * c
    with Largest() as largest:
        mixture_translution_definition(x, phi, *w)
    assert largest.numbers >= n * n * c * c


@pytest.mark.identity("eq-continuous-cost")
@given(*[st.integers(2, 6)] * 6)
def test_multiply_adds_of_the_lean_form(n, k, c, d, heads, rows):
    e = heads * d
    with FlopCounterMode(display=False) as counter:
        mixture_translution(torch.randn(1, n, c), torch.rand(1, n, n, k), *torch.randn(3, k, c, e), heads, rows=rows)
        torch.einsum("ije,ije->ij", *torch.randn(2, n, n, e))               # q_ij·k_ji: element-wise there
    assert counter.get_total_flops() == 2 * (3 * n * k * c * e + (3 * k + 1) * n**2 * e)


@pytest.mark.identity("thm-continuous-table")
@given(grids(max_tokens=9), st.booleans(), st.sampled_from([0.7, 0.4, 0.25]), SEEDS)
def test_the_table_is_a_special_case_and_a_limit(shape, cls, width, seed):
    torch.manual_seed(seed)
    rel = offsets(shape, cls=cls)
    layer = GeneralTranslution(rel, 4, 2, kernel="table", output=False).to(F64)
    x = torch.randn(1, rel.n, 4, dtype=F64)
    exact = functional.translution(x, layer.query, layer.key, layer.value, rel, 2)
    assert_close(layer(x), exact)
    phi = F.one_hot(rel.index, rel.count).to(F64)[None]
    assert_close(mixture_translution(x, phi, layer.query, layer.key, layer.value, 2), exact)
    if cls:
        return
    places = torch.tensor(rel.labels, dtype=F64)
    assert torch.equal(TableBasis(places)(differences(rel.positions.to(F64)[None])), phi)
    mixed = torch.einsum("dk,kce->dce", gaussians(places, places, width), layer.value)
    gap = (mixed - layer.value).flatten(1).norm(dim=1)
    bound = (rel.count - 1) * math.exp(-1 / (2 * width**2)) * layer.value.flatten(1).norm(dim=1).max()
    assert (gap <= bound + 1e-12).all()


@pytest.mark.identity("thm-continuous-limits")
@given(st.integers(1, 5), SIZES, st.floats(0.2, 2), SEEDS)
def test_span_and_slope(k, m, width, seed):
    torch.manual_seed(seed)
    delta, w = 2 * torch.randn(60, m, dtype=F64), torch.randn(k, 3, 3, dtype=F64)
    centres = torch.randn(k, m, dtype=F64)
    for basis in (RadialBasis(centres, width), MLPBasis(m, k).to(F64)):
        with torch.no_grad():
            many = torch.einsum("dk,kce->dce", basis(delta), w).flatten(1)
        assert torch.linalg.matrix_rank(many, atol=1e-10) <= k
    bells = torch.einsum("dk,kce->dce", gaussians(delta, centres, width), w).flatten(1)
    apart = torch.cdist(delta, delta)
    steps = (bells[:, None] - bells[None]).norm(dim=-1)
    bound = math.exp(-0.5) / width * apart * w.flatten(1).norm(dim=1).sum()
    assert (steps <= bound + 1e-12).all()
