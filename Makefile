# make demo: from a fresh clone to verified kernels. make test: the tests. make docs: what pages show of commands.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# Requirements installed last, over what the project asks for: PINS="'triton==3.6.0' 'numpy<2.4'"
PINS ?=
# What pytest is given: TESTS="tests/test_sync.py -x"
TESTS ?=
# Processes that pytest runs files in; 0 is its own, as a GPU wants it: make test JOBS=0 TESTS="-m gpu"
JOBS ?= 2
# Specs that the demo verifies: prefill and decode of a GQA layer, and a head dimension of 72.
DEMO ?= llama3_8b siglip

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# What was asked for is part of a stamp's name, so that another TORCH or PINS installs again.
ASKED := $(shell printf '%s' "$(TORCH) $(PINS)" | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.installed-$(ASKED)
DEVELOPED := $(VENV)/.developed-$(ASKED)

.PHONY: demo test lint format docs clean
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/kgen build specs/
	$(BIN)/kgen check specs/
	$(BIN)/kgen verify $(DEMO:%=specs/%.yaml)
	@echo
	@echo "The verified source is in $(DEMO:%=generated/%/)"

test: $(DEVELOPED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS)

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEVELOPED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEVELOPED)
	$(BIN)/python docs/console.py

clean:
	rm -rf .venv .venv-triton36 build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find kgen tests generated -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kgen needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(PIP) "$(TORCH)"
	$(PIP) --quiet --editable .
	$(if $(PINS),$(PIP) --quiet $(PINS))
	@touch $@

$(DEVELOPED): pyproject.toml | $(INSTALLED)
	$(PIP) --quiet --editable ".[dev]"
	$(if $(PINS),$(PIP) --quiet $(PINS))
	@touch $@
