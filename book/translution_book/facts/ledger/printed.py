"""Statements of the texts about their own tables: a sentence that its own table denies needs no run.

Each statement says in its first line what it looks for. A statement that holds says nothing about other runs.
"""

from collections.abc import Callable
from decimal import Decimal
from functools import partial

from translution_runs.printed import cells

from translution_book.facts.claims import CLAIMS

ATTENTION, LOW, FULL = "self-attention", "lor-translution", "translution"
STATEMENTS: dict[str, Callable[[], bool]] = {}
"""By name. The six differences of Horn et al. (2021) are here too, under their own words."""


def statement(function: Callable[[], bool]) -> Callable[[], bool]:
    """Register a function under its own name."""
    STATEMENTS[function.__name__] = function
    return function


def says(name: str) -> str:
    """Return what a statement looks for."""
    differences = {claim.statement: claim for claim in CLAIMS}
    if name in differences:
        outside = differences[name].outside.values()
        return f"{name}; differences outside: " + (", ".join(f"{d:+.2f}" for d in outside) or "none")
    return (STATEMENTS[name].__doc__ or name).strip().splitlines()[0]


def _table(table: int, metric: str, paper: str = "translution") -> dict[str, dict[str, Decimal]]:
    """By architecture or data set, then by method and variant, the printed numbers."""
    found: dict[str, dict[str, Decimal]] = {}
    for cell in cells(paper, table, metric):
        name = f"{cell.method}, {cell.variant}" if cell.variant else cell.method
        found.setdefault(cell.subject, {})[name] = Decimal(cell.printed)
    return found


def _methods(table: int, metric: str) -> list[dict[str, Decimal]]:
    """The rows of one table by the method alone."""
    return [{name.split(", r=")[0]: value for name, value in rows.items()} for rows in _table(table, metric).values()]


def _rising(values: list[Decimal]) -> bool:
    return all(a < b for a, b in zip(values, values[1:], strict=False))


@statement
def attention_lor_translution_on_imagenet() -> bool:
    """Table 3: self-attention, LoR-Translution, Translution, in this order, in every architecture that has them."""
    rows = [r for metric in ("top1", "top5") for r in _methods(3, metric)]
    return all(_rising([r[m] for m in (ATTENTION, LOW, FULL) if m in r]) for r in rows)


@statement
def attention_lor_translution_in_perplexity() -> bool:
    """Table 7: self-attention, LoR-Translution, Translution have falling perplexities in every architecture."""
    return all(_rising([-r[m] for m in (ATTENTION, LOW, FULL) if m in r]) for r in _methods(7, "perplexity"))


@statement
def translution_first_in_table_4() -> bool:
    """Table 4: Translution and LoR-Translution lie above every other encoding, top-1 and top-5."""
    rows = [r for metric in ("top1", "top5") for r in _methods(4, metric)]
    return all(min(r[LOW], r[FULL]) > max(v for m, v in r.items() if m not in (LOW, FULL)) for r in rows)


@statement
def translution_first_in_table_8() -> bool:
    """Table 8: Translution and LoR-Translution lie below every other encoding."""
    (rows,) = _methods(8, "perplexity")
    return max(rows[LOW], rows[FULL]) < min(v for m, v in rows.items() if m not in (LOW, FULL))


@statement
def all_high_on_static() -> bool:
    """Table 2: every accuracy on static MNIST is above 98 %."""
    return all(value > 98 for rows in _methods(2, "top1 static->static") for value in rows.values())


def _above_attention(metric: str) -> bool:
    return all(min(r[LOW], r[FULL]) > r[ATTENTION] for r in _methods(2, metric))


@statement
def both_above_attention_on_dynamic() -> bool:
    """Table 2: trained and tested on dynamic MNIST, Translution and LoR-Translution lie above self-attention."""
    return _above_attention("top1 dynamic->dynamic")


@statement
def both_above_attention_from_static_to_dynamic() -> bool:
    """Table 2: trained on static and tested on dynamic MNIST, both lie above self-attention."""
    return _above_attention("top1 static->dynamic")


@statement
def translution_stays_low_from_static_to_dynamic() -> bool:
    """Table 2: trained on static and tested on dynamic MNIST, Translution stays below half of the images."""
    return all(r[FULL] < 50 for r in _methods(2, "top1 static->dynamic"))


@statement
def relative_above_pairs() -> bool:
    """Table 5: in all settings the relative encoding lies above the absolute one, which has more parameters."""
    settings = [_table(5, f"top1 {s}")["ViT-A/12"] for s in ("static->static", "dynamic->dynamic", "static->dynamic")]
    size = _table(5, "parameters")["ViT-A/12"]
    return all(size[f"{m}, relative"] < size[f"{m}, absolute"]
               and all(r[f"{m}, relative"] > r[f"{m}, absolute"] for r in settings) for m in (LOW, FULL))


@statement
def accuracy_and_size_rise_with_the_dimension() -> bool:
    """Table 6: accuracy rises with the relative dimension, and parameters never fall."""
    accuracy, size = (list(_table(6, m)["ViT-A/56"].values()) for m in ("top1", "parameters"))
    return _rising(accuracy) and size == sorted(size)


