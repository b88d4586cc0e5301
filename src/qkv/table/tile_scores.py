"""The scores of key columns for a tile of rows: loops that turn differences into scores.

The weight of a row is factor · exp(log): log weights are added up in `logs`, weights that are given
directly, never more than 1, are multiplied into `factors`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.jit import device, device_in_order
from qkv.jit.builtins import exp, invoke, noinline, ordered, unordered

#: How the difference of a query and a key becomes a weight: by one of these kernels, or by a tile
#: function that was derived from a formula of weights, or of their logarithms.
GAUSSIAN, LAPLACIAN, BOXCAR, TRIANGULAR, EPANECHNIKOV, EQUAL, FORMULA, LOG_FORMULA = range(8)
#: The width of a tile that a derived function takes is a multiple of this.
LANES = 16

#: Below this, logs are those of rows so far away that only the nearest of them count.
FARTHEST = -1e300


@device
def clear(given: Any, start: int, logs: Any, factors: Any) -> None:
    """Start with the rows' own weights."""
    for i in range(len(logs)):
        logs[i] = given[start + i] if len(given) > 0 else 0.0
        factors[i] = 1.0


@device_in_order
def subtract(key: Any, query: Any, differences: Any) -> None:
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
def _laplacian(key: Any, query: float, inverse: float, logs: Any) -> None:
    noinline()
    for i in range(len(key)):
        logs[i] -= abs((key[i] - query) * inverse)


@device
def _boxcar(key: Any, query: float, inverse: float, factors: Any) -> None:
    noinline()
    for i in range(len(key)):
        factors[i] = factors[i] if abs((key[i] - query) * inverse) <= 1.0 else 0.0


@device
def _triangular(key: Any, query: float, inverse: float, factors: Any) -> None:
    noinline()
    for i in range(len(key)):
        height = 1.0 - abs((key[i] - query) * inverse)
        factors[i] *= height if height > 0.0 else 0.0


@device
def _epanechnikov(key: Any, query: float, inverse: float, factors: Any) -> None:
    noinline()
    for i in range(len(key)):
        u = (key[i] - query) * inverse
        height = 1.0 - u * u
        factors[i] *= height if height > 0.0 else 0.0


@device
def _equal(key: Any, query: float, factors: Any) -> None:
    noinline()
    for i in range(len(key)):
        factors[i] = factors[i] if key[i] == query else 0.0


@device
def _take_factors(scores: Any, factors: Any) -> None:
    noinline()
    for i in range(len(factors)):
        # A weight that is negative, or none, shows as NaN whose sign no maximum overlooks.
        factors[i] *= scores[i] if scores[i] >= 0.0 else np.nan


@device
def _take_logs(scores: Any, logs: Any) -> None:
    noinline()
    for i in range(len(logs)):
        logs[i] += scores[i]


@device
def _derived(
    rows: Any, queries: Any, q: int, c: int, word: int, start: int, stop: int, scratch: Any
) -> None:
    """Have a derived function weigh a tile; it takes whole vectors of keys."""
    count = stop - start
    width = (count + LANES - 1) // LANES * LANES
    parameter = queries.parameter[queries.offsets[c] : queries.offsets[c + 1]]
    # One query of one column, keys of one column: arrays of two axes are told with their sizes.
    if queries.words[c] == 1 and start + width <= rows.key.shape[1]:
        query, key = queries.query[q, word : word + 1], rows.key[word, start : start + width]
        invoke(
            queries.functions[c], (query, 1, key, width, parameter, scratch.derived, width, 1, 0)
        )
        return
    scratch.origin[0] = 0.0
    words = queries.words[c]
    subtract(
        rows.key[word : word + words, start:stop],
        queries.query[q, word : word + words],
        scratch.differences[:count],
    )
    invoke(
        queries.functions[c],
        (scratch.origin, 1, scratch.differences, width, parameter, scratch.derived, width, 1, 0),
    )


