"""One alphabet: what the script finds on invented pages, and that it finds nothing on those of the book."""

import letters
import pytest
import yaml
from translution_book import alphabet

KNOWN = {
    "a": {"score": "all"},
    "n": {"number of a key": ["one"], "side of the grid": ["two"]},
    "W": {"a matrix": "all"},
    "W^q": {"query matrix": "all"},
    "e": {"Euler's number": "all"},
    "e_": {"embedding": ["one"]},
    r"\hat\phi": {"estimate": ["one"]},
}
CLEAN = r"""
The score $a_n$ and $\hat{\phi} = e^{-a}$ of `$x$` costs 3\$, with $e_{n}$ and {math}`W^{q\T} \text{ where } a'`.

$$ \begin{array}{cc} \operatorname{rank} W & \mathtt{w\_q} \end{array} \ne \R $$ (eq-one)

```{math}
:label: eq-two
a \ge \mathrm{word}
```

```python
shown = "$y$"
```

````{solution-start} ex-one
:class: dropdown
````
$W_n$
````{solution-end}
````
"""


def test_a_page_with_one_meaning_a_letter_is_clean():
    assert letters.letters(CLEAN, KNOWN) == set(KNOWN)
    assert letters.faults({"one": CLEAN}, KNOWN) == []


@pytest.mark.parametrize("prose", [r"$z$", r"$$\sum_z a$$ (eq-three)", "```{math}\n:label: eq-x\nz\n```", "{math}`z`",
                                   "````{prf:theorem} Title\n:label: thm-x\n```{math}\nz\n```\n````"])
def test_a_letter_without_a_meaning_is_named(prose):
    assert letters.faults({"one": CLEAN + prose}, KNOWN) == ["one: the letter z has no meaning"]


def test_a_style_makes_another_letter():
    assert letters.faults({"one": CLEAN + r"$\mathbf{W}, \mathcal W, \tilde{W}^q, \phi$"}, KNOWN) == [
        rf"one: the letter {letter} has no meaning"
        for letter in (r"\mathbf W", r"\mathcal W", r"\phi", r"\tilde W", "q")]


def test_a_letter_with_two_meanings_in_a_page_is_a_collision():
    known = KNOWN | {"n": {"number of a key": ["one"], "side of the grid": "all"}}
    assert letters.faults({"one": CLEAN, "two": "$n$"}, known) == [
        "one: the letter n has 2 meanings: number of a key; side of the grid"]


def test_a_meaning_of_a_letter_that_its_page_does_not_use_is_stale():
    assert letters.faults({"one": CLEAN, "two": "$a$"}, KNOWN) == [
        "two: the letter n is not used, but means: side of the grid"]


def test_a_meaning_holds_only_where_it_is_said_to():
    known = KNOWN | {"i": {"query": "all"}}
    assert letters.faults({"two": "$n + e_i$"}, known) == ["two: the letter e_ has no meaning"]


def test_the_pages_of_the_book_have_one_alphabet(capsys):
    assert letters.main() == 0, capsys.readouterr().out
    assert capsys.readouterr().out == ""


def test_the_command_prints_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(letters, "read", lambda: (["relations", "nowhere"], {}))
    assert letters.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert "nowhere: no page has this name" in said and r"relations: the letter \rho has no meaning" in said


@pytest.mark.parametrize("meanings", [None, {}, "score", {"score": "one"}, {"score": []}])
def test_an_entry_without_meaning_or_page_is_refused(tmp_path, meanings):
    file = tmp_path / "letters.yaml"
    file.write_text(yaml.safe_dump({"checked": ["one"], "letters": {"a": meanings}}), encoding="utf-8")
    with pytest.raises(ValueError, match="'a' must map a meaning"):
        alphabet.read(file)


def test_the_table_has_every_letter_and_meaning(tmp_path):
    file = tmp_path / "letters.yaml"
    file.write_text(yaml.safe_dump({"checked": [], "letters": KNOWN}, sort_keys=False), encoding="utf-8")
    table = alphabet.html({"one": "1", "two": ""}.__getitem__, file)
    assert table.count("<tr>") == 1 + sum(map(len, KNOWN.values()))
    assert r"\(e_{\bullet}\)" in table and "<td>side of the grid</td><td></td>" in table
    assert "<td>number of a key</td><td>1</td>" in table
