"""Random small models and layers that the cost tests share."""

import torch
from hypothesis import strategies as st

from translution_lib import GPT, MIXERS, ViT

ATTENTION = sorted(set(MIXERS) - {"convolution"})


@st.composite
def options(draw) -> dict:
    """Draw every option of the mixers that changes a cost."""
    low, core = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rank = draw(st.sampled_from([low, (low, core)]))
    return {"relative": draw(st.sampled_from(["", "q", "k", "v", "qk", "kv", "qv", "qkv"])), "relative_dim": rank,
            "shared": draw(st.booleans()), "head_dim": draw(st.integers(1, 4))}


@st.composite
def models(draw, kinds=("vit", "gpt")) -> torch.nn.Module:
    """Draw a small ViT or GPT on the meta device, hybrid stacks and every option included."""
    heads, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    names = tuple(draw(st.lists(st.sampled_from(ATTENTION), min_size=depth, max_size=depth)))
    known = draw(options())
    if "translution" not in names:
        known.pop("relative")
    if "lor-translution" not in names:
        known.pop("relative_dim"), known.pop("shared")
    common = {"dim": heads * draw(st.integers(1, 4)), "depth": depth, "heads": heads, "ff": draw(st.integers(1, 9)),
              "mixer": names, "absolute": draw(st.sampled_from([None, True, False])), **known}
    with torch.device("meta"):
        if draw(st.sampled_from(kinds)) == "gpt":
            return GPT(draw(st.integers(1, 9)), draw(st.integers(1, 7)), **common)
        patch, grid = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return ViT(patch * grid, patch, draw(st.integers(1, 3)), draw(st.integers(1, 5)), **common,
                   pool=draw(st.sampled_from(["cls", "mean"])), encoding=draw(st.sampled_from(["relative", "pairs"])))
