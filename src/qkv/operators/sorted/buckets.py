"""Numbers to the buckets between bounds, and rows from one place to another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device_in_order, kernel_in_order
from qkv.jit.signature import Double1, Int1, Int2, Int32_1, PerThread, UInt16_1

PORTION = 2**16  # numbers that a thread takes at a time
GRID = 2**12  # steps that say about where a number goes


class Bounds(NamedTuple):
    """Between which bounds buckets lie, and between which numbers a grid tells them apart."""

    bound: Double1  # (buckets - 1,): the lower bounds of all buckets but the first
    low: float
    high: float


class Table(NamedTuple):
    """How many bounds lie before each step of the grid; a thread's buffer."""

    before: Int1  # (GRID + 1,)


@kernel_in_order
def classify(
    start: int, stop: int, number: Double1, bounds: Bounds, bucket: UInt16_1, count: Int2,
    table: PerThread[Table],
) -> None:  # fmt: skip
    """The bucket of each number, and how many each bucket gets of each portion of them.

    A grid from `low` to `high` says which bounds lie in each of its steps; only among them must be
    searched. It need not hold all numbers: one that is far away would make its steps too wide.
    """
    low = bounds.low
    steps = GRID / (bounds.high - low) if bounds.high > low else 0.0
    before = table.before
    for step in range(GRID + 1):
        before[step] = 0
    for i in range(bounds.bound.size):
        before[_step(bounds.bound[i], low, steps) + 1] += 1
    for step in range(GRID):
        before[step + 1] += before[step]
    for portion in range(start, stop):
        for i in range(portion * PORTION, min((portion + 1) * PORTION, number.size)):
            step = _step(number[i], low, steps)
            first, end = before[step], before[step + 1]
            while first < end:
                middle = (first + end) // 2
                if number[i] >= bounds.bound[middle]:
                    first = middle + 1
                else:
                    end = middle
            bucket[i] = first
            count[portion, first] += 1


@device_in_order
def _step(number: float, low: float, steps: float) -> Any:
    place = (number - low) * steps
    if not place > 0.0:  # nor a number: where the grid is too wide for floats
        return 0
    return np.int64(min(place, GRID - 1.0))


@kernel_in_order
def distribute(
    start: int, stop: int, number: Double1, bucket: UInt16_1, free: Int2, place: Int32_1,
    bucketed: Double1,
) -> None:  # fmt: skip
    """Put each number to the next place of its bucket that is free for its portion."""
    for portion in range(start, stop):
        for i in range(portion * PORTION, min((portion + 1) * PORTION, number.size)):
            at = free[portion, bucket[i]]
            free[portion, bucket[i]] = at + 1
            place[i], bucketed[at] = at, number[i]


@kernel_in_order
def move_to(start: int, stop: int, rows: Int2, place: Int32_1, moved: Int2) -> None:
    """Put row i to place i, whatever its words mean."""
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[place[i], c] = rows[i, c]


@kernel_in_order
def move_from(start: int, stop: int, rows: Int2, place: Int32_1, moved: Int2) -> None:
    """Take row i from place i, whatever its words mean."""
    for i in range(start, stop):
        for c in range(rows.shape[1]):
            moved[i, c] = rows[place[i], c]
