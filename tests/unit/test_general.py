"""General Translution: operator, mixture, layer; oracles: the definition, Translution, torch, scikit-learn."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel
from torch.testing import assert_close

from tests.unit.strategies import F64, assert_forms_agree, gradients, grids
from translution_lib import Translution, ViT, functional, offsets, pairs, shared
from translution_lib.functional.general import (
    differences,
    gaussians,
    general_translution,
    lattice,
    mixture_translution,
    mixture_translution_definition,
    weigh,
)
from translution_lib.mixers.general import (
    KERNELS,
    GeneralTranslution,
    MLPBasis,
    PointTranslution,
    RadialBasis,
    TableBasis,
)

SIZES = st.integers(1, 4)


@st.composite
def mixtures(draw) -> dict:
    """Draw arguments of ``mixture_translution``: any sizes, with and without a mask."""
    b, n, m, c, k, d, e, heads = (draw(SIZES) for _ in range(8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    def random(*shape):
        return torch.randn(shape, dtype=F64, generator=g)

    delta = differences(random(b, n, m))
    mask = None
    if draw(st.booleans()):
        mask = torch.rand(b, n, n, generator=g) < 0.6
        mask |= torch.eye(n, dtype=torch.bool)
    return {"x": random(b, n, c).requires_grad_(), "phi": gaussians(delta, random(k, m), 0.7),
            "w_q": random(k, c, heads * d).requires_grad_(), "w_k": random(k, c, heads * d).requires_grad_(),
            "w_v": random(k, c, heads * e).requires_grad_(), "heads": heads, "mask": mask}


def table(relations):
    """Return the one-hot functions of a relation table, 1 n n r."""
    return F.one_hot(relations.index, relations.count).to(F64)[None]


@given(mixtures(), st.integers(1, 5))
def test_the_lean_form_equals_the_definition(arguments, rows):
    expected = mixture_translution_definition(**arguments)
    inputs = [arguments[name] for name in ("x", "w_q", "w_k", "w_v")]
    slopes = gradients(expected, inputs)
    for y in (mixture_translution(**arguments), mixture_translution(**arguments, rows=rows)):
        assert_close(y, expected)
        for a, b in zip(gradients(y, inputs), slopes, strict=True):
            assert_close(a, b)


@given(grids(), SIZES, st.integers(0, 2**16))
def test_one_hot_functions_are_translution(shape, c, seed):
    torch.manual_seed(seed)
    rel = offsets(shape)
    x, w = torch.randn(2, rel.n, c, dtype=F64), torch.randn(3, rel.count, c, 4, dtype=F64)
    for form in (mixture_translution, mixture_translution_definition):
        assert_close(form(x, table(rel), *w, heads=2), functional.translution_definition(x, *w, rel, 2))
    basis = TableBasis(torch.tensor(rel.labels, dtype=F64))
    assert torch.equal(basis(differences(rel.positions.to(F64)[None])), table(rel))


@pytest.mark.parametrize("normalised", [True, False])
def test_general_translution_is_convolution_and_attention(normalised):
    """torch's own convolution and attention are the oracles: unit scores sum values, a shared value is attention."""
    rel = offsets((4, 5))
    x, p = torch.randn(2, 20, 3, dtype=F64), rel.positions.to(F64).expand(2, -1, -1)
    if normalised:
        w = torch.randn(3, 3, 3, dtype=F64)
        y = general_translution(x, p, lambda δ, f, g: ((f @ w[0]) * (g @ w[1])).sum(-1) / math.sqrt(3),
                                lambda δ, f: f @ w[2])
        assert_close(y, F.scaled_dot_product_attention(x @ w[0], x @ w[1], x @ w[2]))
        return
    kernel = torch.randn(3, 3, 3, 2, dtype=F64)                                     # taps, input, output channels
    taps = torch.stack(torch.meshgrid(torch.arange(-1, 2), torch.arange(-1, 2), indexing="ij"), -1).view(-1, 2)

    def value(δ, f):
        return torch.einsum("bijk,kce,bijc->bije", TableBasis(-taps.to(F64))(δ), kernel.flatten(0, 1),
                            f.expand(*δ.shape[:3], -1))

    y = general_translution(x, p, lambda δ, f, g: torch.ones(δ.shape[:3], dtype=F64), value, weighting="sum")
    image = x.view(2, 4, 5, 3).permute(0, 3, 1, 2)
    assert_close(y, F.conv2d(image, kernel.permute(3, 2, 0, 1), padding=1).flatten(2).mT)


