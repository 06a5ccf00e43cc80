"""Collect the packages that runs need and a machine with PyTorch lacks: ``python -m … FOLDER``.

What such a machine has is in `PRESENT`; what a run imports is in `NEEDED`, and with it what those need. Versions are
those of this environment. On the machine:

    python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl && export PYTHONPATH=SITE
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NEEDED = ("jaxtyping", "pydantic", "filelock", "kornia", "linformer", "routing-transformer")
PRESENT = ("torch", "triton", "numpy", "einops", "lightning", "lightning-utilities", "pyarrow", "scikit-learn", "scipy",
           "timm", "transformers", "pyyaml", "typer", "tqdm", "pillow", "packaging", "typing-extensions")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64",
             "manylinux_2_34_x86_64", "manylinux_2_27_x86_64")
PYTHON, MOST = "3.12", 20 * 10**6
"""The other machine's Python, and how many bytes the wheels may have together."""


def closure(names: tuple[str, ...] = NEEDED, present: tuple[str, ...] = PRESENT) -> dict[str, str]:
    """Packages and versions: those named and all that they need, without what is present.

    Raises:
        ValueError: a package that is not installed here.
    """
    there, found, waiting = set(map(canonicalize_name, present)), {}, list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in there:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise ValueError(f"{name}: not installed here; expected it, for its version") from None
        needs = (Requirement(text) for text in metadata.requires(name) or ())
        waiting += [one.name for one in needs
                    if one.marker is None or one.marker.evaluate({"extra": "", "python_version": PYTHON})]
    return dict(sorted(found.items()))


def collect(folder: str | Path) -> int:
    """Download the wheels into a folder; their bytes together.

    Raises:
        ValueError: together they are too large.
        subprocess.CalledProcessError: pip finds one of them not.
    """
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    fixed = [f"{name}=={version}" for name, version in closure().items()]
    subprocess.run([sys.executable, "-P", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                    "--python-version", PYTHON, "--implementation", "cp", *platforms, "-d", str(folder), *fixed],
                   check=True)
    size = sum(path.stat().st_size for path in Path(folder).glob("*.whl"))
    if size > MOST:
        raise ValueError(f"{folder}: the wheels have {size:,} bytes together, expected at most {MOST:,}")
    return size


def main() -> None:
    """Collect, and say what there is."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m translution_runs.card.wheels FOLDER")
    size = collect(sys.argv[1])
    print("\n".join(sorted(path.name for path in Path(sys.argv[1]).glob("*.whl"))))
    print(f"{size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
