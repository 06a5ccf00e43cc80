"""Data sets from Hugging Face by its library `datasets`, which downloads a data set once and then reads its cache.

What arrives is recorded beside the cache and refused when it changes: the pictures as they are encoded, and the
labels. Where the original files' checksums are known (MNIST) the decoded images are compared with those.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from translution_runs.data import checksums, parquet
from translution_runs.data.idx_source import MNIST
from translution_runs.data.image_set import ImageSet
from translution_runs.data.sources import ImageSource, refuse_split


def library() -> Any:
    """The module `datasets`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError("source 'huggingface' needs the library datasets: install datasets") from error
    return datasets


def fetch(repository: str, split: str, cache: str | Path = "") -> Any:
    """One split of a data set, from the cache or the network.

    Args:
        repository: its name on Hugging Face.
        split: as the repository calls it.
        cache: folder to keep it in; empty is the library's own.

    Raises:
        FileNotFoundError: it is not in the cache, and the network or the repository cannot be reached.
        ValueError: the library refuses what it finds.
    """
    datasets = library()
    try:
        return datasets.load_dataset(repository, split=split, cache_dir=str(cache) or None)
    except OSError as error:  # no network, no such repository, no permission
        where = cache or datasets.config.HF_DATASETS_CACHE
        raise FileNotFoundError(
            f"{repository}, split {split!r}: not in {where}, and cannot be fetched ({error}). Go on with a network, or "
            f"put the repository's {split}-*.parquet files into a folder and read it with source 'folder'") from error
    except (datasets.exceptions.DatasetsError, RuntimeError, ValueError) as error:  # such as a repository of scripts
        raise ValueError(f"{repository}, split {split!r}: {error}") from error


def read(source: ImageSource, root: str | Path, split: str) -> ImageSet:
    """One split of `source`; `root` is the folder for the cache, empty for the library's own.

    Raises:
        FileNotFoundError: neither cached nor reachable; the message says which files to put where.
        ValueError: not the images the source has, or not those of the first time.
    """
    refuse_split(split, source.counts)
    found = fetch(source.repository, split, root)
    missing = sorted({source.image, source.label} - set(found.column_names))
    if missing:
        raise ValueError(f"{source.repository}: no column {', '.join(missing)}; the columns are {found.column_names}")
    raw = found.cast_column(source.image, library().Image(decode=False))
    encoded, labels = parquet.pictures(raw[source.image]), list(raw[source.label])
    images = parquet.image_set(source, encoded, labels, split, content(encoded, labels), source.repository)
    keep(images, Path(root or library().config.HF_DATASETS_CACHE), source.repository)
    return as_idx(images) or images


def content(encoded: Iterable[bytes], labels: list[int]) -> dict[str, str]:
    """The sha256 of the encoded pictures, one after the other, and of the labels as 64-bit integers, low byte first."""
    pictures = hashlib.sha256()
    for data in encoded:
        pictures.update(data)
    return {"images": pictures.hexdigest(),
            "labels": hashlib.sha256(np.asarray(labels, "<i8").tobytes()).hexdigest()}


def keep(images: ImageSet, folder: Path, repository: str) -> None:
    """Record what arrived in the cache's folder, or compare it with what arrived the first time."""
    for part, checksum in images.sha256.items():
        checksums.keep(folder, f"{repository}/{images.split}/{part}", checksum)


def as_idx(images: ImageSet) -> ImageSet | None:
    """MNIST with its original files' checksums when these are the same images in the same order; else None."""
    if images.name != MNIST.name:
        return None
    n, _, height, width = images.images.shape
    headers = [torch.tensor(axes, dtype=torch.int32).numpy().astype(">i4").tobytes()
               for axes in ([0x0803, n, height, width], [0x0801, n])]
    arrays = [images.images.numpy(), images.labels.to(torch.uint8).numpy()]
    names = MNIST.files[images.split]
    sha256 = {name: hashlib.sha256(header + array.tobytes()).hexdigest()
              for name, header, array in zip(names, headers, arrays, strict=True)}
    same = all(MNIST.sha256[name] == checksum for name, checksum in sha256.items())
    return ImageSet(images.images, images.labels, images.name, images.split, sha256) if same else None
