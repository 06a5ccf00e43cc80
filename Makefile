# make book   build the HTML book from the stored outputs      make lab      open the chapters in JupyterLab (ARGS="--no-browser --port 8890")
# make pdf    print the built book as one PDF, through Chromium
# make quick  what one runs between two edits: ruff, and the quick tests of the library
# make test   everything that has to hold                      make lint     ruff, mypy, one alphabet, lengths
# make nightly   hypothesis with other, many examples; what takes longest; all steps of `translution repeat`
# make execute   re-execute the chapters that changed (CHAPTERS="a.ipynb b.ipynb" for given ones)
# make experiment   one experiment on the embedded digits (ARGS="-p mixer lor-translution")
# make clean  remove what the others built, .venv included; records of runs stay
# Each sets up .venv by itself. PYTHON=/path/to/python chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := book
.PHONY: book pdf test quick nightly lab lint unit notebooks looked built execute experiment clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
  "$$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 && { command -v "$$p"; break; }; done)
JOBS ?= 2
# Tests that start, kill and await other processes leave a core idle for a quarter of their time.
MORE_JOBS = $(shell expr $(JOBS) + 1)
# Annotations of shapes are enforced: the library's where its own tests run, elsewhere those of the runs and the book.
SHAPES := --jaxtyping-packages=translution_lib,translution_runs,translution_book,beartype.beartype
SHAPES_OUTSIDE := --jaxtyping-packages=translution_runs,translution_book,beartype.beartype
LIBRARY_TESTS := tests/unit tests/identities tests/cost
OTHER_TESTS = $(filter-out $(LIBRARY_TESTS) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
# A compiler cannot trace what checks the shapes of each call.
PLAIN := tests/unit/test_one_graph.py
SPREAD := -p no:nbval --dist loadfile --no-loadscope-reorder
CHAPTER_NOTEBOOKS = $(shell find book -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' | sort)

# One thread a process: the same numbers everywhere, and no fight between parallel tests.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport MPLBACKEND PYTHONPATH

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 with the venv module is needed; name it with PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[book,test,experiments]"
	$(BIN)/python -c "import matplotlib.font_manager"
	@touch $@

book: $(STAMP)
	$(BIN)/python book/tools/build.py

pdf: book
	$(BIN)/python book/tools/print_pdf.py _build/html _build/translution-book.pdf

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python book/tools/letters.py
	$(BIN)/python book/tools/lengths.py

unit: $(STAMP)
	$(BIN)/pytest $(LIBRARY_TESTS) translution_lib --doctest-modules -n $(JOBS) $(SPREAD) $(SHAPES) $(PLAIN:%=--ignore=%)
	$(BIN)/pytest $(PLAIN) $(OTHER_TESTS) notebooks/translution_runs book/translution_book --doctest-modules \
	  -n $(MORE_JOBS) $(SPREAD) $(SHAPES_OUTSIDE) --ignore=tests/book/built

notebooks: $(STAMP)
	$(BIN)/pytest --nbval --nbval-current-env --nbval-cell-timeout=600 --nbval-sanitize-with=tests/book/nbval_sanitize.cfg \
	  -n $(JOBS) --dist loadscope -p no:cacheprovider $(CHAPTER_NOTEBOOKS)

looked: $(STAMP)
	BOOK_HTML=_build/html $(BIN)/pytest tests/book/built -n $(JOBS) --dist worksteal

built: book looked

quick: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pytest tests/unit tests/identities -n $(JOBS) -m "not slow and not nightly" -q

nightly: $(STAMP)
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -m "" $(LIBRARY_TESTS) tests/fuzz -n $(JOBS) $(SHAPES) $(PLAIN:%=--ignore=%)
	$(BIN)/pytest -m nightly $(PLAIN) $(OTHER_TESTS) -n $(MORE_JOBS) $(SPREAD)
	$(BIN)/translution repeat

# The build and the linters use one core each.
test: $(STAMP)
	$(MAKE) -j2 book lint
	$(MAKE) unit notebooks looked
	@echo "No check failed. What was skipped, and why, stands above."

lab: $(STAMP)
	$(BIN)/jupyter lab --notebook-dir=. $(ARGS) book/front/welcome.ipynb

execute: $(STAMP)
	$(BIN)/python book/tools/execute.py $(or $(CHAPTERS),--changed)

experiment: $(STAMP)
	mkdir -p _build
	$(BIN)/papermill notebooks/image_classification.ipynb _build/experiment.ipynb $(ARGS)
	@$(BIN)/python -c "import nbformat; [print(o.text, end='') for c in nbformat.read('_build/experiment.ipynb', 4).cells \
	  if c.cell_type == 'code' for o in c.outputs if o.get('name') == 'stdout']"
	@echo "The record lies in the folder runs, unless results_dir named another; its name: 'translution record NAME' shows it."

clean:
	rm -rf $(VENV) _build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
