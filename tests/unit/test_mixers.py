"""The layers: fast form = equations, every option, types, transforms, compilation, saving, errors."""

import copy
import io
import math
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.strategies import (
    ANY_TABLE,
    DIM,
    DRAWN,
    EVERY,
    F64,
    HEADS,
    LINEAR,
    assert_forms_agree,
    build,
    gradients,
    grid_tables,
    tables,
)
from translution_lib import MIXERS, Attention, LoRTranslution, Translution, backend, offsets, pairs, shared
from translution_lib.mixers import Mixer, mixer_named
from translution_lib.mixers.init import relation_bound

NAMES = sorted(MIXERS)
ATTENTION = [name for name in NAMES if name != "convolution"]


@pytest.mark.parametrize(("name", "options"), EVERY)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_equals_the_equations(name, options, causal):
    layer = build(name, offsets(5, causal=True) if causal else None, **options)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64, requires_grad=True)
    assert layer(x).shape == x.shape
    assert_forms_agree(layer, x)


@given(tables(), st.sampled_from(["", "q", "kv", "qkv"]))
def test_any_table_serves_translution(rel, relative):
    layer = Translution(rel, 4, 2, relative=relative).to(F64)
    x = torch.randn(1, rel.n, 4, dtype=F64)
    with backend("definition"):
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected)
    alpha = layer.weights(x)
    assert (alpha[..., ~rel.mask] == 0).all()
    torch.testing.assert_close(layer.output(layer.values(alpha, x)), expected)


@pytest.mark.parametrize("name", ATTENTION)
@given(data=st.data(), batch=st.integers(1, 2))
def test_any_grid_serves(name, data, batch):
    relations = data.draw(grid_tables(windows=name not in LINEAR))
    layer = build(name, relations)
    x = torch.randn(batch, relations.n, DIM, dtype=F64)
    with backend("definition"):
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected)
    alpha = layer.weights(x)
    assert alpha.shape == (batch, HEADS, relations.n, relations.n) and (alpha[..., ~relations.mask] == 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))
    torch.testing.assert_close(layer.output(layer.values(alpha, x)), expected)


@pytest.mark.parametrize("keep", [False, True], ids=["again", "kept"])
@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_batch_without_samples(name, options, keep):
    layer = build(name, **options)
    x = torch.zeros(0, layer.relations.n, DIM, dtype=F64, requires_grad=True)
    with backend(keep=keep):
        y = layer(x)
        y.sum().backward()
    assert y.shape == x.shape == x.grad.shape
    assert not any(p.grad.any() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_table_without_offsets_is_refused_where_an_encoding_reads_them(name):
    for relations in (shared(4), pairs(4)):
        if name in ANY_TABLE:
            assert build(name, relations)(torch.randn(1, 4, DIM, dtype=F64)).shape == (1, 4, DIM)
        else:
            with pytest.raises(ValueError, match="relations"):
                build(name, relations)


@pytest.mark.parametrize("name", ATTENTION)
def test_every_head_and_token_counts(name):
    """No head and no key is left out: each weight matrix and each token changes the output."""
    layer = build(name)
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64, requires_grad=True)
    y = layer(x).square().sum()
    grads = torch.autograd.grad(y, [x, *layer.parameters()])
    assert all(g.abs().sum() > 0 for g in grads) and (grads[0].abs().sum(-1) > 0).all()


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_shorter_text_is_a_prefix(name, options):
    layer = build(name, offsets(6, causal=True), **options)
    x = torch.randn(2, 6, DIM, dtype=F64)
    torch.testing.assert_close(layer(x[:, :4]), layer(x)[:, :4])
    with pytest.raises(ValueError, match="7 tokens"):
        layer(torch.randn(1, 7, DIM, dtype=F64))


@pytest.mark.parametrize("name", ATTENTION)
def test_the_future_is_invisible(name):
    layer = build(name, offsets(5, causal=True))
    x = torch.randn(1, 5, DIM, dtype=F64, requires_grad=True)
    influence = torch.autograd.functional.jacobian(lambda y: layer(y).sum(-1), x)[0, :, 0].abs().sum(-1)
    assert (influence.triu(1) == 0).all() and (influence.tril() > 0)[torch.tril(torch.ones(5, 5)) > 0].all()


