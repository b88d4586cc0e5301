"""Additive attention: logit = sum over h of weight_h * tanh(query_h + key_h).

tanh(a + b) = 1 - 2 / (e^2a e^2b + 1), so the exponentials are taken once per query and once per
key, and a pair costs a multiply-add and a fraction. Four fractions share one division.

A packed query or key holds the exponentials first and the plain values behind them; the plain
values serve tiles whose exponentials would leave the range of the type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.jit import callback, device
from qkv.jit.builtins import exp, finite_divide, noalias, noinline, ordered, unordered
from qkv.jit.signature import Real, Real1, Real2
from qkv.operators.fused.matrix import four_entries, four_rows

# How large query + key may grow before a product of four, two or one of e^2(a+b) + 1 overflows, and
# how large either may be before its own exponential does; per type, with a little to spare.
FOUR32, TWO32, ONE32, EACH32 = 10.5, 21.0, 42.0, 42.0
FOUR64, TWO64, ONE64, EACH64 = 87.0, 175.0, 350.0, 350.0


@callback
def transform(plain: Real2, out: Real2, reach: Real1) -> None:
    """out = e^(2 plain); reach: the largest entry of plain, or inf if one is out of range."""
    noinline()
    noalias()
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
    reach[0] = unordered(highest) if plain.size > 0 else real(0)


# Four columns at a time are tuples of four.


@device
def _along(lines: Any, r: int, c: int) -> Any:
    return lines[r, c], lines[r, c + 1], lines[r, c + 2], lines[r, c + 3]


@device
def _across(lines: Any, c: int, j: int) -> Any:
    return lines[c, j], lines[c + 1, j], lines[c + 2, j], lines[c + 3, j]


@device
def _times(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@device
def _four_fractions(w: Any, q: Any, k: Any, one: Any) -> Any:
    """The sum of w / (q k + 1) by one division."""
    x0, x1, x2, x3 = q[0] * k[0] + one, q[1] * k[1] + one, q[2] * k[2] + one, q[3] * k[3] + one
    left, right = x0 * x1, x2 * x3
    numerator = (w[0] * x1 + w[1] * x0) * right + (w[2] * x3 + w[3] * x2) * left
    return finite_divide(numerator, left * right)


@device
def _four_inverses(q: Any, k: Any, i: Any) -> Any:
    """The sum of 1 / (q k + i) by one division."""
    x0, x1, x2, x3 = q[0] * k[0] + i[0], q[1] * k[1] + i[1], q[2] * k[2] + i[2], q[3] * k[3] + i[3]
    left, right = x0 * x1, x2 * x3
    return finite_divide((x0 + x1) * right + (x2 + x3) * left, left * right)


@device
def _moderate(i: Any, room: Any) -> Any:
    """Whether inverses of weights are of moderate size; False for NaN and for a weight of 0."""
    a, b, c, d = abs(i[0]), abs(i[1]), abs(i[2]), abs(i[3])
    most, least = max(max(a, b), max(c, d)), min(min(a, b), min(c, d))
    return max(max(a * b, c * d), most) <= room and least >= type(room)(1e-6)


@device
def _scores_by_four(q: Any, k: Any, weight: Any, out: Any, rows: int, room: Any) -> None:
    """out -= 2 * sum of weight / (q k + 1), four columns and two queries at a time.

    Where the weights' inverses are of moderate size, w / x becomes 1 / (x / w), which saves two
    multiplications; `room` is how large an inverse, or a product of two, may be.
    `out` has an even number of lines.
    """
    noinline()
    real = out.dtype.type
    one, two, width = real(1), real(-2), k.shape[1]
    whole = weight.size - weight.size % 4
    for c in range(0, whole, 4):
        w = two * weight[c], two * weight[c + 1], two * weight[c + 2], two * weight[c + 3]
        inverse = one / w[0], one / w[1], one / w[2], one / w[3]
        moderate = _moderate(inverse, room)
        for r in range(0, rows, 2):
            # The partner of an odd last row goes to the spare line behind it.
            x, y = _along(q, r, c), _along(q, min(r + 1, rows - 1), c)
            if moderate:
                x, y = _times(x, inverse), _times(y, inverse)
                for j in range(width):
                    z = _across(k, c, j)
                    out[r, j] += _four_inverses(x, z, inverse)
                    out[r + 1, j] += _four_inverses(y, z, inverse)
            else:
                for j in range(width):
                    z = _across(k, c, j)
                    out[r, j] += _four_fractions(w, x, z, one)
                    out[r + 1, j] += _four_fractions(w, y, z, one)
    _scores_by_one(q, k, weight, out, rows, whole)


@device
def _scores_by_one(q: Any, k: Any, weight: Any, out: Any, rows: int, first: int) -> None:
    noinline()
    real = out.dtype.type
    one, width = real(1), k.shape[1]
    for c in range(first, weight.size):
        w0 = real(-2) * weight[c]
        for r in range(rows):
            q0 = q[r, c]
            for j in range(width):
                out[r, j] += finite_divide(w0, q0 * k[c, j] + one)


@device
def _scores_direct(q: Any, k: Any, weight: Any, out: Any, rows: int) -> None:
    """out -= sum of weight * (1 - tanh(q + k)), for any q and k."""
    noinline()
    real = out.dtype.type
    one, two, d, width = real(1), real(2), weight.size, k.shape[1]
    for c in range(d):
        w0 = two * weight[c]
        for r in range(rows):
            q0 = q[r, d + c]
            for j in range(width):
                x = q0 + k[d + c, j]
                t = exp(-two * abs(x))
                out[r, j] -= w0 * (t if x >= 0 else one) / (one + t)


@callback
def scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
    noinline()
    real, width = out.dtype.type, k.shape[1]
    four = real(FOUR32) if out.itemsize == 4 else real(FOUR64)
    one = real(ONE32) if out.itemsize == 4 else real(ONE64)
    total = real(0)
    for c in range(parameter.size):
        total += parameter[c]
    for r in range(rows):
        for j in range(width):
            out[r, j] = total
    # Written so that NaN takes the direct form.
    if reach <= four:
        # Four factors stay within the range of the type: e^(8 reach) times two such products.
        room = exp(real(4) * (four - max(reach, real(0))))
        _scores_by_four(q, k, parameter, out, rows, room)
    elif reach <= one:
        _scores_by_one(q, k, parameter, out, rows, np.int64(0))
    else:
        _scores_direct(q, k, parameter, out, rows)


# Keys as rows: the vector lanes run along the columns. This serves the scores of few queries, for
# which turning the keys into columns is not worth it, and all gradients: they need no sums along a
# vector.


@device
def _row_scores_by_four(q: Any, k: Any, weight: Any, out: Any, rows: int, width: int) -> None:
    """out -= 2 * sum of weight / (q k + 1); two keys share a division, four the loads of a query.

    `width` is a multiple of four.
    """
    noinline()
    noalias()
    real = out.dtype.type
    one, two = real(1), real(2)
    for r in range(rows):
        for j in range(0, width, 4):
            s0 = s1 = s2 = s3 = real(0)
            for c in range(weight.size):
                y = q[r, c]
                x0, x1 = y * k[j, c] + one, y * k[j + 1, c] + one
                x2, x3 = y * k[j + 2, c] + one, y * k[j + 3, c] + one
                left = finite_divide(weight[c], x0 * x1)
                right = finite_divide(weight[c], x2 * x3)
                s0 += x1 * left
                s1 += x0 * left
                s2 += x3 * right
                s3 += x2 * right
            out[r, j] -= two * s0
            out[r, j + 1] -= two * s1
            out[r, j + 2] -= two * s2
            out[r, j + 3] -= two * s3


@device
def _row_scores_direct(
    q: Any, k: Any, weight: Any, out: Any, rows: int, first: int, width: int
) -> None:
    """out -= sum of weight * (1 - tanh(q + k)), for any q and k, from the key `first` on."""
    noinline()
    noalias()
    real, d = out.dtype.type, weight.size
    one, two = real(1), real(2)
    for r in range(rows):
        for j in range(first, width):
            total = real(0)
            for c in range(d):
                x = q[r, d + c] + k[j, d + c]
                t = exp(-two * abs(x))
                total += weight[c] * (t if x >= 0 else one) / (one + t)
            out[r, j] -= two * total


@callback
def row_scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
    noinline()
    real, width = out.dtype.type, k.shape[0]
    two = real(TWO32) if out.itemsize == 4 else real(TWO64)
    total = real(0)
    for c in range(parameter.size):
        total += parameter[c]
    for r in range(rows):
        for j in range(width):
            out[r, j] = total
    fours = width - width % 4 if reach <= two else 0
    _row_scores_by_four(q, k, parameter, out, rows, fours)
    _row_scores_direct(q, k, parameter, out, rows, fours, width)


@device
def pull_four(x: Any, g: Any, factor: Any) -> Any:
    """Of four pairs what they add to the weight, which is to be taken from it, and to their keys;
    x = e^2(q + k) + 1, and two pairs share a division.

    With f = 1 / x, 1 - tanh^2 = 4 f (1 - f).
    """
    one = type(factor)(1)
    left, right = finite_divide(one, x[0] * x[1]), finite_divide(one, x[2] * x[3])
    f0, f1, f2, f3 = x[1] * left, x[0] * left, x[3] * right, x[2] * right
    t0, t1, t2, t3 = g[0] * f0, g[1] * f1, g[2] * f2, g[3] * f3
    pull = type(factor)(2) * ((t0 + t1) + (t2 + t3))
    t0, t1 = factor * (t0 - t0 * f0), factor * (t1 - t1 * f1)
    t2, t3 = factor * (t2 - t2 * f2), factor * (t3 - t3 * f3)
    return pull, t0, t1, t2, t3


@device
def _add_four(q: Any, k: Any, weight: Any, g: Any, dq: Any, dk: Any, dweight: Any) -> None:
    """Add what a query and four keys contribute.

    Takes twice the sum of slopes * f from `dweight`.
    """
    noinline()
    noalias()
    real = dq.dtype.type
    one, four = real(1), real(4)
    k0, k1, k2, k3 = k
    dk0, dk1, dk2, dk3 = dk
    for c in range(weight.size):
        y = q[c]
        x = y * k0[c] + one, y * k1[c] + one, y * k2[c] + one, y * k3[c] + one
        pull, t0, t1, t2, t3 = pull_four(x, g, four * weight[c])
        dweight[c] -= pull
        dq[c] += (t0 + t1) + (t2 + t3)
        dk0[c] += t0
        dk1[c] += t1
        dk2[c] += t2
        dk3[c] += t3


@device
def gradient_direct(
    q: Any,
    k: Any,
    plain: int,
    weight: Any,
    slopes: Any,
    rows: int,
    keys: Any,
    dq: Any,
    dk: Any,
    dweight: Any,
) -> None:
    """The same at any magnitude, of the values from the column `plain` on: with t = e^(-2 |x|),
    f = 1 / (e^2x + 1) without overflow."""
    noinline()
    noalias()
    one, two, d = dk.dtype.type(1), dk.dtype.type(2), weight.size
    four = two + two
    for r in range(rows):
        for j in range(keys[0], keys[1]):
            g = slopes[r, j]
            for c in range(d):
                x = q[r, plain + c] + k[j, plain + c]
                t = exp(-two * abs(x))
                inverse = one / (one + t)
                dweight[c] -= two * g * ((t if x >= 0 else one) * inverse)
                slope = four * weight[c] * (g * (t * inverse * inverse))
                dq[r, c] += slope
                dk[j, c] += slope


@callback
def row_gradient(
    q: Real2,
    k: Real2,
    parameter: Real1,
    raw: Real2,
    slopes: Real2,
    rows: int,
    reach: Real,
    dq: Real2,
    dk: Real2,
    dparameter: Real1,
) -> None:
    noinline()
    real, width = dk.dtype.type, k.shape[0]
    two = real(TWO32) if dk.itemsize == 4 else real(TWO64)
    fours = width - width % 4 if reach <= two else 0
    for r in range(rows):
        for j in range(0, fours, 4):
            _add_four(
                q[r], four_rows(k, j), parameter, four_entries(slopes[r], j),
                dq[r], four_rows(dk, j), dparameter,
            )  # fmt: skip
    keys = fours, width
    gradient_direct(q, k, parameter.size, parameter, slopes, rows, keys, dq, dk, dparameter)
    add_total(slopes, rows, width, dparameter)


@device
def add_total(slopes: Any, rows: int, width: int, dweight: Any) -> None:
    """Add the 1 of tanh = 1 - 2 f."""
    total = dweight.dtype.type(0)
    for r in range(rows):
        for j in range(width):
            total += slopes[r, j]
    for c in range(dweight.size):
        dweight[c] += total
