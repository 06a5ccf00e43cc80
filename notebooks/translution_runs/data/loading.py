"""One way to every data set of small labelled images."""

from pathlib import Path

from translution_runs.data import cifar, huggingface, parquet
from translution_runs.data.embedded import digits
from translution_runs.data.idx_source import FASHION_MNIST, MNIST, read_source
from translution_runs.data.image_set import ImageSet
from translution_runs.data.sources import ImageSource, folder, known, refuse_split

IDX = {source.name: source for source in (MNIST, FASHION_MNIST)}
BATCHES = {batches.source.name: batches for batches in (cifar.CIFAR10, cifar.CIFAR100)}
ORIGINS = ("folder", "huggingface")


def load(name: str, split: str = "train", root: str | Path = "", source: str = "folder") -> ImageSet:
    """The training or test images of a data set, checked.

    Args:
        name: "digits" (embedded; the next two are not used), "mnist", "fashion-mnist", "cifar10" or "cifar100".
        split: "train" or "test".
        root: the folder with the files, or one with a folder `name` in it; with source "huggingface" the folder for
            the cache, empty for the library's own.
        source: "folder" or "huggingface".

    From a folder: the four IDX files of MNIST and Fashion-MNIST, plain or with the ending `.gz`; the archive
    `cifar-10-python.tar.gz` or `cifar-100-python.tar.gz`, or the files in it; or, for all, the parquet files of
    Hugging Face's repository.

    Raises:
        ValueError: an unknown name, split or source, no root, or files that are truncated, corrupted, mislabelled or
            changed.
        FileNotFoundError: a file is missing, or Hugging Face cannot be reached; the message says what to put where.
        ImportError: a package that this data set needs is not installed; the message names it.
    """
    what = known(name)
    refuse_split(split, what.counts)
    if source not in ORIGINS:
        raise ValueError(f"source: got {source!r}, expected one of {ORIGINS}")
    if name == "digits":
        return digits(split)
    images = huggingface.read(what, root, split) if source == "huggingface" else from_folder(what, folder(root, name),
                                                                                             split)
    refuse_other_shape(what, images, split)
    return images


def from_folder(source: ImageSource, where: Path, split: str) -> ImageSet:
    """One split from whichever files of the data set are in a folder."""
    paths = parquet.find(where, split)
    if source.name in BATCHES:
        batches = BATCHES[source.name]
        if cifar.present(batches, where) or not paths:
            return cifar.read_batches(batches, where, split)
    elif not paths or any(where.glob("*-ubyte*")):
        return read_source(IDX[source.name], where, split)
    return parquet.read(source, paths, split)


def refuse_other_shape(source: ImageSource, images: ImageSet, split: str) -> None:
    """Raise a ValueError unless these are as many images as the data set has, of its size."""
    expected = (source.counts[split], source.channels, source.size, source.size)
    if images.images.shape != expected:
        raise ValueError(f"{source.name}: the {split} images are {tuple(images.images.shape)}, expected {expected}")
