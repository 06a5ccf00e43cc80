"""Labelled images in parquet files, the form in which Hugging Face keeps them: a column of pictures and one of labels.

A column of pictures is a struct with the fields `bytes` (PNG or JPEG) and `path`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from translution_runs.data import checksums
from translution_runs.data.image_set import ImageSet
from translution_runs.data.pictures import decode_all, is_jpeg
from translution_runs.data.sources import ImageSource, refuse_split

SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.parquet")
LABELS, PICTURES, TEXTS = "whole numbers", "structs with the bytes of a picture in `bytes`", "strings"
"""What a column may hold, in words."""


def find(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split in `folder`, or in a folder in it, in order; empty without any.

    Raises:
        FileNotFoundError: the names count more files than there are.
    """
    for pattern in (f"{split}-*.parquet", f"*/{split}-*.parquet"):
        if found := sorted(folder.glob(pattern)):
            refuse_incomplete(found)
            return found
    return []


def refuse_incomplete(paths: list[Path]) -> None:
    """Raise a FileNotFoundError that names the first shard that `…-00000-of-00007` promises and is not there."""
    match = SHARD.fullmatch(paths[0].name)
    if not match:
        return
    expected = [f"{match[1]}-{number:05}-of-{match[3]}.parquet" for number in range(int(match[3]))]
    missing = sorted(set(expected) - {path.name for path in paths})
    if missing:
        raise FileNotFoundError(f"{missing[0]} is missing: put it into the folder {paths[0].parent}")


def verify(source: ImageSource, path: Path) -> str:
    """The file's sha256, compared with the known ones and with what was recorded when the file was met first.

    A file of a known name may have another content (Hugging Face's own, as PNG); `refuse_damaged` sees to the rest.

    Raises:
        ValueError: the content of another known file, or changed since it was recorded.
    """
    found = checksums.digest(path)
    if source.sha256.get(path.name) != found:
        if found in source.sha256.values():
            checksums.refuse_other(found, path.name, source.sha256, path)
        checksums.refuse_changed(path.parent, path.name, found)
    return found


def read(source: ImageSource, paths: list[Path], split: str) -> ImageSet:
    """One split from its parquet files.

    The name of the set says so when the pictures are JPEG, which loses a little of every image.

    Raises:
        ValueError: truncated, corrupted, mislabelled or changed files, or not the images the source has.
    """
    refuse_split(split, source.counts)
    sha256 = {path.name: verify(source, path) for path in paths}
    encoded, labels = [], []
    for path in paths:
        part = table(path, [source.image, source.label])
        refuse_types(part, path, {source.image: PICTURES, source.label: LABELS})
        encoded += pictures(part.column(source.image).to_pylist())
        labels += part.column(source.label).to_pylist()
    refuse_damaged(source, sha256, encoded, paths[0].parent)
    images = image_set(source, encoded, labels, split, sha256, str(paths[0]))
    for path in paths:  # last: a file that was refused is not taken for the right one
        if source.sha256.get(path.name) != sha256[path.name]:
            checksums.keep(path.parent, path.name, sha256[path.name])
    return images


def refuse_damaged(source: ImageSource, sha256: Mapping[str, str], encoded: list[bytes], where: Path) -> None:
    """Raise a ValueError for JPEG pictures in a file whose JPEG form has a known checksum, and not this one."""
    if any(map(is_jpeg, encoded)):
        for name in sha256.keys() & source.sha256.keys():
            checksums.refuse_other(sha256[name], name, source.sha256, where / name)


def refuse_types(part: Any, path: Path, expected: Mapping[str, str]) -> None:
    """Raise a ValueError that names file and column unless every column of a table has the type that is expected."""
    from pyarrow import types

    def is_picture(kind: Any) -> bool:
        fields = {field.name: field.type for field in kind} if types.is_struct(kind) else {}
        return "bytes" in fields and (types.is_binary(fields["bytes"]) or types.is_large_binary(fields["bytes"]))

    checks = {LABELS: types.is_integer, PICTURES: is_picture,
              TEXTS: lambda kind: types.is_string(kind) or types.is_large_string(kind)}
    for column, what in expected.items():
        kind = part.schema.field(column).type
        if not checks[what](kind):
            raise ValueError(f"{path}: the column {column!r} has the type {kind}, expected {what}")


def refuse_labels(labels: Sequence[int | None], classes: int, where: str) -> None:
    """Raise a ValueError that names the first label that is missing or out of range."""
    wrong = [label for label in labels if label is None or not 0 <= label < classes]
    if wrong:
        raise ValueError(f"{where}: the label {wrong[0]}, expected 0 to {classes - 1}")


def table(path: Path, columns: list[str]) -> Any:
    """Columns of a parquet file as an Arrow table.

    Raises:
        ValueError: not a whole parquet file, or one without these columns.
        ImportError: pyarrow is not installed.
    """
    with opened(path) as file:
        missing = sorted(set(columns) - set(file.schema_arrow.names))
        if missing:
            raise ValueError(f"{path}: mislabelled, the columns are {', '.join(file.schema_arrow.names)}; "
                             f"expected {', '.join(columns)}")
        return file.read(columns)


def groups(path: Path) -> list[int]:
    """The number of rows in each group of rows, the part of a parquet file that is read as one."""
    with opened(path) as file:
        return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]


def group(path: Path, number: int, column: str) -> list[bytes]:
    """The encoded pictures of one column in one group of rows."""
    with opened(path) as file:
        part = file.read_row_group(number, [column])
        refuse_types(part, path, {column: PICTURES})
        return pictures(part.column(column).to_pylist())


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A parquet file that is being read; errors as in `table`."""
    checksums.refuse_pipe(path)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("parquet files are read by pyarrow: install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: truncated or corrupted, not a whole parquet file ({error}); copy it again") from None


def pictures(column: Iterable[Any]) -> list[bytes]:
    """The encoded pictures in a column; empty where there is none, which the decoder refuses."""
    return [picture["bytes"] or b"" if picture else b"" for picture in column]


def image_set(
    source: ImageSource, encoded: list[bytes], labels: list[int | None], split: str, sha256: dict[str, str], where: str
) -> ImageSet:
    """Encoded pictures and labels, checked against what the source has and decoded."""
    if len(encoded) != source.counts[split]:
        raise ValueError(f"{where}: {len(encoded)} images, expected the {source.counts[split]} of {source.name}'s "
                         f"{split} split")
    refuse_labels(labels, source.classes, where)
    name = f"{source.name}, re-encoded as JPEG" if any(map(is_jpeg, encoded)) else source.name
    pixels = decode_all(encoded, source.channels, source.size, where)
    return ImageSet(pixels, torch.tensor(labels), name, split, sha256)
