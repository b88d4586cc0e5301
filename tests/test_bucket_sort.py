"""Sorting by way of buckets against NumPy's, on numbers that are hard to share out evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.operators.sorted import bucket_sort as module
from qkv.operators.sorted.bucket_sort import ascending

RANDOM = np.random.default_rng(0)
HARD = {
    "even": RANDOM.uniform(0, 4, 70_001),
    "timestamps": RANDOM.uniform(0, 4, 70_001) + 1e9,
    "skewed": np.exp(9 * RANDOM.standard_normal(70_001)),
    "about 0": RANDOM.standard_normal(70_001) ** 9,
    "ties": RANDOM.integers(0, 5, 70_001).astype(float),
    "equal": np.full(70_001, 3.0),
    "one far away": np.append(RANDOM.random(70_000), -1e300),
    "beyond the range of differences": RANDOM.uniform(-1, 1, 70_001) * 1.7e308,
    "sorted": np.arange(70_001.0),
    "backwards": -np.arange(70_001.0),
}


def _check(number) -> None:
    found = ascending(number)
    rows = np.column_stack([number, np.arange(number.size)])
    np.testing.assert_array_equal(found.number, np.sort(number))
    taken = found.take(rows)
    np.testing.assert_array_equal(taken[:, 0], found.number)
    np.testing.assert_array_equal(np.sort(taken[:, 1]), rows[:, 1])
    np.testing.assert_array_equal(found.give_back(taken), rows)


@pytest.mark.parametrize("name", HARD)
def test_numbers_ascend_and_rows_go_there_and_back(name: str) -> None:
    _check(HARD[name])


@given(number=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60))
def test_any_numbers_in_small_buckets(number: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUCKET", 4)
        _check(np.array(number))


def test_many_numbers_are_shared_out_evenly() -> None:
    """A sample finds bounds between which about as many numbers lie."""
    for name in ("even", "timestamps", "skewed", "about 0", "one far away"):
        number = HARD[name]
        bounds, _, _ = module._bounds(number, 4)
        sizes = np.bincount(np.searchsorted(bounds, number, side="right"), minlength=4)
        assert sizes.max() < 2 * number.size / 4
