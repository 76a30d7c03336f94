# Pronghorn: `make help` lists what can be done here.

ENV ?= HalfCheetah-v5
STEPS ?= 500000
ARGS ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train bench test learn lint docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  settings: ENV=$(ENV) STEPS=$(STEPS) ARGS=\"$(ARGS)\" PYTHON=$(PYTHON)"

train: $(VENV)/.installed ## train on ENV for STEPS steps; ARGS holds further options
	$(BIN)/pronghorn train $(ENV) $(if $(findstring --steps,$(ARGS)),,--steps $(STEPS)) $(ARGS)

bench: $(VENV)/.installed ## time PPO on ENV against other libraries; ARGS holds interpreters that have them
	$(BIN)/pronghorn bench $(ENV) --peers $(ARGS)

test: $(VENV)/.installed-dev ## run the quick tests, two at a time; ARGS goes to pytest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not learning" -n 2 --dist worksteal $(ARGS)

learn: $(VENV)/.installed-dev ## run the slow tests, which train agents
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m learning $(ARGS)

lint: $(VENV)/.installed-dev ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev ## build the documentation into site/, links checked
	$(BIN)/mkdocs build --quiet

clean: ## remove the virtual environment and all caches; runs are kept
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp tells when an environment was last brought up to date, so that a second call installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Pronghorn into $(VENV) (minutes the first time)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Pronghorn and its development tools into $(VENV) (minutes the first time)"
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Pronghorn needs Python 3.11 or newer, which $(PYTHON) is not: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
