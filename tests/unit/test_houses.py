"""Three houses: the library needs little, imports go one way, and the command says what it lacks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import translution_lib

ROOT = Path(translution_lib.__file__).resolve().parents[1]
HOUSES = {"translution_lib": ROOT / "translution_lib", "translution_runs": ROOT / "notebooks" / "translution_runs",
          "translution_book": ROOT / "book" / "translution_book"}
BELOW = {"translution_lib": set(), "translution_runs": {"translution_lib"},
         "translution_book": {"translution_lib", "translution_runs"}}
FLOORS = ("relations", "sharing", "resizing", "backends", "functional", "mixers", "models", "cost")
"""Of the library, each above those that it may import from."""
NEEDED = {"torch", "numpy", "einops", "jaxtyping", "triton"}  # Triton where it is installed


def imported(path: Path) -> set[str]:
    """The packages that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def library_modules(path: Path) -> set[str]:
    """The floors of the library that a file imports from."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom))
    return {part for node in nodes for part in [((node.module or "").split(".") + [""])[1]]
            if (node.module or "").startswith("translution_lib.")}


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_go_down(floor):
    root = HOUSES["translution_lib"]
    files = [*(root / floor).rglob("*.py"), *root.glob(f"{floor}.py")]
    above = {*FLOORS[FLOORS.index(floor) + 1:]}
    assert files and not {path.name: found for path in files if (found := library_modules(path) & above)}


@pytest.mark.parametrize("house", HOUSES)
def test_imports_go_one_way(house):
    files = sorted(HOUSES[house].rglob("*.py"))
    assert len(files) > 20
    wrong = {path.name: found for path in files
             if (found := imported(path) & (HOUSES.keys() - BELOW[house] - {house}))}
    assert not wrong


def test_the_library_needs_four_packages():
    found = {name for path in HOUSES["translution_lib"].rglob("*.py") for name in imported(path)}
    assert found - set(sys.stdlib_module_names) - {"translution_lib"} <= NEEDED


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "notebooks")


def test_the_library_is_imported_without_anything_else():
    others = ["matplotlib", "pydantic", "yaml", "scipy", "pandas", "sklearn", "translution_runs", "translution_book"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules.update(dict.fromkeys({others}))"
    made = "translution_lib.ViT.named('A/12', image_size=24, channels=1)"
    done = run(f"{code}; import translution_lib; print({made}.config.grid)")
    assert (done.returncode, done.stdout) == (0, "(2, 2)\n"), done.stderr


def test_the_command_says_in_one_line_what_it_lacks():
    done = run("import sys; sys.modules['pydantic'] = None; from translution_runs.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr == "translution needs the package pydantic: pip install 'translution-book[experiments]'\n"
