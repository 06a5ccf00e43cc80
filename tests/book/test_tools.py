"""The readers and tools of the book, tried on small sources with and without the fault that they look for."""

import nbformat
import pytest
from execute import merge_streams, normalise, process, stored_form
from nbclient.exceptions import CellExecutionError
from pages import (
    LABEL,
    LABEL_LINE,
    Statement,
    asserts,
    checked,
    claims,
    directives,
    equations,
    page_titled,
    statements,
)

PROSE = """
$$ a = b $$ (eq-dollar)

$$
c = d
$$ (eq-lines)

```{math}
:label: eq-directive
e = f
```

$$ unlabelled $$

````{prf:theorem} Title
:label: thm-one
Text.
````

```{prf:lemma} No label
Text.
```

```{prf:definition} Exempt
:label: def-x
```

```{exercise-start} Title
:class: hard
:label: ex-one
```
text
```{exercise-end}
```

````{solution-start} ex-one
:class: dropdown
````
"""


def test_labels_are_found_in_every_spelling():
    assert equations(PROSE) == ["eq-dollar", "eq-lines", "eq-directive"]
    assert claims(PROSE) == ["thm-one", None]


def test_statements_have_the_name_of_a_theorem_or_of_the_section():
    found = statements("# Page\n## Section\n" + PROSE)
    assert found[:3] == [Statement(label, "Section") for label in ("eq-dollar", "eq-lines", "eq-directive")]
    assert found[3:] == [Statement("thm-one", "Title")]


def test_labels_are_found_in_docstrings():
    text = "As eq-one, not `eq-two` nor #thm-three.\n\nLabel: eq-four,\nthm-five-six."
    assert LABEL.findall(text) == ["eq-one", "eq-four", "thm-five-six"]
    assert LABEL_LINE.findall(text) == ["eq-four,\nthm-five-six"]


def test_a_title_may_lack_its_end():
    assert page_titled("The\noperator") is page_titled("The operator")
    assert page_titled("The taxonomy") is page_titled("The taxonomy theorem")
    assert page_titled("RiemannFormer").name.endswith("/riemannformer")
    for words in ("The", "The opera"):
        with pytest.raises(ValueError, match="chapter must be"):
            page_titled(words)


def test_exercises_and_solutions_are_found():
    assert directives(PROSE, "exercise") == ["ex-one"] == directives(PROSE, "solution")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert x == 1", True),
        ("torch.testing.assert_close(a, b)", True),
        ("%matplotlib inline\nassert x", True),
        ("print('assert')", False),
        ("# assert x", False),
    ],
)
def test_an_assertion_is_recognised(source, expected):
    assert asserts(source) is expected


def test_check_lines_name_labels():
    assert checked("# check: eq-a, eq-b\nassert 1\n# check: thm-c") == ["eq-a", "eq-b", "thm-c"]


def notebook(*sources: str, tags: tuple[str, ...] = ()):
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {}) for source in sources]
    return nbformat.v4.new_notebook(cells=cells)


def write(path, *sources: str, tags: tuple[str, ...] = ()):
    nbformat.write(notebook(*sources, tags=tags), path)
    return path


def test_execution_is_stable_byte_by_byte(tmp_path):
    random = "import uuid, IPython\nIPython.display.HTML(uuid.uuid4().hex)"
    path = write(tmp_path / "page.ipynb", "print(1)\nprint(2)", random)
    first = stored_form(path, timeout=60)
    path.write_text(first)
    assert stored_form(path, timeout=60) == first
    assert nbformat.reads(first, as_version=4).cells[1].outputs[0].data["text/html"] == "id-0001"


def test_an_error_stops_the_execution(tmp_path):
    with pytest.raises(CellExecutionError):
        stored_form(write(tmp_path / "page.ipynb", "1 / 0"), timeout=60)


def test_an_expected_error_is_stored_without_paths(tmp_path):
    text = stored_form(write(tmp_path / "page.ipynb", "1 / 0", tags=("raises-exception",)), timeout=60)
    (error,) = nbformat.reads(text, as_version=4).cells[0].outputs
    assert error.traceback == ["ZeroDivisionError: division by zero"]


def test_a_widget_needs_a_static_face():
    page = notebook("slider")
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "Slider"}
    page.cells[0].outputs = [nbformat.v4.new_output("display_data", data=dict(view))]
    with pytest.raises(ValueError, match="text/html"):
        normalise(page)
    page.cells[0].outputs = [nbformat.v4.new_output("display_data", data={**view, "text/html": "<svg></svg>"})]
    assert set(normalise(page).cells[0].outputs[0].data) == {"text/html", "text/plain"}


def test_streams_are_merged_by_name():
    names = ("stdout", "stdout", "stderr", "stdout")
    streams = [nbformat.v4.new_output("stream", name=name, text=name[3]) for name in names]
    assert [(s.name, s.text) for s in merge_streams(streams)] == [("stdout", "oo"), ("stderr", "e"), ("stdout", "o")]


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"nbformat": 4}', b'{"a":' * 100_000, None,
    b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'])
def test_what_is_no_notebook_is_named_and_left_alone(tmp_path, capfd, content):
    path = tmp_path / "page.ipynb"
    if content is not None:
        path.write_bytes(content)
    assert not process(path, check=False, timeout=10)
    assert f"FAILED {path}: not a notebook (" in capfd.readouterr().err
    assert content is None or path.read_bytes() == content
