"""The statements of the chapter "The taxonomy theorem", on random tables of relations, heads and inputs."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from tests.unit.strategies import F64, grids
from translution_lib import MIXERS, Attention, Convolution, LoRTranslution, Translution, offsets
from translution_lib.functional import convolution
from translution_lib.mixers import BilinearAttention, NoTranslution, as_translution
from translution_lib.mixers.convert import AsTranslution, factors
from translution_lib.mixers.factors import Factors, for_relations, plain

seeds = st.integers(0, 999)
small_grids = grids(max_tokens=6, max_dims=2)


@st.composite
def tables(draw):
    kind = draw(st.sampled_from(["grid", "cls", "causal"]))
    return offsets(draw(st.integers(2, 6)), causal=True) if kind == "causal" else offsets(draw(small_grids),
                                                                                         cls=kind == "cls")


def put(layer, **given_tables):
    """Fill a layer in float64: the named parameters as given, a map's as a matrix, all others at random."""
    layer = layer.to(F64)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            name = name.removeprefix("encodings.0.")
            if name.endswith(".weight") and name != "output.weight":
                name, p = name.removesuffix(".weight"), p.T
            p.copy_(given_tables.get(name, torch.randn_like(p)))
    return layer


def rows(*shape):
    return torch.randn(shape, dtype=F64)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def response(layer, n, c):
    """R_ij: what a small token j adds at token i, as c × e matrices."""
    return jacobian(lambda y: layer(y[None])[0], torch.zeros(n, c, dtype=F64)).permute(0, 2, 3, 1)


def softmax_row(scores):
    exp = [math.exp(v - max(scores)) for v in scores]
    return [v / sum(exp) for v in exp]


@pytest.mark.identity("eq-taxonomy-star", "eq-taxonomy-matrix")
@given(tables(), st.integers(1, 3), seeds)
def test_the_form_pair_by_pair(rel, heads, seed):
    torch.manual_seed(seed)
    layer, x = put(BilinearAttention(rel, 3, heads, head_dim=2)), rows(1, rel.n, 3)
    A, b, c, d, B, r = (getattr(layer, name).detach() for name in
                        ("content", "query_bias", "key_bias", "bias", "value", "value_bias"))
    out = torch.zeros(rel.n, heads, 2, dtype=F64)
    for h in range(heads):
        for i in range(rel.n):
            keys = [j for j in range(rel.n) if rel.index[i, j] >= 0]
            at, f, g = [int(rel.index[i, j]) for j in keys], x[0, i], x[0]
            scores = [float(f @ A[k, h] @ g[j] + f @ b[k, h] + c[k, h] @ g[j] + d[k, h])
                      for j, k in zip(keys, at, strict=True)]
            for j, k, weight in zip(keys, at, softmax_row(scores), strict=True):
                M = torch.cat([torch.cat([A[k, h], b[k, h][:, None]], 1), torch.cat([c[k, h], d[k, h][None]])[None]])
                tilde = [torch.cat([v, torch.ones(1, dtype=F64)]) for v in (f, g[j])]
                close(tilde[0] @ M @ tilde[1], layer.scores(x)[0, h, i, j])
                out[i, h] += weight * (tilde[1] @ torch.cat([B[k, h], r[k, h][None]]))
    close(layer.output(out.flatten(1)[None]), layer(x))


@pytest.mark.identity("thm-taxonomy-gauge")
@given(small_grids, st.sampled_from(["content", "query_bias", "key_bias", "bias"]), seeds)
def test_the_gauge(shape, name, seed):
    torch.manual_seed(seed)
    rel = offsets(shape)
    layer, x, zero = put(BilinearAttention(rel, 3, 1)), rows(3, rel.n, 3), rel.id_of((0,) * len(shape))
    new = {k: v.detach().clone() for k, v in layer.named_parameters()}
    u, split, turn = rows(3), rows(3), rows(3, 3)
    new["query_bias"] += u
    new["bias"] += 1.7
    new["content"][zero] += turn - turn.T
    new["query_bias"][zero] += split
    new["key_bias"][zero] -= split
    close(put(BilinearAttention(rel, 3, 1), **new).weights(x), layer.weights(x))
    assume(rel.n >= 2)
    new[name][rel.index[0, 1]] += 0.5
    assert (put(BilinearAttention(rel, 3, 1), **new).weights(x) - layer.weights(x)).abs().max() > 1e-6


