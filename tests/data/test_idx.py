import gzip
import hashlib
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from translution_runs.data import FILES, IDXSource, idx, mnist, read_source

IMAGES, LABELS = FILES["test"]


def encoded(array: torch.Tensor) -> bytes:
    """An IDX file of unsigned bytes, written from the format's description."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.numpy().tobytes()


def sample(count: int = 6) -> dict[str, bytes]:
    images = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
    labels = torch.arange(count, dtype=torch.uint8) % 10
    train = torch.randint(256, (count + 1, 28, 28), dtype=torch.uint8)
    return {IMAGES: encoded(images), LABELS: encoded(labels), FILES["train"][0]: encoded(train),
            FILES["train"][1]: encoded(torch.zeros(count + 1, dtype=torch.uint8))}


def source(files: dict[str, bytes]) -> IDXSource:
    return IDXSource("small", FILES, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()})


@pytest.fixture
def folder(tmp_path):
    """A folder with four whole files, and the source that knows their checksums."""
    files = sample()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path, source(files), files


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_parse_inverts_the_format(shape, seed):
    array = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(idx.parse(encoded(array), len(shape), Path("x")), array)


@given(st.integers(0, 59), st.integers(0, 2**31))
def test_parse_refuses_every_truncation(kept, seed):
    array = torch.randint(256, (3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    with pytest.raises(ValueError, match="truncated|magic number"):
        idx.parse(encoded(array)[:kept], 3, Path("x"))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_plain_and_compressed_files_read_the_same(folder, ending):
    root, known, files = folder
    for name, data in files.items():
        (root / name).unlink()
        (root / f"{name}{ending}").write_bytes(gzip.compress(data) if ending else data)
    found = read_source(known, root, "test")
    assert torch.equal(found.images[:, 0], idx.parse(files[IMAGES], 3, root))
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.images.shape == (6, 1, 28, 28) and found.name == "small" and found.split == "test"
    assert found.sha256 == {name: known.sha256[name] for name in (IMAGES, LABELS)}


def refuses(root, known, message, error=ValueError):
    with pytest.raises(error, match=message):
        read_source(known, root, "test")


def test_missing_file_says_what_to_put_where(folder):
    root, known, _ = folder
    (root / LABELS).unlink()
    refuses(root, known, f"{LABELS} is missing: put the file {LABELS} or {LABELS}.gz into the folder .*{root.name}",
            FileNotFoundError)


def test_missing_folder_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=IMAGES):
        mnist(tmp_path / "nowhere", "test")


def test_truncated_file(folder):
    root, known, files = folder
    (root / IMAGES).write_bytes(files[IMAGES][:-100])
    refuses(root, known, f"{IMAGES}: truncated, 4604 bytes .* needs 4704")


def test_file_with_more_than_its_header_says(folder):
    root, known, files = folder
    (root / IMAGES).write_bytes(files[IMAGES] + b"\0")
    refuses(root, known, f"{IMAGES}: too long")


def test_truncated_gzip(folder):
    root, known, files = folder
    (root / IMAGES).unlink()
    (root / f"{IMAGES}.gz").write_bytes(gzip.compress(files[IMAGES])[:-50])
    refuses(root, known, f"{IMAGES}.gz: the gzip file is truncated")


@pytest.mark.parametrize("where", [0, 12, -6])
def test_corrupted_gzip(folder, where):
    root, known, files = folder
    (root / IMAGES).unlink()
    data = bytearray(gzip.compress(files[IMAGES], mtime=0))
    data[where] ^= 0xFF
    (root / f"{IMAGES}.gz").write_bytes(bytes(data))
    refuses(root, known, f"{IMAGES}.gz: the gzip file is (corrupted|truncated)")


@given(st.integers(16, 4719), st.integers(1, 255))
def test_one_changed_byte_of_an_image_is_noticed(tmp_path_factory, position, change):
    root, files = tmp_path_factory.mktemp("changed"), sample()
    for name, data in files.items():
        (root / name).write_bytes(data)
    damaged = bytearray(files[IMAGES])
    damaged[position] ^= change
    (root / IMAGES).write_bytes(bytes(damaged))
    refuses(root, source(files), f"{IMAGES}: corrupted, the content has the sha256")


def test_wrong_magic_number(folder):
    root, known, files = folder
    (root / IMAGES).write_bytes(b"\x00\x00\x0d\x03" + files[IMAGES][4:])
    refuses(root, known, f"{IMAGES}: the magic number is 0x00000d03, expected 0x00000803 .unsigned bytes, 3 dim")


def test_empty_file(folder):
    root, known, _ = folder
    (root / IMAGES).write_bytes(b"")
    refuses(root, known, f"{IMAGES}: the magic number")


def test_labels_in_the_place_of_images(folder):
    root, known, files = folder
    (root / IMAGES).write_bytes(files[LABELS])
    refuses(root, known, f"{IMAGES}: mislabelled, this is the content of {LABELS}")


def test_training_images_in_the_place_of_test_images(folder):
    root, known, files = folder
    (root / IMAGES).write_bytes(files[FILES["train"][0]])
    refuses(root, known, f"{IMAGES}: mislabelled, this is the content of {FILES['train'][0]}")


def test_images_and_labels_must_match_in_number(folder):
    root, _, files = folder
    files[LABELS] = encoded(torch.zeros(5, dtype=torch.uint8))
    (root / LABELS).write_bytes(files[LABELS])
    refuses(root, source(files), "5 labels for 6 images")


def test_unknown_classes_are_refused(folder):
    root, _, files = folder
    files[LABELS] = encoded(torch.full((6,), 10, dtype=torch.uint8))
    (root / LABELS).write_bytes(files[LABELS])
    refuses(root, source(files), "the label 10, expected 0 to 9")


def test_unknown_split(folder):
    root, known, _ = folder
    with pytest.raises(ValueError, match="split: got 'valid', expected one of"):
        read_source(known, root, "valid")


def test_other_data_under_mnists_names_is_not_mnist(folder):
    root, _, _ = folder
    with pytest.raises(ValueError, match="corrupted"):
        mnist(root, "test")


REAL = os.environ.get("TRANSLUTION_MNIST", "")


@pytest.mark.skipif(not REAL, reason="TRANSLUTION_MNIST does not name a folder with MNIST's four files")
def test_real_mnist():
    train, test = mnist(REAL, "train"), mnist(REAL, "test")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert torch.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]
