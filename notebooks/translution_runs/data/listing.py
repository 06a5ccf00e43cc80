"""A list of a million files in little memory, read by number."""

import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np


class Files:
    """Files below a folder, by number: calling it with one gives the content and the name.

    A million `Path` objects take hundreds of megabytes, and a process that reads would copy them, for Python counts
    references inside its objects. One text and the places where names end have no references.

    Args:
        start: the folder.
        names: of the files, relative to it.
    """

    def __init__(self, start: Path, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        self.start, self.text = start, b"".join(encoded)
        self.ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def path(self, number: int) -> Path:
        """Of one file."""
        return self.start / self.text[self.ends[number]:self.ends[number + 1]].decode()

    def __call__(self, number: int) -> tuple[bytes, str]:
        """The content of a file, and its path."""
        path = self.path(number)
        return path.read_bytes(), str(path)


def checksum(files: Files) -> str:
    """The sha256 of the files' names and sizes, one a line.

    Raises:
        ValueError: an empty file, or something that is no file, such as a pipe.
    """
    digest = hashlib.sha256()
    for number in range(len(files)):
        path = files.path(number)
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise ValueError(f"{path}: {'an empty file' if stat.S_ISREG(found.st_mode) else 'not a file'}, expected a "
                             "picture; copy it again, or remove it")
        digest.update(f"{path.relative_to(files.start).as_posix()} {found.st_size}\n".encode())
    return digest.hexdigest()
