# make demo        train on the simulated device and look at it with every tool
# make test        all checks and tests
# make test-fast   tests without the slow ones, for the inner loop; TESTS=tests/cache runs one folder
# make test-libraries   tests of accelerate, diffusers, Lightning, timm and others on the device: 300 MB to install
# make cover       line coverage of the tests, processes included
# make docs        the documentation site in site/; fails on a dead link
# make screenshots pictures of every page of the full-screen programs in .screenshots, and those of the docs
# make dist        source distribution and wheel in dist/, checked
# make bench       benchmarks, written to benchmarks/RESULTS.md
# make size        statements, modules and functions of each package
# make fuzz        damaged inputs for every parser: INPUTS=1000 of each; what fails is kept in .fuzz/
# make stress      chaos tests of the machine and the compile cache, and interrupted trainings, in their long form
# make mutation    test the tests: 300 faults in the source, written to tests/mutation/RESULTS.md (an hour)
#
# lint-imports and mypy run in $(VENV), where the installed package is found and the checkout is not.
# TORCH_INDEX=URL takes torch from another index (README.md names the one with CPU builds)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Runs a module of the checkout with the installed package: the checkout comes last on the path, unlike with -m.
MODULE := $(BIN)/python -P -c 'import runpy, sys; sys.path.append("."); del sys.argv[0]; \
	runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
SOURCES := $(shell find neurontools commands tui fixtures -type f -not -path '*/__pycache__/*' 2>/dev/null)

TESTS ?= tests
# Tests wait for the programs that they start: three workers keep two cores busy.
WORKERS ?= 3
INPUTS ?= 1000

.PHONY: screenshots demo test test-fast test-libraries cover lint types size bench fuzz stress mutation docs dist dev clean

demo: $(VENV)/installed
	$(BIN)/neurontools demo

test: $(VENV)/installed-dev lint types
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests

test-fast: $(VENV)/installed-dev
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not slow' -q $(TESTS)

test-libraries: $(VENV)/dependencies-libraries $(VENV)/installed-dev
	$(BIN)/pytest -n $(WORKERS) tests/compat/test_libraries.py tests/compat/test_nxd.py tests/compat/test_optimum.py tests/native/test_operators.py

cover: $(VENV)/installed-dev
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered $(TESTS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(VENV) && bin/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

types: $(VENV)/installed-dev
	cd $(VENV) && bin/mypy --config-file $(CURDIR)/pyproject.toml -p neurontools

bench: $(VENV)/dependencies-bench $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py --write

size:
	@$(PYTHON) tests/style/size.py

fuzz: $(VENV)/installed-dev
	$(BIN)/python tests/fuzz/run.py --inputs $(INPUTS)

stress: $(VENV)/installed-dev
	$(BIN)/python tests/stress/run_machine.py --write
	$(BIN)/python tests/stress/run_cache.py --write
	$(BIN)/python tests/stress/run_interrupts.py

mutation: $(VENV)/dependencies-mutation $(VENV)/installed-dev
	$(BIN)/python tests/mutation/run.py --write

docs: $(VENV)/dependencies-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html; with its search: python3 -m http.server -d site, then http://localhost:8000"

screenshots: $(VENV)/installed-dev
	$(MODULE) tests.tui.pictures .screenshots
	$(MODULE) tests.tui.pictures docs/images --docs
	$(MODULE) docs.schedule_picture
	$(MODULE) docs.screenshot_cache docs/images
	$(MODULE) docs.screenshot_profile docs/images
	$(MODULE) docs.screenshot_live docs/images

dist: $(VENV)/installed-dev
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

# An editable install for working on the code: no reinstall after a change.
dev: $(VENV)/bin/python
	$(PIP) $(INDEX) -e '.[all,dev]'

clean:
	rm -rf $(VENV) .fuzz .mutation build dist site *.egg-info .coverage* .nox .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/dependencies: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) $(INDEX) '.[all]'
	touch $@

$(VENV)/dependencies-dev: $(VENV)/dependencies
	$(PIP) $(INDEX) '.[all,dev]'
	touch $@

$(VENV)/dependencies-libraries: $(VENV)/dependencies-dev
	$(PIP) $(INDEX) '.[all,dev,libraries]'
	touch $@

$(VENV)/dependencies-mutation: $(VENV)/dependencies-dev
	$(PIP) $(INDEX) '.[all,dev,mutation]'
	touch $@

$(VENV)/dependencies-docs: pyproject.toml | $(VENV)/bin/python
	$(PIP) '.[docs]'
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
