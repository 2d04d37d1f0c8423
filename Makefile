VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test check clean

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

install: $(VENV)/.installed ## the environment in .venv, from pyproject.toml and constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt .ci/install
	PYTHON="$(PYTHON)" bash .ci/install "$(VENV)"

demo: install ## train the small built-in Llama with and without offloading, and compare
	$(BIN)/offload apply balanced --model builtin:llama-tiny --steps 20 --set limits.budget=4MiB

test: install ## the whole test suite
	$(BIN)/python -m pytest -n 2

check: install ## format, lint, types, layers, skills, tests
	bash .ci/check "$(VENV)"
	PYTHON="$(BIN)/python" bash .ci/validators
	$(BIN)/python -m pytest -n 2

clean: ## remove the environment and the caches
	rm -rf "$(VENV)" .venv-validators .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
