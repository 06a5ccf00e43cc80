"""Random small models and layers that the cost tests share."""

import torch
from hypothesis import strategies as st

from tests.unit.strategies import ANY_TABLE
from translution_lib import GPT, MIXERS, ViT
from translution_lib.models.blocks import options_of, plain_names

ATTENTION = sorted(set(MIXERS) - {"convolution"})


def widths(names) -> st.SearchStrategy[int]:
    """Draw channels of a head; a rotation on a grid turns two pairs of them at least."""
    turning = any("rotary" in name or name == "riemann" for name in names)
    return st.sampled_from([4, 8] if turning else [1, 2, 3, 4])


def head_counts(names) -> st.SearchStrategy[int]:
    """Draw a number of heads, even where half of them read distances."""
    return st.sampled_from([2, 4]) if "performer-s2" in names else st.integers(1, 3)


@st.composite
def options(draw, names=tuple(ATTENTION)) -> dict:
    """Draw the options of these mixers that change a cost."""
    low, core = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rank = draw(st.sampled_from([low, (low, core)]))
    drawn = {"relative": draw(st.sampled_from(["", "q", "k", "v", "qk", "kv", "qv", "qkv"])), "relative_dim": rank,
             "shared": draw(st.booleans()), "core": "diagonal" if rank == low else "dense",
             "head_dim": draw(widths(names)),
             "clip": draw(st.sampled_from([1, 2, 9] if "performer-s2" in names else [None, 0, 1])),
             "per_head": draw(st.booleans()),
             "bias": draw(st.sampled_from(["table", "alibi"])),
             "form": draw(st.sampled_from(["inner", "covector"] if "riemann" in names else ["printed", "original"])),
             "features": draw(st.sampled_from(["positive", "trigonometric"])), "length_scales": draw(st.integers(1, 3)),
             "num_features": draw(st.none() | st.integers(1, 9)),
             "transport": draw(st.sampled_from(["rotation", "reflection", "blocks4", "skew"])),
             "metric": draw(st.sampled_from([None, "scalar", "pairs", "diagonal", "general"])),
             "focus": draw(st.sampled_from([None, "before", "after"])), "alpha": draw(st.sampled_from([None, 0.1])),
             "variant": draw(st.sampled_from(["printed", "released"])),
             "angles": draw(st.sampled_from(["fixed", "learned"])), "functions": draw(st.integers(1, 3)),
             "cls_token": draw(st.sampled_from(["free", "origin"])), "hidden": draw(st.integers(1, 3)),
             "kernel": draw(st.sampled_from(["mlp", "radial", "axes", "table"])), "centres": draw(st.integers(1, 3))}
    if drawn["shared"] and drawn["relative"] != "qkv" and "general-translution" not in names:
        drawn["qkv_bias"] = draw(st.booleans())
    known = {key for name in names for key in options_of(name)}
    return {key: value for key, value in drawn.items() if key in known}


@st.composite
def models(draw, kinds=("vit", "gpt")) -> torch.nn.Module:
    """Draw a small ViT or GPT on the meta device, hybrid stacks and every option included."""
    depth = draw(st.integers(1, 3))
    stacks = st.lists(st.sampled_from(ATTENTION), min_size=depth, max_size=depth)
    names = tuple(draw(stacks))
    heads = draw(head_counts(names))
    known = {name: draw(options([name])) for name in dict.fromkeys(plain_names(names))}
    common = {"dim": heads * draw(widths(names)), "depth": depth, "heads": heads, "ff": draw(st.integers(1, 9)),
              "mixer": names, "absolute": draw(st.sampled_from([None, True, False])),
              "options": known}
    with torch.device("meta"):
        if draw(st.sampled_from(kinds)) == "gpt":
            return GPT(draw(st.integers(1, 9)), draw(st.integers(1, 7)), **common)
        patch, grid = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        encodings = ["relative", "pairs"] if ANY_TABLE.issuperset(names) else ["relative"]
        return ViT(patch * grid, patch, draw(st.integers(1, 3)), draw(st.integers(1, 5)), **common,
                   pool=draw(st.sampled_from(["cls", "mean"])), encoding=draw(st.sampled_from(encodings)))
