"""The parameter and FLOPs cells of the Translution paper that its own formulas and counting rule do not give.

One list, which the tests and the chapter "What it costs" both read. A cell that is not here is reproduced to the last
printed digit.
"""

from dataclasses import dataclass

KINDS = {
    "digit": "a wrong digit",
    "truncated": "cut off instead of rounded",
    "rounding": "last digit off by one",
    "inconsistent": "two tables disagree",
    "unit": "wrong unit",
    "unexplained": "no reading gives it",
}


@dataclass(frozen=True)
class Erratum:
    """A wrong cell: its kind (a key of ``KINDS``), the number it should show, in M, and a sentence on it.

    ``should`` is None where the paper does not say enough to compute the number.
    """

    kind: str
    should: str | None
    remark: str


_CUT = Erratum("truncated", "2030", "2.0297 G is cut off; the other models of the table are rounded")
_BASELINES = ("self-attention, no position", "self-attention, absolute position", "relative key vector",
              "relative value vector", "relative scalar bias (Swin)", "rotary (RoFormer)", "translution")

ERRATA: dict[tuple[int, str, str, str, str], Erratum] = {
    (3, "ViT-B/32", "translution", "", "parameters"): Erratum("digit", "233.1", "223.1 is printed for 233.1"),
    (3, "ViT-C/16", "lor-translution", "r=8", "parameters"): Erratum(
        "unexplained", "83.6", "the formula that gives every other LoR cell gives 83.6"),
    (3, "ViT-C/56", "lor-translution", "r=8", "flops"): Erratum("rounding", "439.9", "439.87 rounds to 439.9"),
    (4, "ViT-A/56", "gated scalar bias (ConViT)", "", "flops"): Erratum(
        "unexplained", None, "0.18 M more than self-attention for work that the paper does not specify"),
    (5, "ViT-A/12", "lor-translution", "relative", "flops"): Erratum(
        "inconsistent", "146.6", "Table 2 prints 146.6 for the same model"),
    (5, "ViT-A/12", "lor-translution", "absolute", "flops"): Erratum(
        "inconsistent", "146.6", "Table 2 prints 146.6, and the rule is blind to the encoding"),
    (6, "ViT-A/56", "lor-translution", "r=16", "parameters"): Erratum(
        "truncated", "7.1", "7.06 is cut off; Table 11 prints 7.06"),
    (7, "GPT-C-160", "self-attention", "", "parameters"): Erratum("rounding", "59.9", "59.94 rounds to 59.9"),
    (7, "GPT-A-160", "self-attention", "", "flops"): _CUT,
    (7, "GPT-A-160", "translution", "", "flops"): _CUT,
    **{(8, "GPT-A-160", method, "", "flops"): _CUT for method in _BASELINES},
    (8, "GPT-A-160", "gated scalar bias (ConViT)", "", "flops"): Erratum(
        "unexplained", None, "2 to 3 M more than self-attention for work that the paper does not specify"),
    (8, "GPT-A-160", "translution", "", "parameters"): Erratum("unit", "127.5", "printed as 127.5 G"),
    (10, "ViT-A/12", "lor-translution", "without embedding", "flops"): Erratum(
        "inconsistent", "146.6", "Table 2 prints 146.6 for the same model"),
    (11, "ViT-A/56", "lor-translution", "r=0 with shared Wq Wk Wv", "parameters"): Erratum(
        "truncated", "4.69", "4.685 is cut off; Table 4 prints 4.69"),
    (11, "ViT-A/56", "lor-translution", "r=4 with shared Wq Wk Wv", "parameters"): Erratum(
        "rounding", "4.88", "4.875 rounds to 4.88"),
}
"""By table, subject, method, variant and metric."""
