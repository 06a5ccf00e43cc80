"""Hugging Face's library on a data set in a local folder, and without a network."""

import hashlib
import io
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet as pq
from translution_runs.data import MNIST, SOURCES, checksums, huggingface, load, text

datasets = pytest.importorskip("datasets")
COUNTS = {"train": 4, "test": 3}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A folder in the form of a repository: grey images of 28 by 28 pixels."""
    root, random = tmp_path_factory.mktemp("repository"), np.random.default_rng(0)
    images = {split: random.integers(0, 256, (count, 28, 28), np.uint8) for split, count in COUNTS.items()}
    for split, pixels in images.items():
        encoded = []
        for one in pixels:
            stream = io.BytesIO()
            Image.fromarray(one).save(stream, "PNG")
            encoded.append({"bytes": stream.getvalue(), "path": None})
        column = pa.array(encoded, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        pq.write_table(pa.table({"image": column, "label": range(len(pixels))}),
                       root / f"{split}-00000-of-00001.parquet")
    return root, images


@pytest.fixture
def small(repository, monkeypatch):
    """MNIST and Fashion-MNIST, both found in that folder."""
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], repository=str(repository[0]), counts=COUNTS))
    datasets.disable_progress_bars()
    return repository[1]


def test_images_labels_and_checksums(small, tmp_path):
    found = load("fashion-mnist", "test", tmp_path, "huggingface")
    assert np.array_equal(found.images[:, 0].numpy(), small["test"]) and found.labels.tolist() == [0, 1, 2]
    assert sorted(found.sha256) == ["images", "labels"]
    assert found.sha256["labels"] == hashlib.sha256(np.arange(3, dtype="<i8").tobytes()).hexdigest()
    recorded = checksums.read_lock(tmp_path)
    assert sorted(name.rsplit("/", 2)[1:] for name in recorded) == [["test", "images"], ["test", "labels"]]


def test_what_changes_after_its_arrival_is_refused(small, tmp_path):
    load("fashion-mnist", "test", tmp_path, "huggingface")
    lock = tmp_path / checksums.LOCK
    lock.write_text(lock.read_text().replace(lock.read_text()[:4], "0000", 1))
    with pytest.raises(ValueError, match="test/images: changed since it was first read"):
        load("fashion-mnist", "test", tmp_path, "huggingface")


def test_mnist_is_compared_with_the_original_files(small, tmp_path, monkeypatch):
    other = load("mnist", "test", tmp_path, "huggingface")
    assert sorted(other.sha256) == ["images", "labels"]  # not the original's images
    header = bytes([0, 0, 8, 3]) + np.array([3, 28, 28], ">i4").tobytes(), bytes([0, 0, 8, 1]) + np.array([3], ">i4"
                                                                                                       ).tobytes()
    content = header[0] + small["test"].tobytes(), header[1] + bytes([0, 1, 2])
    known = {name: hashlib.sha256(data).hexdigest() for name, data in zip(MNIST.files["test"], content, strict=True)}
    monkeypatch.setattr(huggingface, "MNIST", replace(MNIST, sha256=known))
    same = load("mnist", "test", tmp_path, "huggingface")
    assert same.sha256 == known and torch.equal(same.images, other.images)


def test_another_number_of_images_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], counts={"train": 4, "test": 4}))
    with pytest.raises(ValueError, match="3 images, expected the 4 of mnist's test split"):
        load("mnist", "test", tmp_path, "huggingface")


def test_other_columns_are_refused(small, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], label="fine_label"))
    with pytest.raises(ValueError, match="no column fine_label; the columns are"):
        load("mnist", "test", tmp_path, "huggingface")


def test_a_repository_that_the_library_refuses(monkeypatch):
    def refused(*_, **__):
        raise RuntimeError("Dataset scripts are no longer supported")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    with pytest.raises(ValueError, match="ylecun/mnist, split 'test': Dataset scripts are no longer supported"):
        load("mnist", "test", "", "huggingface")


def test_without_a_network_it_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = f"ylecun/mnist, split 'test': not in {tmp_path}, and cannot be fetched .* put the repository's test-"
    with pytest.raises(FileNotFoundError, match=message):
        load("mnist", "test", tmp_path, "huggingface")
    with pytest.raises(FileNotFoundError, match="Skylion007/openwebtext, split 'train'"):
        next(text.from_huggingface(tmp_path))


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="install datasets"):
        load("mnist", "test", "", "huggingface")
