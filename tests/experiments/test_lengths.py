"""Texts longer than the context: prefixes, rules against windows by hand, and which encodings know no bounds."""

import pytest
import torch
from translution_runs.lengths import Bounded, how, lengthened

from translution_lib import MIXERS
from translution_lib.models import GPT

L = 6
NATIVE = {"self-attention", "gated-bias", "rotary", "convolution", "general-translution", "performer",
          "performer-no-position", "performer-s1", "performer-s2", "riemann"}
PLACES = {"absolute", "absolute-translution", "performer-absolute"}
LINEAR = {"performer", "performer-no-position", "performer-s1", "performer-s2"}


def model(mixer, depth=1, **options):
    torch.manual_seed(3)
    made = GPT(7, L, 8, depth, 1 if mixer == "convolution" else 2, 8, mixer=mixer, **options)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if any(kind in name for kind in ("bias", "vector", "table")):
                parameter.normal_()  # far from zero, so that a wrong offset shows
    return made.double().eval()


def tokens(length=2 * L):
    return torch.randint(7, (3, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@torch.no_grad()
def test_what_lies_within_the_context_stays_as_it_is(mixer):
    made, x = model(mixer), tokens()
    assert lengthened(made, L) is made
    read = []
    for rule in ("", "clip", "window"):
        try:
            longer = lengthened(made, 2 * L, rule)
        except Bounded:
            continue
        torch.testing.assert_close(longer(x)[:, :L], made(x[:, :L]))
        read.append(how(made, 2 * L, rule))
    if mixer in PLACES:
        assert read == []
    elif mixer in NATIVE:
        assert read == (["native"] if mixer in LINEAR else ["native", "window"])
    else:
        assert read == ["clip", "window"]


@pytest.mark.parametrize("mixer", ["translution", "lor-translution", "scalar-bias", "key-value-vector", "rotary",
                                   "rotary-translution", "value-translution"])
@torch.no_grad()
def test_a_window_is_the_model_on_the_last_tokens(mixer):
    """One layer: what a token reads is the model's answer to the tokens before it, as many as the context has."""
    made, x = model(mixer), tokens()
    long = lengthened(made, 2 * L, "window")(x)
    for place in range(L, 2 * L):
        torch.testing.assert_close(long[:, place], made(x[:, place - L + 1:place + 1])[:, -1])


@torch.no_grad()
def test_clipped_offsets_are_the_last_known_one():
    """The scores of a scalar bias, by hand: q·k / √d + b[min(δ, L − 1)]."""
    made = model("scalar-bias")
    layer, longer = made.blocks[0].mixer, lengthened(made, 2 * L, "clip").blocks[0].mixer
    x = torch.randn(1, 2 * L, 8, dtype=torch.float64)
    q, k = (torch.stack((x[0] @ w).split(4, -1)) for w in layer.matrices[:2])
    delta = (torch.arange(2 * L)[:, None] - torch.arange(2 * L)).clamp(0, L - 1)
    by_hand = q @ k.mT / 2 + layer.table[:, delta]
    mask = torch.ones(2 * L, 2 * L, dtype=torch.bool).tril()
    torch.testing.assert_close(longer.scores(x)[0][:, mask], by_hand[:, mask])
    table = lengthened(model("translution"), 2 * L, "clip").relations
    assert torch.equal(table.index[mask], delta[mask]) and table.count == L


@torch.no_grad()
def test_slopes_and_buckets_need_no_rule():
    x = tokens()
    for bias in ("alibi", "t5"):
        made = model("scalar-bias", bias=bias)
        assert how(made, 2 * L) == "native"
        fresh = GPT(7, 2 * L, 8, 1, 2, 8, mixer="scalar-bias", bias=bias).double()
        fresh.load_state_dict(made.state_dict())
        torch.testing.assert_close(lengthened(made, 2 * L)(x), fresh(x))


@torch.no_grad()
def test_a_model_that_shares_offsets_in_training_reads_any_length():
    made = model("translution", reach=3)
    assert made.relations.count == 3 and how(made, 2 * L) == "native"
    assert lengthened(made, 2 * L)(tokens()).shape == (3, 2 * L, 7)


@pytest.mark.parametrize("rule", ["clip", "window"])
@pytest.mark.parametrize("own", [{"reach": 3}, {"reach": 3, "beyond": "window"}, {"bucket_offsets": 4}])
def test_a_rule_of_the_models_own_is_the_only_one(own, rule):
    with pytest.raises(Bounded, match="rule of the model's own"):
        lengthened(model("translution", **own), 2 * L, rule)


def test_the_random_stream_and_the_mode_stay_as_they_were():
    made = model("translution").train()
    before = torch.random.get_rng_state()
    assert lengthened(made, 2 * L, "clip").training and torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("mixer", "rule", "message"), [
    ("absolute", "", "embedding of 6 places"), ("absolute", "clip", "embedding of 6 places"),
    ("translution", "", "parameters for 6 offsets"), ("rotary", "clip", "nothing to clip"),
    ("performer", "window", "no window: relations must allow all pairs"),
])
def test_what_cannot_be_read_is_refused_with_the_reason(mixer, rule, message):
    with pytest.raises(Bounded, match=message):
        lengthened(model(mixer), 2 * L, rule)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"reach": 0}, "reach"), ({"reach": 3, "beyond": "stretch"}, "beyond must be one of .*'clip', 'window'")])
def test_a_wrong_rule_is_refused(arguments, message):
    with pytest.raises(ValueError, match="rule: got 'stretch', expected nothing, or one of clip, window"):
        how(model("rotary"), 2 * L, "stretch")
    with pytest.raises(ValueError, match=message):
        GPT(7, L, 8, 1, 2, 8, **arguments)
