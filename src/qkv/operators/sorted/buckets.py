"""Numbers to the buckets between bounds, and rows from one place to another.

A file of kernels calls no function of another file: Numba would not see that one change.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from qkv.operators.fused.cache import kernel_cache

GRID = 2**12  # steps that say about where a number goes

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def _classify(
    number: Any, bounds: Any, low: float, high: float, start: int, stop: int, bucket: Any,
    count: Any,
) -> None:  # fmt: skip
    """The bucket of each number from `start` to `stop`, and how many each bucket gets.

    A grid from `low` to `high` says which bounds lie in each of its steps; only among them must be
    searched. It need not hold all numbers: one that is far away would make its steps too wide.
    """
    steps = GRID / (high - low) if high > low else 0.0
    table = np.zeros(GRID + 1, np.int64)
    for bound in bounds:
        table[_step(bound, low, steps) + 1] += 1
    for step in range(GRID):
        table[step + 1] += table[step]
    for i in range(start, stop):
        step = _step(number[i], low, steps)
        found, end = table[step], table[step + 1]
        while found < end:
            middle = (found + end) // 2
            if number[i] >= bounds[middle]:
                found = middle + 1
            else:
                end = middle
        bucket[i] = found
        count[found] += 1


@numba.njit(**_OPTIONS)
def _step(number: float, low: float, steps: float) -> Any:
    place = (number - low) * steps
    if not place > 0.0:  # nor a number: where the grid is too wide for floats
        return 0
    return np.int64(min(place, GRID - 1.0))


def _distribute(
    number: Any, bucket: Any, start: int, stop: int, free: Any, place: Any, bucketed: Any
) -> None:
    """Put each number from `start` to `stop` to the next free place of its bucket."""
    for i in range(start, stop):
        at = free[bucket[i]]
        free[bucket[i]] = at + 1
        place[i], bucketed[at] = at, number[i]


def _move_to(rows: Any, place: Any, moved: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[place[i], c] = rows[i, c]


def _move_from(rows: Any, place: Any, moved: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[i, c] = rows[place[i], c]


with kernel_cache():
    classify = numba.njit(cache=True, **_OPTIONS)(_classify)
    distribute = numba.njit(cache=True, **_OPTIONS)(_distribute)
    move_to = numba.njit(cache=True, **_OPTIONS)(_move_to)
    move_from = numba.njit(cache=True, **_OPTIONS)(_move_from)
