# Every target sets up what it needs. ARGS are handed to the program: make profile ARGS="variant=[baseline]"
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && command -v $$p && break; done)
ARGS ?=
NAME ?=
# What CI and the tests share; a user's own caches are left alone.
export PYTHONUNBUFFERED := 1

.PHONY: help setup profile trace realtime checkpoints report test test-gpu test-slow lint format clean

help: ## this list
	@echo "make TARGET [ARGS=\"key=value ...\"]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: $(VENV)/.ready ## a virtual environment with the locked versions

$(VENV)/.ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 to 3.14 found. Install one, or name it: make setup PYTHON=/path/to/python"; exit 1; }
	@.ci/system_packages "$(PYTHON)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

profile: setup ## the main job: five components under four variants
	$(PY) -m profiling.generic_forward $(ARGS)

trace: setup ## the main job with profiler traces and compile reports; prints the paths to open
	$(PY) -m profiling.generic_forward trace=true $(ARGS)

realtime: setup ## the loop of a real-time application, frame by frame against a deadline
	$(PY) -m profiling.realtime $(ARGS)

checkpoints: setup ## download the published weights that are missing (NAME=audio_vae takes one)
	$(PY) -m profiling.checkpoints $(NAME)

report: setup ## print a run again: make report RUN=runs/generic_forward/...
	@test -n "$(RUN)" || { echo "error: which run? make report RUN=runs/generic_forward/..."; exit 2; }
	$(PY) -m profiling.report $(RUN)

test: setup ## the tests that need no GPU
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto $(ARGS)

test-gpu: setup ## the tests that need a CUDA device
	$(PY) -m pytest -m gpu $(ARGS)

test-slow: setup ## full-size networks on the CPU: minutes, 6 GB
	$(PY) -m pytest -m slow $(ARGS)

lint: setup ## ruff (check and format) and pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

format: setup ## let ruff fix and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove the virtual environment and caches, keep runs and checkpoints
	rm -rf $(VENV) .pytest_cache .ruff_cache
