# Two commands matter: `make up` and `make example`. Everything else is listed by `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Parallel test processes; each has its own PostgreSQL and Valkey.
JOBS ?= $(shell nproc)
TORCH := torch==2.13.0
# Compiling every module of every package takes longer than starting everything; imports compile what they use.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --no-compile
PYTEST := $(BIN)/python -m pytest
# Static checks load the settings, which want a key; this one opens nothing.
CHECK_ENV := CLUSTERWATCH_SECRET_KEY=only-for-static-checks-00000000000000000000

.DEFAULT_GOAL := help
.PHONY: help setup dev torch up down status doctor test fast long lint example bench clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.server ## the virtual environment with everything `make up` needs

dev: $(VENV)/.dev ## the same with everything the tests need

torch: dev ## torch for the example and its tests; an installed one is kept
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' \
		|| $(PIP) '$(TORCH)'

up: setup ## start everything; ARGS=-d in the background, ARGS=--demo-gpus=N another size
	@$(BIN)/clusterwatch up $(ARGS)

down: ## stop everything
	@if [ -x $(BIN)/clusterwatch ]; then $(BIN)/clusterwatch down; else echo "Nothing is installed here."; fi

status: setup ## one table of the processes
	@$(BIN)/clusterwatch status || true

doctor: setup ## check this machine
	@$(BIN)/clusterwatch doctor || true

example: torch ## a real PyTorch job; FAULT=... breaks one rank
	@$(BIN)/python -m examples.run $(ARGS)

lint: dev ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(CHECK_ENV) $(BIN)/mypy clusterwatch collectors
	$(BIN)/lint-imports

ifeq ($(CI),true)
test: torch
endif
test: lint ## every check and every test
	$(PYTEST) -n $(JOBS) --dist loadscope -m "not e2e and not browser and not wheel"
	$(PYTEST) -n $(JOBS) --dist loadfile -m e2e tests/faults
	$(PYTEST) -n $(JOBS) --dist loadfile -m "e2e or browser or wheel" --ignore=tests/faults

fast: dev ## the tests without servers, torch and browser (< 2 min)
	$(PYTEST) -n $(JOBS) -q -m "not stack and not torch and not e2e and not browser and not wheel"

long: torch ## everything, with kill rounds, soak, mutants of the wire and the matrix of faults
	$(PYTEST) --long
	$(BIN)/python -m tests.faults.fuzz_wire --minutes 10
	$(BIN)/python -m tests.faults.soak --gpus 24576 --minutes 30
	$(BIN)/clusterwatch bench detect --arrays --ranks 16 64 --seeds 20
	$(BIN)/clusterwatch bench detect --arrays --ranks 512 --seeds 3
	$(BIN)/clusterwatch bench detect --stalls --ranks 64 512 --seeds 20
	$(BIN)/clusterwatch bench detect --hour --ranks 24576

bench: setup ## NAME=..., figures as JSON
	@$(BIN)/clusterwatch bench $(NAME) $(ARGS)

clean: down ## remove the virtual environment; the state folder stays
	rm -rf $(VENV) build dist *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "clusterwatch needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1): make up PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv"; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# Hashed files only; the package itself is installed from this folder without fetching anything.
define install
@echo "Installing $(1) ..."
@$(PIP) --require-hashes -r requirements/build.txt -r $(1)
@$(PIP) --no-deps --no-build-isolation --no-index -e .
@touch $@
endef

$(VENV)/.server: requirements/server.txt requirements/build.txt pyproject.toml | $(BIN)/python
	$(call install,requirements/server.txt)

$(VENV)/.dev: requirements/dev.txt requirements/build.txt pyproject.toml | $(BIN)/python
	$(call install,requirements/dev.txt)
	@touch $(VENV)/.server
