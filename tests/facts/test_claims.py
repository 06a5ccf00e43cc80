"""What the texts of Horn et al. (2021) and of RiemannFormer say about their tables, against the tables."""

from decimal import Decimal

import pytest
from translution_book import facts

BY_HAND = {
    "MNIST and Fashion-MNIST: within 1 of the CNNs and of Absolute": "-0.27 -0.54 -0.38 0.00 0.57 -1.58 -0.15 -0.20",
    "MNIST and Fashion-MNIST: 1 to 2 above Linformer and Routing": "1.00 2.40 0.89 2.97",
    "MNIST and Fashion-MNIST: 30 to 50 above No Pos": "53.80 23.10",
    "CIFAR-10: CNNs 3 to 8 above strategy 1": "1.59 9.05 4.30",
    "CIFAR-10: CNNs 1 to 6 above Absolute": "-1.41 6.05 1.30",
    "CIFAR-10: 15 to 20 above Linformer, Routing and No Pos": "12.60 9.73 13.70",
}


def test_all_statements_are_there():
    assert [claim.statement for claim in facts.CLAIMS] == list(BY_HAND)


@pytest.mark.parametrize("claim", facts.CLAIMS, ids=lambda claim: claim.statement)
def test_differences_by_hand(claim):
    found = " ".join(f"{difference:.2f}" for difference in claim.differences.values())
    assert found == BY_HAND[claim.statement]
    wrong = [d for d in found.split() if not claim.low <= round(Decimal(d)) <= claim.high]
    assert [f"{d:.2f}" for d in claim.outside.values()] == wrong
    assert not claim.holds and wrong


def test_a_statement_may_hold():
    claim = facts.Claim("performers", "digits: strategy 1 is level with Absolute", 0, 0,
                        (("MNIST", "Performer, strategy 1", "Performer, absolute"),))
    assert claim.holds and claim.outside == {}


def test_every_row_exists():
    rows = {(cell.subject, cell.method) for cell in facts.cells("performers", 1, "top1")}
    for claim in facts.CLAIMS:
        for data, row, other in claim.pairs:
            assert {(data, row), (data, other)} <= rows


def test_locality_focusing_alone_is_above_rope_on_one_of_two_sets():
    top = {(cell.subject, cell.method): Decimal(cell.printed) for cell in facts.cells("riemannformer", 1, "top1")}
    lead = {data: top[data, "locality focusing only"] - top[data, "RoPE"] for data in ("CIFAR-10", "CIFAR-100")}
    assert lead == {"CIFAR-10": Decimal("-0.61"), "CIFAR-100": Decimal("0.64")}
    assert all(top[data, "locality focusing only"] > top[data, "sinusoidal"] for data in lead)
