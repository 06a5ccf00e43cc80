"""MNIST from a local folder (LeCun, Bottou, Bengio and Haffner, 1998), every file checked against a known sha256."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from translution_lib.data import idx
from translution_lib.data.image_set import ImageSet


@dataclass(frozen=True)
class IDXSource:
    """A data set of four IDX files.

    Attributes:
        name: the data set.
        files: for each split, the name of the file of images and of the file of labels.
        sha256: for each file, the checksum of its uncompressed content.
        classes: number of classes.
    """

    name: str
    files: Mapping[str, tuple[str, str]]
    sha256: Mapping[str, str]
    classes: int = 10


FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MNIST = IDXSource("mnist", FILES, {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
})


def mnist(root: str | Path, split: str = "train") -> ImageSet:
    """MNIST's 60,000 training or 10,000 test images, 28 by 28 pixels.

    Args:
        root: the folder with the four IDX files, plain or with the ending `.gz`.
        split: "train" or "test".

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is truncated, corrupted, not what its name says, or an unknown split.
    """
    return read_source(MNIST, root, split)


def read_source(source: IDXSource, root: str | Path, split: str) -> ImageSet:
    """One split of `source` from the folder `root`; errors as in `mnist`."""
    if split not in source.files:
        raise ValueError(f"split: got {split!r}, expected one of {sorted(source.files)}")
    paths = [idx.find(Path(root), name) for name in source.files[split]]
    contents = [idx.content(path) for path in paths]
    for data, path, name in zip(contents, paths, source.files[split], strict=True):
        refuse_mislabelled(source, data, path, name)
    images = idx.parse(contents[0], 3, paths[0])
    labels = idx.parse(contents[1], 1, paths[1])
    checksums = dict(zip(source.files[split], map(idx.sha256, contents), strict=True))
    for path, (name, found) in zip(paths, checksums.items(), strict=True):
        if found != source.sha256[name]:
            raise ValueError(f"{path}: corrupted, the content has the sha256 {found}, expected {source.sha256[name]}")
    refuse_inconsistent(source, len(images), labels.tolist(), paths[1])
    return ImageSet(images[:, None], labels.long(), source.name, split, checksums)


def refuse_mislabelled(source: IDXSource, data: bytes, path: Path, name: str) -> None:
    """Raise a ValueError when the content is that of another file of the same data set."""
    found = idx.sha256(data)
    for other, known in source.sha256.items():
        if other != name and found == known:
            raise ValueError(f"{path}: mislabelled, this is the content of {other}")


def refuse_inconsistent(source: IDXSource, images: int, labels: list[int], where: Path) -> None:
    """Raise a ValueError when there is not one label of a known class for each image."""
    if len(labels) != images:
        raise ValueError(f"{where}: {len(labels)} labels for {images} images")
    if max(labels, default=0) >= source.classes:
        raise ValueError(f"{where}: the label {max(labels)}, expected 0 to {source.classes - 1}")
