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

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    exp,
    finite_divide,
    ordered,
    tile_function,
    unordered,
)
from qkv.operators.fused.matrix import transpose_into
from qkv.operators.fused.space import WIDTH

# How large query + key may grow before a product of four, two or one of e^2(a+b) + 1 overflows, and
# how large either may be before its own exponential does; per type, with a little to spare.
FOUR32, TWO32, ONE32, EACH32 = 10.5, 21.0, 42.0, 42.0
FOUR64, TWO64, ONE64, EACH64 = 87.0, 175.0, 350.0, 350.0


@numba.njit(**INNER_OPTIONS)
def _exponentials(plain: Any, out: Any) -> Any:
    """out = e^(2 plain), row by row; the largest entry of plain, or inf if one is out of range."""
    tile_function()
    real = plain.dtype.type
    limit = real(EACH32) if plain.itemsize == 4 else real(EACH64)
    outside = real(np.inf)
    # As integers, so that LLVM vectorises the maximum.
    highest = ordered(real(-np.inf))
    for r in range(plain.shape[0]):
        for c in range(plain.shape[1]):
            x = plain[r, c]
            # Written so that NaN counts as out of range.
            inside = abs(x) <= limit
            out[r, c] = exp(real(2) * x) if inside else real(0)
            place = ordered(x if inside else outside)
            highest = place if place > highest else highest
    return unordered(highest) if plain.size > 0 else real(0)


@numba.njit(**INNER_OPTIONS)
def pack_query(query: Any, packed: Any) -> Any:
    tile_function()
    d = query.shape[1]
    for r in range(query.shape[0]):
        for c in range(d):
            packed[r, d + c] = query[r, c]
    return _exponentials(query, packed)


@numba.njit(**INNER_OPTIONS)
def pack_key(key: Any, packed: Any) -> Any:
    tile_function()
    d = key.shape[1]
    transpose_into(key, packed[d:])
    return _exponentials(packed[d:], packed)


