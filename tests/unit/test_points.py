"""The classifier of point clouds: what its logits may depend on, its mask, its training, its errors."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from translution_runs.data.shapes import sample_shapes

from tests.unit.strategies import F64
from translution_lib.models.points import PointTransformer


def build(**options):
    return PointTransformer(3, dim=4, depth=2, heads=2, ff=8, **options).to(F64)


@given(st.integers(1, 3), st.integers(1, 6), st.sampled_from(["radial", "mlp"]), st.integers(0, 2**16))
def test_logits_depend_on_differences_of_positions_alone(axes, n, kernel, seed):
    torch.manual_seed(seed)
    model = build(axes=axes, kernel=kernel, centres=3)
    p, order = torch.randn(2, n, axes, dtype=F64), torch.randperm(n)
    y = model(p)
    assert y.shape == (2, 3)
    assert_close(model(p + 10 * torch.randn(2, 1, axes, dtype=F64)), y)
    assert_close(model(p[:, order]), y)
    assert_close(model.points(p[:, order]), model.points(p)[:, order])


def test_coordinates_themselves_are_not_invariant():
    model, p = build(kernel="none", absolute=True), torch.randn(2, 5, 2, dtype=F64)
    assert (model(p + 1) - model(p)).abs().max() > 1e-3


def test_without_kernel_and_coordinates_all_clouds_look_alike():
    model = build(kernel="none")
    y = model(torch.randn(4, 5, 2, dtype=F64))
    assert_close(y, y[:1].expand(4, -1))


@pytest.mark.parametrize("kernel", ["radial", "mlp", "none"])
def test_a_mask_equals_leaving_points_out(kernel):
    model = build(kernel=kernel, features=2, absolute=kernel == "none")
    p, f = torch.randn(2, 6, 2, dtype=F64), torch.randn(2, 6, 2, dtype=F64)
    mask = torch.tensor([True, False, True, True, False, True]).expand(2, -1)
    assert_close(model(p, f, mask), model(p[:, mask[0]], f[:, mask[0]]))


def test_training_lowers_the_loss_and_reaches_every_parameter():
    torch.manual_seed(0)
    model, losses = PointTransformer(2, 8, 1, 1, 16, centres=3), []
    clouds = sample_shapes(16, 12, names=("circle", "cross"), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        loss = F.cross_entropy(model(clouds.positions), clouds.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_configuration():
    model = build(kernel="mlp", functions=5)
    again = PointTransformer(**vars(model.config))
    again.load_state_dict(model.float().state_dict())
    p = torch.randn(1, 4, 2)
    assert_close(again(p), model(p))


@pytest.mark.parametrize(("options", "message"), [
    ({"kernel": "table"}, "kernel"), ({"axes": 0}, "axes"), ({"features": -1}, "features"), ({"reach": 0.0}, "reach"),
    ({"absolute": 1}, "absolute"), ({"centres": 0}, "centres"),
])
def test_bad_options(plain_types, options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_bad_input(plain_types):
    model, p = build(), torch.randn(2, 5, 2, dtype=F64)
    with pytest.raises(ValueError, match="positions"):
        model(p[..., :1])
    with pytest.raises(ValueError, match="features"):
        model(p, p)
    with pytest.raises(ValueError, match="mask must"):
        model(p, None, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask leaves"):
        model(p, None, torch.zeros(2, 5, dtype=torch.bool))
