"""Checks of counts: matrices, parameters, operations, memory, tokens."""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode
from translution_runs.printed import Cell, cells

from translution_book.facts.fitting import METHODS, TEXTS
from translution_book.facts.ledger.checks.registry import check, normal
from translution_book.facts.ledger.rules import rounds_to
from translution_book.facts.recount import config_of, recount
from translution_lib import cost
from translution_lib.functional.window_sum import window_columns
from translution_lib.models import ViTConfig
from translution_lib.relations import offsets

MEGA = 10 ** 6
TRAINED = 16
"""Bytes of a trained number in single precision: itself, its gradient, and the two moments of Adam."""


def _cell(table: int, method: str, metric: str = "parameters", variant: str | None = None) -> Cell:
    return next(c for c in cells(table=table, metric=metric) if c.method == method and variant in (None, c.variant))


def _macs() -> list[tuple[int, int, int]]:
    """True multiply–adds of self-attention, LoR-Translution and Translution in every model that printed all three."""
    rows = [c for t in (2, 3, 7) for c in cells(table=t, metric="flops") if c.method in METHODS]
    by_model: dict[tuple[int, str], list[int]] = {}
    for cell in rows:
        by_model.setdefault((cell.table, cell.subject), []).append(cost.macs_true(config_of(cell)))
    return [(found[0], found[1], found[2]) for found in by_model.values() if len(found) == 3]


@check
def translution_computes_what_attention_computes() -> bool:
    """Translution needs as many multiply–adds as self-attention in the models of Tables 2, 3 and 7."""
    return all(attention == full for attention, _, full in _macs())


@check
def lor_computes_more_than_translution() -> bool:
    """LoR-Translution needs more multiply–adds than Translution in the models of Tables 2, 3 and 7."""
    return all(low > full for _, low, full in _macs())


