r"""How long the main line of each chapter is, in words: what meets a reader who opens no fold and skips what may be.

    python book/tools/lengths.py          # one line a chapter; exit status 1 if one is longer than MOST

Not counted are folds (the directive ``dropdown``, the class ``dropdown``), sections whose title begins with *Further*,
exercises with their solutions, checks against the papers, code, displayed formulas. A formula in a line is one word.
"""

import re
import sys

from pages import chapters

MOST = 3000
"""What is longer is two chapters."""
OPENS = re.compile(r"^(:{3,}|`{3,})\{([\w:-]+)\}")
SKIPPED = re.compile(r"\*Further\*|Exercises|Five questions|Checked against")
PAIRED = ("exercise-start", "exercise-end", "solution-start", "solution-end")  # directives without a body of their own


def main_line(text: str) -> str:
    """The lines of Markdown that are neither folded nor in a section that may be skipped."""
    kept, open_blocks, skipped = [], [], 0
    for line in text.split("\n"):
        if (opened := OPENS.match(line)) and opened[2] not in PAIRED:
            open_blocks.append([opened[1], opened[2] == "dropdown"])
        elif open_blocks and line.strip() == open_blocks[-1][0]:
            open_blocks.pop()
        elif open_blocks and re.match(r":class:.*\bdropdown\b", line):
            open_blocks[-1][1] = True
        elif not any(folded for _, folded in open_blocks):
            depth = len(heading[0]) if (heading := re.match("#+", line)) and not open_blocks else 0
            if depth and (not skipped or depth <= skipped):
                skipped = depth if SKIPPED.match(line[depth:].strip()) else 0
            kept += [] if skipped else [line]
    return "\n".join(kept)


def words(text: str) -> int:
    """How many words a reader reads: a formula or a reference in a line is one, a displayed formula none."""
    for pattern in (r"\$\$.*?\$\$(\s*\([\w-]+\))?", r"(?m)^:[\w-]+:[^\n]*$", r"(?m)^\([\w-]+\)=$"):
        text = re.sub(pattern, " ", text, flags=re.S)
    text = re.sub(r"\$[^$]*\$|\{[\w:]+\}`[^`]*`", " x ", text)
    return len(re.findall(r"[^\W_][\w’'-]*", text))


def main() -> int:
    """Print the lengths, the longest first."""
    found = sorted(((words(main_line(page.text)), page.name) for page in chapters()), reverse=True)
    for count, name in found:
        print(f"{count:5} {name}" + (f"  more than {MOST}" if count > MOST else ""))
    return int(any(count > MOST for count, _ in found))


if __name__ == "__main__":
    sys.exit(main())