@statement
def embedding_helps_nowhere() -> bool:
    """Table 10: Translution changes by less than 0.5 on static, loses 0 to 2 on dynamic, over 10 between the two."""
    lost = []
    for setting in ("static->static", "dynamic->dynamic", "static->dynamic"):
        rows = _table(10, f"top1 {setting}")["ViT-A/12"]
        lost.append(rows[f"{FULL}, without embedding"] - rows[f"{FULL}, with embedding"])
    return abs(lost[0]) < Decimal("0.5") and 0 < lost[1] < 2 and lost[2] > 10


@statement
def shared_matrices_help_less_and_less() -> bool:
    """Table 11: the shared matrices raise accuracy at every dimension, and the gain falls as the dimension grows."""
    top = _table(11, "top1")["ViT-A/56"]
    gains = [top[f"{LOW}, r={r} with shared Wq Wk Wv"] - top[f"{LOW}, r={r} without shared Wq Wk Wv"]
             for r in (2, 4, 8, 16, 32)]
    return min(gains) > 0 and _rising(gains[::-1])


@statement
def one_number_for_one_model() -> bool:
    """Tables 2, 5 and 10 print the same number for Translution A/12 trained on static, tested on dynamic MNIST."""
    names = {2: FULL, 5: f"{FULL}, relative", 10: f"{FULL}, without embedding"}
    return len({_table(t, "top1 static->dynamic")["ViT-A/12"][name] for t, name in names.items()}) == 1


def _performers(metric: str = "top1") -> list[dict[str, Decimal]]:
    return list(_table(1, metric, "performers").values())


NONE, ABSOLUTE, FIRST, SECOND = (f"Performer, {k}" for k in ("no position", "absolute", "strategy 1", "strategy 2"))


@statement
def second_strategy_below_first() -> bool:
    """Table 1: strategy 2 lies below strategy 1 on every data set."""
    return all(r[SECOND] < r[FIRST] for r in _performers())


@statement
def strategies_never_above_absolute() -> bool:
    """Table 1: neither strategy lies above absolute positions on any data set."""
    return all(max(r[FIRST], r[SECOND]) <= r[ABSOLUTE] for r in _performers())


@statement
def strategies_below_cnns_on_cifar() -> bool:
    """Table 1: on CIFAR-10 both strategies lie below the three CNNs."""
    return max(_performers()[2][m] for m in (FIRST, SECOND)) < min(_performers()[2][m]
                                                                   for m in ("AlexNet", "VGG-16", "ResNet-18"))


@statement
def first_strategy_near_alexnet() -> bool:
    """Table 1: strategy 1 lies less than two points below AlexNet on every data set."""
    return all(r["AlexNet"] - r[FIRST] < 2 for r in _performers())


def _ratio(row: str, other: str) -> Decimal:
    (count,) = _performers("parameters")
    return count[row] / count[other]


@statement
def twice_fewer_parameters() -> bool:
    """Table 1: ResNet-18, Linformer and Routing Transformer have at least twice the parameters of strategy 1."""
    return all(_ratio(m, FIRST) >= 2 for m in ("ResNet-18", "Linformer", "Routing Transformer"))


@statement
def thirty_times_fewer_parameters() -> bool:
    """Table 1: VGG-16 has 30 times the parameters of strategy 1, rounded to tens."""
    return round(_ratio("VGG-16", FIRST), -1) == 30


@statement
def twice_the_parameters_of_alexnet() -> bool:
    """Table 1: strategy 1 has twice the parameters of AlexNet, rounded to a whole number."""
    return round(_ratio(FIRST, "AlexNet")) == 2


def _riemann() -> list[dict[str, Decimal]]:
    return list(_table(1, "top1", "riemannformer").values())


@statement
def focusing_alone_below_every_encoding() -> bool:
    """Table 1: locality focusing alone lies below sinusoidal positions and RoPE on both data sets."""
    return all(r["locality focusing only"] < min(r["sinusoidal"], r["RoPE"]) for r in _riemann())


@statement
def focusing_adds_to_positions() -> bool:
    """Table 1: with locality focusing RiemannFormer gains on both data sets."""
    return all(r["RiemannFormer + locality focusing"] > r["RiemannFormer"] for r in _riemann())


@statement
def riemannformer_above_the_baselines() -> bool:
    """Table 1: RiemannFormer lies above no position, sinusoidal positions and RoPE on both data sets."""
    return all(r["RiemannFormer"] > max(r[m] for m in ("no position", "sinusoidal", "RoPE")) for r in _riemann())


@statement
def larger_gain_on_cifar_100() -> bool:
    """Table 1: RiemannFormer, with focusing and without, gains more over both encodings on CIFAR-100."""
    ten, hundred = _riemann()
    return all(hundred[m] - hundred[other] > ten[m] - ten[other]
               for m in ("RiemannFormer", "RiemannFormer + locality focusing") for other in ("sinusoidal", "RoPE"))


STATEMENTS.update({claim.statement: partial(getattr, claim, "holds") for claim in CLAIMS})

__all__ = ["STATEMENTS", "says", "statement"]
