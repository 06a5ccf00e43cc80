import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from translution_runs import environment

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]


@pytest.fixture
def package(tmp_path):
    """A package in a repository of its own, committed."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *arguments], cwd=folder.parent, check=True)
    return folder


def test_the_commit_of_a_clean_package(package):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=package, capture_output=True, text=True, check=True)
    assert environment.commit([package]) == {"commit": head.stdout.strip(), "dirty": False}


@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_a_changed_or_new_file_makes_it_dirty(package, name):
    (package / name).write_text("changed = True\n")
    assert environment.commit([package])["dirty"] is True


def test_a_change_elsewhere_in_the_repository_does_not(package):
    (package.parent / "notes.txt").write_text("not the library")
    assert environment.commit([package])["dirty"] is False


def test_no_commit_where_git_does_not_know_the_package(package, tmp_path):
    installed = package.parent / "site-packages"  # inside a repository, but no part of it
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    assert environment.commit([installed]) is None
    assert environment.commit([tmp_path]) is None


def test_versions_name_python_and_torch():
    found = environment.versions()
    assert found["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(found) == {"python", "torch", "numpy", "translution_lib"}


def test_the_device_says_its_threads():
    found = environment.device("cpu")
    assert found["type"] == "cpu" and found["threads"] == torch.get_num_threads() and found["model"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak itself")
def test_peak_memory_is_the_systems():
    found = environment.peak_memory("cpu")
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    assert found["process"] == pytest.approx(int(line.split()[1]) * 1024, rel=0.05)
    assert found["device"] is None
