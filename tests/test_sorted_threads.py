"""Sums over sorted keys do not depend on how many threads take part in them, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context

import numpy as np
import numpy.typing as npt
import pytest
import torch

from qkv.jit import threads
from qkv.operators.sorted import bucket_sort as ascending_module
from qkv.operators.sorted import sorted_keys as line_module
from qkv.operators.sorted.bucket_sort import ascending
from qkv.operators.sorted.sorted_keys import SortedKeys

THREADS = (1, 2, 3, 4, 7)  # more than most machines that test have cores
KERNELS = ("gaussian", "laplacian", "boxcar", "triangular", "tricube")  # every way to a sum
BANDWIDTHS = (1e-5, 0.003, 0.2)  # few keys, some cells, and many in sight

Results = list[npt.NDArray[np.float64]]


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many buckets and many runs of queries."""
    monkeypatch.setattr(ascending_module, "BUCKET", 512)
    monkeypatch.setattr(line_module, "_RUN", 5003)


@pytest.fixture
def taking_part(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads each kernel was run on."""
    seen: list[int] = []
    run = threads.run_native

    def spy(function, data, count, held) -> None:
        seen.append(count)
        run(function, data, count, held)

    monkeypatch.setattr(threads, "run_native", spy)
    return seen


def _line(seed: int = 0) -> tuple[SortedKeys, npt.NDArray[np.float64]]:
    random = np.random.default_rng(seed)
    key, query = random.random(9001), random.uniform(-0.1, 1.1, 11003)
    value = random.standard_normal((9001, 2)) + 1e9
    return SortedKeys(key, value, random.integers(1, 3, 9001) * 0.7), query


def _pooled(kernel: str, seed: int = 0) -> Results:
    line, query = _line(seed)
    return [
        result
        for h in BANDWIDTHS
        for said in (line.pool(query, kernel, h), line.pool_others(kernel, h))
        for result in said
    ]


def _assert_same_bits(found: Results, expected: Results) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.int64), other.view(np.int64))


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_number_of_threads_gives_the_same_bits(kernel: str, taking_part: list[int]) -> None:
    torch.set_num_threads(1)
    expected = _pooled(kernel)
    assert max(taking_part) == 1
    for number in THREADS:
        torch.set_num_threads(number)
        for _ in range(2):
            taking_part.clear()
            _assert_same_bits(_pooled(kernel), expected)
            assert max(taking_part) == number


def test_any_number_of_threads_sorts_alike(taking_part: list[int]) -> None:
    number = np.random.default_rng(0).standard_normal(8 * ascending_module.PORTION) ** 3
    rows = np.column_stack([number, np.arange(number.size)])
    torch.set_num_threads(1)
    first = ascending(number)
    for count in THREADS:
        torch.set_num_threads(count)
        taking_part.clear()
        again = ascending(number)
        _assert_same_bits([again.number, again.take(rows)], [first.number, first.take(rows)])
        np.testing.assert_array_equal(again.give_back(again.take(rows)), rows)
        assert set(taking_part) == {count}


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_python_threads_at_once(kernel: str) -> None:
    torch.set_num_threads(2)
    expected = [_pooled(kernel, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for found, own in zip(pool.map(_pooled, [kernel] * 4, range(4)), expected, strict=True):
            _assert_same_bits(found, own)


@pytest.mark.skipif("fork" not in get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_in_a_forked_child_after_the_parent_used_it(taking_part: list[int]) -> None:
    torch.set_num_threads(4)
    expected = {kernel: _pooled(kernel) for kernel in KERNELS}
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for kernel in KERNELS:
            _assert_same_bits(pool.submit(_pooled, kernel).result(timeout=120), expected[kernel])
        assert pool.submit(torch.get_num_threads).result(timeout=120) == 4
    assert max(taking_part) == 4
