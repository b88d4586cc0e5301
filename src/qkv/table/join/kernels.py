"""The inner loop of a join: candidates are weighed, the heaviest kept, the others summed.

The weight of a candidate is factor · exp(log), as for any question to a table. Of candidates
equally heavy the nearest comes first, where keys have distances, and then the first of the table.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, kernel
from qkv.jit.builtins import exp, noinline
from qkv.jit.signature import Double1, Double2, Double3, Int1, Int2, PerThread
from qkv.table.tile_scores import BOXCAR, EPANECHNIKOV, GAUSSIAN, LAPLACIAN, TRIANGULAR

#: Candidates weighed at once, and how few are better weighed one by one.
TILE, FEW = 1024, 8
#: Bandwidths beyond which all rows weigh the same, and the nearest wins: their square is finite.
FARTHEST = 1e150
#: Only the nearest of all candidates that the other columns let match count.
NEAREST = -1

#: The columns of `sums`: Σw, Σw².
TOTAL, SQUARED = range(2)
#: And those of the means of each value: Σw of rows that have it, Σwv / Σw, a value to start from.
MASS, MEAN, PIVOT = range(3)


class Candidates(NamedTuple):
    """p rows of the right table, in an order in which each query meets a run of them."""

    row: Int1  # (p,): which row of the table
    integers: Int2  # (a, p): keys in columns of whole numbers
    real: Double2  # (b, p): and in others
    logs: Double1  # (p,): what was found out before, or (0,)
    value: Double2  # (v, m): values; NaN where they are missing


class Queries(NamedTuple):
    """n rows of the left table, and how they are compared with each column of the candidates."""

    integers: Int2  # (a, n)
    real: Double2  # (b, n)
    kinds: Int1  # (a + b,): GAUSSIAN and so on, whole numbers first
    inverse: Double1  # (a + b,): 1 / bandwidth
    nearest: int  # which of them is NEAREST; -1 if none is
    spans: Int2  # (n, 2)


class MatchSums(NamedTuple):
    """The sums over the candidates of each query, and the heaviest of them."""

    logs: Double2  # (n, top): of the heaviest, the heaviest first
    far: Double2  # (n, top)
    rows: Int2  # (n, top): -1 where there are fewer
    least: Double1  # (n,): how far the nearest is in a column of that name; inf without one
    peak: Double1  # (n,): the largest log
    sums: Double2  # (n, 2), relative to exp(peak)
    means: Double3  # (n, v, 3)


class Leaders(NamedTuple):
    """The heaviest candidates of one query, the heaviest first."""

    logs: Double1  # (top,): without their factors
    factors: Double1
    far: Double1
    rows: Int1


class Scratch(NamedTuple):
    """What a thread knows of the candidates of a tile."""

    logs: Double1
    factors: Double1  # and then weights
    far: Double1
    apart: Double1
    lead: Double1  # (top,): factors of the heaviest


@device
def _distance(key: float, query: float) -> float:
    return 0.0 if key == query else abs(key - query)  # infinities, too


@device
def _whole_distance(key: int, query: int) -> float:
    """Subtracted before they leave their type; without a sign, no difference is too large."""
    return float(np.uint64(max(key, query)) - np.uint64(min(key, query)))


@device
def _distances(key: Any, query: float, inverse: float, apart: Any) -> None:
    noinline()
    for i in range(len(key)):
        apart[i] = _distance(key[i], query) * inverse


@device
def _whole_distances(key: Any, query: int, inverse: float, apart: Any) -> None:
    noinline()
    for i in range(len(key)):
        apart[i] = _whole_distance(key[i], query) * inverse


@device
def _log(kind: int, apart: float) -> float:
    """The logarithm of a kernel that has one everywhere, else 0."""
    if kind == GAUSSIAN:
        apart = min(apart, FARTHEST)
        return -0.5 * (apart * apart)
    return -apart if kind == LAPLACIAN else 0.0


@device
def _factor(kind: int, apart: float, least: float) -> float:
    """A kernel that has an end, else 1."""
    if kind == BOXCAR:
        return 1.0 if apart <= 1.0 else 0.0
    if kind == TRIANGULAR:
        return max(1.0 - apart, 0.0)
    if kind == EPANECHNIKOV:
        return max(1.0 - apart * apart, 0.0)
    if kind == NEAREST:
        return 1.0 if apart <= least else 0.0
    return 1.0


@device
def _kernel(kind: int, apart: Any, least: float, logs: Any, factors: Any) -> None:
    """The scores of one column in a tile; a loop for each kernel, so that LLVM vectorises it."""
    if kind == GAUSSIAN:
        for i in range(len(apart)):
            logs[i] += _log(GAUSSIAN, apart[i])
    elif kind == LAPLACIAN:
        for i in range(len(apart)):
            logs[i] += _log(LAPLACIAN, apart[i])
    elif kind == BOXCAR:
        for i in range(len(apart)):
            factors[i] *= _factor(BOXCAR, apart[i], least)
    elif kind == TRIANGULAR:
        for i in range(len(apart)):
            factors[i] *= _factor(TRIANGULAR, apart[i], least)
    elif kind == EPANECHNIKOV:
        for i in range(len(apart)):
            factors[i] *= _factor(EPANECHNIKOV, apart[i], least)
    else:
        for i in range(len(apart)):
            factors[i] *= _factor(NEAREST, apart[i], least)


@device
def _apart(candidates: Any, queries: Any, c: int, q: int, start: int, apart: Any) -> None:
    """How far the candidates of a tile are in one column, in bandwidths."""
    stop, integer_count = start + len(apart), len(queries.integers)
    if c < integer_count:
        query_value = queries.integers[c, q]
        _whole_distances(candidates.integers[c, start:stop], query_value, queries.inverse[c], apart)
    else:
        key = candidates.real[c - integer_count, start:stop]
        _distances(key, queries.real[c - integer_count, q], queries.inverse[c], apart)


@device
def _apart_one(candidates: Any, queries: Any, c: int, q: int, place: int) -> Any:
    """The same for a single one."""
    integer_count = len(queries.integers)
    if c < integer_count:
        return (
            _whole_distance(candidates.integers[c, place], queries.integers[c, q])
            * queries.inverse[c]
        )
    query_value = queries.real[c - integer_count, q]
    return _distance(candidates.real[c - integer_count, place], query_value) * queries.inverse[c]


@device
def _compare(candidates: Any, queries: Any, q: int, start: int, least: float, tile: Any) -> None:
    """Weigh a tile: logs and factors."""
    few = len(tile.logs) <= FEW
    for i in range(len(tile.logs)):
        log, factor, far = 0.0, 1.0, 0.0
        if len(candidates.logs) > 0:
            log = candidates.logs[start + i]
        if few:
            for c in range(len(queries.kinds)):
                kind, apart = queries.kinds[c], _apart_one(candidates, queries, c, q, start + i)
                log += _log(kind, apart)
                factor *= _factor(kind, apart, least)
                far += apart
        tile.logs[i], tile.factors[i], tile.far[i] = log, factor, far
    if few:
        return
    for c in range(len(queries.kinds)):
        _apart(candidates, queries, c, q, start, tile.apart)
        _kernel(queries.kinds[c], tile.apart, least, tile.logs, tile.factors)
        for i in range(len(tile.logs)):
            tile.far[i] += tile.apart[i]


@device
def _least(candidates: Any, queries: Any, q: int, scratch: Any) -> float:
    """How far the nearest is of all candidates that the other columns let match."""
    least = np.inf
    for start in range(queries.spans[q, 0], queries.spans[q, 1], TILE):
        tile = _first(scratch, min(TILE, queries.spans[q, 1] - start))
        _compare(candidates, queries, q, start, np.inf, tile)
        _apart(candidates, queries, queries.nearest, q, start, tile.apart)
        for i in range(len(tile.logs)):
            if tile.factors[i] > 0.0 and tile.logs[i] > -np.inf:
                least = min(least, tile.apart[i])
    return least


@device
def _first(scratch: Any, size: int) -> Any:
    """Room for a tile."""
    return Scratch(
        scratch.logs[:size], scratch.factors[:size], scratch.far[:size], scratch.apart[:size],
        scratch.lead,
    )  # fmt: skip


@device
def _heavier(log: float, factor: float, other_log: float, other_factor: float) -> float:
    """More than 0 if a candidate is heavier than another, less than 0 if it is lighter.

    Logarithms of factors are taken only where nothing else tells.
    """
    if factor == other_factor:
        return 0.0 if log == other_log else log - other_log
    if log == other_log:
        return factor - other_factor
    return (log + math.log(factor)) - (other_log + math.log(other_factor))


@device
def _is_before(tile: Any, i: int, row: int, leaders: Any, place: int) -> Any:
    """Whether a candidate comes before one of the leaders."""
    if leaders.rows[place] < 0:
        return True
    order = _heavier(tile.logs[i], tile.factors[i], leaders.logs[place], leaders.factors[place])
    if order != 0.0:
        return order > 0.0
    if tile.far[i] != leaders.far[place]:
        return tile.far[i] < leaders.far[place]
    return row < leaders.rows[place]


@device
def _lead(tile: Any, rows: Any, leaders: Any) -> float:
    """Keep the heaviest of a tile; the largest log of those that count."""
    largest, last = -np.inf, len(leaders.rows) - 1
    for i in range(len(rows)):
        if not (tile.factors[i] > 0.0 and tile.logs[i] > -np.inf):
            continue
        largest = max(largest, tile.logs[i])
        if not _is_before(tile, i, rows[i], leaders, last):
            continue
        place = last
        while place > 0 and _is_before(tile, i, rows[i], leaders, place - 1):
            leaders.logs[place] = leaders.logs[place - 1]
            leaders.factors[place] = leaders.factors[place - 1]
            leaders.far[place] = leaders.far[place - 1]
            leaders.rows[place] = leaders.rows[place - 1]
            place -= 1
        leaders.logs[place], leaders.factors[place] = tile.logs[i], tile.factors[i]
        leaders.far[place], leaders.rows[place] = tile.far[i], rows[i]
    return largest


@device
def _weights(logs: Any, factors: Any, peak: float) -> None:
    noinline()
    for i in range(len(logs)):
        factors[i] *= exp(min(logs[i] - peak, 0.0))


@device
def _add(tile: Any, rows: Any, peak: float, sums: Any, value: Any, means: Any) -> None:
    """Add the weights of a tile to the sums, and its values to their means."""
    if len(rows) <= FEW:
        for i in range(len(rows)):
            if tile.logs[i] != peak:
                tile.factors[i] *= exp(min(tile.logs[i] - peak, 0.0))
    else:
        _weights(tile.logs, tile.factors, peak)
    total, squared = 0.0, 0.0
    for i in range(len(rows)):
        total += tile.factors[i]
        squared += tile.factors[i] * tile.factors[i]
    sums[TOTAL] += total
    sums[SQUARED] += squared
    for v in range(len(value)):
        for i in range(len(rows)):
            entry, weight = value[v, rows[i]], tile.factors[i]
            if entry == entry and weight > 0.0:  # not NaN
                # Differences are summed: values far from 0 keep their digits.
                if means[v, MASS] == 0.0 and abs(entry) < np.inf:
                    means[v, PIVOT] = entry
                means[v, MASS] += weight
                means[v, MEAN] += weight * (entry - means[v, PIVOT])


@device
def _clear(result: Any, q: int) -> None:
    for k in range(result.rows.shape[1]):
        result.logs[q, k], result.far[q, k], result.rows[q, k] = -np.inf, 0.0, -1
    result.sums[q, TOTAL] = result.sums[q, SQUARED] = 0.0
    for v in range(result.means.shape[1]):
        result.means[q, v, MASS] = result.means[q, v, MEAN] = result.means[q, v, PIVOT] = 0.0


@kernel
def match(
    start: int, stop: int, candidates: Candidates, queries: Queries, result: MatchSums,
    scratch: PerThread[Scratch],
) -> None:  # fmt: skip
    """Weigh its candidates for each of the queries from `start` to `stop`."""
    for q in range(start, stop):
        first, last = queries.spans[q, 0], queries.spans[q, 1]
        least, peak = np.inf, -np.inf
        _clear(result, q)
        leaders = Leaders(result.logs[q], scratch.lead, result.far[q], result.rows[q])
        if queries.nearest >= 0:
            least = _least(candidates, queries, q, scratch)
        for begin in range(first, last, TILE):
            tile = _first(scratch, min(TILE, last - begin))
            _compare(candidates, queries, q, begin, least, tile)
            rows = candidates.row[begin : begin + len(tile.logs)]
            peak = max(peak, _lead(tile, rows, leaders))
        for k in range(len(leaders.rows)):
            if leaders.rows[k] >= 0 and leaders.factors[k] < 1.0:
                leaders.logs[k] += math.log(leaders.factors[k])
        result.least[q], result.peak[q] = least, peak
        if peak == -np.inf:
            continue
        for begin in range(first, last, TILE):
            tile = _first(scratch, min(TILE, last - begin))
            if last - first > TILE:  # else the tile still holds the scores
                _compare(candidates, queries, q, begin, least, tile)
            rows = candidates.row[begin : begin + len(tile.logs)]
            _add(tile, rows, peak, result.sums[q], candidates.value, result.means[q])
        for v in range(result.means.shape[1]):
            if result.means[q, v, MASS] > 0.0:
                moved = result.means[q, v, MEAN] / result.means[q, v, MASS]
                result.means[q, v, MEAN] = result.means[q, v, PIVOT] + moved
