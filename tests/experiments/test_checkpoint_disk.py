"""Disks without room, folders that cannot be written: nothing half-written stays, and nothing is lost."""

import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
from translution_runs.files import write_atomically

from tests.experiments.checkpoints import assert_state, contents, keeper, last, state, three


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
