"""fvcore as the oracle of the printed counting rule, on layers written with broadcast products."""

import logging
import math

import pytest
import torch
from einops import rearrange

from translution_lib import Attention, LoRTranslution, Translution, ViT, cost, definition
from translution_lib.functional.translution import gather_weight

fvcore = pytest.importorskip("fvcore.nn")


class AllTokensNormalised(ViT):
    """The paper's model normalises every token before it reads the CLS token."""

    def forward(self, images):
        return self.head(self.norm(self.blocks(self.tokens(images)))[:, 0])


def attention(self, x):
    q, k, v = (rearrange(x @ w, "b n (h d) -> b h n d", h=self.heads) for w in self.matrices)
    alpha = (q @ k.mT / math.sqrt(self.head_dim)).softmax(-1)
    return rearrange(alpha @ v, "b h n d -> b n (h d)")


def low_rank(self, x):
    """Eq. (2) with x·W1 first, then a broadcast product with the gathered cores."""
    sides = (x[:, :, None, None], x[:, None, :, None], x[:, None, :, None])
    q, k, v = (rearrange((side @ low @ gather_weight(core, self.relations)).squeeze(-2), "b i j (h d) -> b h i j d",
                         h=self.heads) for side, low, core in zip(sides, self.low, self.cores, strict=True))
    wide = [rearrange(x @ w, "b n (h d) -> b h n d", h=self.heads) for w in self.shared]
    alpha = (((q * k).sum(-1) + wide[0] @ wide[1].mT) / math.sqrt(self.head_dim)).softmax(-1)
    small = rearrange((alpha[..., None] * v).sum(3), "b h i d -> b i (h d)") @ self.up
    return rearrange(alpha @ wide[2], "b h n d -> b n (h d)") + small


def pair_products(self, x):
    """Eq. (1) with the dot products and the weighted sums of every pair written as matrix products."""
    sides = (x[:, :, None, None], x[:, None, :, None], x[:, None, :, None])
    vectors = [(side @ gather_weight(w, self.relations)).squeeze(-2)
               for side, w in zip(sides, self.matrices, strict=True)]
    q, k, v = (rearrange(y, "b i j (h d) -> b h i j d", h=self.heads) for y in vectors)
    alpha = ((q[..., None, :] @ k[..., None]).flatten(-3) / math.sqrt(self.head_dim)).softmax(-1)
    return rearrange((alpha[..., None, :] @ v).squeeze(-2), "b h i d -> b i (h d)")


def count(model: ViT) -> int:
    c = model.config
    logging.getLogger("fvcore").setLevel(logging.ERROR)
    images = torch.zeros(1, c.channels, c.image_size, c.image_size)
    analysis = fvcore.FlopCountAnalysis(model, images).unsupported_ops_warnings(False)
    return int(analysis.uncalled_modules_warnings(False).total())


def small(mixer: str, **options) -> ViT:
    return AllTokensNormalised(6, 2, 2, 5, dim=8, depth=2, heads=2, ff=12, mixer=mixer, **options)


@pytest.fixture(autouse=True)
def written_out(monkeypatch, plain_types):
    """Tracing turns sizes into tensors, which enforced annotations refuse."""
    monkeypatch.setattr(Attention, "mix", attention)
    monkeypatch.setattr(LoRTranslution, "mix", low_rank)


@pytest.mark.parametrize("mixer,printed", [("absolute", 75_860_928), ("lor-translution", 77_917_248)])
def test_printed_cells_of_vit_a_56(mixer, printed):
    model = AllTokensNormalised.named("A/56", mixer=mixer)
    assert count(model) == cost.macs_as_printed(model) == printed


@pytest.mark.parametrize("mixer,options", [("absolute", {}), ("lor-translution", {"relative_dim": (2, 3)}),
                                           ("lor-translution", {"relative_dim": 1})])
def test_rule_on_small_models(mixer, options):
    model = small(mixer, **options)
    assert count(model) == cost.macs_as_printed(model)


def test_translution_is_counted_even_below_the_printed_rule():
    """fvcore misses the elementwise q·k and α·v as well: 2·n²·C′ per layer; the printed cells are self-attention's."""
    model = AllTokensNormalised.named("A/56", mixer="translution")
    with definition():
        counted = count(model)
    assert counted == 75_195_072 == cost.macs_as_printed(model) - 6 * 2 * 17 ** 2 * 192


def test_translution_with_its_dot_products_as_matrix_products_gives_the_printed_number(monkeypatch):
    model, x = small("translution"), torch.randn(1, 10, 8)
    expected = model.blocks[0].mixer(x)
    monkeypatch.setattr(Translution, "mix", pair_products)
    torch.testing.assert_close(model.blocks[0].mixer(x), expected)
    assert count(model) == cost.macs_as_printed(model)


def test_the_library_model_differs_by_one_norm():
    model = ViT(6, 2, 2, 5, dim=8, depth=2, heads=2, ff=12, mixer="absolute")
    assert count(model) == cost.macs_as_printed(model) - 5 * 9 * 8


def test_broadcasting_is_ignored():
    class Product(torch.nn.Module):
        def forward(self, x, w):
            return x @ w

    n, c, e = 5, 3, 4
    inputs = torch.zeros(1, n, 1, 1, c), torch.zeros(n, n, c, e)
    assert Product()(*inputs).shape == (1, n, n, 1, e)
    assert fvcore.FlopCountAnalysis(Product(), inputs).total() == n * c * e
    assert cost.count_macs(Split(Product(), inputs[1]), inputs[0]) == n * n * c * e


class Split(torch.nn.Module):
    """Bind the second factor, so that a product is a module of one input."""

    def __init__(self, product, w):
        super().__init__()
        self.product, self.w = product, w

    def forward(self, x):
        return self.product(x, self.w)
