import hashlib
import random
import warnings
from pathlib import Path

import pytest
import torch
from translution_runs import checkpoint
from translution_runs.checkpoint import Keeper, finished

from tests.experiments.checkpoints import assert_state, contents, keeper, last, state, three


def sign(path: Path):
    """Make the checksum fit whatever the file holds."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")


def assert_passed_over(folder: Path, reason: str):
    """The last checkpoint is refused by name and reason, the one before is used."""
    with pytest.warns(RuntimeWarning, match=rf"step-00000006\.pt: .*{reason}"):
        step, found = keeper(folder).load()
    assert step == 4
    assert_state(found, 4)


def test_what_was_saved_comes_back(tmp_path):
    path = keeper(tmp_path).save(123, state(123))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step, found = keeper(tmp_path).load()
    assert (path.name, step) == ("step-00000123.pt", 123)
    assert_state(found, 123)


def test_the_last_ones_stay_with_checksums_that_sha256sum_reads(tmp_path):
    three(tmp_path)
    assert sorted(contents(tmp_path)) == [f"step-0000000{step}.pt{end}" for step in (4, 6) for end in ("", ".sha256")]
    digest = hashlib.sha256(last(tmp_path).read_bytes()).hexdigest()
    assert contents(tmp_path)["step-00000006.pt.sha256"] == f"{digest}  step-00000006.pt\n".encode()


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_stay(tmp_path, keep):
    kept = keeper(tmp_path, keep=keep)
    for step in range(1, 6):
        kept.save(step, state(step))
    assert finished(kept.folder) == list(range(6 - keep, 6))


def test_a_checkpoint_can_be_saved_anew(tmp_path):
    kept = three(tmp_path)
    kept.save(6, state(99))
    assert_state(kept.load()[1], 99)


def test_an_earlier_step_replaces_the_later_ones(tmp_path):
    kept = three(tmp_path)
    kept.save(3, state(3))
    assert finished(kept.folder) == [3] and kept.load()[0] == 3


def test_clearing_removes_the_folder(tmp_path):
    kept = three(tmp_path)
    for _ in range(2):
        kept.clear()
        assert list(tmp_path.iterdir()) == [] and kept.load() is None


@pytest.mark.parametrize(("steps", "expected"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])])
def test_due_by_the_number_of_steps(tmp_path, steps, expected):
    kept = keeper(tmp_path, steps=steps)
    assert [step for step in range(1, 7) if kept.due(step)] == expected


def test_due_by_the_clock_since_the_last_one(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(checkpoint, "monotonic", lambda: now[0])
    kept = keeper(tmp_path, minutes=2)
    found = []
    for step in range(1, 9):
        now[0] += 50
        if kept.due(step):
            kept.save(step, state(step))
            found.append(step)
    assert found == [3, 6]


@pytest.mark.parametrize("options", [{"minutes": -1}, {"steps": -1}, {"keep": 0}])
def test_wrong_numbers_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match="minutes, steps, keep: got .*expected at least 0, 0 and 1"):
        keeper(tmp_path, **options)


def truncations(data: bytes) -> list[bytes]:
    return [data[:length] for length in (0, 1, 100, len(data) // 2, len(data) - 1)]


def flips(data: bytes) -> list[bytes]:
    """One bit changed: first and last byte, and at five random places."""
    places = [0, len(data) - 1, *random.Random(0).sample(range(len(data)), 5)]
    return [data[:k] + bytes([data[k] ^ 1]) + data[k + 1:] for k in places]


def test_a_truncated_or_changed_checkpoint_is_passed_over(tmp_path):
    three(tmp_path)
    data = last(tmp_path).read_bytes()
    for damaged in (*truncations(data), *flips(data), data + b"\0"):
        last(tmp_path).write_bytes(damaged)
        assert_passed_over(tmp_path, "checksum")
    last(tmp_path).write_bytes(data)
    assert keeper(tmp_path).load()[0] == 6


@pytest.mark.parametrize("text", ["", "00", "é", f"{'0' * 64}  step-00000006.pt\n"])
def test_a_checkpoint_with_a_damaged_checksum_is_passed_over(tmp_path, text):
    three(tmp_path)
    last(tmp_path).with_name("step-00000006.pt.sha256").write_text(text)
    assert_passed_over(tmp_path, "checksum")


def test_a_checkpoint_of_other_parameters_is_passed_over(tmp_path):
    three(tmp_path)
    Keeper(tmp_path / "run.checkpoints", "ffffffffffff").save(6, state(6))
    assert_passed_over(tmp_path, "other parameters .fingerprint ffffffffffff, here 0123456789ab")


def test_a_renamed_checkpoint_is_passed_over(tmp_path):
    three(tmp_path)
    last(tmp_path).write_bytes(last(tmp_path).with_name("step-00000004.pt").read_bytes())
    sign(last(tmp_path))
    assert_passed_over(tmp_path, "holds step 4")


class Code:
    """What a checkpoint must not hold: loading it would run code."""

    def __reduce__(self):
        return (print, ("this would be any program",))


def test_a_checkpoint_cannot_run_code(tmp_path, capsys):
    three(tmp_path)
    torch.save({"fingerprint": "0123456789ab", "step": 6, "state": Code()}, last(tmp_path))
    sign(last(tmp_path))
    torch.load(last(tmp_path), weights_only=False)
    assert "program" in capsys.readouterr().out  # it would
    assert_passed_over(tmp_path, "not a checkpoint")
    assert "program" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [{"weights": torch.ones(2)}, [1, 2], "text"])
def test_another_file_of_torch_is_passed_over(tmp_path, content):
    three(tmp_path)
    torch.save(content, last(tmp_path))
    sign(last(tmp_path))
    assert_passed_over(tmp_path, "not a checkpoint")


@pytest.mark.filterwarnings("ignore:checkpoint refused")
def test_without_a_sound_one_the_run_does_not_start_anew_by_itself(tmp_path):
    three(tmp_path)
    for path in last(tmp_path).parent.glob("*.pt"):
        path.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"(?s)no checkpoint can be used \(step-00000006\.pt: damaged.*"
                                         r"step-00000004\.pt: damaged.*remove the folder"):
        keeper(tmp_path).load()


def test_what_a_kill_leaves_is_no_checkpoint(tmp_path):
    three(tmp_path)
    for name in ("step-00000008.pt.partial", "step-00000008.pt", "step-00000010.pt.sha256.partial", "step-7.pt"):
        last(tmp_path).with_name(name).write_bytes(b"half")
    assert keeper(tmp_path).load()[0] == 6
    keeper(tmp_path).save(9, state(9))
    assert {name.removesuffix(".sha256") for name in contents(tmp_path)} == {"step-00000006.pt", "step-00000009.pt"}


def test_a_first_checkpoint_without_its_checksum_was_never_finished(tmp_path):
    keeper(tmp_path).save(2, state(2)).with_name("step-00000002.pt.sha256").unlink()
    assert keeper(tmp_path).load() is None
