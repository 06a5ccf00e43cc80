"""The models: sizes of Table 1, shapes, hybrids, prefixes, the meta device, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translution_lib import GPT, MIXERS, Attention, Translution, ViT, backend, cost, offsets
from translution_lib.models.blocks import without_numbers

SMALL = {"image_size": 6, "patch_size": 3, "channels": 2, "classes": 5, "dim": 8, "depth": 2, "heads": 2, "ff": 12}
TEXT = {"vocabulary": 11, "context": 6, "dim": 8, "depth": 2, "heads": 2, "ff": 12}


@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {"convolution"}))
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit_runs_and_learns_from_every_parameter(mixer, pool):
    model = ViT(**SMALL, mixer=mixer, pool=pool)
    images = torch.randn(3, 2, 6, 6)
    logits = model(images)
    assert logits.shape == (3, 5)
    with backend("definition"):
        torch.testing.assert_close(model(images), logits, rtol=1e-4, atol=1e-5)
    torch.nn.functional.cross_entropy(logits, torch.arange(3)).backward()
    assert all(p.grad is not None for p in model.parameters())
    idle = {name for name, p in model.named_parameters() if not p.grad.abs().sum() > 0}
    # Of the last layer only CLS is read, whose pairs have no offset: a table of offsets learns nothing there.
    assert idle <= (positional(model) if pool == "cls" else set())


def positional(model):
    """Return the names of the last layer's parameters that are neither matrices of all pairs nor its output map."""
    names = [name for name, _ in model.named_parameters() if name.startswith("blocks.1.mixer.")]
    return {name for name in names if name.split(".")[3] not in ("query", "key", "value", "output")}


@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {"convolution"}))
def test_gpt_runs_is_causal_and_reads_prefixes(mixer):
    model = GPT(**TEXT, mixer=mixer).double()
    tokens = torch.randint(11, (2, 6))
    logits = model(tokens)
    assert logits.shape == (2, 6, 11)
    torch.testing.assert_close(model(tokens[:, :4]), logits[:, :4])
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    torch.testing.assert_close(model(changed)[:, :4], logits[:, :4])
    assert not torch.allclose(model(changed)[:, 4], logits[:, 4])


@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {"convolution"}))
@pytest.mark.parametrize("make, sizes", [(ViT, SMALL), (GPT, TEXT)])
def test_a_model_without_numbers_has_the_same_sizes_and_draws_nothing(make, sizes, mixer):
    made, before = make(**sizes, mixer=mixer), torch.get_rng_state()
    with without_numbers():
        empty = make(**sizes, mixer=mixer)
    assert torch.equal(torch.get_rng_state(), before)
    told = [{name: (p.shape, p.dtype, p.requires_grad)
             for name, p in (*model.named_parameters(), *model.named_buffers())} for model in (made, empty)]
    assert told[0] == told[1] and all(p.is_meta for p in empty.parameters())


def test_numbers_on_other_devices_are_drawn_and_scaled_without_numbers_too():
    with without_numbers():
        kept = torch.full((3,), 2.0, device="cpu")
        assert (0.5 * kept).tolist() == [1.0] * 3 and kept.zero_().tolist() == [0.0] * 3
        drawn = torch.randn(3, device="cpu", generator=torch.Generator().manual_seed(0))
        counts = torch.ones(3, dtype=torch.long)
        assert (0.5 * counts).dtype == torch.float32 and torch.randn(2, 3).is_meta
    assert torch.equal(drawn, torch.randn(3, generator=torch.Generator().manual_seed(0)))


def test_convolution_models():
    conv = {"mixer": "convolution", "heads": 1, "kernel_size": 3}
    assert ViT(**{**SMALL, **conv}, pool="mean")(torch.randn(1, 2, 6, 6)).shape == (1, 5)
    model = GPT(**{**TEXT, **conv}).double()
    tokens = torch.randint(11, (1, 6))
    torch.testing.assert_close(model(tokens[:, :3]), model(tokens)[:, :3])


def test_hybrid_stack():
    model = ViT(**SMALL, mixer=("translution", "self-attention"), relative="v")
    assert [type(b.mixer) for b in model.blocks] == [Translution, Attention]
    assert model.blocks[0].mixer.relative == "v" and model.config.mixer == ("translution", "self-attention")
    assert model(torch.randn(1, 2, 6, 6)).shape == (1, 5)


