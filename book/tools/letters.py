r"""One alphabet: where a page uses a letter without a meaning, or a letter with two.

    python book/tools/letters.py          # silent, and exit status 0, if there is nothing to say

``book/translution_book/letters.yaml`` gives each letter its meanings, and each meaning the pages in which it holds. A
letter is a Latin or Greek one with its font and accent. What an index makes another symbol, such as ``W^q`` or ``C'``,
is an entry of its own; any other prime means another of the same kind. Words are no letters: what stands in ``\text``,
``\mathrm``, ``\operatorname`` or ``\mathtt``, and the macros of the book such as ``\R``.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache

from pages import pages
from translution_book.alphabet import Alphabet, read

STYLE = (
    r"(?:mathcal|mathbb|mathfrak|mathbf|mathsf|mathscr|boldsymbol|hat|widehat|tilde|widetilde|bar|overline|vec|dot|check)"
)
GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|pi|rho|varrho|sigma|"
    "tau|upsilon|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|ell"
)
FENCED = re.compile(r"^(`{3,}|:{3,}(?=\{math))([^\n]*)\n(.*?)^\1[ \t]*$", re.M | re.S)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$]+?)(?<!\\)\$", re.S)
WORD = re.compile(r"\\(?:begin\{array\}|(?:text\w*|math(?:rm|tt)|operatorname\*?|label|tag|begin|end))\s*\{[^{}]*\}")
SIGN = re.compile(r"\\[A-Za-z]+|\\.|[^\s{}]")
LETTER = re.compile(rf"(?:\\{STYLE} )*(?:[A-Za-z]|\\(?:{GREEK}))|\\mathbb 1")


def formulas(text: str) -> Iterator[str]:
    """The mathematics of Markdown: dollars, the directive and the role of MyST."""
    text = re.sub(r"\{math\}`([^`]+)`", r"$\1$", FENCED.sub(unfenced, text))
    text = re.sub(r"(?<!`)(`{1,2})(?!`)[^`\n]+\1(?!`)", " ", text)
    for displayed, inline in FORMULA.findall(text):
        yield displayed or inline


def unfenced(block: re.Match[str]) -> str:
    """A block without its fence: the formula of a ``math`` directive, the prose of another directive, no code."""
    if block[2].startswith("{math}"):
        return "$$" + re.sub(r"^:\w+:.*$", "", block[3], flags=re.M) + "$$"
    return FENCED.sub(unfenced, block[3]) if re.match(r"\{(?!code)", block[2]) else " "


@cache
def signs(formula: str) -> tuple[str, ...]:
    """The signs of a formula without braces and words; a letter together with its font and accent."""
    found, style = [], ""
    for sign in SIGN.findall(WORD.sub(" ", formula)):
        if re.fullmatch(rf"\\{STYLE}", sign):
            style += f"{sign} "
        else:
            found.append(style + sign if LETTER.fullmatch(style + sign) else sign)
            style = ""
    return tuple(found)


def letters(text: str, known: Alphabet) -> set[str]:
    """The letters of a page's text; where entries of ``known`` begin alike, the longest that fits."""
    entries = sorted(((signs(letter), letter) for letter in known), key=lambda entry: -len(entry[0]))
    found = set()
    for formula in formulas(text):
        left = signs(formula)
        while left:
            spelled, letter = next((e for e in entries if left[: len(e[0])] == e[0]), (left[:1], left[0]))
            if letter in known or LETTER.fullmatch(letter):
                found.add(letter)
            left = left[len(spelled) :]
    return found


def faults(texts: dict[str, str], known: Alphabet) -> list[str]:
    """What is wrong with the letters of these pages (the stem of a file to its text), a line each."""
    lines = []
    for page, text in texts.items():
        used = letters(text, known)
        for letter in sorted(used):
            found = [meaning for meaning, where in known.get(letter, {}).items() if where == "all" or page in where]
            if not found:
                lines.append(f"{page}: the letter {letter} has no meaning")
            if len(found) > 1:
                lines.append(f"{page}: the letter {letter} has {len(found)} meanings: {'; '.join(found)}")
        for letter in known.keys() - used:
            stale = [meaning for meaning, where in known[letter].items() if where != "all" and page in where]
            lines += [f"{page}: the letter {letter} is not used, but means: {meaning}" for meaning in stale]
    return lines


def main() -> int:
    """Print what is wrong with the pages that are to be checked."""
    checked, known = read()
    texts = {page.path.stem: page.text for page in pages()}
    places = [where for meanings in known.values() for where in meanings.values() if where != "all"]
    named = {*checked}.union(*places)
    lines = [f"{page}: no page has this name" for page in named - texts.keys()]
    lines += faults({page: texts[page] for page in checked if page in texts}, known)
    print("\n".join(sorted(lines)), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) == 1 else "letters.py takes no arguments")
