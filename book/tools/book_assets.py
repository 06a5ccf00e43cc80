"""Sphinx extension: serve MathJax from the book itself, in the parts that pages need."""

import importlib
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

# What `loader` in _config.yml names, its fonts, and the TeX extensions that are loaded when a page uses their macros.
# The combined component has a menu besides, as large as all that sets formulas.
MATHJAX_FILES = ("startup.js", "core.js", "input/tex.js", "output/chtml.js", "output/chtml/fonts/tex.js",
                 "output/chtml/fonts/woff-v2/*.woff", "input/tex/extensions/*.js", "a11y/assistive-mml.js")
MATHJAX_UNUSED = {"all-packages.js"}


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    """Copy the used part of MathJax from its Python package into ``_static/mathjax``."""
    if exception is not None or app.builder.format != "html":
        return
    package = importlib.import_module("sphinx-mathjax-offline")
    source = Path(str(package.__file__)).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    for pattern in MATHJAX_FILES:
        for file in source.glob(pattern):
            if file.name not in MATHJAX_UNUSED:
                copy = target / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def setup(app: Sphinx) -> dict[str, Any]:
    app.config.mathjax_path = "mathjax/startup.js"
    app.connect("build-finished", copy_mathjax)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