def test_patches_keep_their_pixels():
    """Token (y, x) reads the pixels of patch (y, x), in row-major order."""
    model = ViT(**SMALL)
    pixels = []
    model.patches.register_forward_pre_hook(lambda _, args: pixels.append(args[0]))
    images = torch.arange(72.0).view(1, 2, 6, 6)
    model(images)
    patch = images[0, :, 3:6, 0:3]
    torch.testing.assert_close(pixels[0][0, 2], patch.permute(1, 2, 0).flatten())


@given(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(1, 3), st.integers(1, 3)),
       st.sampled_from(["cls", "mean"]), st.sampled_from(["learned", "sinusoidal"]))
def test_sides_may_be_pairs(patch, cells, pool, embedding):
    """Rows first: the tokens of an image are those that torch's own convolution over patches sees, cell by cell."""
    image = [p * c for p, c in zip(patch, cells, strict=True)]
    model = ViT(image, patch, 2, 5, 8, 1, 2, 12, pool=pool, absolute=True, embedding=embedding)
    table = offsets(cells, cls=pool == "cls")
    assert torch.equal(model.relations.index, table.index) and model.relations.shape == cells == model.config.grid
    assert model.config.tokens == table.n and model.config.image_size == tuple(image)
    assert cost.parameters(model) == cost.parameters(model.config) == cost.count_parameters(model)
    images = torch.randn(2, 2, *image)
    unfolded = torch.nn.functional.unfold(images, patch, stride=patch)          # b (ch u v) n
    pixels = unfolded.unflatten(1, (2, *patch)).permute(0, 4, 2, 3, 1).flatten(2)
    expected = model.patches(pixels) + model.position[int(pool == "cls"):]
    torch.testing.assert_close(model.tokens(images)[:, int(pool == "cls"):], expected)
    assert model(images).shape == (2, 5)


def test_a_square_is_a_pair_of_equal_sides():
    assert ViT.named("A/28x28", image_size=(56, 56), classes=3).config.grid == ViT.named(
        "A/28", image_size=56, classes=3).config.grid == (2, 2)
    a, b = ViT(**SMALL), ViT(**{**SMALL, "image_size": (6, 6), "patch_size": (3, 3)})
    b.load_state_dict(a.state_dict())
    images = torch.randn(1, 2, 6, 6)
    assert torch.equal(a(images), b(images)) and a.config.image_size == 6


@given(st.sampled_from("ABC"), st.sampled_from([56, 32, 16]), st.sampled_from(["absolute", "translution"]))
def test_named_architectures_build_on_meta(letter, patch, mixer):
    with torch.device("meta"):
        model = ViT.named(f"{letter}/{patch}", mixer=mixer)
    assert model.relations.n == (224 // patch) ** 2 + 1
    assert all(p.is_meta for p in model.parameters())
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000) if patch == 56 else True


def test_absolute_embedding_is_added_once():
    model = ViT(**SMALL, mixer="absolute")
    assert model.position.shape == (5, 8) and not any(hasattr(b.mixer, "position") for b in model.blocks)
    assert ViT(**SMALL, mixer="self-attention").position is None
    assert ViT(**SMALL, mixer="translution", absolute=True).position is not None
    assert GPT(**TEXT, mixer="absolute").position.shape == (6, 8)


@pytest.mark.skipif("absolute-translution" not in MIXERS, reason="not registered")
def test_translution_with_an_absolute_embedding_adds_it_once():
    model = ViT(**SMALL, mixer="absolute-translution")
    assert model.position.shape == (5, 8) and all(type(b.mixer) is Translution for b in model.blocks)
    same = ViT(**SMALL, mixer="translution", absolute=True)
    same.load_state_dict(model.state_dict())
    images = torch.randn(1, 2, 6, 6)
    assert torch.equal(model(images), same(images))
    assert GPT(**TEXT, mixer="absolute-translution").position.shape == (6, 8)


@pytest.mark.parametrize("make", [lambda **o: GPT(**{**TEXT, "depth": 3}, **o),
                                  lambda **o: ViT(**{**SMALL, "depth": 3}, **o)])
