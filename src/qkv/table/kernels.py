"""The inner loop: how a batch of rows is weighed and summed, for some of the queries.

A tile of rows at a time, so that scores stay in the nearest cache. The weight of a row is
factor · exp(log): what similarities say in logarithms is added up in `logs`, what they say
outright, never more than 1, is multiplied into `factors`; then one exponential is taken, shifted
by the largest log seen so far.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, device_in_order, kernel
from qkv.jit.builtins import exp, noinline, ordered, unordered
from qkv.jit.signature import Double1, Double2, Int1, Int2, PerThread

#: Rows weighed at once: the arrays of a tile fit into 32 kB.
TILE = 1024

#: How the difference of a query and a key becomes a weight.
GAUSSIAN, LAPLACIAN, BOXCAR, TRIANGULAR, EPANECHNIKOV, EQUAL = range(6)

#: Below this, logs are those of rows so far away that only the nearest of them count.
FARTHEST = -1e300

#: The columns of `sums`: Σw, Σw², the mean Σwv / Σw, what its rounding left out, Σw(v − mean)².
TOTAL, SQUARED, MEAN, REST, SPREAD = range(5)
SUMS = 5


class Rows(NamedTuple):
    """A batch of m rows, whose keys have d columns, of one word or more each."""

    key: Double2  # (all words, m): what lies in a column is the sum of its words
    logs: Double1  # (m,): what each weighs by itself, or (0,)
    value: Double1  # (m,)
    codes: Int1  # (m,): which distinct value, or (0,)
    first: int  # the number of the first one
    order: Int1  # (m,): how many rows after it each comes, or (0,) if they are not sorted


class Queries(NamedTuple):
    """n queries, and how they are compared with each column of the keys."""

    query: Double2  # (n, all words)
    words: Int1  # (d,): how many words each column has
    kinds: Int1  # (d,): GAUSSIAN and so on
    inverse: Double1  # (d,): 1 / bandwidth
    given: Double2  # (n, m): logs that were computed elsewhere, or (0, 0)


class Tasks(NamedTuple):
    """t sums to be made: for a query, over a run of rows."""

    query: Int1  # (t,): which one
    spans: Int2  # (t, 2): its rows


class Found(NamedTuple):
    """What the rows so far say, for each task."""

    peak: Double1  # (t,): the largest log
    sums: Double2  # (t, SUMS), relative to exp(peak)
    mass: Double2  # (t, distinct values)
    lead_logs: Double2  # (t, top): of the best rows, the best first
    lead_rows: Int2  # (t, top)


class Scratch(NamedTuple):
    """What a thread knows of the rows of a tile."""

    logs: Double1
    factors: Double1  # and then weights
    differences: Double1  # of keys of several words from the query


@device
def _clear(given: Any, start: int, logs: Any, factors: Any) -> None:
    """Begin with what rows weigh by themselves."""
    for i in range(len(logs)):
        logs[i] = given[start + i] if len(given) > 0 else 0.0
        factors[i] = 1.0


@device_in_order
def _subtract(key: Any, query: Any, differences: Any) -> None:
    """Keys less the query, word by word: the highest first, so that nothing is rounded away."""
    for i in range(len(differences)):
        differences[i] = 0.0
    for word in range(len(query)):
        for i in range(len(differences)):
            differences[i] += key[word, i] - query[word]


@device
def _gaussian(key: Any, query: float, inverse: float, logs: Any) -> None:
    noinline()
    for i in range(len(key)):
        u = (key[i] - query) * inverse
        logs[i] -= 0.5 * (u * u)


@device
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


@device
def _largest_log(logs: Any, factors: Any) -> float:
    """The largest log among rows that count; as integers, whose maximum LLVM can vectorise."""
    noinline()
    never = ordered(-np.inf)
    largest = never
    for i in range(len(logs)):
        largest = max(largest, ordered(logs[i]) if factors[i] > 0.0 else never)
    return float(unordered(largest))


@device
def _weights(logs: Any, factors: Any, peak: float) -> None:
    """Turn `factors` into weights."""
    noinline()
    for i in range(len(logs)):
        factors[i] *= exp(logs[i] - peak)


@device
def _moments(weights: Any, value: Any) -> Any:
    """Σw, Σw², Σwv of a tile."""
    noinline()
    total, squared, first = 0.0, 0.0, 0.0
    for i in range(len(weights)):
        total += weights[i]
        squared += weights[i] * weights[i]
        first += weights[i] * value[i]
    return total, squared, first


@device
def _moments_about(weights: Any, value: Any, mean: float) -> Any:
    """Σw(v − mean) and Σw(v − mean)²."""
    noinline()
    first, second = 0.0, 0.0
    for i in range(len(weights)):
        moved = value[i] - mean
        weighed = weights[i] * moved
        first += weighed
        second += weighed * moved
    return first, second


@device_in_order
def _exact_sum(a: float, b: float) -> Any:
    """a + b, and what rounding left out of it (Knuth)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


