"""The README and the files around it say what is true: their code runs, their commands and versions exist."""

import re
import shlex
import tomllib
from importlib.metadata import metadata

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from pages import ROOT, source

import translution_lib

DOCUMENTS = {"README.md": ROOT / "README.md", "running.md": source("book/front/running")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
CONSTRAINTS = [line for line in LINES if line[:1] not in ("", "#")]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENTS[document].read_text(encoding="utf8"), flags=re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_python_in_it_runs(document, capsys):
    examples = blocks(document, "python")
    assert examples
    for example in examples:
        exec(compile(example, document, "exec"), {})


@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_make_targets_exist(document):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)`", DOCUMENTS[document].read_text(encoding="utf8")))
    named |= {name for block in blocks(document, "sh") for name in re.findall(r"^make ([a-z]+)", block, re.MULTILINE)}
    assert {"book", "test", "lab"} <= named <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_experiment_has_these_parameters(document):
    from papermill import inspect_notebook

    commands = [line for block in blocks(document, "sh") for line in block.splitlines() if "papermill" in line]
    assert commands
    for command in commands:
        known = inspect_notebook(str(ROOT / re.search(r"notebooks/\S+", command).group()))
        assert set(re.findall(r"-p (\S+)", command)) <= set(known)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_commands_are_the_commands(document):
    """Every `translution …` in a document is a command with options that exist, of a grid in a profile that exists."""
    from translution_runs.command import app
    from translution_runs.grids import read_grid
    from typer.main import get_command

    lines = [line for block in blocks(document, "sh") for line in block.splitlines() if line.startswith("translution ")]
    assert lines
    for line in lines:
        _, name, *arguments = shlex.split(line.replace("--import mine ", ""), comments=True)
        given = get_command(app).commands[name].make_context(name, arguments).params
        if given.get("grid") and not given["grid"].endswith(".yaml"):
            assert read_grid(given["grid"], given["profile"]).runs


def test_its_grids_have_the_runs_that_it_says(tmp_path, monkeypatch):
    """The second is like a grid of the repository, and has a layer that the reader registers."""
    from translution_runs.grids import read_grid

    monkeypatch.setitem(translution_lib.MIXERS, "learned-decay", translution_lib.MIXERS["scalar-bias"])
    texts = {yaml.safe_load(text)["name"]: text for text in blocks("running.md", "yaml")}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf8")
    found = {name: len(read_grid(tmp_path / f"{name}.yaml", "cpu").runs) for name in texts}
    assert found == {"bias-or-table": 9, "mine-on-mnist": 18} and len(read_grid("table-2", "cpu").runs) == 18
    assert len(texts["bias-or-table"].splitlines()) == 15


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", DOCUMENTS["README.md"].read_text(encoding="utf8"))
    assert links
    assert not [link for link in links if not re.match(r"https?:", link) and not (ROOT / link).exists()]


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert PROJECT["version"] == translution_lib.__version__ == str(citation["version"])


def test_every_dependency_is_pinned_once():
    names = [re.split(r"[=<>]", line)[0] for line in CONSTRAINTS]
    normal = [name.lower().replace("_", "-") for name in names]
    assert all(re.fullmatch(r"[\w.\-]+==[\w.!]+", line) for line in CONSTRAINTS)
    assert len(normal) == len(set(normal))
    wanted = PROJECT["dependencies"] + [d for extra in PROJECT["optional-dependencies"].values() for d in extra]
    declared = {re.split(r"[\[=<>]", entry)[0].lower().replace("_", "-") for entry in wanted}
    assert declared - {PROJECT["name"]} <= set(normal)


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_the_pins_take_the_oldest_release_of_each_python(python):
    """Debian's 3.11 is 3.11.2: a pin that asks for 3.11.5 leaves its users without a book."""
    refused = {line: metadata(line.partition("==")[0]).get("Requires-Python") for line in CONSTRAINTS}
    assert not {line: asked for line, asked in refused.items() if not SpecifierSet(asked or "").contains(python)}


def test_what_is_promised_has_its_tests():
    named = set(re.findall(r"`(tests/[\w/]+(?:\.py)?)`", source("book/back/promises").read_text(encoding="utf8")))
    assert len(named) > 15 and not [name for name in named if not (ROOT / name).exists()]