@given(SIZES, SIZES, st.floats(0.1, 3))
def test_gaussians_are_scikit_learns(m, k, width):
    delta, centres = torch.randn(7, m, dtype=F64), torch.randn(k, m, dtype=F64)
    oracle = rbf_kernel(delta.numpy(), centres.numpy(), gamma=1 / (2 * width**2))
    assert_close(gaussians(delta, centres, width), torch.from_numpy(oracle))


def test_narrow_bells_are_the_table():
    rel = offsets((3, 3))
    x, w = torch.randn(1, 9, 4, dtype=F64), torch.randn(3, rel.count, 4, 4, dtype=F64)
    delta, centres = differences(rel.positions.to(F64)[None]), torch.tensor(rel.labels, dtype=F64)
    errors = []
    for width in (0.5, 0.3, 0.2, 0.1):
        y = mixture_translution(x, gaussians(delta, centres, width), *w)
        errors.append(float((y - functional.translution(x, *w, rel)).abs().max()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-14


@given(mixtures(), st.integers(0, 2**16))
def test_a_mask_equals_leaving_points_out(arguments, seed):
    g = torch.Generator().manual_seed(seed)
    n = arguments["x"].shape[1]
    kept = torch.rand(n, generator=g) < 0.6
    kept[torch.randint(n, (1,), generator=g)] = True
    arguments["mask"] = kept.expand(len(arguments["x"]), -1)
    some = arguments | {"x": arguments["x"][:, kept], "phi": arguments["phi"][:, kept][:, :, kept], "mask": None}
    assert_close(mixture_translution(**arguments)[:, kept], mixture_translution(**some))


@pytest.mark.parametrize("weighting", ["softmax", "sigmoid", "sum"])
def test_weightings(weighting):
    a, mask = torch.randn(2, 3, 4, 4, dtype=F64), torch.ones(2, 4, dtype=torch.bool)
    mask[:, 3] = False
    alpha = weigh(a, mask, weighting)
    assert (alpha[..., 3] == 0).all()
    expected = {"softmax": a[..., :3].softmax(-1), "sigmoid": a[..., :3].sigmoid(), "sum": a[..., :3]}[weighting]
    assert_close(alpha[..., :3], expected)


def test_lattice():
    assert lattice([-1, 0], [1, 0], 3).tolist() == [[-1, 0], [0, 0], [1, 0]]
    assert lattice([0.0], [4.0], 1).tolist() == [[2.0]]
    assert lattice([0, 0, 0], [1, 1, 1], 4).shape == (64, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("relations", [offsets((2, 3)), offsets((2, 2), cls=True), offsets(5, causal=True),
                                       offsets((3, 3), window=1), offsets((3, 2), clip=1), offsets(1)], ids=repr)
def test_forward_equals_the_equations(kernel, relations):
    layer = GeneralTranslution(relations, 4, 2, kernel=kernel, head_dim=3).to(F64)
    x = torch.randn(2, relations.n, 4, dtype=F64, requires_grad=True)
    assert_forms_agree(layer, x)


@pytest.mark.parametrize("cls", [False, True])
def test_the_table_kernel_is_a_translution_layer(cls):
    rel = offsets((2, 3), cls=cls)
    layer, oracle = GeneralTranslution(rel, 4, 2, kernel="table").to(F64), Translution(rel, 4, 2).to(F64)
    oracle.load_state_dict(layer.state_dict())
    x = torch.randn(2, rel.n, 4, dtype=F64)
    assert torch.equal(layer(x), oracle(x))
    assert torch.equal(layer.functions(), torch.eye(rel.count, dtype=F64))


def test_one_function_is_self_attention():
    layer = GeneralTranslution(offsets((2, 3)), 4, 2, functions=1).to(F64)
    oracle = torch.nn.MultiheadAttention(4, 2, batch_first=True).to(F64)
    with torch.no_grad():
        oracle.in_proj_weight.copy_(torch.cat([layer.query[0], layer.key[0], layer.value[0]], dim=1).T)
        oracle.in_proj_bias.zero_()
        oracle.out_proj.load_state_dict(layer.output.state_dict())
    x = torch.randn(3, 6, 4, dtype=F64)
    assert_close(layer(x), oracle(x, x, x)[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_layer_on_a_grid_is_the_layer_on_points(kernel):
    rel = offsets((3, 4))
    layer = GeneralTranslution(rel, 4, 2, kernel=kernel).to(F64)
    points = PointTranslution(layer.basis or TableBasis(torch.tensor(rel.labels, dtype=F64)), 4, 2).to(F64)
    points.load_state_dict(layer.state_dict())
    x = torch.randn(2, 12, 4, dtype=F64)
    assert_close(points(x, rel.positions.to(F64).expand(2, -1, -1)), layer(x))


@given(st.integers(1, 3), st.integers(1, 6), st.sampled_from(["radial", "radius", "mlp"]), st.integers(0, 2**16))
def test_points_move_and_change_places_together(axes, n, kind, seed):
    torch.manual_seed(seed)
    centres = torch.randn(3, 1 if kind == "radius" else axes, dtype=F64)
    basis = MLPBasis(axes, 3, 5) if kind == "mlp" else RadialBasis(centres, 0.8, radius=kind == "radius")
    layer = PointTranslution(basis, 4, 2).to(F64)
    x, p = torch.randn(2, n, 4, dtype=F64), torch.randn(2, n, axes, dtype=F64)
    y, order = layer(x, p), torch.randperm(n)
    assert_close(layer(x, p + torch.randn(2, 1, axes, dtype=F64)), y)
    assert_close(layer(x[:, order], p[:, order]), y[:, order])
    if kind == "radius":
        turn = torch.linalg.qr(torch.randn(axes, axes, dtype=F64)).Q
        assert_close(layer(x, p @ turn), y)


def test_gradients():
    layer = PointTranslution(MLPBasis(2, 3, 4), 4, 2).to(F64)
    x, p = (torch.randn(1, 3, size, dtype=F64, requires_grad=True) for size in (4, 2))
    assert torch.autograd.gradcheck(layer, (x, p))


def test_a_model_takes_the_kernels_options():
    sizes = {"image_size": 6, "patch_size": 2, "channels": 1, "classes": 3, "dim": 4, "depth": 1, "heads": 2, "ff": 8}
    layer = GeneralTranslution(offsets((3, 3), cls=True), 4, 2, kernel="radial", centres=3, width=2.0)
    assert layer.basis.size == 9 and layer.basis.width == 2 and layer.query.shape == (12, 4, 4)
    assert "kernel" in repr(layer)
    with pytest.raises(ValueError, match="mixer"):
        ViT(**sizes, mixer="no such mixer", kernel="radial")


@pytest.mark.parametrize(("options", "message"), [
    ({"kernel": "spline"}, "kernel must be one of"), ({"functions": 0}, "functions"), ({"hidden": 1.5}, "hidden"),
    ({"kernel": "radial", "centres": 0}, "centres"), ({"kernel": "radial", "width": 0.0}, "width"),
])
def test_bad_options(plain_types, options, message):
    with pytest.raises(ValueError, match=message):
        GeneralTranslution(offsets((2, 2)), 4, 2, **options)


@pytest.mark.parametrize("relations", [pairs(4), shared(4)], ids=repr)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_table_without_offsets_is_refused(relations, kernel):
    with pytest.raises(ValueError, match="relations"):
        GeneralTranslution(relations, 4, 2, kernel=kernel)


def test_bad_input(plain_types):
    x, phi, w = torch.randn(2, 3, 4), torch.rand(1, 3, 3, 5), torch.randn(3, 5, 4, 4)
    nowhere, empty = torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)
    layer = PointTranslution(RadialBasis(torch.zeros(1, 2), 1.0), 4)
    cases = [
        ("phi", lambda: mixture_translution(x, phi[:, :2], *w)),
        ("w_q", lambda: mixture_translution(x, phi, *w[:, :4])),
        ("w_k", lambda: mixture_translution(x, phi, w[0], w[1, ..., :2], w[2])),
        ("heads", lambda: mixture_translution(x, phi, *w, heads=3)),
        ("mask must", lambda: mixture_translution(x, phi, *w, mask=nowhere)),
        ("mask leaves", lambda: mixture_translution(x, phi, *w, mask=empty)),
        ("weighting", lambda: weigh(torch.zeros(1, 1, 2, 2), None, "max")),
        ("positions", lambda: differences(torch.zeros(3, 2))), ("positions", lambda: layer(x, torch.zeros(2, 4, 2))),
        ("channels", lambda: layer(x[..., :3], torch.zeros(2, 3, 2))),
        ("positions", lambda: general_translution(x, torch.zeros(2, 4, 2), None, None)),
        ("centres", lambda: gaussians(torch.zeros(3, 2), torch.zeros(4, 3), 1.0)),
        ("width", lambda: gaussians(torch.zeros(3, 2), torch.zeros(4, 2), -1.0)),
        ("count", lambda: lattice([0.0], [1.0], 0)), ("centres", lambda: RadialBasis(torch.zeros(3), 1.0)),
        ("centres", lambda: RadialBasis(torch.zeros(3, 2), 1.0, radius=True)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()