def test_self_attention_is_torch_multihead_attention():
    """The same weights and biases in torch's own layer give the same output."""
    layer = Attention(shared(5), 6, 2, qkv_bias=True).to(F64)
    oracle = torch.nn.MultiheadAttention(6, 2, batch_first=True).to(F64)
    with torch.no_grad():
        oracle.in_proj_bias.normal_()
        for own, weight, bias in zip((layer.query, layer.key, layer.value), oracle.in_proj_weight.chunk(3),
                                     oracle.in_proj_bias.chunk(3), strict=True):
            own.load_state_dict({"weight": weight, "bias": bias})
        oracle.out_proj.load_state_dict(layer.output.state_dict())
    x = torch.randn(3, 5, 6, dtype=F64)
    y, alpha = oracle(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(layer(x), y)
    torch.testing.assert_close(layer.weights(x), alpha)


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_what_stands_in_the_place_of_a_linear_map_is_what_runs(name, options):
    """Both forms call every map, so that adapters and quantised maps serve: here, one that a low rank is added to."""
    layer = build(name, **options)
    maps = {at: one for at, one in layer.named_modules() if isinstance(one, nn.Linear) and one.weight.numel()}
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    with torch.no_grad():
        for at, one in maps.items():
            layer.set_submodule(at, Adapted(one))
        y = layer(x)
        with backend("definition"):
            torch.testing.assert_close(layer(x), y)
        for at, one in maps.items():
            one.weight += layer.get_submodule(at).low
            layer.set_submodule(at, one)
        torch.testing.assert_close(layer(x), y)
    assert len(maps) >= 1 or options.get("output") is False


class Adapted(nn.Module):
    """A linear map with a low rank beside it, as LoRA has."""

    def __init__(self, base):
        super().__init__()
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features
        self.low = torch.outer(torch.randn(base.out_features, dtype=F64), torch.randn(base.in_features, dtype=F64))

    def forward(self, x):
        return self.base(x) + x @ self.low.T


def test_shared_maps_are_drawn_as_matrices():
    """The weight of a map is the transpose of what a matrix (C, C′) would be, and nothing else is drawn."""
    torch.manual_seed(0)
    layer = Attention(shared(3), 4, 2)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(nn.Linear(4, 4).weight, layer.output.weight)
    assert all(torch.equal(w, torch.empty(4, 4).uniform_(-0.5, 0.5)) for w in layer.matrices)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_stays_near_double(name, dtype):
    """Half types accumulate in float32: the error stays within a few units of the type's own rounding."""
    layer = build(name)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64)
    expected = layer(x)
    y = copy.deepcopy(layer).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert (y.to(F64) - expected).abs().max() < 8 * torch.finfo(dtype).eps * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_half_gradients_stay_near_double(name):
    layer = build(name)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64)
    half = copy.deepcopy(layer).to(torch.bfloat16)
    layer(x).square().sum().backward()
    half(x.to(torch.bfloat16)).square().sum().backward()
    for p, q in zip(layer.parameters(), half.parameters(), strict=True):
        assert (p.grad - q.grad).norm() < 0.05 * p.grad.norm() + 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    layer = build(name).to(torch.float32)
    x = torch.randn(2, layer.relations.n, DIM, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert (y - layer(x)).abs().max() < 0.05
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters()) and x.grad.dtype == torch.float32


COMPILED = {"translution", "rotary", "riemann"}  # each another kind of computation
SLOW_TO_COMPILE = {"lor-translution", "performer"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(COMPILED), *(
    pytest.param(name, marks=pytest.mark.nightly) for name in sorted(SLOW_TO_COMPILE))])
