"""The built book: where BOOK_HTML says, or built afresh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT


@pytest.fixture(scope="session")
def html(tmp_path_factory) -> Path:
    """The folder with index.html."""
    if given := os.environ.get("BOOK_HTML"):
        folder = (ROOT / given).resolve()
    else:
        out = tmp_path_factory.mktemp("book")
        subprocess.run([sys.executable, str(ROOT / "book/tools/build.py"), "--out", str(out)], check=True)
        folder = out / "_build" / "html"
    assert (folder / "index.html").exists(), f"no book in {folder}"
    return folder