@pytest.mark.identity("thm-taxonomy-parity")
@given(tables(), st.integers(1, 4), st.sampled_from(["", "v", "kv", "qkv"]), seeds)
def test_without_a_constant_every_layer_is_odd(rel, heads, relative, seed):
    torch.manual_seed(seed)
    stack = [put(Translution(rel, 4, heads, head_dim=3, relative=relative)),
             put(LoRTranslution(rel, 4, heads, head_dim=3, relative_dim=1))]
    z = x = rows(2, rel.n, 4)
    minus = -x
    for layer in stack:
        layer.output.bias.data.zero_()
        close(layer.weights(-x), layer.weights(x))
        z, minus = z + layer(z), minus + layer(minus)
    close(minus, -z)
    assume(rel.shape and rel.n >= 3)
    key = put(MIXERS["key-vector"](rel, 4, heads, head_dim=3))
    value = put(MIXERS["value-vector"](rel, 4, heads, head_dim=3))
    assert (key.weights(-x) - key.weights(x)).abs().max() > 1e-6
    value.output.bias.data.zero_()
    assert value(0 * x).abs().max() > 1e-6


@pytest.mark.identity("thm-taxonomy-response")
@given(tables(), st.integers(1, 3), seeds)
def test_the_response_at_zero(rel, heads, seed):
    torch.manual_seed(seed)
    layer, g, n = put(BilinearAttention(rel, 2, heads, head_dim=2)), rows(rel.n, 2), rel.n
    _, b, c, d, B, r = factors(layer).star()
    at = rel.index.clamp(min=0)
    expected = torch.zeros(n, 2 * heads, dtype=F64)
    for h in range(heads):
        beta = d[at, h].masked_fill(~rel.mask, -torch.inf).softmax(-1)
        ell = torch.einsum("ic,ijc->ij", g, b[at, h]) + torch.einsum("ijc,jc->ij", c[at, h], g)
        ell = ell - (beta * ell).sum(1, keepdim=True)
        expected += torch.einsum("ij,ije->ie", beta,
                                 torch.einsum("jc,ijce->ije", g, B[at, h]) + ell[..., None] * r[at, h])
    R = response(layer, n, 2)
    close(torch.einsum("jc,ijce->ie", g, R), layer.output(expected) - layer.output.bias)


@pytest.mark.identity("thm-taxonomy-response")
@given(small_grids, st.integers(1, 4), seeds)
def test_near_zero_translution_is_a_convolution(shape, heads, seed):
    torch.manual_seed(seed)
    rel, g = offsets(shape), rows(1, math.prod(shape), 3)
    layer = put(Translution(rel, 3, heads, head_dim=2))
    layer.output.bias.data.zero_()
    B = (layer.matrices.value.detach() @ layer.output.weight.detach().T).view(*(2 * s - 1 for s in shape), 3, 3)
    kernel = B.flip(tuple(range(len(shape)))) / rel.n                               # K_κ = Σ_h B_{−κ} / N
    close(torch.einsum("jc,ijce->ie", g[0], response(layer, rel.n, 3)), convolution(g, kernel, shape)[0])


RULES = {
    "self-attention": Attention, "key": MIXERS["key-vector"], "value": MIXERS["value-vector"],
    "both": MIXERS["key-value-vector"],
    "scalar": MIXERS["scalar-bias"], "rotary": lambda *a, **o: MIXERS["rotary"](*a, angles="learned", **o),
    "values": lambda *a, **o: Translution(*a, relative="v", **o),
    "lor": lambda *a, **o: LoRTranslution(*a, relative_dim=(2, 1), **o),
}


@pytest.mark.identity("thm-taxonomy-inclusions")
@pytest.mark.parametrize("name", RULES)
@given(tables(), st.integers(1, 4), seeds)
def test_the_inclusions(name, rel, heads, seed):
    """The layer's own forward pass against the literal equation of Translution on [f, 1]."""
    torch.manual_seed(seed)
    layer, x = put(RULES[name](rel, 5, heads, head_dim=4)), rows(2, rel.n, 5)
    same = as_translution(layer)
    inner, z = same.translution, same.with_constant(x)
    q, k, v = (w if w.ndim == 3 else w.expand(inner.relations.count, -1, -1) for w in
               inner.matrices)
    at = inner.relations.index.clamp(min=0)
    q, k, v = (torch.einsum("bnc,ince->bine" if right else "bic,ince->bine", z, w[at]).unflatten(-1, (heads, -1))
               for w, right in ((q, False), (k, True), (v, True)))
    scores = (q * k).sum(-1).permute(0, 3, 1, 2) / math.sqrt(inner.head_dim)
    alpha = scores.masked_fill(~rel.mask, -torch.inf).softmax(-1)
    out = torch.einsum("bhij,bijhd->bihd", alpha, v).flatten(2) @ inner.output.weight.T + inner.output.bias
    close(out[..., :5], layer(x))
    assert same.constant == (name in ("key", "value", "both", "scalar"))
    assert inner.head_dim == {"scalar": 5, "lor": 5}.get(name, 4)