@numba.njit(**INNER_OPTIONS)
def _four_fractions(x0: Any, x1: Any, x2: Any, x3: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """w0/x0 + w1/x1 + w2/x2 + w3/x3 by one division."""
    left, right = x0 * x1, x2 * x3
    numerator = (w0 * x1 + w1 * x0) * right + (w2 * x3 + w3 * x2) * left
    return finite_divide(numerator, left * right)


@numba.njit(**INNER_OPTIONS)
def _four_inverses(x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
    """1/x0 + 1/x1 + 1/x2 + 1/x3 by one division."""
    left, right = x0 * x1, x2 * x3
    return finite_divide((x0 + x1) * right + (x2 + x3) * left, left * right)


@numba.njit(**INNER_OPTIONS)
def _scores_by_four(q: Any, k: Any, weight: Any, out: Any, rows: int, room: Any) -> None:
    """out -= 2 * sum of weight / (q k + 1), four columns and two queries at a time.

    Where the weights' inverses are of moderate size, w / x becomes 1 / (x / w), which saves two
    multiplications; `room` is how large an inverse, or a product of two, may be.
    `out` has an even number of lines.
    """
    tile_function()
    real = out.dtype.type
    one, two, least = real(1), real(-2), real(1e-6)
    whole = weight.size - weight.size % 4
    for c in range(0, whole, 4):
        w0, w1 = two * weight[c], two * weight[c + 1]
        w2, w3 = two * weight[c + 2], two * weight[c + 3]
        i0, i1, i2, i3 = one / w0, one / w1, one / w2, one / w3
        # False for NaN and for a weight of 0.
        moderate = (
            max(abs(i0 * i1), abs(i2 * i3)) <= room
            and max(max(abs(i0), abs(i1)), max(abs(i2), abs(i3))) <= room
            and min(min(abs(i0), abs(i1)), min(abs(i2), abs(i3))) >= least
        )
        for r in range(0, rows, 2):
            p0, p1, p2, p3 = q[r, c], q[r, c + 1], q[r, c + 2], q[r, c + 3]
            # The partner of an odd last row goes to the spare line behind it.
            s = min(r + 1, rows - 1)
            r0, r1, r2, r3 = q[s, c], q[s, c + 1], q[s, c + 2], q[s, c + 3]
            if moderate:
                p0, p1, p2, p3 = p0 * i0, p1 * i1, p2 * i2, p3 * i3
                r0, r1, r2, r3 = r0 * i0, r1 * i1, r2 * i2, r3 * i3
                for j in range(WIDTH):
                    y0, y1, y2, y3 = k[c, j], k[c + 1, j], k[c + 2, j], k[c + 3, j]
                    out[r, j] += _four_inverses(
                        p0 * y0 + i0, p1 * y1 + i1, p2 * y2 + i2, p3 * y3 + i3
                    )
                    out[r + 1, j] += _four_inverses(
                        r0 * y0 + i0, r1 * y1 + i1, r2 * y2 + i2, r3 * y3 + i3
                    )
            else:
                for j in range(WIDTH):
                    y0, y1, y2, y3 = k[c, j], k[c + 1, j], k[c + 2, j], k[c + 3, j]
                    out[r, j] += _four_fractions(
                        p0 * y0 + one,
                        p1 * y1 + one,
                        p2 * y2 + one,
                        p3 * y3 + one,
                        w0,
                        w1,
                        w2,
                        w3,
                    )
                    out[r + 1, j] += _four_fractions(
                        r0 * y0 + one,
                        r1 * y1 + one,
                        r2 * y2 + one,
                        r3 * y3 + one,
                        w0,
                        w1,
                        w2,
                        w3,
                    )
    _scores_by_one(q, k, weight, out, rows, whole)


@numba.njit(**INNER_OPTIONS)
def _scores_by_one(q: Any, k: Any, weight: Any, out: Any, rows: int, first: int) -> None:
    tile_function()
    real = out.dtype.type
    one = real(1)
    for c in range(first, weight.size):
        w0 = real(-2) * weight[c]
        for r in range(rows):
            q0 = q[r, c]
            for j in range(WIDTH):
                out[r, j] += finite_divide(w0, q0 * k[c, j] + one)


@numba.njit(**INNER_OPTIONS)
def _scores_direct(q: Any, k: Any, weight: Any, out: Any, rows: int) -> None:
    """out -= sum of weight * (1 - tanh(q + k)), for any q and k."""
    tile_function()
    real = out.dtype.type
    one, two, d = real(1), real(2), weight.size
    for c in range(d):
        w0 = two * weight[c]
        for r in range(rows):
            q0 = q[r, d + c]
            for j in range(WIDTH):
                x = q0 + k[d + c, j]
                t = exp(-two * abs(x))
                out[r, j] -= w0 * (t if x >= 0 else one) / (one + t)


@numba.njit(**INNER_OPTIONS)
def scores(q: Any, k: Any, parameter: Any, out: Any, rows: int, reach: Any) -> None:
    tile_function()
    real = out.dtype.type
    four = real(FOUR32) if out.itemsize == 4 else real(FOUR64)
    one = real(ONE32) if out.itemsize == 4 else real(ONE64)
    total = real(0)
    for c in range(parameter.size):
        total += parameter[c]
    for r in range(rows):
        for j in range(WIDTH):
            out[r, j] = total
    # Written so that NaN takes the direct form.
    if reach <= four:
        # Four factors stay within the range of the type: e^(8 reach) times two such products.
        room = exp(real(4) * (four - max(reach, real(0))))
        _scores_by_four(q, k, parameter, out, rows, room)
    elif reach <= one:
        _scores_by_one(q, k, parameter, out, rows, 0)
    else:
        _scores_direct(q, k, parameter, out, rows)


@numba.njit(**INNER_OPTIONS)
def _gradient_by_four(
    q: Any, k: Any, weight: Any, upstream: Any, rows: int, dq: Any, dk: Any, dweight: Any
) -> None:
    """Four rows at a time share the loads of a key, two a division.

    With f = 1 / (q k + 1), 1 - tanh^2 = 4 f (1 - f).
    Takes twice the sum of upstream * f from `dweight`.
    """
    tile_function()
    real = dk.dtype.type
    one = real(1)
    for c in range(weight.size):
        factor = real(4) * weight[c]
        for r in range(0, rows, 4):
            q0, q1, q2, q3 = q[r, c], q[r + 1, c], q[r + 2, c], q[r + 3, c]
            s0 = s1 = s2 = s3 = m = real(0)
            for j in range(WIDTH):
                y = k[c, j]
                x0, x1, x2, x3 = q0 * y + one, q1 * y + one, q2 * y + one, q3 * y + one
                left, right = finite_divide(one, x0 * x1), finite_divide(one, x2 * x3)
                f0, f1, f2, f3 = x1 * left, x0 * left, x3 * right, x2 * right
                t0, t1 = upstream[r, j] * f0, upstream[r + 1, j] * f1
                t2, t3 = upstream[r + 2, j] * f2, upstream[r + 3, j] * f3
                m += (t0 + t1) + (t2 + t3)
                t0, t1, t2, t3 = t0 - t0 * f0, t1 - t1 * f1, t2 - t2 * f2, t3 - t3 * f3
                s0 += t0
                s1 += t1
                s2 += t2
                s3 += t3
                dk[c, j] += factor * ((t0 + t1) + (t2 + t3))
            dq[r, c] += factor * s0
            dq[r + 1, c] += factor * s1
            dq[r + 2, c] += factor * s2
            dq[r + 3, c] += factor * s3
            dweight[c] -= real(2) * m


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
    dweight: Any,
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
        dweight[c] -= two * moment


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
    fours = rows - rows % 4 if reach <= two else 0
    _gradient_by_four(q, k, parameter, upstream, fours, dq, dk, dparameter)
    _gradient_direct(q, k, parameter, upstream, fours, rows, dq, dk, dparameter)
    total = real(0)
    for r in range(rows):
        for j in range(WIDTH):
            total += upstream[r, j]
    for c in range(parameter.size):
        dparameter[c] += total
