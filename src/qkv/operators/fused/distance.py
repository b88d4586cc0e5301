"""Kernels of the distance u = |(query - key) * parameter|: two short scalar functions each.

The parameter holds the inverse bandwidth of each dimension. `value` turns u squared into the score;
`slope` turns it into s, where the score's gradient with respect to u squared is s / 2. Distances
are sums of squared differences: the expansion |q|^2 - 2 q.k + |k|^2 would cancel, and so would
tokens that were divided by their bandwidth beforehand.
"""

from __future__ import annotations

import math
from typing import Any

import numba

from qkv.operators.fused.arithmetic import INNER_OPTIONS, tile_function
from qkv.operators.fused.matrix import transpose_into
from qkv.operators.fused.space import WIDTH

_jit = numba.njit(**INNER_OPTIONS)


@_jit
def gaussian_value(square: Any) -> Any:
    return square * type(square)(-0.5)


@_jit
def gaussian_slope(square: Any) -> Any:
    return type(square)(-1)


@_jit
def euclidean_value(square: Any) -> Any:
    return -square


@_jit
def euclidean_slope(square: Any) -> Any:
    return type(square)(-2)


@_jit
def laplacian_value(square: Any) -> Any:
    return -math.sqrt(square)


@_jit
def laplacian_slope(square: Any) -> Any:
    zero = type(square)(0)
    return zero if square == zero else type(square)(-1) / math.sqrt(square)


@_jit
def boxcar_value(square: Any) -> Any:
    # Zero times the square: NaN shows.
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one + zero * square


@_jit
def boxcar_slope(square: Any) -> Any:
    return type(square)(0)


@_jit
def triangular_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one - math.sqrt(square)


@_jit
def triangular_slope(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one or square == zero else -one / math.sqrt(square)


@_jit
def epanechnikov_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one - square


@_jit
def epanechnikov_slope(square: Any) -> Any:
    return type(square)(0) if square > type(square)(1) else type(square)(-2)


@_jit
def pack_query(query: Any, packed: Any) -> Any:
    for r in range(query.shape[0]):
        for c in range(query.shape[1]):
            packed[r, c] = query[r, c]
    return query.dtype.type(0)


@_jit
def pack_key(key: Any, packed: Any) -> Any:
    transpose_into(key, packed)
    return key.dtype.type(0)


@_jit
def _squares(q: Any, k: Any, parameter: Any, rows: int, out: Any, columns: int) -> None:
    """out = u squared, over the first columns, of each query of the block and key of the tile."""
    tile_function()
    for r in range(rows):
        for c in range(columns):
            x, inverse = q[r, c], parameter[c]
            if c == 0:
                for j in range(WIDTH):
                    step = (x - k[c, j]) * inverse
                    out[r, j] = step * step
            else:
                for j in range(WIDTH):
                    step = (x - k[c, j]) * inverse
                    out[r, j] += step * step


# The loops below are plain Python: each kernel compiles its own copy, in which `value` and
# `slope` are its own functions. See `similarity.py`.


def scores(q: Any, k: Any, parameter: Any, out: Any, rows: int, reach: Any) -> None:
    tile_function()
    # The last column's square is turned into a score at once: one pass over the tile less.
    last = k.shape[0] - 1
    _squares(q, k, parameter, rows, out, last)
    for r in range(rows):
        x, inverse = q[r, last], parameter[last]
        if last == 0:
            for j in range(WIDTH):
                step = (x - k[last, j]) * inverse
                out[r, j] = value(step * step)  # type: ignore[name-defined]  # noqa: F821
        else:
            for j in range(WIDTH):
                step = (x - k[last, j]) * inverse
                out[r, j] = value(out[r, j] + step * step)  # type: ignore[name-defined]  # noqa: F821


def gradient(
    q: Any,
    k: Any,
    parameter: Any,
    raw: Any,
    upstream: Any,
    rows: int,
    reach: Any,
    dq: Any,
    dk: Any,
    dparameter: Any,
) -> None:
    tile_function()
    _squares(q, k, parameter, rows, raw, k.shape[0])
    for r in range(rows):
        for j in range(WIDTH):
            raw[r, j] = upstream[r, j] * slope(raw[r, j])  # type: ignore[name-defined]  # noqa: F821
        for c in range(k.shape[0]):
            x, inverse = q[r, c], parameter[c]
            total = moment = dk.dtype.type(0)
            for j in range(WIDTH):
                difference = (x - k[c, j]) * inverse
                step = raw[r, j] * difference
                total += step
                moment += step * difference
                dk[c, j] -= step * inverse
            dq[r, c] += total * inverse
            dparameter[c] += moment / inverse
