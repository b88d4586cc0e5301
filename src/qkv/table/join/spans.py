"""Where keys lie in an ascending run of others, in compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, kernel
from qkv.jit.signature import Double1, Double2, Int1, Int2


class Ascending(NamedTuple):
    """Sorted keys, within each group; as whole numbers or as others, the rest is empty."""

    integers: Int1
    real: Double1


class Bounds(NamedTuple):
    """The least and the largest key that each of n queries meets."""

    integers: Int2  # (n, 2)
    real: Double2  # (n, 2)


@device
def _at_least(keys: Any, first: int, last: int, bound: Any, guess: int) -> int:
    """The first key from `first` to `last` that is at least `bound`, searched from `guess` on."""
    low, high, step = first, last, 1
    if first < guess < last and keys[guess - 1] < bound:
        low = guess
        while low + step < last and keys[low + step - 1] < bound:
            low += step
            step *= 2
        high = min(low + step, last)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low


@device
def _beyond(keys: Any, first: int, last: int, bound: Any) -> int:
    """The first key from `first` to `last` that is more than `bound`, searched from `first` on."""
    low, step = first, 1
    while low + step <= last and keys[low + step - 1] <= bound:
        low += step
        step *= 2
    high = min(low + step, last)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] <= bound:
            low = middle + 1
        else:
            high = middle
    return low


@device
def _apart(key: float, query: float) -> float:
    return 0.0 if key == query else abs(key - query)  # infinities, too


@device
def _apart_whole(key: int, query: int) -> float:
    """|key − query|, also where that is more than 64 bits with a sign hold."""
    if key >= query:
        return float(np.uint64(key) - np.uint64(query))
    return float(np.uint64(query) - np.uint64(key))


@kernel
def between(start: int, stop: int, keys: Ascending, bounds: Bounds, spans: Int2) -> None:
    """Narrow the spans of the queries from `start` to `stop` to keys within their bounds."""
    guess = 0
    for q in range(start, stop):
        first, last = spans[q, 0], spans[q, 1]
        if len(keys.integers) > 0:
            guess = _at_least(keys.integers, first, last, bounds.integers[q, 0], guess)
            spans[q, 1] = _beyond(keys.integers, guess, last, bounds.integers[q, 1])
        else:
            guess = _at_least(keys.real, first, last, bounds.real[q, 0], guess)
            spans[q, 1] = _beyond(keys.real, guess, last, bounds.real[q, 1])
        spans[q, 0] = guess


@device
def _narrow(keys: Any, query: Any, q: int, guess: int, spans: Any, apart: Any, far: Any) -> Any:
    """Narrow a span to the keys nearest to a query; these are neighbours, also on both sides."""
    first, last = spans[q, 0], spans[q, 1]
    far[q] = np.inf
    if first >= last:
        return guess
    place = _at_least(keys, first, last, query, guess)
    least = np.inf
    if place < last:
        least = apart(keys[place], query)
    if place > first:
        least = min(least, apart(keys[place - 1], query))
    low, high = place, place
    while low > first and apart(keys[low - 1], query) == least:
        low -= 1
    while high < last and apart(keys[high], query) == least:
        high += 1
    far[q], spans[q, 0], spans[q, 1] = least, low, high
    return place


@kernel
def nearest(
    start: int, stop: int, keys: Ascending, integers: Int1, real: Double1, spans: Int2, far: Double1
) -> None:
    """Narrow the spans of the queries from `start` to `stop` to their nearest keys.

    How far these are is written to `far`: inf where there is none.
    """
    guess = 0
    for q in range(start, stop):
        if len(keys.integers) > 0:
            guess = _narrow(keys.integers, integers[q], q, guess, spans, _apart_whole, far)
        else:
            guess = _narrow(keys.real, real[q], q, guess, spans, _apart, far)
