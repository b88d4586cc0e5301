"""What key columns say of a tile of rows: the loops that turn differences into scores.

The weight of a row is factor · exp(log): what similarities say in logarithms is added up in `logs`,
what they say outright, never more than 1, is multiplied into `factors`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.jit import device, device_in_order
from qkv.jit.builtins import exp, noinline, ordered, unordered

#: How the difference of a query and a key becomes a weight.
GAUSSIAN, LAPLACIAN, BOXCAR, TRIANGULAR, EPANECHNIKOV, EQUAL = range(6)

#: Below this, logs are those of rows so far away that only the nearest of them count.
FARTHEST = -1e300


@device
def clear(given: Any, start: int, logs: Any, factors: Any) -> None:
    """Begin with what rows weigh by themselves."""
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
def compare(kind: int, key: Any, query: float, inverse: float, logs: Any, factors: Any) -> None:
    """What one key column says of a tile. Each kernel is a loop of its own, which vectorises."""
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
    """Whether anything is said in logarithms; if not, they are 0 and factors are the weights."""
    for kind in queries.kinds:
        if kind in (GAUSSIAN, LAPLACIAN):
            return True
    return len(rows.logs) > 0 or len(queries.given) > 0


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
def rank_far(
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
        subtract(
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
