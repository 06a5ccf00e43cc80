"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the archives of pickles, whose code is never run.

The checksums are published: md5 of the files inside by torchvision, sha256 of the archives by Keras.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from translution_runs.data import checksums, inert_pickle
from translution_runs.data.image_set import ImageSet
from translution_runs.data.sources import SOURCES, ImageSource, refuse_split

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Batches:
    """The files of a CIFAR data set.

    Attributes:
        source: the data set.
        archive: name of the compressed file.
        sha256: checksum of the archive.
        folder: name of the folder in the archive.
        files: for each split, the names of its files.
        md5: the files' checksums.
        labels: key of the labels in a file.
    """

    source: ImageSource
    archive: str
    sha256: str
    folder: str
    files: Mapping[str, tuple[str, ...]]
    md5: Mapping[str, str]
    labels: str


CIFAR10 = Batches(
    SOURCES["cifar10"], "cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "cifar-10-batches-py", {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)},
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f", "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751", "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb", "test_batch": "40351d587109b95175f43aff81a1287e",
    }, "labels")
CIFAR100 = Batches(
    SOURCES["cifar100"], "cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    "cifar-100-python", {"train": ("train",), "test": ("test",)},
    {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}, "fine_labels")


def present(batches: Batches, folder: Path) -> bool:
    """Whether the archive, or a file out of it, is in `folder`."""
    names = [name for files in batches.files.values() for name in files]
    return (folder / batches.archive).is_file() or any((unpacked(batches, folder) / name).is_file() for name in names)


def unpacked(batches: Batches, folder: Path) -> Path:
    """Where the unpacked files are: in a folder of the archive's name, or in `folder` itself."""
    return folder / batches.folder if (folder / batches.folder).is_dir() else folder


def read_batches(batches: Batches, folder: Path, split: str) -> ImageSet:
    """One split, from the archive where it is and otherwise from the unpacked files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: truncated, corrupted or mislabelled files, or an unknown split.
    """
    refuse_split(split, batches.files)
    names = batches.files[split]
    packed = folder / batches.archive
    contents = from_archive(batches, packed, names) if packed.is_file() else from_folder(batches, folder, names)
    parts = [parse(batches, contents[name], folder / name) for name in names]
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    if len(labels) != batches.source.counts[split]:
        raise ValueError(f"{folder}: {len(labels)} images, expected {batches.source.counts[split]}")
    sha256 = {name: hashlib.sha256(contents[name]).hexdigest() for name in names}
    return ImageSet(images, labels, batches.source.name, split, sha256)


def from_folder(batches: Batches, folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of unpacked files, each compared with its md5."""
    contents = {}
    for name in names:
        path = unpacked(batches, folder) / name
        if not path.is_file():
            raise FileNotFoundError(f"{name} is missing: put it into the folder {path.parent}, or {batches.archive} "
                                    f"into {folder}")
        contents[name] = path.read_bytes()
        verify(batches, contents[name], name, path)
    return contents


def from_archive(batches: Batches, path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of files in the archive, which is compared with its sha256 before it is opened."""
    known = {other.archive: other.sha256 for other in (CIFAR10, CIFAR100)} | {batches.archive: batches.sha256}
    found = checksums.digest(path)
    if found != batches.sha256:
        refuse_truncated(path)
        checksums.refuse_other(found, batches.archive, known, path)
    with tarfile.open(path) as archive:
        contents = {name: member(archive, f"{batches.folder}/{name}", path) for name in names}
    for name, data in contents.items():
        verify(batches, data, name, path)
    return contents


def refuse_truncated(path: Path) -> None:
    """Raise a ValueError when the gzip stream ends early or is damaged; others have their own message."""
    try:
        with gzip.open(path) as stream:
            while stream.read(1 << 20):
                pass
    except EOFError:
        raise ValueError(f"{path}: the archive is truncated; copy it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: the archive is corrupted ({error}); copy it again") from None


def member(archive: tarfile.TarFile, name: str, where: Path) -> bytes:
    """The content of one file in an archive."""
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise ValueError(f"{where}: has no file {name}")
    return stream.read()


def verify(batches: Batches, data: bytes, name: str, where: Path) -> None:
    """Raise a ValueError unless `data` has the md5 of the file `name`."""
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    checksums.refuse_other(found, name, batches.md5, where)


def parse(batches: Batches, data: bytes, where: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n 3 32 32, bytes) and labels (n) of one file."""
    content = inert_pickle.read(data, where)
    pixels, labels = content.get("data"), content.get(batches.labels)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list) or pixels.shape != (len(labels), 3072):
        raise ValueError(f"{where}: expected 'data' of n by 3072 bytes and as many {batches.labels!r}; "
                         f"the keys are {sorted(content)}")
    if not all(isinstance(label, int) and 0 <= label < batches.source.classes for label in labels):
        raise ValueError(f"{where}: a label outside 0 to {batches.source.classes - 1}")
    return torch.from_numpy(pixels.copy()).view(-1, *SHAPE), torch.tensor(labels)
