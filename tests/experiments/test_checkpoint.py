import hashlib
import os
import random
import resource
import stat
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from translution_lib.experiments import checkpoint
from translution_lib.experiments.checkpoint import Keeper, finished
from translution_lib.experiments.files import write_atomically


def state(step: int) -> dict:
    """What a training keeps: tensors, numbers, texts, in dictionaries and lists."""
    weights = torch.full((40, 40), float(step)) + torch.arange(40)
    return {"model": {"weight": weights, "seen": torch.tensor(step)}, "step": step, "sums": [0.1 * step, None],
            "optimizer": {"state": {0: {"exp_avg": weights.bfloat16()}}, "param_groups": [{"lr": 0.1}]}}


def assert_state(found: dict, step: int):
    torch.testing.assert_close(found, state(step), rtol=0, atol=0)


def keeper(folder: Path, **options) -> Keeper:
    return Keeper(folder / "run.checkpoints", "0123456789ab", **options)


def three(folder: Path) -> Keeper:
    """A keeper that has saved after 2, 4 and 6 steps and kept the last two."""
    kept = keeper(folder)
    for step in (2, 4, 6):
        kept.save(step, state(step))
    return kept


def last(folder: Path) -> Path:
    return folder / "run.checkpoints" / "step-00000006.pt"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "run.checkpoints").iterdir()}


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


@contextmanager
def room_for(size: int):
    """Let no file of this process grow beyond `size` bytes: what a full disk does, by the system itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [6, 8])  # again, or one more
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_file_that_finds_no_room_leaves_everything_as_it_was(tmp_path, share, step):
    kept = three(tmp_path)
    before, size = contents(tmp_path), last(tmp_path).stat().st_size
    with room_for(int(share * size)), pytest.raises(OSError) as caught:
        kept.save(step, state(step))
    text = str(caught.value)
    assert f"step-0000000{step}.pt" in text and "File too large" in text and "earlier checkpoints" in text
    assert f"of {size:,} bytes" in text
    assert contents(tmp_path) == before
    assert_state(keeper(tmp_path).load()[1], 6)
    assert kept.save(8, state(8)).exists()  # when there is room again


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("name", ["step-00000008.pt", "step-00000008.pt.sha256"])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, name):
    kept = three(tmp_path)
    before = contents(tmp_path)
    last(tmp_path).with_name(f"{name}.partial").symlink_to("/dev/full")  # every write meets a disk without room
    with pytest.raises(OSError, match=r"of [0-9,]+ bytes: No space left on device.*step-00000008\.pt'"):
        kept.save(8, state(8))
    assert contents(tmp_path) == before


@contextmanager
def nobody():
    """The rights of a user that may not write; the administrator's, where tests run as root, know no limits."""
    administrator = os.geteuid() == 0
    if administrator:
        os.seteuid(65534)
    try:
        yield
    finally:
        if administrator:
            os.seteuid(0)


def test_a_folder_that_cannot_be_written_leaves_everything_as_it_was(tmp_path, monkeypatch):
    three(tmp_path)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)  # relative paths: the folders above may be closed to others
    tmp_path.chmod(0o755)
    Path("run.checkpoints").chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    try:
        with nobody(), pytest.raises(PermissionError, match=r"cannot write.*run\.checkpoints/step-00000008\.pt"):
            keeper(Path()).save(8, state(8))
    finally:
        Path("run.checkpoints").chmod(0o755)
    assert contents(tmp_path) == before


def test_a_file_stands_where_the_folder_should(tmp_path):
    (tmp_path / "run.checkpoints").write_text("")
    with pytest.raises(OSError, match=r"cannot write the checkpoint: File exists.*step-00000001\.pt"):
        keeper(tmp_path).save(1, state(1))


def test_an_attempt_to_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")

    def write(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