@check
def work_per_token_stays() -> bool:
    """The operations per token of a Translution layer do not grow with the number of tokens."""
    layers = [cost.layer.named("translution", offsets((g, g)), 16) for g in (2, 4, 8)]
    return len({layer.macs_true() // layer.tokens for layer in layers}) == 1


@check
def lor_has_fewer_parameters() -> bool:
    """LoR-Translution has fewer parameters than Translution in every model of Tables 2, 3 and 7."""
    configs = [config_of(c) for t in (2, 3, 7) for c in cells(table=t, metric="parameters")
               if c.method == "lor-translution"]
    full = [replace(c, mixer=("translution",) * c.depth, options={}) for c in configs]
    return all(cost.parameters(a) < cost.parameters(b) for a, b in zip(configs, full, strict=True))


@check
def one_matrix_per_offset() -> bool:
    """A grid of H × W patches has (2H − 1)(2W − 1) offsets."""
    return all(offsets((h, w)).count == (2 * h - 1) * (2 * w - 1) for h in range(1, 7) for w in range(1, 7))


@check
def patches_of_16_have_729_offsets() -> bool:
    """224 pixels in patches of 16 give 729 offsets."""
    return offsets((224 // 16, 224 // 16)).count == 729


@check
def cls_adds_three() -> bool:
    """A CLS token adds three relations."""
    return offsets((4, 4), cls=True).count == offsets((4, 4)).count + 3


@check
def line_has_2n_minus_1() -> bool:
    """A text of N tokens has 2N − 1 offsets, and N of them with a causal mask."""
    return all(offsets(n).count == 2 * n - 1 and offsets(n, causal=True).count == n for n in range(1, 20))


@check
def causal_halves() -> bool:
    """The causal table of 160 tokens has half as many matrices as the full one."""
    return 2 * offsets(160, causal=True).count == offsets(160).count


@check
def pairs_without_cls_give_table_5() -> bool:
    """(H × W)² matrices give the 1660.9 M that Table 5 prints for the absolute encoding."""
    cell = _cell(5, "translution", variant="absolute")
    fewer = 6 * 3 * (50 ** 2 - 49 ** 2) * 192 ** 2
    return rounds_to((cost.parameters(config_of(cell)) - fewer) / MEGA, cell.printed)


@check
def cores_of_8_give_table_3() -> bool:
    """Cores of 8 × 8 for all heads together give the 5.3 M that Table 3 prints for ViT-A/56."""
    cell = _cell(3, "lor-translution")
    config = config_of(cell)
    none = cost.parameters(replace(config, options={**config.options, "relative_dim": 0}))
    return rounds_to((none + 6 * (4 * 192 * 8 + 3 * (49 + 3) * 8 ** 2)) / MEGA, cell.printed)


@check
def vectors_without_embedding_give_table_8() -> bool:
    """Relative vectors without an absolute embedding give the 22.4 M that Table 8 prints."""
    cell = _cell(8, "relative key vector")
    return rounds_to((recount(cell).value - 160 * 192) / MEGA, cell.printed)


@check
def pairs_of_145_tokens_exceed_80_gb() -> bool:
    """Parameters, gradients and Adam of ViT-A/7 with a matrix per pair take more than 80 GB."""
    cell = replace(_cell(5, "translution", variant="absolute"), subject="ViT-A/7")
    return TRAINED * cost.parameters(config_of(cell)) > 80e9


@check
def length_160_is_the_longest() -> bool:
    """The planner asks more than 80 GB for a step of GPT-A at length 512 with Translution and 8 texts."""
    longer = next(c for c in cells(table=7, metric="status") if c.subject == "GPT-A-512")
    return not cost.memory(config_of(longer), TEXTS).fits(80 * 10 ** 9)


@check
def large_models_need_2_tb() -> bool:
    """The planner asks 2 TB or more for a step of a ViT-Base/16 with Translution and 256 images."""
    config = ViTConfig(224, 16, 3, 1000, dim=768, depth=12, heads=12, ff=3072, mixer=("translution",) * 12)
    return cost.memory(config, 256).total >= 2e12


@check
def some_offsets_are_not_met() -> bool:
    """Queries on a centred digit meet fewer than all offsets, for patches of 12 and of 7."""
    for patch in (12, 7):
        side, first, last = 84 // patch, 28 // patch, 55 // patch
        met = {q - k for q in range(first, last + 1) for k in range(side)}
        if len(met) == 2 * side - 1:
            return False
    return True


@check
def tokens_as_sides() -> bool:
    """N tokens in a square have (2N − 1)² offsets."""
    return all(offsets((g, g)).count == (2 * g * g - 1) ** 2 for g in (2, 4))


@check
def labels_run_to_n() -> bool:
    """Offsets of a grid of side N run from −N to N along each axis."""
    return all(max(δ[0] for δ in offsets((n, n)).labels) == n for n in (2, 4))


@check
def preprint_tokens() -> bool:
    """MNIST in patches of 7 and CIFAR in patches of 8 give 17 tokens, 64 pixels in patches of 8 give 65."""
    made = [ViTConfig(size, patch, 1, 10, dim=64, depth=1, heads=1, ff=128, mixer=("value-translution",)).tokens
            for size, patch in ((28, 7), (32, 8), (64, 8))]
    return made == [17, 17, 65]


@check
def skew_matrix_has_half_the_entries() -> bool:
    """Skew-symmetric D × D matrices have D(D − 1)/2 free entries."""
    for d in (2, 3, 5):
        flat = torch.eye(d * d).view(-1, d, d)
        if int(torch.linalg.matrix_rank((flat - flat.mT).flatten(1))) != d * (d - 1) // 2:
            return False
    return True


@check
def patches_of_4_make_64() -> bool:
    """32 pixels in patches of 4 give 64 patches."""
    return (32 // 4) ** 2 == 64


@check
def window_grows_with_k_squared() -> bool:
    """Every token has at most 2k² tokens at a distance below k, whatever their number."""
    sizes = {(n, k): int((window_columns((n, n), k) < k).sum(1).max()) for n in (12, 16) for k in (1, 2, 4)}
    return all(size <= 2 * k * k for (_, k), size in sizes.items()) and sizes[12, 4] == sizes[16, 4]


@check
def k_vectors_suffice() -> bool:
    """Distances clipped at k take k values."""
    return all(len(window_columns((9, 9), k).unique()) == k for k in (2, 4, 6))


@check
def first_strategy_is_linear() -> bool:
    """Twice the tokens are twice the operations of strategy 1."""
    one, two = (cost.layer.named("performer-s1", offsets((8, w)), 64, heads=4).macs_true() for w in (8, 16))
    return two == 2 * one


@check
def features_are_linear() -> bool:
    """Twice the tokens are twice the operations of attention by random features, positions left out."""
    one, two = (cost.layer.named("performer", offsets((8, w)), 64, heads=4).macs_true() for w in (8, 16))
    return two == 2 * one


@check
def second_strategy_ignores_k() -> bool:
    """The operations of strategy 2 are the same for every clipping distance."""
    layers = [cost.layer.named("performer-s2", offsets((16, 16)), 64, heads=4, clip=k) for k in (2, 4, 6)]
    return len({layer.macs_true() for layer in layers}) == 1


@check
def pairwise_scores_are_quadratic() -> bool:
    """Twice the tokens are four times the multiply–adds of a product of all queries and keys."""
    counted = {}
    for n in (8, 16):
        with FlopCounterMode(display=False) as counter:
            normal(n, 4) @ normal(n, 4).T
        counted[n] = counter.get_total_flops()
    return counted[16] == 4 * counted[8]

