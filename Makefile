# Everything lives in .venv; nothing is installed outside it, but for the benchmarks, whose peers live
# in .venv-bench and .venv-merlin. Stamp files say what .venv holds:
# `demo` (tabfeed with PyTorch), `docs` (what builds the site) and `test` (all the frameworks, the
# tests' tools, and both of these). Whichever is older than the files it was made from is made again,
# by adding to .venv, never by taking away.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --no-warn-conflicts -c constraints.txt
TEST_EXTRAS := torch,keras,jax,dask,s3,test,examples,docs,dev

.DEFAULT_GOAL := help
.PHONY: help demo test docs notebooks bench chaos lint format clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/stamp-demo  ## show what tabfeed does, on generated data
	@$(BIN)/python examples/demo.py

test: lint  ## set up, check style and types, run every test
	@$(BIN)/python -m pytest

docs: $(VENV)/stamp-docs  ## build the documentation into build/site
	@$(BIN)/python -c 'import mkdocs' 2>/dev/null || { \
	    echo "The site is built with Python 3.11 or newer: make clean, make PYTHON=python3.12 docs" >&2; exit 1; }
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

notebooks: $(VENV)/stamp-test  ## make notebooks of the examples anew
	@$(BIN)/python examples/make_notebooks.py

bench: .venv-bench/stamp  ## compare with the peers (ARGS="--help" for options)
	@.venv-bench/bin/python benchmarks/set_up_merlin.py
	@.venv-bench/bin/python benchmarks/bench.py $(ARGS)

chaos: $(VENV)/stamp-test  ## kill Dask workers at work, ten times over; compare the results
	@$(BIN)/python benchmarks/chaos.py

lint: $(VENV)/stamp-test  ## check style and types only
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m mypy

format: $(VENV)/stamp-test  ## mend style in place
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean:  ## remove environments, caches and build output
	rm -rf $(VENV) .venv-bench .venv-merlin build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# An order-only prerequisite: .venv itself changes whenever something is put in it.
$(VENV)/stamp-demo: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Setting up $(VENV): tabfeed and PyTorch (about a minute) ..."
	@$(INSTALL) -e '.[torch]'
	@touch $@

$(VENV)/stamp-docs: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Setting up $(VENV): tabfeed and what builds the site ..."
	@$(INSTALL) -e '.[docs]'
	@touch $@

# Touching the others too: the larger set holds the smaller.
$(VENV)/stamp-test: pyproject.toml constraints.txt requirements-fastai.txt requirements-alone.txt requirements-triton.txt | $(VENV)/pyvenv.cfg
	@echo "Setting up $(VENV): all frameworks and the tests' tools (some minutes) ..."
	@$(INSTALL) -e '.[$(TEST_EXTRAS)]' -r requirements-fastai.txt
	@$(INSTALL) --no-deps -r requirements-alone.txt
	@$(PIP) install --no-deps --upgrade --target $(VENV)/triton -r requirements-triton.txt
	@touch $(VENV)/stamp-demo $(VENV)/stamp-docs $@

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "tabfeed needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

BENCH := .venv-bench/bin/python -m pip --disable-pip-version-check -qq install --no-warn-conflicts -c constraints.txt
BENCH_FILES := benchmarks/requirements.txt benchmarks/requirements-alone.txt

.venv-bench/stamp: pyproject.toml constraints.txt $(BENCH_FILES)
	@echo "Setting up .venv-bench: tabfeed and its peers (some minutes) ..."
	@test -e .venv-bench/pyvenv.cfg || $(PYTHON) -m venv .venv-bench
	@$(BENCH) -e '.[torch]' -r benchmarks/requirements.txt
	@$(BENCH) --no-deps -r benchmarks/requirements-alone.txt
	@touch $@
