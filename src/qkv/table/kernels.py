"""The inner loop: a batch of rows is weighted and summed, for some of the queries.

A tile of rows at a time, so that scores stay in the nearest cache. Scores come as logs and factors
(`tile_scores.py`); one exponential is taken, shifted by the largest log seen so far, and none where
all logs are 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, device_in_order, kernel
from qkv.jit.builtins import exp, invoke, noinline
from qkv.jit.signature import Double1, Double2, Int1, Int2, PerThread
from qkv.table.tile_scores import (
    FARTHEST,
    clear,
    compare_column,
    has_formula,
    has_logs,
    largest_factor,
    largest_log,
    rank_far,
    turn_into_logs,
)

#: Rows weighed at once: the arrays of a tile fit into 32 kB.
TILE = 1024
#: Rows of a tile that are passed over at once where none of them leads.
STRIP = 64
#: Weights whose squares keep their digits.
SMALL = 1e-140

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
    functions: Int1  # (d,): addresses of derived tile functions, or 0
    parameter: Double1  # theirs, one after the other …
    offsets: Int1  # (d + 1,): … and where each begins
    given: Double2  # (n, m): logs that were computed elsewhere, or (0, 0)


class Tasks(NamedTuple):
    """t sums to be made: for a query, over a run of rows."""

    query: Int1  # (t,): which one
    spans: Int2  # (t, 2): its rows


class Accumulators(NamedTuple):
    """The sums over the rows so far, for each task."""

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
    derived: Double1  # by a derived function
    origin: Double1  # (1,): the query, once differences were taken


SCRATCH = Scratch((TILE,), (TILE,), (TILE,), (TILE,), (1,))


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

    The mean of values far from 0 is rounded to their last digit, and so are its sums. That rounding
    error is computed from the differences from the mean, and kept: the means of tiles may lie
    closer together than the last digit.
    """
    total, squared, first = _moments(weights, value)
    if total == 0.0:
        return
    mean, before = first / total, sums[TOTAL]
    first, second = _moments_about(weights, value, mean)
    rest = first / total
    second -= first * rest
    sums[TOTAL] += total
    sums[SQUARED] += squared
    if not (abs(mean) < np.inf and abs(sums[MEAN]) < np.inf):
        sums[MEAN], sums[REST], sums[SPREAD] = mean + sums[MEAN], 0.0, np.nan
        return
    moved = (mean - sums[MEAN]) + (rest - sums[REST])
    sums[SPREAD] += max(second, 0.0) + moved * moved * before * (total / sums[TOTAL])
    # From the heavier of both: a mean far away that weighs next to nothing leaves no rounding.
    if before < total:
        sums[MEAN], sums[REST] = _exact_sum(mean, rest - before / sums[TOTAL] * moved)
    else:
        step = sums[REST] + total / sums[TOTAL] * moved
        sums[MEAN], sums[REST] = _exact_sum(sums[MEAN], step)


@device
def _spread(weights: Any, codes: Any, mass: Any) -> None:
    """Give each distinct value the weights of its rows."""
    for i in range(len(weights)):
        mass[codes[i]] += weights[i]


@device
def _least_factor(in_logs: bool, lead_logs: Any) -> float:
    """What a factor must pass for its row to lead. Rounded down: the logarithm decides."""
    return 0.0 if in_logs else exp(lead_logs[-1]) * (1.0 - 1e-12)


@device
def _lead(
    logs: Any,
    factors: Any,
    in_logs: bool,
    rows: Any,
    start: int,
    lead_logs: Any,
    lead_rows: Any,
) -> None:
    """Keep the best rows, the best first; of equals, the one met first.

    From the end that seems the better one: then few rows are better than those that were kept, and
    most strips have none.
    """
    count = len(logs)
    backwards = logs[0] < logs[count - 1] or factors[0] < factors[count - 1]
    strips = (count + STRIP - 1) // STRIP
    for step in range(strips):
        first = (strips - 1 - step if backwards else step) * STRIP
        last = min(first + STRIP, count)
        if in_logs and largest_log(logs[first:last], factors[first:last]) < lead_logs[-1]:
            continue
        least = _least_factor(in_logs, lead_logs)
        if largest_factor(factors[first:last]) <= least:
            continue
        for place in range(first, last):
            i = first + last - 1 - place if backwards else place
            enough = logs[i] > lead_logs[-1] or (backwards and logs[i] == lead_logs[-1])
            if factors[i] > least and enough:
                score = logs[i] if factors[i] == 1.0 else logs[i] + math.log(factors[i])
                row = rows.first + (rows.order[start + i] if len(rows.order) > 0 else start + i)
                _insert(score, row, lead_logs, lead_rows)
                least = _least_factor(in_logs, lead_logs)


