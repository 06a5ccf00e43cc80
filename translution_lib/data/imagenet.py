"""ImageNet-1K (Russakovsky et al., 2015) from a folder, each picture read and decoded when it is asked for.

Pictures differ in size, so the cut to one size happens here, on the CPU; what follows (`augment`) works on whole
batches on their device. Checksums of 150 GB at every start would cost hours: what is recorded and compared is the list
of the files with their sizes, and each picture shows by itself whether it is whole.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from translution_lib.data import checksums, parquet
from translution_lib.data.pictures import resized
from translution_lib.data.sources import folder

CLASSES = 1000
COUNTS = {"train": 1_281_167, "validation": 50_000}
FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
ENDINGS = (".jpeg", ".jpg", ".png")
KEPT = 0.875  # side of the square that is judged, of the picture's shorter side: 224 of 256
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop: part of the picture, width over height


@dataclass(frozen=True)
class LazyImages:
    """Labelled pictures on the disk.

    Attributes:
        read: number → the encoded picture and its name.
        labels: n, class numbers from 0.
        classes: number of classes.
        name: the data set.
        split: "train" or "validation".
        sha256: "files" and the checksum of the list of files with their sizes.
    """

    read: Callable[[int], tuple[bytes, str]]
    labels: Int64[Tensor, " n"]
    classes: int
    name: str
    split: str
    sha256: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(
        self, index: Int64[Tensor, " b"], size: int, generator: torch.Generator | None = None
    ) -> Float32[Tensor, "b 3 h w"]:
        """The pictures numbered `index`, cut and scaled to `size` by `size` pixels, as numbers from 0 to 1.

        Args:
            index: numbers of pictures.
            size: height and width wanted.
            generator: draws a part of each picture to train on (Szegedy et al., 2015: 8 to 100 % of its area, sides
                in a ratio of 3:4 to 4:3); None takes the central square of 7/8 of the shorter side.

        Raises:
            ValueError: a picture that is truncated or corrupted; the message names it.
        """
        found = [self.read(number) for number in index.tolist()]
        pictures = [resized(data, size, lambda h, w: box(h, w, generator), name) for data, name in found]
        both = torch.stack(pictures) if pictures else torch.zeros(0, 3, size, size, dtype=torch.uint8)
        return both.float() / 255


def box(height: int, width: int, generator: torch.Generator | None) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the part that is kept: the central square, or one drawn at random."""
    if generator is not None:
        for _ in range(10):
            area, ratio, top, left = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
            pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
            shape = math.exp(math.log(RATIO[0]) + ratio * (math.log(RATIO[1]) - math.log(RATIO[0])))
            h, w = math.sqrt(pixels / shape), math.sqrt(pixels * shape)
            if h <= height and w <= width:
                top, left = top * (height - h), left * (width - w)
                return left, top, left + w, top + h
    side = KEPT * min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def imagenet(
    root: str | Path, split: str = "train", classes: int = CLASSES, counts: Mapping[str, int] = COUNTS
) -> LazyImages:
    """ImageNet-1K's 1,281,167 training or 50,000 validation pictures.

    Args:
        root: the folder with `train` and `validation` (or `val`), in which every class has a folder (numbered in the
            order of their names), or with Hugging Face's parquet files (`ILSVRC/imagenet-1k`); or one with a folder
            `imagenet` like that. Pictures in random order are read faster from class folders: a parquet file gives
            them only in groups.
        split: "train" or "validation".
        classes: number of classes, for other data in the same form.
        counts: number of pictures of each split, likewise.

    Raises:
        ValueError: an unknown split, another number of classes or pictures, or files that changed since they were
            first read.
        FileNotFoundError: no such files; the message says what to put where.
    """
    if split not in counts:
        raise ValueError(f"split: got {split!r}, expected one of {sorted(counts)}")
    where = folder(root, "imagenet")
    found = next((where / name for name in FOLDERS[split] if (where / name).is_dir()), None)
    shards = parquet.find(where, split)
    if found is None and not shards:
        raise FileNotFoundError(f"imagenet's {split} split is missing: put its class folders into {where / split}, or "
                                f"Hugging Face's {split}-*.parquet files into {where}")
    images = from_shards(shards, split, classes) if shards else from_classes(found or where, split, classes)
    if len(images) != counts[split]:
        raise ValueError(f"{where}: {len(images)} {split} pictures, expected {counts[split]}")
    checksums.keep(where, f"imagenet {split}: names and sizes", images.sha256["files"])
    return images


def listing(paths: list[Path], start: Path) -> dict[str, str]:
    """The checksum of the files' names below `start`, and their sizes."""
    lines = "".join(f"{path.relative_to(start).as_posix()} {path.stat().st_size}\n" for path in paths)
    return {"files": hashlib.sha256(lines.encode()).hexdigest()}


def from_classes(where: Path, split: str, classes: int) -> LazyImages:
    """Pictures in one folder for each class."""
    names = sorted(path.name for path in where.iterdir() if path.is_dir())
    if len(names) != classes:
        raise ValueError(f"{where}: {len(names)} class folders, expected {classes}")
    groups = [sorted(path for path in (where / name).iterdir() if path.suffix.lower() in ENDINGS) for name in names]
    empty = [name for name, group in zip(names, groups, strict=True) if not group]
    if empty:
        raise ValueError(f"{where / empty[0]}: no pictures ({', '.join(ENDINGS)})")
    paths = [path for group in groups for path in group]
    labels = torch.arange(classes).repeat_interleave(torch.tensor([len(group) for group in groups]))
    return LazyImages(lambda number: (paths[number].read_bytes(), str(paths[number])), labels, classes, "imagenet",
                      split, listing(paths, where))


def from_shards(paths: list[Path], split: str, classes: int) -> LazyImages:
    """Pictures in parquet files; the group of rows around a picture is kept for the next ones."""
    labels, places = [], []
    for path in paths:
        labels += parquet.table(path, ["label"]).column("label").to_pylist()
        for group, rows in enumerate(parquet.groups(path)):
            places += [(path, group, row) for row in range(rows)]
    if min(labels, default=0) < 0 or max(labels, default=0) >= classes:
        raise ValueError(f"{paths[0].parent}: labels from {min(labels)} to {max(labels)}, expected 0 to {classes - 1}")

    def read(number: int) -> tuple[bytes, str]:
        path, group, row = places[number]
        return rows_of(path, group)[row]["bytes"], f"{path}, picture {number}"

    return LazyImages(read, torch.tensor(labels, dtype=torch.int64), classes, "imagenet", split,
                      listing(paths, paths[0].parent))


@lru_cache(maxsize=64)
def rows_of(path: Path, group: int) -> list[Any]:
    """The pictures of one group of rows."""
    return parquet.group(path, group, "image")
