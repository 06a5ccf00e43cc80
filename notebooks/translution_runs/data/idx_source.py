"""MNIST (LeCun, Bottou, Bengio and Haffner, 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017) from a folder.

Every file is compared with a known sha256. Of Fashion-MNIST's images only the compressed files' checksums are
published: plain files are recorded when they are met first, and refused when they change.
Chapter "Static and dynamic MNIST".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from translution_runs.data import checksums, idx
from translution_runs.data.image_set import ImageSet


@dataclass(frozen=True)
class IDXSource:
    """A data set of four IDX files.

    Attributes:
        name: the data set.
        files: for each split, the name of the file of images and of the file of labels.
        sha256: for each file, the checksum of its uncompressed content.
        classes: number of classes.
        most: bytes of the largest file, uncompressed; no more is read.
        packed: for files compressed by gzip, checksums of the compressed content.
    """

    name: str
    files: Mapping[str, tuple[str, str]]
    sha256: Mapping[str, str]
    classes: int = 10
    most: int = 16 + 60_000 * 28 * 28
    packed: Mapping[str, str] = field(default_factory=dict)


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
FASHION_MNIST = IDXSource("fashion-mnist", FILES, {
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}, packed={
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
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
    names = source.files[split]
    paths = [idx.find(Path(root), name) for name in names]
    contents = [idx.content(path, source.most) for path in paths]
    for data, path, name in zip(contents, paths, names, strict=True):
        refuse_mislabelled(source, data, path, name)
    images, labels = (idx.parse(data, d, path) for data, d, path in zip(contents, (3, 1), paths, strict=True))
    sha256 = dict(zip(names, map(idx.sha256, contents), strict=True))
    for path, (name, found) in zip(paths, sha256.items(), strict=True):
        verify(source, path, name, found)
    refuse_inconsistent(source, len(images), labels.tolist(), paths[1])
    for path, (name, found) in zip(paths, sha256.items(), strict=True):  # last: what was refused is not recorded
        if not published(source, path, name):
            checksums.keep(path.parent, path.name, found)
    return ImageSet(images[:, None], labels.long(), source.name, split, sha256)


def refuse_mislabelled(source: IDXSource, data: bytes, path: Path, name: str) -> None:
    """Raise a ValueError when the content is that of another file of the same data set, or of MNIST."""
    found = idx.sha256(data)
    for known in (source, MNIST):
        for other, checksum in known.sha256.items():
            if found == checksum and (other != name or known.name != source.name):
                whose = "" if known.name == source.name else f"{known.name}'s "
                raise ValueError(f"{path}: mislabelled, this is the content of {whose}{other}")


def published(source: IDXSource, path: Path, name: str) -> bool:
    """Whether a checksum of the file's content, or of the compressed file, is known."""
    return name in source.sha256 or path.name in source.packed


def verify(source: IDXSource, path: Path, name: str, found: str) -> None:
    """Compare a file with what is published, its content or else the compressed file, or with what was recorded."""
    if name in source.sha256:
        if found != source.sha256[name]:
            raise ValueError(f"{path}: corrupted, the content has the sha256 {found}, expected {source.sha256[name]}")
    elif path.name in source.packed:
        checksums.refuse_other(checksums.digest(path), path.name, source.packed, path)
    else:
        checksums.refuse_changed(path.parent, path.name, found)


def refuse_inconsistent(source: IDXSource, images: int, labels: list[int], where: Path) -> None:
    """Raise a ValueError when there is not one label of a known class for each image."""
    if len(labels) != images:
        raise ValueError(f"{where}: {len(labels)} labels for {images} images")
    if max(labels, default=0) >= source.classes:
        raise ValueError(f"{where}: the label {max(labels)}, expected 0 to {source.classes - 1}")
