"""The inner loop: how a batch of rows is weighed and summed, for some of the queries.

A tile of rows at a time, so that scores stay in the nearest cache. The weight of a row is
factor · exp(log): what similarities say in logarithms is added up in `logs`, what they say
outright, never more than 1, is multiplied into `factors`; then one exponential is taken, shifted
by the largest log seen so far.

All compiled code of this package stands here: Numba keeps a kernel on disk by its own file.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    RELAXED,
    exp,
    ordered,
    tile_function,
    unordered,
)
from qkv.operators.fused.cache import kernel_cache

#: Rows weighed at once: the arrays of a tile fit into 32 kB.
TILE = 1024

#: How the difference of a query and a key becomes a weight.
GAUSSIAN, LAPLACIAN, BOXCAR, TRIANGULAR, EPANECHNIKOV, EQUAL = range(6)

#: The columns of `sums`: Σw, Σw², the mean Σwv / Σw and Σw(v − mean)².
TOTAL, SQUARED, MEAN, SPREAD = range(4)

_INNER: dict[str, Any] = {**INNER_OPTIONS, "fastmath": RELAXED}


@numba.njit(**_INNER)
def _clear(logs: Any, factors: Any) -> None:
    for i in range(len(logs)):
        logs[i] = 0.0
        factors[i] = 1.0


@numba.njit(**_INNER)
def _gaussian(key: Any, query: float, inverse: float, logs: Any) -> None:
    tile_function()
    for i in range(len(key)):
        u = (key[i] - query) * inverse
        logs[i] -= 0.5 * (u * u)


@numba.njit(**_INNER)
def _compare(kind: int, key: Any, query: float, inverse: float, logs: Any, factors: Any) -> None:
    """What one key column says of a tile."""
    if kind == GAUSSIAN:
        _gaussian(key, query, inverse, logs)
    elif kind == LAPLACIAN:
        for i in range(len(key)):
            logs[i] -= abs((key[i] - query) * inverse)
    elif kind == BOXCAR:
        for i in range(len(key)):
            factors[i] *= 1.0 if abs((key[i] - query) * inverse) <= 1.0 else 0.0
    elif kind == TRIANGULAR:
        for i in range(len(key)):
            factors[i] *= max(1.0 - abs((key[i] - query) * inverse), 0.0)
    elif kind == EPANECHNIKOV:
        for i in range(len(key)):
            u = (key[i] - query) * inverse
            factors[i] *= max(1.0 - u * u, 0.0)
    else:
        for i in range(len(key)):
            factors[i] *= 1.0 if key[i] == query else 0.0


@numba.njit(**_INNER)
def _largest_log(logs: Any, factors: Any) -> float:
    """The largest log among rows that count; as integers, whose maximum LLVM can vectorise."""
    tile_function()
    never = ordered(-np.inf)
    largest = never
    for i in range(len(logs)):
        largest = max(largest, ordered(logs[i]) if factors[i] > 0.0 else never)
    return float(unordered(largest))


@numba.njit(**_INNER)
def _weights(logs: Any, factors: Any, peak: float) -> None:
    """Turn `factors` into weights."""
    tile_function()
    for i in range(len(logs)):
        factors[i] *= exp(logs[i] - peak)


@numba.njit(**_INNER)
def _moments(weights: Any, value: Any) -> Any:
    """Σw, Σw², Σwv of a tile."""
    tile_function()
    total, squared, first = 0.0, 0.0, 0.0
    for i in range(len(weights)):
        total += weights[i]
        squared += weights[i] * weights[i]
        first += weights[i] * value[i]
    return total, squared, first


@numba.njit(**_INNER)
def _second_moment(weights: Any, value: Any, mean: float) -> float:
    """Σw(v − mean)²: around the tile's own mean, so that no digits cancel."""
    tile_function()
    second = 0.0
    for i in range(len(weights)):
        moved = value[i] - mean
        second += weights[i] * (moved * moved)
    return second


@numba.njit(**_INNER)
def _add(weights: Any, value: Any, sums: Any) -> None:
    """Merge a tile into `sums`, as partial answers merge."""
    total, squared, first = _moments(weights, value)
    if total == 0.0:
        return
    mean = first / total
    second = _second_moment(weights, value, mean)
    share = total / (sums[TOTAL] + total)
    moved = mean - sums[MEAN]
    sums[SPREAD] += second + moved * moved * sums[TOTAL] * share
    sums[MEAN] += moved * share
    sums[TOTAL] += total
    sums[SQUARED] += squared


@numba.njit(**_INNER)
def _spread(weights: Any, codes: Any, mass: Any) -> None:
    """Give each distinct value the weights of its rows."""
    for i in range(len(weights)):
        mass[codes[i]] += weights[i]


