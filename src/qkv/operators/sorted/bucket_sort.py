"""Numbers in ascending order, and rows to and from it, at the pace of memory read in a line.

Sorting many numbers at once, and moving rows from and to where these stood, looks all over memory:
beyond a core's cache each look waits, and twice as many numbers take 2.6 times as long. So numbers
first go to buckets that fit the cache, between bounds taken from a sample. Each bucket is then
sorted on its own, and rows travel by way of the buckets too: few lines of memory at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.jit.kernels import UnavailableError, warn_once
from qkv.jit.threads import parallel_for
from qkv.operators.sorted.buckets import (
    GRID,
    PORTION,
    Bounds,
    Table,
    classify,
    distribute,
    move_from,
    move_to,
)

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.integer[Any]]

BUCKET = 2**15  # numbers that a bucket should have: they, and what sorts them, fit a core's cache
MOST_BUCKETS = 2**12
SAMPLE = 32  # numbers of the sample for each bucket


class Ascending(NamedTuple):
    """Numbers in ascending order. Buckets, one after the other, are half the way to it."""

    number: Array  # (n,)
    near: Places  # (n,): where each of them stands in its bucket
    place: Places | None  # (n,): where each number, as given, stands in its; None: as given

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (n, c) that stand as the numbers were given, in ascending order of these."""
        if self.place is None:
            return rows[self.near]
        rows = np.ascontiguousarray(rows)
        return _by_way_of_buckets(rows, self.place, self.near, np.empty_like(rows))

    def give_back(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Contiguous rows (n, c) in ascending order of these, to where they stood; in place."""
        if self.place is None:
            rows[self.near] = rows.copy()
            return rows
        return _by_way_of_buckets(rows, self.near, self.place, rows)


def ascending(number: Array) -> Ascending:
    """Sort finite numbers (n,); equal ones in any order."""
    n = number.size
    buckets = 1
    while buckets < MOST_BUCKETS and buckets * BUCKET < n:
        buckets *= 2
    # Places are int32: half the memory to move.
    if buckets == 1 or n > np.iinfo(np.int32).max or not _can_move():
        order = np.argsort(number)
        return Ascending(number[order], order, None)
    number, portions = np.ascontiguousarray(number), -(-n // PORTION)
    bucket, count = np.empty(n, np.uint16), np.zeros((portions, buckets), np.int64)
    bounds, table = _bounds(number, buckets), Table((GRID + 1,))
    classify(number, bounds, bucket, count, count=portions, scratch=table)
    first = np.concatenate([[0], np.cumsum(count.sum(axis=0))])
    # Portions fill each bucket one after the other.
    free = first[:-1] + np.cumsum(count, axis=0) - count
    place, near, bucketed = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n)
    distribute(number, bucket, free, place, bucketed, count=portions)

    def sort(begin: int, end: int) -> None:
        for start, stop in zip(first[begin:end], first[begin + 1 : end + 1], strict=True):
            order = np.argsort(bucketed[start:stop])
            near[start:stop] = order + start
            bucketed[start:stop] = bucketed[start:stop][order]

    parallel_for(buckets, 1, 1, sort)
    return Ascending(bucketed, near, place)


def _can_move() -> bool:
    """Whether the compiled loops can be had; without them sorting is only slower."""
    try:
        for loop in (classify, distribute, move_to, move_from):
            loop.address("float64")
    except UnavailableError as reason:
        warn_once(str(reason))
        return False
    return True


def _by_way_of_buckets(
    rows: npt.NDArray[Any], there: Places, back: Places, out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Rows of numbers of 8 bytes; `out` may be `rows`."""
    bucketed = np.empty(rows.shape, np.int64)
    move_to(rows.view(np.int64), there, bucketed, count=len(rows), grain=PORTION)
    move_from(bucketed, back, out.view(np.int64), count=len(rows), grain=PORTION)
    return out


def _bounds(number: Array, buckets: int) -> Bounds:
    """The lower bounds of all buckets but the first; and from where to where most numbers lie."""
    sample = np.sort(number[:: max(1, number.size // (SAMPLE * buckets))])
    low, high = sample[sample.size // 64], sample[-1 - sample.size // 64]
    return Bounds(sample[np.arange(1, buckets) * sample.size // buckets], float(low), float(high))