@device_in_order
def _add(weights: Any, value: Any, sums: Any) -> None:
    """Merge a tile into `sums`, as partial answers merge.

    The mean of values far from 0 is rounded to their last digit, and so are the sums it is made of.
    What that leaves out is found from how the values differ from it, and kept: the means of tiles
    may lie closer together.
    """
    total, squared, first = _moments(weights, value)
    if total == 0.0:
        return
    mean, own = first / total, sums[TOTAL]
    first, second = _moments_about(weights, value, mean)
    rest = first / total
    second -= first * rest
    sums[TOTAL] += total
    sums[SQUARED] += squared
    if not (abs(mean) < np.inf and abs(sums[MEAN]) < np.inf):
        sums[MEAN], sums[REST], sums[SPREAD] = mean + sums[MEAN], 0.0, np.nan
        return
    moved = (mean - sums[MEAN]) + (rest - sums[REST])
    sums[SPREAD] += max(second, 0.0) + moved * moved * own * (total / sums[TOTAL])
    # From the heavier of both: a mean far away that weighs next to nothing leaves no rounding.
    if own < total:
        sums[MEAN], sums[REST] = _exact_sum(mean, rest - own / sums[TOTAL] * moved)
    else:
        step = sums[REST] + total / sums[TOTAL] * moved
        sums[MEAN], sums[REST] = _exact_sum(sums[MEAN], step)


@device
def _spread(weights: Any, codes: Any, mass: Any) -> None:
    """Give each distinct value the weights of its rows."""
    for i in range(len(weights)):
        mass[codes[i]] += weights[i]


@device
def _lead(logs: Any, factors: Any, rows: Any, start: int, lead_logs: Any, lead_rows: Any) -> None:
    """Keep the best rows, the best first; of equals, the one met first.

    From the end that seems the better one: then few rows are better than those that were kept.
    """
    last, count = len(lead_logs) - 1, len(logs)
    backwards = logs[0] < logs[count - 1]
    for step in range(count):
        i = count - 1 - step if backwards else step
        enough = logs[i] > lead_logs[last] or (backwards and logs[i] == lead_logs[last])
        if factors[i] > 0.0 and enough:
            score = logs[i] if factors[i] == 1.0 else logs[i] + math.log(factors[i])
            row = rows.first + (rows.order[start + i] if len(rows.order) > 0 else start + i)
            _insert(score, row, lead_logs, lead_rows)


@device
def _insert(score: float, row: int, lead_logs: Any, lead_rows: Any) -> None:
    """Give a row its place among those that lead, if it has one; of equals, the first row leads."""
    place = len(lead_logs)
    while place > 0 and (
        score > lead_logs[place - 1]
        or (score == lead_logs[place - 1] and row < lead_rows[place - 1])
    ):
        if place < len(lead_logs):
            lead_logs[place] = lead_logs[place - 1]
            lead_rows[place] = lead_rows[place - 1]
        place -= 1
    if place < len(lead_logs):
        lead_logs[place] = score
        lead_rows[place] = row


@device
def _rescale(found: Any, q: int, largest: float) -> None:
    """Make a new peak of the logs, and what was summed so far relative to it."""
    shrink = exp(found.peak[q] - largest)
    found.sums[q, TOTAL] *= shrink
    found.sums[q, SQUARED] *= shrink * shrink
    found.sums[q, SPREAD] *= shrink
    for j in range(found.mass.shape[1]):
        found.mass[q, j] *= shrink
    found.peak[q] = largest


@device
def _far(kind: int, key: Any, query: float, inverse: float, logs: Any) -> None:
    """Add a column's part to log ‖u‖², for rows of which the square itself would overflow."""
    for i in range(len(key)):
        part = math.log(abs(key[i] - query)) + math.log(inverse)
        if kind == GAUSSIAN:
            part *= 2.0
        elif kind == LAPLACIAN:
            part += math.log(2.0)
        else:
            part = -np.inf
        larger, less = max(logs[i], part), min(logs[i], part)
        if less > -np.inf:
            larger += math.log(1.0 + exp(less - larger))
        logs[i] = larger


