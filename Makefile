# make demo   the main job: train on the simulated device, look at it with every tool
# make test   all checks and tests
# lint-imports and mypy run in $(VENV), where the installed package is found and the checkout is not.
# TORCH_INDEX=URL takes torch from another index (README.md names the one with CPU builds)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SOURCES := $(shell find neurontools commands tui fixtures -type f -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: demo test lint types bench dev clean

demo: $(VENV)/installed
	$(BIN)/neurontools demo

test: $(VENV)/installed-dev lint types
	$(BIN)/pytest -n 2 --dist loadfile tests

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(VENV) && bin/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

types: $(VENV)/installed-dev
	cd $(VENV) && bin/mypy --config-file $(CURDIR)/pyproject.toml -p neurontools

bench: $(VENV)/dependencies-bench $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py --write

# An editable install for working on the code: no reinstall after a change.
dev: $(VENV)/bin/python
	$(PIP) $(INDEX) -e '.[all,dev]'

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/dependencies: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) $(INDEX) '.[all]'
	touch $@

$(VENV)/dependencies-dev: $(VENV)/dependencies
	$(PIP) $(INDEX) '.[all,dev]'
	touch $@

$(VENV)/dependencies-bench: $(VENV)/dependencies-dev
	$(PIP) $(INDEX) '.[all,dev,bench]'
	touch $@

$(VENV)/installed: $(VENV)/dependencies $(SOURCES)
	rm -rf build # setuptools would install files from there that are gone from the tree
	$(PIP) --no-deps --force-reinstall .
	touch $@

$(VENV)/installed-dev: $(VENV)/dependencies-dev $(VENV)/installed
	touch $@