@pytest.mark.identity("thm-taxonomy-inclusions")
@given(small_grids, st.integers(1, 3), seeds)
def test_convolution_is_relative_values(shape, size, seed):
    torch.manual_seed(seed)
    layer = put(Convolution(offsets(shape), 2, kernel_size=size))
    x = rows(1, math.prod(shape), 2)
    same = as_translution(layer)
    close(same(x), layer(x))
    assert same.translution.relative in ("", "v") and not same.constant


@pytest.mark.identity("thm-taxonomy-universal")
@given(tables(), st.integers(1, 4), st.integers(1, 4), seeds)
def test_every_bilinear_head_needs_as_many_channels_as_the_rank(rel, C, rank, seed):
    """A score matrix of rank k factors into k channels; C + 1 always suffice."""
    torch.manual_seed(seed)
    layer = put(BilinearAttention(rel, C, 1))
    x = rows(2, rel.n, C)
    same = as_translution(layer)
    close(same(x), layer(x))
    assert same.translution.head_dim == C + 1 and same.constant
    k = min(rank, C + 1)
    left, right = rows(rel.count, C + 1, k), rows(rel.count, C + 1, k)
    M = left @ right.mT
    low = put(BilinearAttention(rel, C, 1), content=M[:, None, :-1, :-1], query_bias=M[:, None, :-1, -1],
              key_bias=M[:, None, -1, :-1], bias=M[:, -1, -1:])
    heads = replace(factors(low), query=left[:, None], key=right[:, None])
    narrow = AsTranslution(heads, low)
    close(narrow(x), low(x))
    assert narrow.translution.head_dim == max(k, C)


@pytest.mark.identity("thm-taxonomy-universal", "thm-taxonomy-dimension")
@given(st.integers(1, 3), st.integers(0, 2), seeds)
def test_a_bias_costs_one_channel(d, more, seed):
    """For every gauge one of the offsets ±1 has rank d + 1."""
    torch.manual_seed(seed)
    C = d + more
    layer = put(MIXERS["scalar-bias"](offsets(2), C, 1, head_dim=d), table=torch.tensor([[-1.0, 0.3, 1.0]], dtype=F64))
    A, b, c, bias, _, _ = (t[:, 0] for t in factors(layer).star())
    A, b, c = (t.expand(3, *t.shape[1:]) for t in (A, b, c))
    assert torch.linalg.matrix_rank(A[0]) == d and as_translution(layer).translution.head_dim == d + 1
    for t in [1.0, -1.0, *rows(20).tolist()]:
        u = rows(C)
        M = torch.cat([torch.cat([A, (b + u)[:, :, None]], 2), torch.cat([c, (bias + t)[:, None]], 1)[:, None]], 1)
        assert max(int(torch.linalg.matrix_rank(M[k])) for k in (0, 2)) == d + 1


FAMILIES = {"SA": Attention, "K": MIXERS["key-vector"], "V": MIXERS["value-vector"], "S": MIXERS["scalar-bias"],
            "R": RULES["rotary"], "vT": RULES["values"], "Conv": Convolution, "T": Translution, "T+": BilinearAttention}
KEEPS = {"zero": "SA K S R vT Conv T", "odd": "SA S R vT Conv T", "mirror": "SA V S R vT Conv T",
         "toeplitz": "SA K V R vT Conv T", "one": "SA K V S R", "content": "SA K V S vT Conv", "linear": "Conv"}


@pytest.mark.identity("thm-taxonomy-strict")
@pytest.mark.parametrize("name", FAMILIES)
@given(st.integers(2, 5), seeds)
def test_what_a_family_keeps_and_breaks(name, n, seed):
    torch.manual_seed(seed)
    layer = put(FAMILIES[name](offsets(n), 2, 1, output=False))
    x, same, R = rows(1, n, 2), as_translution(layer), response(layer, n, 2).flatten(2)
    A = factors(layer).star().A[:, 0].expand(2 * n - 1, -1, -1)
    far = torch.cat([A[: n - 1], A[n:]])

    def small(y):
        return float(y.detach().abs().max()) < 1e-9

    found = {"zero": small(layer(0 * x)), "odd": small(layer(x) + layer(-x)),
             "mirror": small(same.weights(x) - same.weights(-x)),
             "toeplitz": small(R[1:, 1:] - R[:-1, :-1]), "content": small(far - far[:1]),
             "one": int(torch.linalg.matrix_rank(R.flatten(0, 1), tol=1e-9)) == 1,
             "linear": small(layer(2 * x) - 2 * layer(x))}
    assert found == {key: name in who.split() for key, who in KEEPS.items()}


