"""Numbers in ascending order, and rows to and from it, at the pace of memory read in a line.

Sorting many numbers at once, and moving rows from and to where these stood, looks all over memory:
beyond a core's cache each look waits, and twice as many numbers take 2.6 times as long. So numbers
first go to buckets that fit the cache, between bounds taken from a sample. Each bucket is then
sorted on its own, and rows travel by way of the buckets too: few lines of memory at a time.

A file of kernels calls no function of another file: Numba would not see that one change.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from qkv.operators.fused.cache import kernel_cache
from qkv.operators.sorted.sharing import share_out

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]

BUCKET = 2**15  # numbers that a bucket should have: they, and what sorts them, fit a core's cache
MOST_BUCKETS = 2**12
SAMPLE = 32  # numbers of the sample for each bucket
PORTION = 2**16  # numbers that a thread takes at a time
GRID = 2**12  # steps that say about where a number goes

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


class Ascending(NamedTuple):
    """Numbers in ascending order. Buckets, one after the other, are half the way to it."""

    number: Array  # (n,)
    near: Places  # (n,): where each of them stands in its bucket
    place: Places  # (n,): where each number, as they were given, stands in its bucket

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (n, c) that stand as the numbers were given, in ascending order of these."""
        return _by_way_of_buckets(rows, self.place, self.near)

    def give_back(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (n, c) in ascending order of the numbers, to where these stood."""
        return _by_way_of_buckets(rows, self.near, self.place)


def ascending(number: Array) -> Ascending:
    """Sort finite numbers (n,); equal ones in any order."""
    n = number.size
    buckets = 1
    while buckets < MOST_BUCKETS and buckets * BUCKET < n:
        buckets *= 2
    if buckets == 1:
        near = np.argsort(number).astype(np.int32)
        return Ascending(number[near], near, np.arange(n, dtype=np.int32))
    bounds, low, steps = _bounds(number, buckets)
    portions = -(-n // PORTION)
    bucket, count = np.empty(n, np.uint16), np.zeros((portions, buckets), np.int64)
    share_out(
        n, PORTION, PORTION,
        lambda start, stop: _classify(
            number, bounds, low, steps, start, stop, bucket, count[start // PORTION]
        ),
    )  # fmt: skip
    first = np.concatenate([[0], np.cumsum(count.sum(axis=0))])
    # Portions fill each bucket one after the other.
    free = first[:-1] + np.cumsum(count, axis=0) - count
    place, bucketed = np.empty(n, np.int32), np.empty(n)
    share_out(
        n, PORTION, PORTION,
        lambda start, stop: _distribute(
            number, bucket, start, stop, free[start // PORTION], place, bucketed
        ),
    )  # fmt: skip
    near = np.empty(n, np.int32)

    def sort(begin: int, end: int) -> None:
        for start, stop in zip(first[begin:end], first[begin + 1 : end + 1], strict=True):
            order = np.argsort(bucketed[start:stop])
            near[start:stop] = order + start
            bucketed[start:stop] = bucketed[start:stop][order]

    share_out(buckets, 1, 1, sort)
    return Ascending(bucketed, near, place)


def _by_way_of_buckets(
    rows: npt.NDArray[Any], there: Places, back: Places
) -> npt.NDArray[Any]:
    bucketed, found = np.empty_like(rows), np.empty_like(rows)
    share_out(len(rows), PORTION, PORTION, partial(_move_to, rows, there, bucketed))
    share_out(len(rows), PORTION, PORTION, partial(_move_from, bucketed, back, found))
    return found


def _bounds(number: Array, buckets: int) -> tuple[Array, float, float]:
    """The lower bounds of all buckets but the first, and a grid among them: its low and its step.

    The grid leaves out what is far from most, which would make its steps too wide for the others.
    """
    sample = np.sort(number[:: max(1, number.size // (SAMPLE * buckets))])
    low, high = sample[sample.size // 64], sample[-1 - sample.size // 64]
    with np.errstate(over="ignore"):
        steps = GRID / (high - low) if high > low else 0.0
    return sample[np.arange(1, buckets) * sample.size // buckets], low, steps


def _classify_kernel(
    number: Any, bounds: Any, low: float, steps: float, start: int, stop: int, bucket: Any,
    count: Any,
) -> None:  # fmt: skip
    """The bucket of each number from `start` to `stop`, and how many each bucket gets.

    A step of the grid says which bounds lie in it; only among them must be searched.
    """
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


def _distribute_kernel(
    number: Any, bucket: Any, start: int, stop: int, free: Any, place: Any, bucketed: Any
) -> None:
    """Put each number from `start` to `stop` to the next free place of its bucket."""
    for i in range(start, stop):
        at = free[bucket[i]]
        free[bucket[i]] = at + 1
        place[i], bucketed[at] = at, number[i]


def _move_to_kernel(rows: Any, place: Any, moved: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[place[i], c] = rows[i, c]


def _move_from_kernel(rows: Any, place: Any, moved: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[i, c] = rows[place[i], c]


with kernel_cache():
    _classify = numba.njit(cache=True, **_OPTIONS)(_classify_kernel)
    _distribute = numba.njit(cache=True, **_OPTIONS)(_distribute_kernel)
    _move_to = numba.njit(cache=True, **_OPTIONS)(_move_to_kernel)
    _move_from = numba.njit(cache=True, **_OPTIONS)(_move_from_kernel)
