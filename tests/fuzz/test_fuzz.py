"""What the fuzzers found once is not found again, and some cases more."""

from __future__ import annotations

import importlib

import pytest
from fuzz.run import FUZZERS, kept_seeds

#: Besides the kept ones, so many seeds of each.
FRESH = {"attention": 12, "tables": 25, "files": 40}


@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_kept_seeds_and_a_few_more(fuzzer: str) -> None:
    check = importlib.import_module(f"fuzz.{fuzzer}").check
    kept = kept_seeds(fuzzer)
    assert kept
    assert sum(check(seed) for seed in [*kept, *range(500, 500 + FRESH[fuzzer])]) > 0
