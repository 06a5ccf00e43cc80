"""data.load: every data set by its name, from whichever of its files are there."""

import ast
import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from translution_runs import data
from translution_runs.data import FASHION_MNIST, FILES, MNIST, SOURCES, ImageSet, digits, load, loading, read_source

GREY = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
LABELS = np.arange(5, dtype=np.uint8)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def sha(content):
    return hashlib.sha256(content).hexdigest()


CONTENT = {FILES["test"][0]: idx(GREY), FILES["test"][1]: idx(LABELS),
           FILES["train"][0]: idx(GREY[:4]), FILES["train"][1]: idx(LABELS[:4])}
PACKED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENT.items()}


@pytest.fixture
def small(monkeypatch):
    """MNIST and Fashion-MNIST of a few images, with checksums as far as they are known of the real ones."""
    fashion = replace(FASHION_MNIST, sha256={name: sha(CONTENT[name]) for name in FASHION_MNIST.sha256},
                      packed={name: sha(content) for name, content in PACKED.items()})
    monkeypatch.setattr(loading, "IDX", {"mnist": replace(MNIST, sha256={k: sha(v) for k, v in CONTENT.items()}),
                                         "fashion-mnist": fashion})
    for name in loading.IDX:
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], counts={"train": 4, "test": 5}))


def put(root, files):
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name).write_bytes(content)
    return root


def test_digits_need_no_file():
    assert torch.equal(load("digits", "test").images, digits("test").images)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("files", [CONTENT, PACKED])
def test_idx_files_plain_or_compressed(small, tmp_path, name, files):
    found = load(name, "test", put(tmp_path, files))
    assert np.array_equal(found.images[:, 0].numpy(), GREY) and found.labels.tolist() == LABELS.tolist()
    assert found.name == name and found.sha256 == {key: sha(CONTENT[key]) for key in FILES["test"]}


def test_one_root_serves_several_data_sets(small, tmp_path):
    put(tmp_path / "mnist", CONTENT), put(tmp_path / "fashion-mnist", PACKED)
    assert [load(name, "train", tmp_path).name for name in ("mnist", "fashion-mnist")] == ["mnist", "fashion-mnist"]


def test_fashion_mnist_compressed_is_compared_with_what_is_published(small, tmp_path):
    other = gzip.compress(idx(GREY[::-1]), mtime=0)
    put(tmp_path, {**PACKED, f"{FILES['test'][0]}.gz": other})
    with pytest.raises(ValueError, match=f"{FILES['test'][0]}.gz: truncated or corrupted, its sha256 is {sha(other)}"):
        load("fashion-mnist", "test", tmp_path)
    put(tmp_path, {f"{FILES['test'][0]}.gz": PACKED[f"{FILES['train'][0]}.gz"]})
    with pytest.raises(ValueError, match=f"mislabelled, this is the content of {FILES['train'][0]}.gz"):
        load("fashion-mnist", "test", tmp_path)


def test_fashion_mnist_plain_is_recorded_and_may_not_change(small, tmp_path):
    load("fashion-mnist", "test", put(tmp_path, CONTENT))
    put(tmp_path, {FILES["test"][0]: idx(GREY[::-1])})
    with pytest.raises(ValueError, match=f"{FILES['test'][0]}: changed since it was first read"):
        load("fashion-mnist", "test", tmp_path)


def test_mnist_in_the_place_of_fashion_mnist_is_mislabelled(tmp_path, monkeypatch):
    from translution_runs.data import idx_source

    monkeypatch.setattr(idx_source, "MNIST", replace(MNIST, sha256={k: sha(v) for k, v in CONTENT.items()}))
    with pytest.raises(ValueError, match="mislabelled, this is the content of mnist's t10k-images"):
        read_source(FASHION_MNIST, put(tmp_path, CONTENT), "test")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_what_is_missing_is_said(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"is missing: put .* into the folder {tmp_path}"):
        load(name, "test", tmp_path)
    with pytest.raises(FileNotFoundError, match="absent' is not a folder; expected the one with the files of"):
        load(name, "test", tmp_path / "absent")
    with pytest.raises(ValueError, match=f"root: got '', expected the folder with the files of {name}"):
        load(name, "test")


def test_images_of_another_number_or_size_are_refused(small, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], counts={"test": 6}))
    with pytest.raises(ValueError, match=r"mnist: the test images are \(5, 1, 28, 28\), expected \(6, 1, 28, 28\)"):
        load("mnist", "test", put(tmp_path, CONTENT))


@pytest.mark.parametrize(("arguments", "message"), [
    (("emnist",), "name: got 'emnist', expected one of digits, mnist, fashion-mnist, cifar10, cifar100"),
    (("mnist", "valid"), "split: got 'valid', expected one of"),
    (("digits", "valid"), "split: got 'valid', expected one of"),
    (("mnist", "test", "x", "web"), "source: got 'web', expected one of"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load(*arguments)


def test_colour_images_can_be_scaled_and_shortened():
    images = ImageSet(torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8), torch.arange(4), "x", "train", {})
    assert images.scaled(12).first(2).images.shape == (2, 3, 12, 12)


def test_no_reader_is_imported_before_it_is_needed():
    heavy = {"kornia", "datasets", "pyarrow", "PIL", "tokenizers", "sklearn"}
    for path in Path(data.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:  # the top level: what an import of the package runs
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {name.split(".")[0] for name in names}, path.name
