"""Numbers in ascending order, and rows to and from it, at the pace of memory read in a line.

Sorting many numbers at once, and moving rows from and to where these stood, looks all over memory:
beyond a core's cache each look waits, and twice as many numbers take 2.6 times as long. So numbers
first go to buckets that fit the cache, between bounds taken from a sample. Each bucket is then
sorted on its own, and rows travel by way of the buckets too: few lines of memory at a time.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.operators.sharing import share_out

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.integer[Any]]

BUCKET = 2**15  # numbers that a bucket should have: they, and what sorts them, fit a core's cache
MOST_BUCKETS = 2**12
SAMPLE = 32  # numbers of the sample for each bucket
PORTION = 2**16  # numbers that a thread takes at a time


class Ascending(NamedTuple):
    """Numbers in ascending order. Buckets, one after the other, are half the way to it."""

    number: Array  # (n,)
    near: Places  # (n,): where each of them stands in its bucket
    place: Places | None  # (n,): where each number, as given, stands in its; None: as given

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (n, c) that stand as the numbers were given, in ascending order of these."""
        if self.place is None:
            return rows[self.near]
        return _by_way_of_buckets(rows, self.place, self.near, np.empty_like(rows))

    def give_back(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows (n, c) in ascending order of the numbers, to where these stood; in place."""
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
    if buckets == 1:
        order = np.argsort(number)
        return Ascending(number[order], order, None)
    from qkv.operators.sorted import buckets as kernels

    bounds, low, high = _bounds(number, buckets)
    portions = -(-n // PORTION)
    bucket, count = np.empty(n, np.uint16), np.zeros((portions, buckets), np.int64)
    share_out(
        n, PORTION, PORTION,
        lambda start, stop: kernels.classify(
            number, bounds, low, high, start, stop, bucket, count[start // PORTION]
        ),
    )  # fmt: skip
    first = np.concatenate([[0], np.cumsum(count.sum(axis=0))])
    # Portions fill each bucket one after the other.
    free = first[:-1] + np.cumsum(count, axis=0) - count
    whole: Any = np.int32 if n <= np.iinfo(np.int32).max else np.int64  # half the memory to move
    place, near, bucketed = np.empty(n, whole), np.empty(n, whole), np.empty(n)
    share_out(
        n, PORTION, PORTION,
        lambda start, stop: kernels.distribute(
            number, bucket, start, stop, free[start // PORTION], place, bucketed
        ),
    )  # fmt: skip

    def sort(begin: int, end: int) -> None:
        for start, stop in zip(first[begin:end], first[begin + 1 : end + 1], strict=True):
            order = np.argsort(bucketed[start:stop])
            near[start:stop] = order + start
            bucketed[start:stop] = bucketed[start:stop][order]

    share_out(buckets, 1, 1, sort)
    return Ascending(bucketed, near, place)


def _by_way_of_buckets(
    rows: npt.NDArray[Any], there: Places, back: Places, found: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    from qkv.operators.sorted.buckets import move_from, move_to

    bucketed = np.empty_like(rows)
    share_out(len(rows), PORTION, PORTION, partial(move_to, rows, there, bucketed))
    share_out(len(rows), PORTION, PORTION, partial(move_from, bucketed, back, found))
    return found


def _bounds(number: Array, buckets: int) -> tuple[Array, float, float]:
    """The lower bounds of all buckets but the first; and from where to where most numbers lie."""
    sample = np.sort(number[:: max(1, number.size // (SAMPLE * buckets))])
    low, high = sample[sample.size // 64], sample[-1 - sample.size // 64]
    return sample[np.arange(1, buckets) * sample.size // buckets], float(low), float(high)
