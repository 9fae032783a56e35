# Every target sets up what it needs. ARGS is passed to the program: make profile ARGS="variant=[baseline]"
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && command -v $$p && break; done)
RUN_READY := .venv/.run-ready
DEV_READY := .venv/.dev-ready
RAY_READY := .venv/.ray-ready
ARGS ?=
GPU_WORKERS ?= 6
NAME ?=
export PYTHONUNBUFFERED := 1

.PHONY: help setup profile trace realtime tune checkpoints report test test-gpu test-ray test-slow lint format clean

help: ## this list
	@echo "make TARGET [ARGS=\"key=value ...\"]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

setup: $(RUN_READY) ## create .venv with the locked packages; targets that run Python do so first

$(RUN_READY): requirements.lock pyproject.toml
	@.ci/setup run "$(PYTHON)"

$(DEV_READY): requirements-dev.lock $(RUN_READY)
	@.ci/setup dev

$(RAY_READY): requirements-ray.lock $(DEV_READY)
	@.ci/setup ray

profile: $(RUN_READY) ## the main job: is each component fast enough, and which variant is fastest?
	$(PY) -m profiling.generic_forward $(ARGS)

trace: $(RUN_READY) ## the main job with profiler traces and compile reports
	$(PY) -m profiling.generic_forward trace=true $(ARGS)

realtime: $(RUN_READY) ## the loop of a real-time application, frame by frame against a deadline
	$(PY) -m profiling.realtime $(ARGS)

tune: $(RUN_READY) ## find the fastest correct recipe of a component: make tune ARGS="component=[image_decoder] seconds=600"
	$(PY) -m profiling.tune $(ARGS)

checkpoints: $(RUN_READY) ## download the published weights that are missing (NAME=audio_vae: only these)
	$(PY) -m profiling.checkpoints $(NAME)

report: $(RUN_READY) ## print a run again: make report RUN=runs/generic_forward/...
	@test -n "$(RUN)" || { echo "error: name a run: make report RUN=runs/generic_forward/..."; exit 2; }
	$(PY) -m profiling.report $(RUN)

# TORCHINDUCTOR_VEC_ISA_OK: inductor believes the processor's flags. For each empty cache it would compile a program for each
# instruction set to check them: 6 of the 10 s of a small compile.
# CXX: a compiler that copies what it has compiled before.
test: $(DEV_READY) ## the tests that need no GPU (test-slow: those that take long)
	OMP_NUM_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=1 CXX=$(CURDIR)/tests/compiler/g++ $(PY) -m pytest -n auto $(ARGS)

test-gpu: $(DEV_READY) ## the tests that need a CUDA device: side by side, then those that need it alone
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "gpu and not alone" -n $(GPU_WORKERS) $(ARGS)
	$(PY) -m pytest -m "gpu and alone" $(ARGS)

test-ray: $(RAY_READY) ## the tests of sweeps on a Ray cluster, started on this machine: a minute and a half
	PYTHONPATH=$(CURDIR)/.venv/ray $(PY) -m pytest -m ray $(ARGS)

test-slow: $(DEV_READY) ## planted faults, fuzzing, full-size networks, Slurm, packages, runs from end to end: minutes, 6 GB of memory
	$(PY) -m pytest -m "slow and not gpu" $(ARGS)

lint: $(DEV_READY) ## ruff (check and format) and pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

format: $(DEV_READY) ## let ruff fix and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove the virtual environment and caches, keep runs and checkpoints
	rm -rf .venv .pytest_cache .ruff_cache
