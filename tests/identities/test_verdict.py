"""The chapter "Verdict": its length, its links, and that its lines are sorted by the ledger."""

import json
import re
from pathlib import Path

import pytest
from translution_book.facts import ledger
from translution_book.facts.ledger.row import STATUSES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "book" / "experiments" / "verdict.ipynb"
WORDS = 1500
TARGET = re.compile(r"\{(doc|prf:ref|eq)\}`([^`]+)`|\[[^\]]*\]\((erratum-\d+)\)")


@pytest.fixture(scope="module")
def cells():
    return json.loads(PAGE.read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def prose(cells):
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def section(prose, heading):
    """The text below a heading, up to the next one of its level."""
    return re.split(r"^## ", prose.split(f"## {heading}\n")[1], flags=re.MULTILINE)[0]


def words(text):
    """Words that a reader reads: no marks of directives, no addresses; a link by its target is one word."""
    text = re.sub(r"^(?:`{3,}|:{3,}).*$|^:(?:class|label):.*$|^\(\S+\)=$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", TARGET.sub(lambda m: "link" if m[1] else m[0], text))
    return re.findall(r"\w+(?:[’'\-–]\w+)*", text)


def test_the_page_has_at_most_1500_words(prose):
    assert 700 < len(words(prose)) <= WORDS
    assert words("```{note}\n:class: x\n```\n## Two words, {doc}`/a/b` and [errata 1](erratum-1).") == [
        "Two", "words", "link", "and", "errata", "1"]  # fmt: skip


def test_the_theory_has_ten_sentences_and_each_has_a_link(prose):
    sentences = re.findall(r"^\d+\. (.+)$", section(prose, "The theory in ten sentences"), flags=re.MULTILINE)
    assert len(sentences) == 10
    for sentence in sentences:
        assert TARGET.search(sentence), sentence
        assert sentence.endswith(".") and not re.search(r"[.!?] [A-Z]", sentence), sentence


@pytest.mark.parametrize("heading", ["Source by source", "What to use when"])
def test_every_statement_of_a_list_has_a_link(prose, heading):
    items = re.findall(r"^\* (.+)$", section(prose, heading), flags=re.MULTILINE)
    assert len(items) >= 5 and all(TARGET.search(item) for item in items), items


def test_every_link_leads_somewhere(prose):
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*/*.ipynb")]
    for kind, target, erratum in TARGET.findall(prose):
        if kind == "doc":
            assert [path for path in ROOT.glob(f"{target.lstrip('/')}.*") if path.suffix in (".ipynb", ".md")], target
        else:
            mark = {"prf:ref": f":label: {target}\\n", "eq": f"$$ ({target})"}.get(kind, f"({erratum})=")
            assert any(mark in text or (erratum and f"{{#{erratum}}}" in text) for text in sources), target or erratum


def test_every_status_lies_on_one_side():
    listed = [status for statuses in ledger.SIDES.values() for status in statuses]
    assert sorted(listed) == sorted(STATUSES)
    for status in STATUSES:
        row = ledger.Row("note-x", "note", "here", "Something.", "theorem", ledger.Ruling(status, "a test"))
        assert status in ledger.SIDES[row.side]


def test_the_five_tables_hold_the_picked_rows_of_all_sources_and_link_them(cells):
    """Each picked row stands in one of the tables, with an address in the ledger and evidence beside it."""
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    parts = re.search(r'PICKED = """(.*?)"""', code, re.DOTALL)[1].split("|")
    picked = [f"{paper}-{name}" for paper, names in zip(ledger.PAPERS, parts, strict=True) for name in names.split()]
    known = {claim.id: claim for claim in ledger.read_claims()}
    assert set(picked) <= set(known) and {name.partition("-")[0] for name in picked} == set(ledger.PAPERS)
    shown = ["".join(output["data"]["text/html"]) for cell in cells for output in cell.get("outputs", [])
             if "<th scope=\"col\">evidence</th>" in "".join(output.get("data", {}).get("text/html", ""))]
    assert len(shown) == 5
    for name in picked:
        assert sum(f'href="ledger.html#{name}"' in text for text in shown) == 1, name
    for line in re.findall(r"<tr><th scope=\"row\".*?</tr>", "".join(shown)):
        assert re.search(r"<td[^>]*>[^<]*\S|<td[^>]*><a ", line), line
    checked = {name for name in picked if known[name].check}
    decided = "".join(shown[:2])
    assert checked and all(f'href="ledger.html#{name}"' in decided for name in checked)


ANSWERS = {"decided for", "decided against", "open", "not run", "depends on the reading"}


def test_every_table_answers_in_one_vocabulary(cells):
    """The five tables of claims."""
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    shown = ["".join(data.get("text/html", "")) for data in outputs]
    claims = [text for text in shown if "<th scope=\"col\">evidence</th>" in text]
    said = {word for text in claims for word in re.findall(r"</th><td[^>]*>([^<]*)</td><td", text)}
    assert len(claims) == 5 and "open" in said and said <= ANSWERS, said


def test_there_is_one_table_of_choices(cells):
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    shown = ["".join(data.get("text/html", "")) for data in outputs]
    assert sum("<caption>The choices." in text for text in shown) == 1


def test_no_number_of_a_run_is_typed(prose):
    """What depends on records is printed by cells: the prose has no per cent and no decimal but the rule's."""
    found = re.findall(r"\d+(?:\.\d+)? ?%|\d+\.\d+", re.sub(r"\$[^$]*\$", "", prose))
    assert found == []


def test_the_answer_comes_first_and_is_short(cells):
    """Before any other output: at most 200 words, a panel for each task, then the choices with their costs."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    answer, panels, choices = ("".join(output["data"]["text/html"]) for output in outputs[:3])
    assert 100 < len(re.sub(r"<[^>]*>", " ", answer).split()) <= 200
    alts = re.findall(r'aria-label="([^"]*)"', panels)
    assert len(alts) == 6 and all("★ " in alt and "[" in alt for alt in alts)
    lines = re.findall(r'<tr><th scope="row".*?</tr><tr>.*?</tr>', choices)
    assert 6 <= len(lines) <= 9
    number = r"[+−]\d+\.\d+ \[[+−]\d+\.\d+, [+−]\d+\.\d+\] (points|bits) over "
    for line in lines:
        _, _, gain, work, time, second = re.findall(r"<td[^>]*>(.*?)</td>", line)
        assert re.search(number, gain) or gain == "nothing else of about its work was run", line
        answers = re.findall(r"<b>(?:decided\*?|open\*?|not asked(?:, clear)?)</b>, \d", gain + second)
        assert len(answers) == len(re.findall(number, gain + second)), line
        assert re.fullmatch(r"[\d.]+", work) and re.fullmatch(r"[\d.]+×|–", time), line


def test_what_is_to_be_copied_is_short_and_plain(cells):
    """The code in view: torch alone, at most 15 lines each."""
    plain = [cell for cell in cells if cell["cell_type"] == "code" and not cell["metadata"].get("tags")]
    shown = ["".join(cell["source"]) for cell in plain]
    assert len(shown) == 6 and all(len(code.splitlines()) <= 15 and "translution" not in code for code in shown)
