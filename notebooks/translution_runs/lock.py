"""A run is run by one process at a time."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

PATIENCE = 0.3  # seconds; whoever asks for the holder has the lock for an instant


@contextmanager
def hold(path: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of the file `path`, and remove the file at the end; wait for it `patience` seconds.

    The operating system frees the lock when the process ends, however it ends; a file that a killed process left
    behind locks nothing. Threads of one process exclude each other as well.

    Raises:
        ValueError: another process holds it; the message says which, and on which machine.
        OSError: the folder cannot be written, or its file system has no locks.
    """
    path = Path(path)
    lock = FileLock(path, timeout=patience, on_acquired=sign)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"{path.stem}: is being run by {read(path)}") from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: who waits for this file finds it gone and makes a new one
            path.unlink()
        lock.release()


def holder(path: str | Path) -> str | None:
    """Who holds the lock, as "process 123 on HOST"; None where nobody does."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        with FileLock(path, blocking=False):
            return None
    except Timeout:
        return read(path)


def sign(descriptor: int) -> None:
    """Write into the lock's file who holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def read(path: Path) -> str:
    """What the holder wrote."""
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
