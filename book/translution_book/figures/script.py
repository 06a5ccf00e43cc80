"""The scripts of the moving figures: plain files, put into the figure's own markup with its data.

A figure carries its script. Its output then moves wherever a notebook is shown: in the built page, opened as a file or
served, in JupyterLab, and in a viewer that knows nothing of the book's `_static`. One file for all figures would save a
page a few kilobytes, and leave a stored notebook without the book a still picture. So that little is repeated, a figure
takes the files alone that it needs, without comments and indentation.

`scripts/<name>.js` defines the function `figure`, and names in its first line the other files that it needs::

    // with: pointer, axes
    function figure({one, all, data, masked}) { … }

`scripts/start.js` comes with every figure and calls `figure` for it.
"""

import json
import re
from functools import cache
from pathlib import Path

__all__ = ["FOLDER", "parts", "script"]

FOLDER = Path(__file__).parent / "scripts"


def script(name: str, uid: str, data: dict) -> str:
    """The data, and what brings the figures with the id `uid` to life; nothing of it is left in the page's names."""
    code = "".join(map(_code, parts(name)))
    return f'{_inline(data)}<script>(()=>{{"use strict";{code}start({json.dumps(uid)},figure)}})()</script>'


def parts(name: str) -> list[str]:
    """The files of a figure's script, in order, without their endings."""
    found = re.match(r"// with: (.*)", _text(name))
    return ["start", *(found[1].split(", ") if found else []), name]


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text(encoding="utf-8")


@cache
def _code(name: str) -> str:
    """A file in one line, without its comments and indentation: a stored notebook gives every line one of its own."""
    bare = re.sub(r"^ *//.*\n|^\n|^ +", "", _text(name), flags=re.M)
    return re.sub(r"(?<=[;{},(])\n", "", bare).replace("\n", " ")


def _inline(data: dict) -> str:
    """Inline JSON that no HTML parser mistakes for markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("</", "<\\/").replace("<!--", "<\\u0021--")
    return f'<script type="application/json" class="tl-data">{text}</script>'