@pytest.mark.identity("thm-taxonomy-strict")
def test_every_pair_of_families_is_decided():
    """What the arrows do not give, a property excludes, and never both."""
    inside = {("SA", y) for y in "K V S R vT".split()} | {("Conv", "vT"), ("vT", "T"), ("R", "T")}
    inside |= {(x, "T+") for x in "K V S T".split()}
    for _ in FAMILIES:
        inside |= {(a, d) for a, b in inside for c, d in inside if b == c}
    excluded = {(a, b) for a in FAMILIES for b in FAMILIES for who in KEEPS.values()
                if b in who.split() and a not in who.split()}
    assert not inside & excluded and len(inside) == 18 and len(inside | excluded) == 72


@pytest.mark.identity("thm-taxonomy-absolute")
@given(st.integers(3, 6), st.booleans(), seeds)
def test_scores_of_places(n, equal, seed):
    """A lone token's weight, relative to the query's own, depends on the offset only in form (★)."""
    torch.manual_seed(seed)
    rel, y = offsets(n), rows(2)

    def spread(layer):
        found = {}
        for i in range(n):
            for j in range(n):
                if i != j:
                    x = torch.zeros(1, n, 2, dtype=F64)
                    x[0, j] = y
                    alpha = layer.weights(x).detach()[0, 0, i]
                    found.setdefault(i - j, []).append((alpha[j] / alpha[i]).log().item())
        return max(max(v) - min(v) for v in found.values())

    assert spread(put(BilinearAttention(rel, 2, 1))) < 1e-9
    place = rows(2).expand(n, 2) if equal else rows(n, 2)
    layer = put(MIXERS["self-attention"](rel, 2, 1, absolute=True), position=place)
    assert (spread(layer) < 1e-9) == equal
    with pytest.raises(NoTranslution, match="thm-taxonomy-absolute"):
        as_translution(layer)
    with_cls = offsets(n, cls=True)
    seen = {kind: set() for kind in ("origin", "free")}
    for kind, numbers in seen.items():
        turned = put(MIXERS["rotary"](with_cls, 2, 1, cls_token=kind))
        for j in range(1, n + 1):
            x = torch.zeros(1, n + 1, 2, dtype=F64)
            x[0, 0], x[0, j] = y, y
            alpha = turned.weights(x).detach()[0, 0, 0]
            numbers.add(round(float((alpha[j] / alpha[0]).log()), 8))
    assert len(seen["free"]) == 1 and len(seen["origin"]) == n


def gated_factors(layer):
    """Two heads for each gated one: content, then position."""
    sigma = layer.gate.detach().sigmoid()[:, None, None]
    u = for_relations(layer.offset_scores().T, layer.relations)
    first = plain(layer).with_constant()
    second = replace(first, query=0 * first.query, key=0 * first.key).with_bias(u)
    first = first.with_bias(0 * u)
    query, key = torch.cat([first.query, second.query], 1), torch.cat([first.key, second.key], 1)
    value = torch.cat([(1 - sigma) * first.value, sigma * first.value], 1)
    return Factors(layer.relations, query, key, value, torch.cat([first.up, first.up]), True)


@pytest.mark.identity("thm-taxonomy-gate")
@given(tables(), st.integers(1, 3), st.sampled_from(["original", "printed"]), seeds)
def test_a_gate_is_two_heads(rel, heads, form, seed):
    torch.manual_seed(seed)
    layer, x = put(MIXERS["gated-bias"](rel, 4, heads, form=form, head_dim=2)), rows(2, rel.n, 4)
    close(AsTranslution(gated_factors(layer), layer)(x), layer(x))
    with pytest.raises(NoTranslution, match="thm-taxonomy-gate"):
        as_translution(layer)


