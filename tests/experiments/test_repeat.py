"""The records stay valid: a few steps of one run of each kind of model give the losses that the code of then gave."""

from pathlib import Path

import pytest
import torch
from translution_runs import repeat
from translution_runs.reading import read_records

RESULTS = Path(__file__).resolve().parents[2] / "results"
EVERY = 6  # the command `translution repeat` takes them all


@pytest.fixture(scope="module")
def chosen():
    return repeat.chosen(read_records(RESULTS), repeat.known(RESULTS))


def test_every_kind_of_model_on_record_has_its_losses(chosen):
    assert chosen and chosen.keys() == repeat.known(RESULTS).keys()


def test_the_code_computes_what_it_did(chosen):
    stored = repeat.known(RESULTS)
    some = list(chosen.items())[::EVERY]
    assert not {name: fault for name, config in some if (fault := repeat.differs(name, repeat.losses(config), stored))}


def test_a_change_of_numerics_is_noticed(chosen, monkeypatch):
    name, config = next((name, one) for name, one in chosen.items() if getattr(one, "model", "") == "vit")
    stored = repeat.known(RESULTS)
    assert repeat.differs(name, repeat.losses(config), stored) == ""
    norm = torch.nn.LayerNorm.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda layer, x: norm(layer, x) * 1.001)
    assert repeat.differs(name, repeat.losses(config), stored).startswith("step 1: loss ")


def test_what_is_stored_stays_and_what_is_missing_is_added(tmp_path, monkeypatch, chosen):
    monkeypatch.setattr(repeat, "read_records", lambda folder: [])
    monkeypatch.setattr(repeat, "chosen", lambda records, stored: dict(list(chosen.items())[:2]))
    monkeypatch.setattr(repeat, "losses", lambda config: [1.5, 0.25, float(config.seed)])
    first, second = list(chosen)[:2]
    (tmp_path / repeat.FILE).write_text(f"{first} 9.0 9.0 9.0\n")
    assert repeat.repeated(tmp_path)[second] == "no losses are stored"
    found = repeat.repeated(tmp_path, write=True)
    assert found == {first: "step 1: loss 1.5, stored 9", second: ""}
    assert repeat.known(tmp_path)[first] == [9.0] * 3 and repeat.known(tmp_path)[second][:2] == [1.5, 0.25]


def test_a_kind_keeps_the_run_that_stands_for_it(chosen):
    """Also when a run with an earlier name comes to the records."""
    records = read_records(RESULTS)
    last = max(one.name for one in records)
    assert last not in chosen and last in repeat.chosen(records, {last})


def test_the_random_state_and_the_threads_are_as_before(chosen):
    config, state = next(iter(chosen.values())), torch.get_rng_state()
    repeat.losses(config)
    assert torch.equal(state, torch.get_rng_state()) and torch.get_num_threads() == 1


@pytest.mark.parametrize("line", ["one 1.0 2.0", "one inf inf inf", "one a b c", "", "one 1.0 nan 2.0"])
def test_a_damaged_line_of_losses_is_named(tmp_path, line):
    (tmp_path / repeat.FILE).write_text(f"zero 1.0 2.0 3.0\n{line}\n")
    with pytest.raises(ValueError, match="steps.txt, line 2: expected a run's name and 3 losses"):
        repeat.known(tmp_path)