@device
def _rank_far(
    rows: Any, queries: Any, q: int, start: int, stop: int, logs: Any, differences: Any
) -> None:
    """Give rows beyond all that an exponential can tell apart logs by their distance alone.

    Below all other logs, and so far from each other that only the nearest weigh anything.
    """
    noinline()
    for i in range(len(logs)):
        logs[i] = -np.inf
    word = 0
    for c in range(len(queries.kinds)):
        _subtract(
            rows.key[word : word + queries.words[c], start:stop],
            queries.query[q, word : word + queries.words[c]],
            differences,
        )
        _far(queries.kinds[c], differences, 0.0, queries.inverse[c], logs)
        word += queries.words[c]
    for i in range(len(logs)):
        logs[i] = -1e301 * (1.0 + 1e-4 * logs[i]) if logs[i] > 690.0 else 0.0
        if len(queries.given) > 0:
            logs[i] += queries.given[q, start + i]
        if len(rows.logs) > 0:
            logs[i] += rows.logs[start + i]


@device
def _weigh_tile(
    rows: Any, queries: Any, found: Any, q: int, task: int, start: int, stop: int, scratch: Any
) -> None:
    """Weigh the rows from `start` to `stop` for one query, and add them up."""
    count = stop - start
    logs, factors = scratch.logs[:count], scratch.factors[:count]
    differences = scratch.differences[:count]
    _clear(rows.logs, start, logs, factors)
    word = 0
    for c in range(len(queries.kinds)):
        words, key, query = queries.words[c], rows.key[word, start:stop], queries.query[q, word]
        if words > 1:
            own = queries.query[q, word : word + words]
            _subtract(rows.key[word : word + words, start:stop], own, differences)
            key, query = differences, 0.0
        _compare(queries.kinds[c], key, query, queries.inverse[c], logs, factors)
        word += words
    if len(queries.given) > 0:
        for i in range(count):
            logs[i] += queries.given[q, start + i]
    largest = _largest_log(logs, factors)
    if largest < FARTHEST:
        _rank_far(rows, queries, q, start, stop, logs, differences)
        largest = _largest_log(logs, factors)
    if largest == -np.inf:
        return
    # Before factors turn into weights. No factor is more than 1.
    if found.lead_logs.shape[1] > 0 and largest > found.lead_logs[task, -1]:
        _lead(logs, factors, rows, start, found.lead_logs[task], found.lead_rows[task])
    if largest > found.peak[task]:
        _rescale(found, task, largest)
    _weights(logs, factors, found.peak[task])
    _add(factors, rows.value[start:stop], found.sums[task])
    if len(rows.codes) > 0:
        _spread(factors, rows.codes[start:stop], found.mass[task])


@kernel
def weigh(
    start: int,
    stop: int,
    rows: Rows,
    queries: Queries,
    tasks: Tasks,
    found: Found,
    scratch: PerThread[Scratch],
) -> None:
    """Do the tasks from `start` to `stop`: all that look at a tile while it is in the cache."""
    low, high = len(rows.value), 0
    for task in range(start, stop):
        low, high = min(low, tasks.spans[task, 0]), max(high, tasks.spans[task, 1])
    # Tiles begin at multiples of their size, so that sums do not depend on who shares the work.
    for tile in range(low - low % TILE, high, TILE):
        for task in range(start, stop):
            first, last = max(tile, tasks.spans[task, 0]), min(tile + TILE, tasks.spans[task, 1])
            if first < last:
                q = tasks.query[task]
                _weigh_tile(rows, queries, found, q, task, first, last, scratch)


@kernel
def squared_distances(
    start: int, stop: int, query: Double2, key: Double2, inverse: float, out: Double2
) -> None:
    """‖q − k‖² in bandwidths, (n, d) and (m, d) -> (n, m), for the keys from `start` to `stop`.

    As sums of squared differences, so that vectors far from 0 keep their digits.
    """
    for q in range(len(query)):
        for i in range(start, stop):
            total = 0.0
            for c in range(query.shape[1]):
                difference = (query[q, c] - key[i, c]) * inverse
                total += difference * difference
            out[q, i] = total
