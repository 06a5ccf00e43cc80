"""Checksums that are known, and those that are recorded on arrival."""

import hashlib
import shutil
import subprocess
import warnings

import pytest
from translution_runs.data import checksums


def sha(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a file").write_bytes(b"content")
    return tmp_path


def test_digest_is_hashlibs(data):
    assert checksums.digest(data / "a file") == sha(b"content")
    assert checksums.digest(data / "a file", "md5") == hashlib.md5(b"content").hexdigest()


def test_what_was_recorded_may_not_change(data):
    for _ in range(2):
        checksums.keep(data, "a file", sha(b"content"))
    checksums.keep(data, "another", sha(b"other"))
    assert checksums.read_lock(data) == {"a file": sha(b"content"), "another": sha(b"other")}
    with pytest.raises(ValueError, match=f"a file: changed since it was .* {sha(b'content')} and is {sha(b'x')}"):
        checksums.keep(data, "a file", sha(b"x"))


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum")
def test_sha256sum_reads_the_lock_file(data):
    checksums.keep(data, "a file", checksums.digest(data / "a file"))
    check = ["sha256sum", "--strict", "-c", checksums.LOCK]
    assert subprocess.run(check, cwd=data, capture_output=True).returncode == 0
    (data / "a file").write_bytes(b"changed")
    assert subprocess.run(check, cwd=data, capture_output=True).returncode == 1


@pytest.mark.parametrize("line", ["", "abc  a file", f"{'0' * 64} a file", f"{'0' * 63}g  a file"])
def test_a_damaged_lock_file_is_refused(data, line):
    checksums.keep(data, "a file", sha(b"content"))
    with open(data / checksums.LOCK, "a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=f"{checksums.LOCK}: line 2 is not"):
        checksums.keep(data, "a file", sha(b"content"))


def test_a_folder_that_cannot_be_written_gives_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="cannot be written .* a later change of a file would not be noticed"):
        checksums.keep(tmp_path / "absent", "a file", sha(b"content"))
    with warnings.catch_warnings(action="error"):
        checksums.keep(tmp_path, "a file", sha(b"content"))


def test_known_checksums(tmp_path):
    known = {"a": sha(b"a"), "b": sha(b"b")}
    checksums.refuse_other(sha(b"a"), "a", known, tmp_path)
    with pytest.raises(ValueError, match="mislabelled, this is the content of b"):
        checksums.refuse_other(sha(b"b"), "a", known, tmp_path)
    with pytest.raises(ValueError, match=f"truncated or corrupted, its sha256 is {sha(b'c')}, expected {sha(b'a')}"):
        checksums.refuse_other(sha(b"c"), "a", known, tmp_path)


@pytest.mark.parametrize("cut", [1, 3])
def test_a_lock_file_that_was_cut_is_refused_and_merges_no_lines(data, cut):
    """Without its last end of line, or within a name: the next entry would become a part of the last one."""
    for name in ("one", "other"):
        (data / name).write_text(name)
    checksums.keep(data, "one", checksums.digest(data / "one"))
    lock = data / checksums.LOCK
    lock.write_text(lock.read_text()[:-cut])
    for name in ("other", "one"):
        with pytest.raises(ValueError, match=f"{checksums.LOCK}: its last line has no end"):
            checksums.keep(data, name, checksums.digest(data / name))


def test_a_name_that_would_damage_the_lock_file_is_refused(data):
    name = f"{'0' * 64}  other"
    (data / name).write_text("content")
    with pytest.raises(ValueError, match="a name that holds a checksum and another name"):
        checksums.keep(data, name, checksums.digest(data / name))
    assert checksums.read_lock(data) == {}


def test_two_lines_in_one_and_two_checksums_of_a_file_are_refused(data):
    lock = data / checksums.LOCK
    lock.write_text(f"{'0' * 64}  one{'1' * 64}  other\n")
    with pytest.raises(ValueError, match="line 1 is not 'sha256  name'"):
        checksums.read_lock(data)
    lock.write_text(f"{'0' * 64}  one\n{'0' * 64}  one\n")
    assert checksums.read_lock(data) == {"one": "0" * 64}
    lock.write_text(f"{'0' * 64}  one\n{'1' * 64}  one\n")
    with pytest.raises(ValueError, match="line 2 gives one a second checksum"):
        checksums.read_lock(data)
