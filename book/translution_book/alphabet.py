"""The letters of the book: what each means, and in which chapters."""

from collections.abc import Callable
from html import escape
from pathlib import Path

import yaml

__all__ = ["FILE", "Alphabet", "html", "read"]

Alphabet = dict[str, dict[str, str | list[str]]]
"""Letter as TeX -> meaning -> the pages in which it holds (stems of their files), or ``all``."""
FILE = Path(__file__).parent / "letters.yaml"


def read(path: Path = FILE) -> tuple[list[str], Alphabet]:
    """The pages whose letters are checked, and the alphabet.

    Raises:
        ValueError: if a letter has no meaning, or a meaning neither ``all`` nor a list of pages.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for letter, meanings in content["letters"].items():
        places = list(meanings.values()) if isinstance(meanings, dict) else []
        if not places or not all(where == "all" or (where and isinstance(where, list)) for where in places):
            raise ValueError(f"{path.name}: {letter!r} must map a meaning to `all` or to pages, got {meanings!r}")
    return content["checked"], content["letters"]


def html(number: Callable[[str], str], path: Path = FILE) -> str:
    """The alphabet as a table for the notation page; `number` gives a chapter's, and for other pages an empty one."""
    rows = ""
    for letter, meanings in read(path)[1].items():
        shown = letter + "{\\bullet}" if letter.endswith("_") else letter
        head = f'<td rowspan="{len(meanings)}"><span class="math">\\({escape(shown)}\\)</span></td>'
        for meaning, places in meanings.items():
            where = "all" if places == "all" else ", ".join(sorted(filter(None, map(number, places)), key=int))
            rows += f"\n<tr>{head}<td>{escape(meaning)}</td><td>{escape(where)}</td></tr>"
            head = ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("letter", "meaning", "chapters"))
    return f'<div class="results"><table><thead><tr>{head}</tr></thead><tbody>{rows}\n</tbody></table></div>'
