VENV ?= .venv
PYTHON ?= python3
ARGS ?=
SCOPE ?=
TORTURE ?= 10m
REPORT ?=
DEBIAN ?= 13

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The development environment contains what the demo needs; without it, a smaller one is built.
SERVER_READY := $(VENV)/.server-ready
DEMO_READY := $(SERVER_READY)

export VENV PYTHON
# Keep pyright from looking for a newer version on the network.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) ## build the development environment in .venv

# In a copied or moved tree the environment still points to the old place.
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

# Without a terminal for Ctrl-C it ends by itself.
.PHONY: demo
demo: $(DEMO_READY) ## run the demo; ARGS are passed to `duly dev`: ARGS="--for 20s"
	@if [ -t 1 ] && [ -z "$${CI-}" ]; then args='$(ARGS)'; else args='$(or $(ARGS),--for 20s)'; fi; \
	echo "$(BIN)/duly dev $$args"; \
	unset DULY_APP DULY_URL DULY_TOKEN; exec $(BIN)/duly dev $$args

.PHONY: test
test: ## run everything that CI runs: lint, types, tests, a short torture run, docs, demo
	@$(PYTHON) tools/run_tests.py

.PHONY: test-all
test-all: ## run the tests on every Python from 3.11 on that is in the PATH or in pyenv
	@$(PYTHON) tools/run_tests.py --all

.PHONY: test-long
test-long: $(READY) ## run every test at full length
	$(BIN)/python -m pytest --long -n 2 --dist=worksteal $(or $(ARGS),tests)

.PHONY: check
check: lint types ## run lint and types

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
spec: $(READY) ## list the lines of docs/spec.md that no test proves; SCOPE=R53-R68,N14 fails on any
	@$(BIN)/python tools/spec.py $(SCOPE)

.PHONY: torture
torture: $(READY) ## test what duly survives and print a table; TORTURE=1h REPORT=docs/guarantees.md
	$(BIN)/python -m torture.run $(TORTURE) $(if $(REPORT),--report $(REPORT)) $(ARGS)

.PHONY: bench
bench: $(READY) ## measure duly next to the bare database; ARGS=--full for millions of rows
	$(BIN)/python bench/run.py $(ARGS)

.PHONY: bench-peers
bench-peers: $(READY) ## the same, plus other queues that pip and npm can install
	$(BIN)/python bench/run.py --peers $(ARGS)

.PHONY: audit
audit: $(READY) ## check the installed packages for known vulnerabilities; needs the network
	@sh tools/audit.sh $(VENV) $(PYTHON)

.PHONY: screenshots
screenshots: $(READY) ## make docs/images: screenshots of the dashboard in Debian's Chromium
	$(BIN)/python tools/screenshots.py $(ARGS)

.PHONY: docs
docs: $(READY) ## check every link in the documentation and print its index
	@$(BIN)/python tools/docs.py

.PHONY: docs-site
docs-site: $(READY) ## build the documentation site into site/
	@$(BIN)/python -m tools.docsite $(ARGS)

.PHONY: pictures
pictures: $(READY) ## draw the pictures of the documentation again
	$(BIN)/python tools/pictures.py

.PHONY: walks
walks: $(READY) ## list the functions on six paths through the code; ARGS=--write updates docs/architecture.md
	$(BIN)/python -m tools.walks $(ARGS)

.PHONY: fresh
fresh: ## try the targets in ARGS on a new Debian (DEBIAN=12 or 13) with only python3, make and git; needs root
	@sh tools/fresh-machine.sh $(DEBIAN) $(ARGS)

.PHONY: clean
clean: ## remove the environments and everything generated
	rm -rf .venv .venv-3.* build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache duly-dev.db*
	find . -name .git -prune -o -name __pycache__ -type d -exec rm -rf {} +