@device
def _insert(score: float, row: int, lead_logs: Any, lead_rows: Any) -> None:
    """Insert a row into the heaviest so far, if it is one; of equals, the first row wins."""
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
def _rescale(accumulators: Any, q: int, largest: float) -> None:
    """Make a new peak of the logs, and what was summed so far relative to it."""
    shrink = exp(accumulators.peak[q] - largest)
    accumulators.sums[q, TOTAL] *= shrink
    accumulators.sums[q, SQUARED] *= shrink * shrink
    accumulators.sums[q, SPREAD] *= shrink
    for j in range(accumulators.mass.shape[1]):
        accumulators.mass[q, j] *= shrink
    accumulators.peak[q] = largest


@device
def _weigh_tile(
    rows: Any,
    queries: Any,
    accumulators: Any,
    q: int,
    task: int,
    start: int,
    stop: int,
    scratch: Any,
) -> None:
    """Weigh the rows from `start` to `stop` for one query, and add them up."""
    count = stop - start
    logs, factors = scratch.logs[:count], scratch.factors[:count]
    clear(rows.logs, start, logs, factors)
    word = 0
    for c in range(len(queries.kinds)):
        compare_column(rows, queries, q, c, word, start, stop, scratch)
        word += queries.words[c]
    if len(queries.given) > 0:
        for i in range(count):
            logs[i] += queries.given[q, start + i]
    in_logs, leads = has_logs(rows, queries), accumulators.lead_logs.shape[1] > 0
    highest, largest, any_size = 1.0, 0.0, has_formula(queries)
    if any_size or not in_logs:
        highest = largest_factor(factors)
        if highest == 0.0:
            return
    if any_size:
        if np.isnan(highest):
            accumulators.sums[task, TOTAL] = np.nan
            return
        if not SMALL <= highest <= 1.0 or (not in_logs and accumulators.peak[task] > 0.0):
            turn_into_logs(logs, factors)
            in_logs = True
    if in_logs:
        largest = largest_log(logs, factors)
        if largest < FARTHEST:
            rank_far(rows, queries, q, start, stop, scratch)
            largest = largest_log(logs, factors)
        if largest == -np.inf:
            return
    else:
        leads = leads and highest > _least_factor(in_logs, accumulators.lead_logs[task])
    # Before factors turn into weights. No factor is more than 1 now.
    if leads and largest > accumulators.lead_logs[task, -1]:
        _lead(
            logs,
            factors,
            in_logs,
            rows,
            start,
            accumulators.lead_logs[task],
            accumulators.lead_rows[task],
        )
    if largest > accumulators.peak[task]:
        _rescale(accumulators, task, largest)
    if in_logs:
        _weights(logs, factors, accumulators.peak[task])
    _add(factors, rows.value[start:stop], accumulators.sums[task])
    if len(rows.codes) > 0:
        _spread(factors, rows.codes[start:stop], accumulators.mass[task])


@kernel
def weigh(
    start: int,
    stop: int,
    rows: Rows,
    queries: Queries,
    tasks: Tasks,
    accumulators: Accumulators,
    scratch: PerThread[Scratch],
) -> None:
    """Run the tasks from `start` to `stop`, tile by tile, while a tile is in the cache."""
    low, high = len(rows.value), 0
    for task in range(start, stop):
        low, high = min(low, tasks.spans[task, 0]), max(high, tasks.spans[task, 1])
    # Tiles begin at multiples of their size, so that sums do not depend on the threads.
    for tile in range(low - low % TILE, high, TILE):
        for task in range(start, stop):
            first, last = max(tile, tasks.spans[task, 0]), min(tile + TILE, tasks.spans[task, 1])
            if first < last:
                q = tasks.query[task]
                _weigh_tile(rows, queries, accumulators, q, task, first, last, scratch)


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


@kernel
def pair_scores(
    start: int,
    stop: int,
    function: int,
    query: Double2,
    key: Double2,
    parameter: Double1,
    out: Double1,
) -> None:
    """What a derived function of rows makes of (n, d) and (m, d), in lines of m, for the keys from
    `start` to `stop`."""
    invoke(
        function,
        (query, key[start:stop], parameter, out[start:], len(key), len(query), 0),
    )