def test_layers_of_a_hybrid_stack_have_options_of_their_own(make):
    """Two layers know ``form``; an option that both know alike may stand for all of them."""
    model = make(mixer=["riemann", "gated-bias", "absolute"], dropout=0.5,
                 options={"riemann": {"form": "covector"}, "gated-bias": {"form": "printed"}})
    first, second, third = (block.mixer for block in model.blocks)
    assert (first.form, second.form) == ("covector", "printed")
    assert {layer.dropout for layer in (first, second, third)} == {0.5}
    assert model.config.options["riemann"] == {"form": "covector"}
    assert cost.parameters(model) == cost.parameters(model.config) == cost.count_parameters(model)
    again = make(mixer=model.config.mixer, **model.config.options)
    assert again.config == model.config


def test_pairs_encoding_has_one_matrix_per_pair():
    assert ViT(**SMALL, encoding="pairs").blocks[0].mixer.query.shape[0] == 25


def test_placed_encoding_has_a_matrix_for_every_pair_with_cls():
    assert ViT(**SMALL, encoding="placed").blocks[0].mixer.query.shape[0] == 9 + 1 + 2 * 4


def test_state_dict_round_trip(tmp_path):
    a, b = ViT(**SMALL), ViT(**SMALL)
    torch.save(a.state_dict(), tmp_path / "m.pt")
    b.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    images = torch.randn(1, 2, 6, 6)
    assert torch.equal(a(images), b(images))


@pytest.mark.parametrize(("call", "word"), [
    (lambda: ViT(**{**SMALL, "patch_size": 4}), "patch_size"),
    (lambda: ViT(**{**SMALL, "patch_size": (3, 4)}), "patch_size"),
    (lambda: ViT(**{**SMALL, "image_size": (6, 6, 6)}), "image_size"), (lambda: ViT.named("A/3xb"), "name"),
    (lambda: ViT(**{**SMALL, "image_size": (6, 0)}), "image_size"), (lambda: ViT.named("A/3x3x3"), "name"),
    (lambda: ViT(**{**SMALL, "image_size": "66"}), "image_size"), (lambda: ViT(**SMALL, bucket_distance=3), "bucket_d"),
    (lambda: ViT(**{**SMALL, "depth": 0}), "depth"),
    (lambda: ViT(**{**SMALL, "ff": 0}), "ff"), (lambda: ViT(**SMALL, pool="max"), "pool"),
    (lambda: ViT(**SMALL, encoding="x"), "encoding"), (lambda: ViT(**SMALL, encoding="placed", pool="mean"), "pool"),
    (lambda: ViT(**SMALL, mixer="x"), "mixer"),
    (lambda: ViT(**SMALL, mixer=("translution",)), "mixer"), (lambda: ViT(**SMALL, kernel_size=3), "kernel_size"),
    (lambda: ViT(**SMALL, mixer="value-translution", relative="v"), "relative"),
    (lambda: ViT.named("D/12"), "name"), (lambda: ViT.named("A"), "name"), (lambda: GPT.named("Z"), "name"),
    (lambda: ViT(**SMALL)(torch.zeros(1, 3, 6, 6)), "images"), (lambda: ViT(**SMALL)(torch.zeros(2, 6, 6)), "images"),
    (lambda: GPT(**TEXT, mixer=["rotary", "riemann"], angles="learned"), "angles is an option of riemann and"),
    (lambda: GPT(**TEXT, mixer="riemann", options={"rotary": {}}), "options must be those of riemann, got"),
    (lambda: GPT(**TEXT, mixer="riemann", options={"riemann": {"layout": "half"}}), "layout is not an option"),
    (lambda: GPT(**TEXT, mixer="riemann", options={"form": "inner"}), "options must give each mixer its own"),
    (lambda: GPT(**TEXT)(torch.zeros(1, 7, dtype=torch.long)), "tokens"),
    (lambda: GPT(**{**TEXT, "context": 0}), "context"), (lambda: GPT(**TEXT, absolut=True), "absolut"),
])
def test_bad_input_is_named(plain_types, call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_a_model_with_one_token_a_pixel_sees_the_image():
    """The norm of a single number would be zero whatever the pixel."""
    model = ViT(4, 1, 1, 3, 8, 1, 2, 8, "self-attention")
    black, white = model.tokens(torch.zeros(1, 1, 4, 4))[0, 1], model.tokens(torch.ones(1, 1, 4, 4))[0, 1]
    assert (black - white).abs().max() > 0.1
    assert cost.parameters(model) == cost.count_parameters(model)
    assert isinstance(ViT(4, 1, 3, 3, 8, 1, 2, 8, "self-attention").patches[0], torch.nn.LayerNorm)
