"""CIFAR's archives: read whole, refused when damaged, and never run."""

import functools
import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs.data import ImageSource, cifar, inert_pickle
from translution_runs.data.cifar import CIFAR10, CIFAR100, Batches, read_batches

ARCHIVE = "small-python.tar.gz"
SOURCE = ImageSource("small", 32, 3, 10, {"train": 5, "test": 4})


class Python2(pickle._Pickler):
    """Protocol 2 as Python 2 wrote it: text and the contents of arrays are byte strings."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_bytes(self, text):
        self.write(b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    def save_text(self, text):
        self.save_bytes(text.encode("latin-1"))

    dispatch[bytes], dispatch[str] = save_bytes, save_text


def dumps(value) -> bytes:
    """`value` as Python 2 with an old numpy would have written it."""
    stream = io.BytesIO()
    Python2(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def batch(count, seed, key="labels"):
    random = np.random.default_rng(seed)
    labels = (np.arange(count) + seed).tolist()
    return dumps({b"batch_label": b"1 of 5", key.encode(): labels, b"filenames": [b"a.png"] * count,
                  b"data": random.integers(0, 256, (count, 3072), np.uint8)})


def md5(data):
    return hashlib.md5(data).hexdigest()


def archive(files: dict[str, bytes], top="small-batches-py") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


FILES = {"data_batch_1": batch(3, 0), "data_batch_2": batch(2, 3), "test_batch": batch(4, 5)}
PACKED = archive(FILES)
SMALL = Batches(SOURCE, ARCHIVE, hashlib.sha256(PACKED).hexdigest(), "small-batches-py",
                {"train": ("data_batch_1", "data_batch_2"), "test": ("test_batch",)},
                {name: md5(data) for name, data in FILES.items()}, "labels")


def unpack(root, files=FILES):
    for name, data in files.items():
        (root / name).write_bytes(data)


def refuses(message, root, batches=SMALL, split="train", error=ValueError):
    with pytest.raises(error, match=message):
        read_batches(batches, root, split)


def test_it_is_what_python_unpickles(tmp_path):
    (tmp_path / ARCHIVE).write_bytes(PACKED)
    found = read_batches(SMALL, tmp_path, "train")
    parts = [pickle.loads(FILES[name], encoding="bytes") for name in SMALL.files["train"]]
    pixels = np.concatenate([part[b"data"] for part in parts]).reshape(5, 3, 32, 32)
    assert np.array_equal(found.images.numpy(), pixels) and found.labels.tolist() == [0, 1, 2, 3, 4]
    assert found.images.is_contiguous() and found.name == "small" and found.split == "train"


def test_archive_folder_and_files_are_read_the_same(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir(), (tmp_path / "c" / "small-batches-py").mkdir(parents=True)
    (tmp_path / "a" / ARCHIVE).write_bytes(PACKED)
    unpack(tmp_path / "b"), unpack(tmp_path / "c" / "small-batches-py")
    found = [read_batches(SMALL, tmp_path / name, "test") for name in "abc"]
    assert all(torch.equal(other.images, found[0].images) and other.sha256 == found[0].sha256 for other in found)
    assert found[0].sha256 == {"test_batch": hashlib.sha256(FILES["test_batch"]).hexdigest()}
    assert all(cifar.present(SMALL, tmp_path / name) for name in "abc") and not cifar.present(SMALL, tmp_path)


def test_fine_labels_are_read_of_cifar100(tmp_path):
    files = {"train": batch(5, 0, "fine_labels"), "test": batch(4, 0, "fine_labels")}
    unpack(tmp_path, files)
    known = replace(SMALL, files=CIFAR100.files, md5={name: md5(data) for name, data in files.items()},
                    labels=CIFAR100.labels)
    assert read_batches(known, tmp_path, "train").labels.tolist() == [0, 1, 2, 3, 4]


def test_the_published_checksums_are_whole():
    assert sorted(CIFAR10.md5) == sorted(name for files in CIFAR10.files.values() for name in files)
    assert sorted(CIFAR100.md5) == ["test", "train"]
    assert all(len(known.sha256) == 64 and {len(one) for one in known.md5.values()} == {32}
               for known in (CIFAR10, CIFAR100))


@given(st.floats(0.02, 0.98))
def test_a_truncated_archive_is_refused(tmp_path_factory, part):
    root = tmp_path_factory.mktemp("cut")
    (root / ARCHIVE).write_bytes(PACKED[: int(part * len(PACKED))])
    refuses(f"{ARCHIVE}: the archive is truncated", root)


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_one_changed_byte_of_the_archive_is_noticed(tmp_path_factory, position, change):
    damaged = bytearray(PACKED)
    damaged[position] ^= change
    root = tmp_path_factory.mktemp("changed")
    (root / ARCHIVE).write_bytes(bytes(damaged))
    refuses(f"{ARCHIVE}: (the archive is|truncated or) (corrupted|truncated)", root)


def test_another_whole_archive_is_refused(tmp_path):
    (tmp_path / ARCHIVE).write_bytes(archive({**FILES, "data_batch_1": batch(3, 1)}))
    refuses(f"{ARCHIVE}: truncated or corrupted, its sha256 is", tmp_path)


def test_the_archive_of_the_other_data_set_is_mislabelled(tmp_path, monkeypatch):
    other = archive(FILES, "other")
    monkeypatch.setattr(cifar, "CIFAR100", replace(CIFAR100, sha256=hashlib.sha256(other).hexdigest()))
    (tmp_path / ARCHIVE).write_bytes(other)
    refuses("mislabelled, this is the content of cifar-100-python.tar.gz", tmp_path)


def test_an_archive_without_a_file(tmp_path):
    data = archive({"data_batch_1": FILES["data_batch_1"]})
    (tmp_path / ARCHIVE).write_bytes(data)
    refuses("has no file small-batches-py/data_batch_2", tmp_path, replace(SMALL, sha256=hashlib.sha256(
        data).hexdigest()))


def test_a_missing_file_is_named(tmp_path):
    unpack(tmp_path)
    (tmp_path / "data_batch_2").unlink()
    refuses(f"data_batch_2 is missing: put it into the folder .*, or {ARCHIVE} into", tmp_path, error=FileNotFoundError)


@pytest.mark.parametrize("kept", [0, 1, 100, 5000, -1])
def test_a_truncated_file_is_refused(tmp_path, kept):
    unpack(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(FILES["data_batch_1"][:kept])
    refuses("data_batch_1: truncated or corrupted, its md5 is", tmp_path)


def test_a_file_under_another_name_is_mislabelled(tmp_path):
    unpack(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(FILES["test_batch"])
    refuses("data_batch_1: mislabelled, this is the content of test_batch", tmp_path)


@pytest.mark.parametrize(("content", "message"), [
    ({b"labels": [0, 1, 10], b"data": np.zeros((3, 3072), np.uint8)}, "a label outside 0 to 9"),
    ({b"labels": [0, 1], b"data": np.zeros((3, 3072), np.uint8)}, "expected 'data' of n by 3072 bytes"),
    ({b"labels": [0], b"data": np.zeros((1, 3071), np.uint8)}, "expected 'data' of n by 3072 bytes"),
    ({b"fine_labels": [0], b"data": np.zeros((1, 3072), np.uint8)}, "the keys are .'data', 'fine_labels'."),
    ({b"labels": [0] * 3, b"data": np.zeros((3, 3072), np.uint8)}, "7 images, expected 4"),
    ({b"labels": [0], b"data": np.zeros((1, 3072), np.int16)}, "data: expected .1, 3072. bytes in row order"),
    ({b"labels": [0, 1], b"data": np.asfortranarray(np.zeros((2, 3072), np.uint8))}, "in row order"),
    ([1, 2], "holds a list, expected a dictionary"),
])
def test_other_contents_are_refused_though_their_checksum_is_right(tmp_path, content, message):
    files = {"test_batch": dumps(content)}
    unpack(tmp_path, files)
    known = replace(SMALL, md5={"test_batch": md5(files["test_batch"])})
    if "7 images" in message:
        unpack(tmp_path)
        more = replace(SMALL, files={"train": ("data_batch_1", "test_batch")},
                       source=replace(SOURCE, counts={"train": 4}))
        refuses(message, tmp_path, more)
    else:
        refuses(message, tmp_path, known, "test")


class Evil:
    """Pickles to a call: the file that it would make shows whether it was run."""

    def __init__(self, call, *arguments):
        self.call = call, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("call", ["system", "eval", "open", "partial"])
def test_code_in_a_pickle_is_never_run(tmp_path, protocol, call):
    mark = tmp_path / "was-run"
    evil = {"system": Evil(os.system, f"touch {mark}"), "eval": Evil(eval, f"open({str(mark)!r}, 'w')"),
            "open": Evil(open, str(mark), "w"), "partial": functools.partial(os.system, f"touch {mark}")}[call]
    with pytest.raises(ValueError, match="which is not run"):
        inert_pickle.read(pickle.dumps({"data": evil}, protocol), "x")
    assert not mark.exists()


def test_the_stand_ins_do_nothing():
    kept = inert_pickle.read(dumps({"nothing": [1, {"a": (b"b", None, True)}]}), "x")
    assert kept == {"nothing": [1, {b"a": (b"b", None, True)}]}
    with pytest.raises(ValueError, match="dtype: not an array"):
        inert_pickle.read(dumps({"dtype": np.dtype("u1")}), "x")


@given(st.integers(0, len(FILES["test_batch"]) - 1))
def test_every_truncated_pickle_is_a_value_error(kept):
    with pytest.raises(ValueError, match="x: not read, truncated"):
        inert_pickle.read(FILES["test_batch"][:kept], "x")


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_damaged_pickle_is_read_or_a_value_error(position, change):
    damaged = bytearray(FILES["test_batch"])
    damaged[position] ^= change
    try:
        inert_pickle.read(bytes(damaged), "x")
    except ValueError as error:
        assert str(error).startswith("x")


def test_a_gzip_that_is_no_archive(tmp_path):
    data = gzip.compress(b"no archive")
    (tmp_path / ARCHIVE).write_bytes(data)
    refuses("truncated or corrupted", tmp_path)
