VENV ?= .venv
PYTHON ?= python3
ARGS ?=
SCOPE ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready

export VENV PYTHON
# Pyright does not look on the network for a newer pyright.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) ## build the development environment in .venv

# A copied or moved tree brings an environment that still points at the old place.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

$(READY): pyproject.toml tools/setup.sh
	@sh tools/setup.sh $(VENV) $(PYTHON)

.PHONY: demo
demo: $(READY) ## run the first example
	$(BIN)/python examples/first.py

.PHONY: test
test: ## everything CI runs: lint, types, tests, a slice of torture, docs, demo
	@$(PYTHON) tools/run_tests.py

.PHONY: test-all
test-all: ## the tests on every Python from 3.11 to 3.14 that is found
	@$(PYTHON) tools/run_tests.py --all

.PHONY: check
check: lint types ## lint and types

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(READY)
	$(BIN)/mypy
	$(BIN)/pyright

.PHONY: format
format: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: spec
spec: $(READY) ## lines of docs/spec.md that no test proves; SCOPE=R53-R68,N14 fails on any
	@$(BIN)/python tools/spec.py $(SCOPE)

.PHONY: torture
torture: $(READY) ## the torture tests at full length; ARGS go to pytest
	$(BIN)/python -m pytest tests/torture --long -o faulthandler_timeout=0 $(ARGS)

.PHONY: bench
bench: $(READY) ## measure; ARGS go to bench/run.py
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: docs
docs: $(READY) ## check every link in the documentation and print its index
	@$(BIN)/python tools/docs.py

.PHONY: clean
clean: ## remove the environments and everything generated
	rm -rf .venv .venv-3.* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -exec rm -rf {} +
