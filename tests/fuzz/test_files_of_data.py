"""Damaged files of data: read with equal content, or refused by name; and what was refused is accepted once repaired.

`make nightly` looks at many more examples.
"""

import gzip
import hashlib
import os
import tempfile
import threading
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from translution_runs.data import checksums, cifar, parquet, text, tokens
from translution_runs.data.idx_source import FASHION_MNIST, IDXSource, read_source
from translution_runs.data.imagenet import imagenet
from translution_runs.data.tokenisers import Characters

from tests.data.test_cifar import ARCHIVE, FILES, PACKED, SMALL
from tests.data.test_refused import SOURCE, column, png, small_idx, written
from tests.fuzz.damage import damaged


@dataclass(frozen=True)
class Kind:
    """A format: how a folder of it is made, the file that is damaged, and what a reader makes of it."""

    make: object
    victim: str
    read: object
    guarded: bool = True  # a checksum of the content is known before the first reading


def idx_files(folder: Path) -> None:
    for name, data in small_idx()[0].items():
        (folder / name).write_bytes(data)


def idx_packed(folder: Path) -> None:
    for name, data in small_idx()[0].items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))


IMAGES, LABELS = FASHION_MNIST.files["test"]
KNOWN = IDXSource("known", {"test": (IMAGES, LABELS)},
                  {name: hashlib.sha256(data).hexdigest() for name, data in small_idx()[0].items()}, most=4_000)


def idx_read(source):
    return lambda folder: pair(read_source(source, folder, "test"))


def pair(images):
    return images.images.numpy().tobytes(), images.labels.tolist()


def shard(folder: Path) -> None:
    written(folder / "train-0.parquet", column(), pa.array([0, 1, 2]))


def shard_read(folder: Path):
    return pair(parquet.read(SOURCE, parquet.find(folder, "train"), "train"))


def poem(folder: Path) -> None:
    (folder / "poem.txt").write_text("to be, or not to be: that is the quéstion.\n" * 5, encoding="utf-8")


def poem_read(folder: Path):
    found = text.load_text(str(folder / "poem.txt"))
    return found.tokens.tolist(), found.vocabulary


def pack(folder: Path) -> None:
    tokens.pack(["to be", "or not"], Characters(["to be or not"]), folder / "text.tokens", {"about": "a test"})


def pack_read(folder: Path):
    return tokens.read_pack(folder / "text.tokens", 7)[0].tolist()


def archive(folder: Path) -> None:
    (folder / ARCHIVE).write_bytes(PACKED)


def batches(folder: Path) -> None:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)


def cifar_read(folder: Path):
    return pair(cifar.read_batches(SMALL, folder, "train"))


def classes(folder: Path) -> None:
    for k in range(2):
        (folder / "train" / f"n{k}").mkdir(parents=True)
        (folder / "train" / f"n{k}" / "0.png").write_bytes(png(20, k))


def classes_read(folder: Path):
    found = imagenet(folder, "train", 2, {"train": 2})
    return found.pixels(found.labels).numpy().tobytes()


KINDS = {
    "IDX images": Kind(idx_files, IMAGES, idx_read(small_idx()[1]), False),
    "IDX labels": Kind(idx_files, LABELS, idx_read(small_idx()[1]), False),
    "IDX known": Kind(idx_files, IMAGES, idx_read(KNOWN)),
    "IDX in gzip": Kind(idx_packed, f"{IMAGES}.gz", idx_read(KNOWN)),
    "parquet": Kind(shard, "train-0.parquet", shard_read, False),
    "text": Kind(poem, "poem.txt", poem_read, False),
    "tokens": Kind(pack, "text.tokens", pack_read),
    "note of tokens": Kind(pack, "text.tokens.json", pack_read),
    "CIFAR archive": Kind(archive, ARCHIVE, cifar_read),
    "CIFAR batch": Kind(batches, "data_batch_1", cifar_read),
    "picture": Kind(classes, "train/n0/0.png", classes_read, False),
}


@cache
def content(name: str) -> tuple[bytes, object]:
    """The sound file and what is read of it."""
    with tempfile.TemporaryDirectory() as folder:
        KINDS[name].make(Path(folder))
        return (Path(folder) / KINDS[name].victim).read_bytes(), KINDS[name].read(Path(folder))


def outcome(kind: Kind, folder: Path):
    """What is read, or None where it is refused; the refusal names the file, its folder or the one beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return kind.read(folder)
        except (ValueError, FileNotFoundError) as error:
            said = str(error)
    assert str(folder) in said or Path(kind.victim).name in said, said
    assert "Traceback" not in said and len(said) < 2_000
    return None


@pytest.mark.parametrize("name", KINDS)
@given(st.data())
def test_a_damaged_file_is_read_as_it_was_or_refused_by_name(name, data):
    """The sound file was met before: whatever changed its content is noticed."""
    kind, (sound, expected) = KINDS[name], content(name)
    hurt = data.draw(damaged(sound))
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        kind.make(folder)
        kind.read(folder)
        (folder / kind.victim).write_bytes(hurt)
        assert outcome(kind, folder) in (None, expected)
        (folder / kind.victim).write_bytes(sound)
        assert outcome(kind, folder) == expected


@pytest.mark.parametrize("name", KINDS)
@given(st.data())
def test_a_file_that_arrives_damaged_is_refused_and_accepted_once_it_is_repaired(name, data):
    """Where no checksum is known, damage may pass for content; a refusal must leave no trace."""
    kind, (sound, expected) = KINDS[name], content(name)
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        kind.make(folder)
        (folder / kind.victim).write_bytes(data.draw(damaged(sound)))
        found = outcome(kind, folder)
        assert not kind.guarded or found in (None, expected)
        if found is None:
            (folder / kind.victim).write_bytes(sound)
            assert outcome(kind, folder) == expected


@given(st.data())
def test_a_damaged_list_of_checksums_refuses_or_knows_the_file(data):
    """`translution.sha256`: a line that was lost is a file that is met anew, never one that is taken for another."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        poem(folder)
        expected = poem_read(folder)
        lock = folder / checksums.LOCK
        lock.write_bytes(data.draw(damaged(lock.read_bytes())))
        kind = Kind(poem, checksums.LOCK, poem_read)
        assert outcome(kind, folder) in (None, expected)
        lock.unlink()
        assert outcome(kind, folder) == expected


@pytest.mark.parametrize("victim", ["victim", "list of checksums"])
@pytest.mark.parametrize("name", KINDS)
def test_a_pipe_in_place_of_a_file_holds_nobody_up(name, victim):
    """Nobody writes to it, so that whoever opened it would wait for ever."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        kind.make(folder)
        path = folder / (kind.victim if victim == "victim" else checksums.LOCK)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        found: list = []
        reader = threading.Thread(target=lambda: found.append(outcome(kind, folder)), daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive()
        assert found in ([None], [content(name)[1]])
