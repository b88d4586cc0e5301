"""Soft joins of large tables: in little memory, on any number of threads to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from table.tables import people

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.table import SoftJoin, soft_join

MB = 2**20


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("top", [1, None])
@pytest.mark.parametrize(
    "on",
    [
        {"height": qkv.Gaussian(0.01)},
        {"town": "equal", "seen": "nearest"},
        {"name": "fuzzy", "age": qkv.Triangular(9)},
        {"place": qkv.Gaussian(1)},
    ],
    ids=["gaussian", "nearest", "fuzzy", "vectors"],
)
def test_any_number_of_threads_gives_the_same_bits(on: dict[str, Any], top: int | None) -> None:
    left, right = people(2503, seed=1), people(1709, seed=2)
    torch.set_num_threads(1)
    expected = soft_join(left, right, on=on, take=["income", "name"], top=top)
    for count in (2, 3, 4):
        torch.set_num_threads(count)
        assert soft_join(left, right, on=on, take=["income", "name"], top=top).equals(expected)


@pytest.mark.skipif(not can_measure_memory(), reason="memory is read from Linux's /proc")
def test_memory_does_not_grow_with_either_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    monkeypatch.setenv("QKV_MEMORY_BUDGET", str(16 * MB))  # so parts take 1 MB

    def extra(rows: int) -> float:
        left, right = (
            pa.table({"t": np.sort(rng.random(rows)), "a": rng.random(rows)}) for _ in range(2)
        )

        def run() -> None:
            join = SoftJoin(left, right, on={"t": "nearest"}, take="a")
            assert sum(len(batch) for batch in join.batches()) == rows
            assert join.report.passes > 1

        run()
        return peak_extra_bytes(run) / MB

    small = extra(140_000)
    assert extra(420_000) < small + 10  # the join takes 20 MB more


def test_all_pairs_of_texts_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cutoff of 0 all 25 million pairs match; they are written down some at a time."""
    rng = np.random.default_rng(7)
    names = ["".join(rng.choice(list("abcdef"), 5)) for _ in range(5003)]
    table = pa.table({"name": names, "v": rng.random(5003)})
    soft_join(table.slice(0, 10), table, on={"name": "fuzzy"}, cutoff=0.0, take="v")
    if can_measure_memory():
        extra = peak_extra_bytes(
            lambda: soft_join(table, table, on={"name": "fuzzy"}, cutoff=0.0, take="v")
        )
        assert extra / MB < 200  # all pairs: 400 MB and more
