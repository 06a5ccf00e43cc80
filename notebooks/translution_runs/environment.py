"""What a run ran on: versions, commit, device, memory."""

import hashlib
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import translution_lib

PACKAGES = (Path(translution_lib.__file__).resolve().parent, Path(__file__).resolve().parent)
"""What a run's numbers come from: the library, and this package."""
FOLDERS = tuple(package.parent for package in PACKAGES)
"""Where a process that this one starts finds them."""


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "translution_lib": translution_lib.__version__}


def commit(packages: Sequence[Path] = PACKAGES) -> dict[str, Any] | None:
    """The git commit of the source, or None where neither git nor the environment knows it.

    `dirty` is true when a file of the packages differs from that commit, or is new. Where the files have travelled
    without their repository, the variable TRANSLUTION_COMMIT says which commit they are of; `card --import` checks it.
    """
    if any(git(package, "ls-files", "--error-unmatch", "__init__.py") is None for package in packages):
        named = os.environ.get("TRANSLUTION_COMMIT")
        return {"commit": named, "dirty": False} if named else None
    revision = git(packages[0], "rev-parse", "HEAD")
    changes = [git(package, "status", "--porcelain", "--", ".") for package in packages]
    return {"commit": revision, "dirty": any(changes)} if revision else None


def digest(packages: Sequence[Path] = PACKAGES) -> str:
    """The sha256 of the names and contents of the packages' files, without what Python compiles of them."""
    files = {path.relative_to(package.parent).as_posix(): path.read_bytes()
             for package in packages for path in package.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    return digest_of_files(files)


def digest_of_files(files: Mapping[str, bytes]) -> str:
    """The sha256 of names and contents, in the order of the names."""
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def git(folder: Path, *arguments: str) -> str | None:
    """What a git command prints, or None when it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def device(name: str) -> dict[str, Any]:
    """Kind and model of the device, and the number of threads."""
    model = torch.cuda.get_device_name(name) if name.startswith("cuda") else processor()
    return {"type": name, "model": model, "threads": torch.get_num_threads()}


def processor() -> str:
    """The processor's model, as the system names it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def peak_memory(name: str) -> dict[str, int | None]:
    """Largest memory so far in bytes: of the process, and on a GPU of torch's tensors."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts KiB on Linux, bytes on macOS
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"process": process, "device": torch.cuda.max_memory_allocated(name) if name.startswith("cuda") else None}
