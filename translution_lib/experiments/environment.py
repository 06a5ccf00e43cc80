"""What a run ran on: versions, commit, device, memory."""

import hashlib
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import translution_lib

PACKAGE = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "translution_lib": translution_lib.__version__}


def commit(package: Path = PACKAGE) -> dict[str, Any] | None:
    """The git commit of the library's source, or None where neither git nor the environment knows it.

    `dirty` is true when a file of the library differs from that commit, or is new. Where the files have travelled
    without their repository, the variable TRANSLUTION_COMMIT says which commit they are of; `card --import` checks it.
    """
    if git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        named = os.environ.get("TRANSLUTION_COMMIT")
        return {"commit": named, "dirty": False} if named else None
    revision, changes = git(package, "rev-parse", "HEAD"), git(package, "status", "--porcelain", "--", ".")
    return {"commit": revision, "dirty": bool(changes)} if revision else None


def digest(package: Path = PACKAGE) -> str:
    """The sha256 of the names and contents of the library's files, without what Python compiles of them."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(package).as_posix()
            found.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


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
