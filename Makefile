VENV ?= .venv
PYTHON ?= python3
ARGS ?=
SCOPE ?=
TORTURE ?= 10m
REPORT ?=
DEBIAN ?= 13

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the demo needs is in the development environment; where there is none, it gets less.
SERVER_READY := $(VENV)/.server-ready
DEMO_READY := $(SERVER_READY)

export VENV PYTHON
# Pyright does not look on the network for a newer pyright.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) ## build the development environment in .venv

# A copied or moved tree brings an environment that still points at the old place.
ifeq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
DEMO_READY := $(READY)
else
.PHONY: $(READY)
endif
ifneq ($(shell cat $(SERVER_READY) 2>/dev/null),$(CURDIR))
.PHONY: $(SERVER_READY)
endif

$(READY): pyproject.toml tools/setup.sh
	@sh tools/setup.sh $(VENV) $(PYTHON) dev

$(SERVER_READY): pyproject.toml tools/setup.sh
	@sh tools/setup.sh $(VENV) $(PYTHON) server

# Where nobody can press Ctrl-C it ends by itself.
.PHONY: demo
demo: $(DEMO_READY) ## see duly work; ARGS go to `duly dev`: ARGS="--for 20s"
	@if [ -t 1 ] && [ -z "$${CI-}" ]; then args='$(ARGS)'; else args='$(or $(ARGS),--for 20s)'; fi; \
	echo "$(BIN)/duly dev $$args"; \
	unset DULY_APP DULY_URL DULY_TOKEN; exec $(BIN)/duly dev $$args

.PHONY: test
test: ## everything CI runs: lint, types, tests, a slice of torture, docs, demo
	@$(PYTHON) tools/run_tests.py

.PHONY: test-all
test-all: ## the tests on every Python from 3.11 on that is found, in the PATH or kept by pyenv
	@$(PYTHON) tools/run_tests.py --all

.PHONY: test-long
test-long: $(READY) ## every test at full length
	$(BIN)/python -m pytest --long -n 2 --dist=worksteal $(or $(ARGS),tests)

.PHONY: check
check: lint types ## lint and types

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 mypy pyright

.PHONY: mypy
mypy: $(READY)
	$(BIN)/mypy

.PHONY: pyright
pyright: $(READY)
	$(BIN)/pyright

.PHONY: format
format: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: spec
spec: $(READY) ## lines of docs/spec.md that no test proves; SCOPE=R53-R68,N14 fails on any
	@$(BIN)/python tools/spec.py $(SCOPE)

.PHONY: torture
torture: $(READY) ## what duly survives, as a table; TORTURE=1h REPORT=docs/guarantees.md
	$(BIN)/python -m torture.run $(TORTURE) $(if $(REPORT),--report $(REPORT)) $(ARGS)

.PHONY: bench
bench: $(READY) ## measure beside the bare database; ARGS=--full for millions of rows
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: bench-peers
bench-peers: $(READY) ## the same, and other queues that pip and npm can get
	$(BIN)/python bench/run.py --peers $(ARGS)

.PHONY: audit
audit: $(READY) ## ask which installed packages have known weaknesses; needs the network
	@sh tools/audit.sh $(VENV) $(PYTHON)

.PHONY: screenshots
screenshots: $(READY) ## make docs/images: the dashboard in Debian's Chromium
	$(BIN)/python tools/screenshots.py $(ARGS)

.PHONY: docs
docs: $(READY) ## check every link in the documentation and print its index
	@$(BIN)/python tools/docs.py

.PHONY: pictures
pictures: $(READY) ## draw the pictures of the documentation; ARGS="dev.svg" only that one
	$(BIN)/python -m tools.pictures $(ARGS)

.PHONY: walks
walks: $(READY) ## the functions on six ways through the code; ARGS=--write updates docs/architecture.md
	$(BIN)/python -m tools.walks $(ARGS)

.PHONY: fresh
fresh: ## try the goals in ARGS on a new Debian (DEBIAN=12 or 13) with only python3, make and git; needs root
	@sh tools/fresh-machine.sh $(DEBIAN) $(ARGS)

.PHONY: clean
clean: ## remove the environments and everything generated
	rm -rf .venv .venv-3.* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache duly-dev.db*
	find . -name .git -prune -o -name __pycache__ -type d -exec rm -rf {} +