@pytest.mark.identity("thm-taxonomy-gate")
@given(st.integers(2, 5), seeds)
def test_a_gate_is_not_one_head(n, seed):
    """Along t·f the logarithm of a ratio of weights is quadratic in t for form (★), and bounded for a gate."""
    torch.manual_seed(seed)
    rel, x = offsets(n), 0.5 * rows(n, 2)
    t = torch.arange(8, dtype=F64)[:, None, None]
    for make, quadratic in ((BilinearAttention, True), (MIXERS["scalar-bias"], True), (MIXERS["gated-bias"], False)):
        layer = put(make(rel, 2, 1), gate=torch.zeros(1, dtype=F64))
        logs = layer.weights(t * x).log()[:, 0]
        third = (logs - logs[..., :1]).diff(n=3, dim=0).abs().max()
        assert (third < 1e-8) == quadratic
    far = layer.weights(1e3 * x[None])[0, 0]
    assert (far >= 0.5 * layer.position_weights(rel)[0] - 1e-9).all()


@pytest.mark.identity("thm-taxonomy-causal")
@given(st.integers(2, 7), st.integers(1, 6), seeds)
def test_no_causal_convolution_in_one_head(n, w, seed):
    """F(0) = 0 forces r = 0, and then the response at every lag but the window's last shrinks in the first rows."""
    torch.manual_seed(seed)
    w = min(w, n - 1)
    rel = offsets(n, causal=True, window=w)
    layer = put(BilinearAttention(rel, 2, 1, output=False))
    beta = layer.weights(torch.zeros(1, n, 2, dtype=F64))[0, 0]
    lags = torch.stack([torch.stack([beta[i, i - k] if k <= i else beta.new_zeros(()) for k in range(w + 1)])
                        for i in range(w + 1)])
    assert torch.equal(lags, lags.tril()) and (lags.diagonal() > 0).all()           # invertible: only r = 0
    layer = put(layer, value_bias=torch.zeros(w + 1, 1, 2, dtype=F64))
    R = response(layer, n, 2)
    for lag in range(w + 1):
        sizes = torch.stack([R[i, i - lag].norm() for i in range(lag, n)])
        assert (sizes[:w + 1 - lag].diff() < 0).all()
        close(sizes[w - lag:], sizes[w - lag].expand(n - w))                        # constant where windows are full
    with pytest.raises(NoTranslution, match="sink"):
        as_translution(Convolution(rel, 2))


@pytest.mark.identity("thm-taxonomy-rotations")
@given(small_grids, st.integers(1, 3), seeds)
def test_lor_holds_a_rotation_in_half_the_channels(shape, planes, seed):
    torch.manual_seed(seed)
    rel, d = offsets(shape), 2 * planes
    assume(planes >= len(shape))
    rotary = put(MIXERS["rotary"](rel, 3, 1, head_dim=d, angles="learned"))
    half = torch.tensor(rel.labels, dtype=F64) @ rotary.angles[0].detach() / 2                 # r d/2
    Q, K = (torch.zeros(rel.count, d, planes, dtype=F64) for _ in range(2))
    for m in range(planes):
        Q[:, 2 * m, m], Q[:, 2 * m + 1, m] = 2 * half[:, m].sin(), 2 * half[:, m].cos()
        K[:, 2 * m, m], K[:, 2 * m + 1, m] = -half[:, m].sin(), half[:, m].cos()
    P = torch.diag(torch.tensor([1.0, -1.0] * planes, dtype=F64))
    w_q, w_k, w_v = rotary.matrices
    lor = put(LoRTranslution(rel, 3, 1, relative_dim=(d, planes), head_dim=d), query=w_q @ P, key=w_k,
              value=w_v, query_low=w_q, key_low=w_k, query_core=Q, key_core=K,
              value_core=torch.zeros(rel.count, d, planes, dtype=F64))
    lor.output.load_state_dict(rotary.output.state_dict())
    x = rows(2, rel.n, 3)
    close(lor.weights(x), rotary.weights(x))
    close(lor(x), rotary(x))


@pytest.mark.identity("thm-taxonomy-rotations")
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), seeds)
def test_fewer_relative_channels_cannot_follow_a_rotation(planes, r1, r2, seed):
    torch.manual_seed(seed)
    rel, d = offsets(5), 2 * planes

    def change(layer):
        A = factors(layer).star().A[:, 0]
        return int(torch.linalg.matrix_rank(A[rel.id_of((1,))] - A[rel.id_of((3,))], rtol=1e-9))

    assert change(put(MIXERS["rotary"](rel, 7, 1, head_dim=d))) == d
    assert change(put(LoRTranslution(rel, 7, 1, head_dim=d, relative_dim=(r1, r2)))) == min(r1, 2 * r2)
