"""The compiled library and what was found out about it, in the user's cache: ``translution`` below ``XDG_CACHE_HOME``.

The folder and its files belong to whoever runs them, and nobody else may write to them. A library is loaded if its
checksum is the one that was written behind it, as the last file; else it is compiled again. Whoever compiles holds a
lock, so that what a killed process left behind belongs to nobody, and goes. Chapter "Making it fit".
"""

import ctypes
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

SOURCES = [Path(__file__).with_name(name) for name in ("compiled.c", "compiled_products.h")]
OTHERS = stat.S_IWGRP | stat.S_IWOTH


@cache
def load() -> ctypes.CDLL:
    """Load the library, compiled before or now, in seconds.

    Raises:
        RuntimeError: there is no C compiler (``cc``, or the one that ``CC`` names), it refuses the source, the cache
            cannot be written to or others can, or the library cannot be loaded.
    """
    try:
        with _locked() as folder:
            library = folder / f"compiled-{_key()}.so"
            if not _whole(library):
                _compile(folder / "making", library)
    except OSError as e:
        raise RuntimeError(f'backend("c") cannot use {place()} ({e}); XDG_CACHE_HOME names another place') from e
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as e:
        raise RuntimeError(f'backend("c") cannot load {library} ({e}); without it, it is compiled again') from e
    loaded.translution_room.restype = ctypes.c_ssize_t
    return loaded


def compiler() -> str | None:
    """Return the command of a C compiler, if there is one."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def place() -> Path:
    """Return the folder of the cache; a relative ``XDG_CACHE_HOME`` counts as none, as its specification says."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "translution"
    try:
        return Path.home() / ".cache" / "translution"
    except RuntimeError as e:
        raise RuntimeError('backend("c"): this user has no home folder; XDG_CACHE_HOME names another place') from e


def noted(question: str) -> Any:
    """Return what :func:`note` wrote for the same sources, compiler, processor and torch; None if that is nothing."""
    with suppress(OSError, ValueError, RuntimeError):
        path = _note(question)
        _refuse_others(path)
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def note(question: str, answer: Any) -> None:
    """Write an answer down for later processes; where the cache cannot be written to, they find out themselves."""
    with suppress(OSError, RuntimeError), _locked():
        path = _note(question)
        made = path.with_suffix(".making")
        made.write_text(json.dumps(answer), encoding="utf-8")
        made.replace(path)


def _flags() -> list[str]:
    return ["-mavx2", "-mfma"] if torch.backends.cpu.get_cpu_capability().startswith("AVX") else []


def _key() -> str:
    """Return a name of the sources, the compiler and the processor."""
    how = [platform.machine(), os.environ.get("CC", ""), *_flags()]
    return sha256(b"".join(f.read_bytes() for f in SOURCES) + " ".join(how).encode()).hexdigest()[:16]


def _note(question: str) -> Path:
    """Return the place of an answer, which holds for the modules of this folder and a version of torch."""
    code = b"".join(f.read_bytes() for f in sorted(Path(__file__).parent.glob("*.py")))
    asked = sha256(code + f"{_key()} {torch.__version__} {question}".encode()).hexdigest()[:16]
    return place() / f"verdict-{asked}.json"


@contextmanager
def _locked() -> Iterator[Path]:
    """Make the folder, refuse it if others may write there, and hold its lock: a process that ends gives it back."""
    import fcntl  # which Windows has not
    folder = place()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_others(folder)
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _refuse_others(path: Path) -> None:
    """Raise an OSError if a path belongs to somebody else, or somebody else may write to it."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    if found.st_mode & OTHERS:
        raise PermissionError(f"others may write to {path}: chmod go-w")


def _whole(library: Path) -> bool:
    """Whether a library is there as it was compiled."""
    if not library.exists():
        return False
    _refuse_others(library)
    checksum = library.with_suffix(".sha256")
    return checksum.exists() and checksum.read_bytes() == sha256(library.read_bytes()).hexdigest().encode()


def _words(command: str) -> list[str]:
    """Return the words of a command as a shell has them; the path of a program may have a space."""
    try:
        return [command] if shutil.which(command) else shlex.split(command)
    except ValueError as e:
        raise RuntimeError(f'backend("c"): CC is {command!r}, which is no command ({e})') from e


def _compile(making: Path, library: Path) -> None:
    """Compile beside the library's place, put it there, and its checksum behind it."""
    command = compiler()
    if not command:
        raise RuntimeError('backend("c") needs a C compiler with OpenMP (gcc or clang), as `cc` or in CC; '
                           "none was found")
    shutil.rmtree(making, ignore_errors=True)       # of a process that was killed
    making.mkdir(mode=0o700)
    try:
        made = making / library.name
        line = [*_words(command), "-O3", *_flags(), "-fopenmp", "-shared", "-fPIC", "-o", str(made), str(SOURCES[0])]
        try:
            run = subprocess.run(line, capture_output=True, text=True)
        except OSError as e:
            raise RuntimeError(f'backend("c"): the C compiler {command!r} does not start: {e}') from e
        if run.returncode:
            raise RuntimeError(f'backend("c"): {" ".join(line)} failed:\n{run.stderr.strip()}')
        if not made.exists():
            raise RuntimeError(f'backend("c"): {" ".join(line)} ended well and made nothing; is it a C compiler?')
        made.chmod(0o700)
        checksum = made.with_suffix(".sha256")
        checksum.write_text(sha256(made.read_bytes()).hexdigest(), encoding="ascii")
        made.replace(library)
        checksum.replace(library.with_suffix(".sha256"))
    finally:
        shutil.rmtree(making, ignore_errors=True)