@numba.njit(**_INNER)
def _lead(logs: Any, factors: Any, rows: Any, start: int, lead_logs: Any, lead_rows: Any) -> None:
    """Keep the best rows, the best first; of equals, the one met first."""
    last = len(lead_logs) - 1
    for i in range(len(logs)):
        if factors[i] > 0.0 and logs[i] > lead_logs[last]:
            score = logs[i] + math.log(factors[i])
            place = last
            if score > lead_logs[last]:
                while place > 0 and score > lead_logs[place - 1]:
                    lead_logs[place] = lead_logs[place - 1]
                    lead_rows[place] = lead_rows[place - 1]
                    place -= 1
                lead_logs[place] = score
                lead_rows[place] = rows[start + i]


def _weigh(
    kinds: Any,  # (d,): GAUSSIAN and so on
    query: Any,  # (n, d)
    key: Any,  # (d, m)
    inverse: Any,  # (d,): 1 / bandwidth
    given: Any,  # (n, m): logs that were computed elsewhere, or (0, 0)
    value: Any,  # (m,)
    codes: Any,  # (m,): which distinct value, or (0,)
    rows: Any,  # (m,): the numbers of the rows
    spans: Any,  # (n, 2): which rows can weigh anything
    begin: int,
    end: int,
    peak: Any,  # (n,)
    sums: Any,  # (n, 4)
    mass: Any,  # (n, distinct values)
    lead_logs: Any,  # (n, top)
    lead_rows: Any,  # (n, top)
) -> None:
    """Weigh all rows for the queries from `begin` to `end`, and add them up."""
    logs, factors = np.empty(TILE), np.empty(TILE)
    for tile in range(0, len(rows), TILE):
        for q in range(begin, end):
            start, stop = max(tile, spans[q, 0]), min(tile + TILE, spans[q, 1])
            if start >= stop:
                continue
            log, factor = logs[: stop - start], factors[: stop - start]
            _clear(log, factor)
            for c in range(len(kinds)):
                _compare(kinds[c], key[c, start:stop], query[q, c], inverse[c], log, factor)
            if len(given) > 0:
                for i in range(stop - start):
                    log[i] += given[q, start + i]
            largest = _largest_log(log, factor)
            if largest == -np.inf:
                continue
            # Before factors turn into weights. No factor is more than 1.
            if lead_logs.shape[1] > 0 and largest > lead_logs[q, -1]:
                _lead(log, factor, rows, start, lead_logs[q], lead_rows[q])
            if largest > peak[q]:
                shrink = math.exp(peak[q] - largest)
                sums[q, TOTAL] *= shrink
                sums[q, SQUARED] *= shrink * shrink
                sums[q, SPREAD] *= shrink
                for j in range(mass.shape[1]):
                    mass[q, j] *= shrink
                peak[q] = largest
            _weights(log, factor, peak[q])
            _add(factor, value[start:stop], sums[q])
            if len(codes) > 0:
                _spread(factor, codes[start:stop], mass[q])


def _squared_distances(query: Any, key: Any, out: Any) -> None:
    """‖q − k‖² of vectors, (n, d) and (m, d) -> (n, m), as sums of squared differences."""
    for q in range(len(query)):
        for i in range(len(key)):
            total = 0.0
            for c in range(query.shape[1]):
                difference = query[q, c] - key[i, c]
                total += difference * difference
            out[q, i] = total


def _read_only(dtype: Any, axes: int) -> Any:
    """An array that a kernel only reads: Arrow's memory may not be written to."""
    return numba.types.Array(dtype, axes, "C", readonly=True)


@cache
def compiled() -> tuple[Any, Any]:
    """Both kernels, for one signature each, so that they compile once; kept on disk."""
    real, whole = numba.float64, numba.int64
    table, column, codes = _read_only(real, 2), _read_only(real, 1), _read_only(whole, 1)
    pairs = _read_only(whole, 2)
    weigh_types = numba.void(
        *(codes, table, table, column, table, column, codes, codes, pairs, whole, whole),
        *(real[::1], real[:, ::1], real[:, ::1], real[:, ::1], whole[:, ::1]),
    )
    with kernel_cache():
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "cache": True}
        return (
            numba.njit([weigh_types], **options)(_weigh),
            numba.njit([numba.void(table, table, real[:, ::1])], fastmath=RELAXED, **options)(
                _squared_distances
            ),
        )


def weigh(*arguments: Any) -> None:
    """See :func:`_weigh`."""
    compiled()[0](*arguments)


def squared_distances(query: Any, key: Any, out: Any) -> None:
    """See :func:`_squared_distances`."""
    compiled()[1](query, key, out)