@device
def compare_column(
    rows: Any, queries: Any, q: int, c: int, word: int, start: int, stop: int, scratch: Any
) -> None:
    """Add the scores of key column `c`, which begins at `word`, to the logs and factors."""
    count = stop - start
    logs, factors = scratch.logs[:count], scratch.factors[:count]
    if queries.functions[c] != 0:
        _derived(rows, queries, q, c, word, start, stop, scratch)
        if queries.kinds[c] == FORMULA:
            _take_factors(scratch.derived, factors)
        else:
            _take_logs(scratch.derived, logs)
        return
    words, key, query = queries.words[c], rows.key[word, start:stop], queries.query[q, word]
    if words > 1:
        differences = scratch.differences[:count]
        point = queries.query[q, word : word + words]
        subtract(rows.key[word : word + words, start:stop], point, differences)
        key, query = differences, 0.0
    compare(queries.kinds[c], key, query, queries.inverse[c], logs, factors)


@device
def compare(kind: int, key: Any, query: float, inverse: float, logs: Any, factors: Any) -> None:
    """The scores of one key column for a tile. Each kernel is a separate, vectorised loop."""
    if kind == GAUSSIAN:
        _gaussian(key, query, inverse, logs)
    elif kind == LAPLACIAN:
        _laplacian(key, query, inverse, logs)
    elif kind == BOXCAR:
        _boxcar(key, query, inverse, factors)
    elif kind == TRIANGULAR:
        _triangular(key, query, inverse, factors)
    elif kind == EPANECHNIKOV:
        _epanechnikov(key, query, inverse, factors)
    else:
        _equal(key, query, factors)


@device
def has_logs(rows: Any, queries: Any) -> bool:
    """Whether any column gives log weights; if not, they are 0 and factors are the weights."""
    for kind in queries.kinds:
        if kind in (GAUSSIAN, LAPLACIAN, LOG_FORMULA):
            return True
    return len(rows.logs) > 0 or len(queries.given) > 0


@device
def has_formula(queries: Any) -> bool:
    """Whether factors may be more than 1."""
    has_any = False
    for kind in queries.kinds:
        has_any = has_any or kind == FORMULA
    return has_any


@device
def turn_into_logs(logs: Any, factors: Any) -> None:
    """Move the factors into the logarithms; NaN stays where it was."""
    for i in range(len(logs)):
        if factors[i] > 0.0:
            logs[i] += math.log(factors[i])
            factors[i] = 1.0


@device
def largest_factor(factors: Any) -> float:
    """As integers, whose maximum LLVM can vectorise."""
    noinline()
    largest = ordered(0.0)
    for i in range(len(factors)):
        largest = max(largest, ordered(factors[i]))
    return float(unordered(largest))


@device
def largest_log(logs: Any, factors: Any) -> float:
    """The largest log among rows that count; as integers, see above."""
    noinline()
    never = ordered(-np.inf)
    largest = never
    for i in range(len(logs)):
        largest = max(largest, ordered(logs[i]) if factors[i] > 0.0 else never)
    return float(unordered(largest))


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
def rank_far(rows: Any, queries: Any, q: int, start: int, stop: int, scratch: Any) -> None:
    """Give rows whose weights all underflow logs by their distance alone.

    Below all other logs, and so far from each other that only the nearest weigh anything.
    """
    noinline()
    count = stop - start
    logs, differences = scratch.logs[:count], scratch.differences[:count]
    for i in range(count):
        logs[i] = -np.inf
    word = 0
    for c in range(len(queries.kinds)):
        subtract(
            rows.key[word : word + queries.words[c], start:stop],
            queries.query[q, word : word + queries.words[c]],
            differences,
        )
        _far(queries.kinds[c], differences, 0.0, queries.inverse[c], logs)
        word += queries.words[c]
    for i in range(count):
        logs[i] = -1e301 * (1.0 + 1e-4 * logs[i]) if logs[i] > 690.0 else 0.0
        if len(queries.given) > 0:
            logs[i] += queries.given[q, start + i]
        if len(rows.logs) > 0:
            logs[i] += rows.logs[start + i]
    word = 0
    for c in range(len(queries.kinds)):
        if queries.kinds[c] == LOG_FORMULA:
            compare_column(rows, queries, q, c, word, start, stop, scratch)
        word += queries.words[c]
