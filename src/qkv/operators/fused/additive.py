"""Additive attention: logit = sum over h of weight_h * tanh(query_h + key_h).

tanh(a + b) = 1 - 2 / (e^2a e^2b + 1), so the exponentials are taken once per query and once per
key, and a pair costs a multiply-add and a fraction. Four fractions share one division.

A packed query or key holds the exponentials first and the plain values behind them; the plain
values serve tiles whose exponentials would leave the range of the type.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from qkv.operators.fused.arithmetic import INNER_OPTIONS, exp, finite_divide, tile_function
from qkv.operators.fused.matrix import transpose_into
from qkv.operators.fused.weights import WIDTH

# How large query + key may grow before a product of four, two or one of e^2(a+b) + 1 overflows, and
# how large either may be before its own exponential does; per type, with a little to spare.
FOUR32, TWO32, ONE32, EACH32 = 10.5, 21.0, 42.0, 42.0
FOUR64, TWO64, ONE64, EACH64 = 87.0, 175.0, 350.0, 350.0


@numba.njit(**INNER_OPTIONS)
def packed_depth(d: int) -> int:
    return 2 * d


@numba.njit(**INNER_OPTIONS)
def _exponentials(values: Any, out: Any, reach: Any) -> None:
    """out = e^(2 values); each entry of `reach` grows to its value, or to inf if out of range."""
    tile_function()
    real = values.dtype.type
    limit = real(EACH32) if values.itemsize == 4 else real(EACH64)
    outside = real(np.inf)
    for c in range(values.size):
        x = values[c]
        # Written so that NaN counts as out of range.
        inside = abs(x) <= limit
        out[c] = exp(real(2) * x) if inside else real(0)
        x = x if inside else outside
        reach[c] = x if x > reach[c] else reach[c]


@numba.njit(**INNER_OPTIONS)
def pack_query(query: Any, packed: Any) -> Any:
    tile_function()
    d = query.shape[1]
    reach = np.full(d, -np.inf, query.dtype)
    for r in range(query.shape[0]):
        packed[r, d:] = query[r]
        _exponentials(packed[r, d:], packed[r, :d], reach)
    return reach.max() if d > 0 else query.dtype.type(0)


@numba.njit(**INNER_OPTIONS)
def pack_key(key: Any, packed: Any) -> Any:
    tile_function()
    d = key.shape[1]
    reach = np.full(packed.shape[1], -np.inf, key.dtype)
    transpose_into(key, packed[d:])
    for c in range(d):
        _exponentials(packed[d + c], packed[c], reach)
    return reach.max() if d > 0 else key.dtype.type(0)


@numba.njit(**INNER_OPTIONS)
def _four_fractions(x0: Any, x1: Any, x2: Any, x3: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """w0/x0 + w1/x1 + w2/x2 + w3/x3 by one division."""
    left, right = x0 * x1, x2 * x3
    numerator = (w0 * x1 + w1 * x0) * right + (w2 * x3 + w3 * x2) * left
    return finite_divide(numerator, left * right)


@numba.njit(**INNER_OPTIONS)
def _scores_by_four(q: Any, k: Any, weight: Any, line: Any, other_q: Any, other: Any) -> None:
    """line -= 2 * sum of weight / (q k + 1), for two queries at a time: they share the loads."""
    tile_function()
    real = line.dtype.type
    one, two = real(1), real(-2)
    whole = weight.size - weight.size % 4
    for c in range(0, whole, 4):
        k0, k1, k2, k3 = k[c], k[c + 1], k[c + 2], k[c + 3]
        p0, p1, p2, p3 = q[c], q[c + 1], q[c + 2], q[c + 3]
        r0, r1, r2, r3 = other_q[c], other_q[c + 1], other_q[c + 2], other_q[c + 3]
        w0, w1, w2, w3 = (
            two * weight[c],
            two * weight[c + 1],
            two * weight[c + 2],
            two * weight[c + 3],
        )
        for j in range(line.size):
            y0, y1, y2, y3 = k0[j], k1[j], k2[j], k3[j]
            line[j] += _four_fractions(
                p0 * y0 + one, p1 * y1 + one, p2 * y2 + one, p3 * y3 + one, w0, w1, w2, w3
            )
            other[j] += _four_fractions(
                r0 * y0 + one, r1 * y1 + one, r2 * y2 + one, r3 * y3 + one, w0, w1, w2, w3
            )
    _scores_by_one(q, k, weight, line, whole)
    _scores_by_one(other_q, k, weight, other, whole)


@numba.njit(**INNER_OPTIONS)
def _scores_by_one(e: Any, k: Any, weight: Any, line: Any, first: int) -> None:
    tile_function()
    real = line.dtype.type
    one = real(1)
    for c in range(first, weight.size):
        k0, e0, w0 = k[c], e[c], real(-2) * weight[c]
        for j in range(line.size):
            line[j] += finite_divide(w0, e0 * k0[j] + one)


@numba.njit(**INNER_OPTIONS)
def _scores_direct(q: Any, k: Any, weight: Any, line: Any, d: int) -> None:
    """line -= sum of weight * (1 - tanh(q + k)), for any q and k."""
    tile_function()
    real = line.dtype.type
    one, two = real(1), real(2)
    for c in range(d):
        k0, q0, w0 = k[d + c], q[d + c], weight[c]
        for j in range(line.size):
            x = q0 + k0[j]
            t = exp(-two * abs(x))
            line[j] -= w0 * two * (t if x >= 0 else one) / (one + t)


@numba.njit(**INNER_OPTIONS)
def scores(q: Any, k: Any, parameter: Any, out: Any, rows: int, reach: Any) -> None:
    tile_function()
    real = out.dtype.type
    d = parameter.size
    four = real(FOUR32) if out.itemsize == 4 else real(FOUR64)
    one = real(ONE32) if out.itemsize == 4 else real(ONE64)
    total = real(0)
    for c in range(d):
        total += parameter[c]
    out[:rows] = total
    # An odd last row is paired with a spare line, so that its result does not depend on the pair.
    for r in range(0, rows, 2):
        pair = r + 1 if r + 1 < rows else r
        other = out[pair] if pair > r else np.empty_like(out[r])
        if reach <= four:
            _scores_by_four(q[r], k, parameter, out[r], q[pair], other)
    if reach > four or np.isnan(reach):
        for r in range(rows):
            if reach <= one:
                _scores_by_one(q[r], k, parameter, out[r], 0)
            else:
                _scores_direct(q[r], k, parameter, out[r], d)


@numba.njit(**INNER_OPTIONS)
def _gradient_by_two(
    q: Any, k: Any, weight: Any, upstream: Any, rows: int, dq: Any, dk: Any, moments: Any
) -> None:
    """Two rows share one division; with f = 1 / (q k + 1), 1 - tanh^2 = 4 f (1 - f).

    Adds the sum of upstream * f to `moments`.
    """
    tile_function()
    one = dk.dtype.type(1)
    for c in range(weight.size):
        factor = dk.dtype.type(4) * weight[c]
        moment = dk.dtype.type(0)
        for r in range(0, rows, 2):
            q0, q1 = q[r, c], q[r + 1, c]
            s0 = s1 = m = dk.dtype.type(0)
            for j in range(WIDTH):
                x0, x1 = q0 * k[c, j] + one, q1 * k[c, j] + one
                inverse = finite_divide(one, x0 * x1)
                f0, f1 = x1 * inverse, x0 * inverse
                t0, t1 = upstream[r, j] * f0, upstream[r + 1, j] * f1
                m += t0 + t1
                t0, t1 = t0 - t0 * f0, t1 - t1 * f1
                s0 += t0
                s1 += t1
                dk[c, j] += factor * (t0 + t1)
            dq[r, c] += factor * s0
            dq[r + 1, c] += factor * s1
            moment += m
        moments[c] += moment


@numba.njit(**INNER_OPTIONS)
def _gradient_direct(
    q: Any,
    k: Any,
    weight: Any,
    upstream: Any,
    first: int,
    rows: int,
    dq: Any,
    dk: Any,
    moments: Any,
) -> None:
    """The same at any magnitude: with t = e^(-2 |x|), f = 1 / (e^2x + 1) without overflow."""
    tile_function()
    one, two, d = dk.dtype.type(1), dk.dtype.type(2), weight.size
    for c in range(d):
        factor = dk.dtype.type(4) * weight[c]
        moment = dk.dtype.type(0)
        for r in range(first, rows):
            total = m = dk.dtype.type(0)
            q0 = q[r, d + c]
            for j in range(WIDTH):
                x = q0 + k[d + c, j]
                t = exp(-two * abs(x))
                inverse = one / (one + t)
                m += upstream[r, j] * ((t if x >= 0 else one) * inverse)
                slope = upstream[r, j] * (t * inverse * inverse)
                total += slope
                dk[c, j] += factor * slope
            dq[r, c] += factor * total
            moment += m
        moments[c] += moment


@numba.njit(**INNER_OPTIONS)
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
    real = dk.dtype.type
    two = real(TWO32) if dk.itemsize == 4 else real(TWO64)
    paired = rows - rows % 2 if reach <= two else 0
    moments = np.zeros_like(parameter)
    _gradient_by_two(q, k, parameter, upstream, paired, dq, dk, moments)
    _gradient_direct(q, k, parameter, upstream, paired, rows, dq, dk, moments)
    total = real(0)
    for r in range(rows):
        for j in range(WIDTH):
            total += upstream[r, j]
    for c in range(parameter.size):
        dparameter[c] += total - real(2) * moments[c]
