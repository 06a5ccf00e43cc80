"""ImageNet-1K (Russakovsky et al., 2015), or other pictures in its form, from a folder.

Each picture is read and decoded when it is asked for (`LazyImages`). Checksums of 150 GB at every start would cost
hours: what is recorded and compared is the list of the files with their sizes, and each picture shows by itself
whether it is whole.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch

from translution_runs.data import checksums, parquet
from translution_runs.data.lazy_images import LazyImages
from translution_runs.data.listing import Files, checksum
from translution_runs.data.sources import folder

CLASSES = 1000
COUNTS = {"train": 1_281_167, "validation": 50_000}
FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
ENDINGS = (".jpeg", ".jpg", ".png")


def imagenet(
    root: str | Path, split: str = "train", classes: int = CLASSES, counts: Mapping[str, int] | None = COUNTS
) -> LazyImages:
    """ImageNet-1K's 1,281,167 training or 50,000 validation pictures.

    Args:
        root: the folder with `train` and `validation` (or `val`), in which every class has a folder (numbered in the
            order of their names), or with Hugging Face's parquet files (`ILSVRC/imagenet-1k`); or one with a folder
            `imagenet` like that. Pictures in random order are read faster from class folders: a parquet file gives
            them only in groups.
        split: "train" or "validation".
        classes: number of classes, for other data in the same form.
        counts: number of pictures of each split, likewise; None takes as many as there are.

    Raises:
        ValueError: an unknown split, another number of classes or pictures, or files that changed since they were
            first read.
        FileNotFoundError: no such files; the message says what to put where.
    """
    if split not in FOLDERS:
        raise ValueError(f"split: got {split!r}, expected one of {sorted(FOLDERS)}")
    where = folder(root, "imagenet")
    found = next((where / name for name in FOLDERS[split] if (where / name).is_dir()), None)
    shards = parquet.find(where, split)
    if found is None and not shards:
        raise FileNotFoundError(f"imagenet's {split} split is missing: put its class folders into {where / split}, or "
                                f"Hugging Face's {split}-*.parquet files into {where}")
    images = from_shards(shards, split, classes) if shards else from_classes(found or where, split, classes)
    if counts is not None and len(images) != counts[split]:
        raise ValueError(f"{where}: {len(images)} {split} pictures, expected {counts[split]}")
    what = f"imagenet {split}: names and sizes"
    checksums.keep(where, what, images.sha256["files"])
    return replace(images, refused=partial(checksums.forget, where, what))


def from_classes(where: Path, split: str, classes: int) -> LazyImages:
    """Pictures in one folder for each class."""
    names = sorted(path.name for path in where.iterdir() if path.is_dir())
    for name in names:
        checksums.refuse_name(where / name)
    if len(names) != classes:
        raise ValueError(f"{where}: {len(names)} class folders, expected {classes}")
    groups = [pictures_in(where / name) for name in names]
    empty = [name for name, group in zip(names, groups, strict=True) if not group]
    if empty:
        raise ValueError(f"{where / empty[0]}: no pictures ({', '.join(ENDINGS)})")
    files = Files(where, [f"{name}/{one}" for name, group in zip(names, groups, strict=True) for one in group])
    labels = torch.arange(classes).repeat_interleave(torch.tensor([len(group) for group in groups]))
    return LazyImages(files, labels, classes, "imagenet", split, {"files": checksum(files)})


def pictures_in(where: Path) -> list[str]:
    """The names of the pictures in a folder, in order."""
    names = sorted(name for name in os.listdir(where) if name.lower().endswith(ENDINGS))
    for name in names:
        checksums.refuse_name(where / name)
    return names


def from_shards(paths: list[Path], split: str, classes: int) -> LazyImages:
    """Pictures in parquet files; the group of rows around a picture is kept for the next ones."""
    labels, places = [], []
    for path in paths:
        part = parquet.table(path, ["label"])
        parquet.refuse_types(part, path, {"label": parquet.LABELS})
        parquet.refuse_labels(own := part.column("label").to_pylist(), classes, str(path))
        labels += own
        for group, rows in enumerate(parquet.groups(path)):
            places += [(path, group, row) for row in range(rows)]
    names = [f"{path.name} {path.stat().st_size}\n" for path in paths]
    return LazyImages(Rows(places), torch.tensor(labels, dtype=torch.int64), classes, "imagenet", split,
                      {"files": hashlib.sha256("".join(names).encode()).hexdigest()})


@dataclass(frozen=True)
class Rows:
    """Reads a picture by number out of parquet files; `places` says in which file, group and row it lies."""

    places: list[tuple[Path, int, int]]

    def __call__(self, number: int) -> tuple[bytes, str]:
        """The encoded picture, and where it lies."""
        path, group, row = self.places[number]
        return rows_of(path, group)[row], f"{path}, picture {number}"


@lru_cache(maxsize=64)
def rows_of(path: Path, group: int) -> list[bytes]:
    """The encoded pictures of one group of rows."""
    return parquet.group(path, group, "image")