def test_compiled_layer_is_equal(plain_types, name):
    layer = build(name)
    x = torch.randn(2, layer.relations.n, DIM, dtype=F64, requires_grad=True)
    inputs, compiled = [x, *layer.parameters()], torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    for a, b in zip(gradients(compiled(x), inputs), gradients(layer(x), inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_outputs(name):
    if name == "convolution":
        return
    layer = build(name, output_dropout=0.5)
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    y, still = layer(x), layer.eval()(x)
    kept = y != 0
    assert kept.any() and not kept.all() and not layer.steady
    torch.testing.assert_close(y[kept], 2 * still[kept])
    with pytest.raises(ValueError, match="output_dropout must be from 0 up to 1"):
        build(name, output_dropout=1.0)


@pytest.mark.parametrize("name", NAMES)
def test_function_transforms(name):
    """Per-sample gradients, an ensemble of weights, and a Jacobian agree with plain autograd."""
    layer = build(name)
    params, xs = dict(layer.named_parameters()), torch.randn(3, layer.relations.n, DIM, dtype=F64)

    def loss(p, x):
        return functional_call(layer, p, (x[None],)).square().sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0))(params, xs)
    ensemble = vmap(grad(loss), in_dims=(0, None))({k: torch.stack([v, 2 * v]) for k, v in params.items()}, xs[0])
    for s in range(3):
        expected = torch.autograd.grad(loss(params, xs[s]), list(params.values()))
        torch.testing.assert_close([per_sample[k][s] for k in params], list(expected))
    torch.testing.assert_close([ensemble[k][0] for k in params], [per_sample[k][0] for k in params])
    jacobian = jacrev(lambda x: layer(x[None])[0])(xs[0])
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], xs[0]))


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_state_dict_round_trip(name, options, tmp_path):
    layer, other = build(name, **options), build(name, **options)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    assert torch.equal(layer(x), other(x))
    drawn = DRAWN if name in LINEAR else set()
    assert set(layer.state_dict()) == drawn | {key for key, _ in layer.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_meta_layer_materialises(name):
    with torch.device("meta"):
        layer = build(name)
    real = build(name)
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    assert layer(x.to("meta")).shape == x.shape
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    torch.testing.assert_close(layer(x), real(x))


class FromTheHost(TorchDispatchMode):
    """Counts the tensors that come from the CPU to another device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        if isinstance(y, torch.Tensor) and y.device.type != "cpu":
            self.count += any(isinstance(a, torch.Tensor) and a.ndim and a.device.type == "cpu" for a in args)
        return y


@pytest.mark.parametrize(("name", "options"), [
    *((name, {}) for name in NAMES if name not in ("riemann", "performer-s2")), ("rotary", {"angles": "learned"}),
    ("scalar-bias", {"bias": "alibi"}), ("general-translution", {"kernel": "table"})])
def test_a_device_is_given_the_tables_once(name, options):
    """The first forward on a device copies there what it reads; no later one does, nor the first of a shorter text."""
    convolution = name == "convolution"
    layer = build(name, offsets(6, causal=not convolution), **options).to("meta")
    x = torch.randn(1, 6, DIM, device="meta", dtype=F64)
    layer(x)
    with FromTheHost() as copies:
        layer(x)
        if name in ("self-attention", "scalar-bias", "key-vector", "rotary"):
            layer(x[:, :4])
    assert copies.count == 0


@pytest.mark.parametrize("name", NAMES)
def test_copies_of_tables_are_neither_saved_nor_copied(name):
    """What a layer has copied to a device stays behind; copies compute the same and have their tables on the CPU."""
    layer, file = build(name), io.BytesIO()
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    y = layer(x)
    torch.save(layer, file)
    file.seek(0)
    for same in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert not same.relations._cache and torch.equal(same(x), y)
        same.float()
        with torch.inference_mode():
            same(x.float())
        same(x.float()).sum().backward()            # what was copied for inference serves gradients too
        assert same.to("meta").half()(x.half().to("meta")).dtype == torch.float16
        assert same.relations.index.dtype == torch.int64 and same.relations.index.device.type == "cpu"


@pytest.mark.parametrize("name", sorted(LINEAR))
def test_without_weights_there_is_no_dropout_and_no_window(name):
    with pytest.raises(ValueError, match="dropout must be 0: the attention weights are never formed"):
        build(name, dropout=0.5)
    for relations in (offsets((3, 3), window=1), offsets(4, causal=True, window=2)):
        with pytest.raises(ValueError, match="relations must allow all pairs"):
            build(name, relations)


@pytest.mark.parametrize("name", sorted(set(ATTENTION) - LINEAR))
def test_dropout_is_for_training_only(name):
    layer = build(name, dropout=0.5)
    x = torch.randn(1, layer.relations.n, DIM, dtype=F64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    with backend("definition"):
        torch.testing.assert_close(layer(x), layer.eval()(x))


def test_dropout_drops_attention_weights_in_training_only():
    layer = Translution(offsets(4), 4, 2, dropout=0.5).to(F64)
    x = torch.randn(1, 4, 4, dtype=F64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    alpha = layer.weights(x)
    torch.manual_seed(3)
    dropped = layer.train().dropped(alpha)
    torch.manual_seed(3)
    torch.testing.assert_close(dropped, F.dropout(alpha, 0.5))


@pytest.mark.parametrize(("init", "bound"), [("fan_in", 1 / math.sqrt(12)), ("released", 1 / 12)])
def test_initial_weights(init, bound):
    weight = Translution(offsets((5, 5)), 12, 2, init=init).query
    assert weight.abs().max() <= bound
    assert abs(float(weight.std()) / (bound / math.sqrt(3)) - 1) < 0.03
    assert relation_bound(192, 192, "fan_in") / relation_bound(192, 192, "released") == pytest.approx(math.sqrt(192))


def test_no_attribute_hides_one_of_torch():
    """A layer still converts to half precision: nothing of ours overrides nn.Module's own names."""
    for name in NAMES:
        assert all(p.dtype == torch.float16 for p in build(name).half().parameters())


def test_released_lor_halves_scores_and_values():
    a = build("lor-translution", variant="printed")
    b = build("lor-translution", variant="released")
    b.load_state_dict(a.state_dict())
    x = torch.randn(1, a.relations.n, DIM, dtype=F64)
    torch.testing.assert_close(b.scores(x), a.scores(x) / 2)
    alpha = a.weights(x)
    torch.testing.assert_close(b.values(alpha, x), a.values(alpha, x) / 2)


T = offsets(4)


@pytest.mark.parametrize(("call", "word"), [
    (lambda: Translution(T, 6, 4), "heads"), (lambda: Translution(T, 6, 0), "heads"),
    (lambda: Translution(T, 0, 1), "dim"), (lambda: Translution(T, 6.0, 1), "dim"),
    (lambda: Translution(T, 6, 2, head_dim=0), "head_dim"), (lambda: Translution(T, 6, 2, relative="qx"), "relative"),
    (lambda: Translution(T, 6, 2, relative="qq"), "relative"), (lambda: Translution(T, 6, 2, init="xavier"), "init"),
    (lambda: Translution(T, 6, 2, dropout=1.0), "dropout"), (lambda: Translution(T, 6, 2, dropout=-0.1), "dropout"),
    (lambda: Translution(T, 6, 2, head_dim=4, output=False), "output"),
    (lambda: LoRTranslution(T, 6, 2, relative_dim=-1), "relative_dim"),
    (lambda: LoRTranslution(T, 6, 2, relative_dim=(1, 2, 3)), "relative_dim"),
    (lambda: LoRTranslution(T, 6, 2, relative_dim=(0, 2)), "relative_dim"),
    (lambda: LoRTranslution(T, 6, 2, relative_dim=1.5), "relative_dim"),
    (lambda: LoRTranslution(T, 6, 2, relative_dim=0, shared=False), "relative_dim"),
    (lambda: LoRTranslution(T, 6, 2, variant="x"), "variant"),
    (lambda: LoRTranslution(T, 6, 2, shared=False, qkv_bias=True), "qkv_bias"),
    (lambda: Translution(T, 6, 2, qkv_bias=True), "qkv_bias"),
    (lambda: MIXERS["general-translution"](T, 6, 2, qkv_bias=True), "qkv_bias"),
    (lambda: MIXERS["convolution"](shared(4), 6), "relations"),
    (lambda: MIXERS["convolution"](offsets(4, cls=True), 6), "CLS"),
    (lambda: MIXERS["convolution"](T, 6, 2), "heads"),
    (lambda: MIXERS["convolution"](T, 6, kernel_size=0), "kernel_size"),
    (lambda: MIXERS["convolution"](T, 6, kernel_size=(3, 3)), "kernel_size"),
    (lambda: Translution(T, 6, 2)(torch.zeros(1, 5, 6)), "5 tokens"),
    (lambda: Translution(T, 6, 2)(torch.zeros(1, 4, 5)), "5 channels"),
    (lambda: Translution(T, 6, 2)(torch.zeros(4, 6)), "x must"),
    (lambda: mixer_named("attention"), "mixer must be one of"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.parametrize(("name", "options"), EVERY)
@pytest.mark.parametrize("table", [offsets(5, causal=True), offsets((3, 3), window=1),
                                   offsets((2, 3), window=1, cls=True)], ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_masked_token_reaches_nobody_whatever_it_holds(name, options, table, bad):
    """Both forms; those that may attend to it are spoilt, all others and their gradients are as if it were zero."""
    if name == "convolution" or (name in LINEAR and not table.all_past):
        return
    layer = build(name, table, **options)
    x = torch.randn(2, table.n, DIM, dtype=F64)
    last = table.n - 1
    x[1, last, 3] = 0
    spoilt = x.clone().requires_grad_()
    with torch.no_grad():
        spoilt[1, last, 3] = bad
    deaf = ~table.mask[:, last]
    clean = x.clone()
    clean[1, last] = 0
    for context in (nullcontext, partial(backend, "definition")):
        with context():
            y, expected = layer(spoilt), layer(clean)
        torch.testing.assert_close(y[0], expected[0])
        torch.testing.assert_close(y[1, deaf], expected[1, deaf])
        assert y[1, ~deaf].isnan().all()
        grad, = torch.autograd.grad(y[1, deaf].sum(), spoilt)
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(ATTENTION) - ANY_TABLE - {"performer-s2"}))
def test_places_count_and_not_their_order_in_the_grid(name):
    """Tokens of a large grid are told apart by where they stand: the four corners are no square of neighbours."""
    grid = offsets((5, 5))
    near, far = (build(name, grid.select(tokens)) for tokens in ([6, 7, 11, 17], [0, 4, 20, 24]))
    for parameter in near.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    far.load_state_dict(near.state_dict())
    x = torch.randn(1, 4, DIM, dtype=F64)
    assert not torch.allclose(near(x), far(x))
    assert_forms_agree(far, x.requires_grad_())
    moved = build(name, grid.select([7, 8, 12, 18]))                    # one column to the right
    moved.load_state_dict(near.state_dict())
    if name not in ("riemann", "performer-s1"):     # a metric, and an estimate, know places and not offsets alone
        torch.testing.assert_close(moved(x), near(x))


def test_layers_on_the_whole_grid_refuse_some_of_its_tokens():
    part = offsets((3, 3)).select([0, 4])
    for name in ("convolution", "performer-s2"):
        with pytest.raises(ValueError, match="relations must have all cells of a grid"):
            build(name, part)


def test_a_class_that_changes_half_of_what_runs_is_refused():
    with pytest.raises(TypeError, match="Half changes scores, which the mix of Attention does not run"):
        class Half(Attention):
            def scores(self, x):
                return super().scores(x) + 1

    class Whole(Attention):
        mix = Mixer.mix

        def scores(self, x):
            return 2 * super().scores(x)

    layer, x = Whole(shared(3), 4, 2).to(F64), torch.randn(1, 3, 4, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)
    with pytest.raises(TypeError, match="Later changes values, which the mix of Translution"):
        class Later(Translution):
            values = Attention.values


def test_the_base_class_has_no_equations():
    layer = Mixer(T, 4, 2)
    with pytest.raises(NotImplementedError):
        layer.scores(torch.zeros(1, 4, 4))
    with pytest.raises(NotImplementedError):
        layer.values(torch.zeros(1, 2, 4, 4), torch.zeros(1, 4, 4))


@pytest.mark.parametrize("x", [torch.zeros(1, 9, DIM, dtype=torch.long), torch.zeros(1, 9, DIM, dtype=torch.complex64),
                               torch.zeros(1, 9, DIM).to_sparse(), np.zeros((1, 9, DIM)), [[[0.0]]]])
def test_what_is_no_dense_tensor_of_real_numbers_is_refused(plain_types, x):
    for name in ("translution", "rotary", "lor-translution"):
        with pytest.raises(ValueError, match="x must"):
            build(name)(x)
