"""Kernels of the distance u = |(query - key) * parameter|: two short scalar functions each.

The parameter holds the inverse bandwidth of each dimension. `value` turns u squared into the score;
`slope` turns it into s, where the score's gradient with respect to u squared is s / 2. Distances
are sums of squared differences: the expansion |q|^2 - 2 q.k + |k|^2 would cancel, and so would
tokens that were divided by their bandwidth beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from qkv.jit import Callback, Device, callback, device
from qkv.jit.builtins import noalias, noinline
from qkv.jit.signature import Real, Real1, Real2
from qkv.operators.fused.matrix import four_entries, four_rows


@device
def gaussian_value(square: Any) -> Any:
    return square * type(square)(-0.5)


@device
def gaussian_slope(square: Any) -> Any:
    return type(square)(-1)


@device
def euclidean_value(square: Any) -> Any:
    return -square


@device
def euclidean_slope(square: Any) -> Any:
    return type(square)(-2)


@device
def laplacian_value(square: Any) -> Any:
    return -math.sqrt(square)


@device
def laplacian_slope(square: Any) -> Any:
    zero = type(square)(0)
    return zero if square == zero else type(square)(-1) / math.sqrt(square)


@device
def boxcar_value(square: Any) -> Any:
    # Zero times the square: NaN shows.
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one + zero * square


@device
def boxcar_slope(square: Any) -> Any:
    return type(square)(0)


@device
def triangular_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one - math.sqrt(square)


@device
def triangular_slope(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one or square == zero else -one / math.sqrt(square)


@device
def epanechnikov_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else one - square


@device
def epanechnikov_slope(square: Any) -> Any:
    return type(square)(0) if square > type(square)(1) else type(square)(-2)


@device
def biweight_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else (one - square) * (one - square)


@device
def biweight_slope(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    return zero if square > one else type(square)(-4) * (one - square)


@device
def tricube_value(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    rest = one - square * math.sqrt(square)
    return zero if square > one else rest * rest * rest


@device
def tricube_slope(square: Any) -> Any:
    one, zero = type(square)(1), type(square)(0)
    root = math.sqrt(square)
    rest = one - square * root
    return zero if square > one else type(square)(-9) * root * rest * rest


@device
def _squares(q: Any, k: Any, parameter: Any, rows: int, out: Any, columns: int) -> None:
    """out = u squared, over the first columns, of each query of the block and key of the tile."""
    noinline()
    width = k.shape[1]
    for r in range(rows):
        for c in range(columns):
            x, inverse = q[r, c], parameter[c]
            if c == 0:
                for j in range(width):
                    step = (x - k[c, j]) * inverse
                    out[r, j] = step * step
            else:
                for j in range(width):
                    step = (x - k[c, j]) * inverse
                    out[r, j] += step * step


# Keys as rows: the vector lanes run along the columns. Four keys share the loads of a query.


@device
def _row_squares(q: Any, k: Any, parameter: Any, rows: int, out: Any) -> None:
    """u squared of each query of the block and key of the tile."""
    noinline()
    noalias()
    zero = out.dtype.type(0)
    fours = k.shape[0] - k.shape[0] % 4
    for r in range(rows):
        for j in range(0, fours, 4):
            s0 = s1 = s2 = s3 = zero
            for c in range(parameter.size):
                x, inverse = q[r, c], parameter[c]
                t0, t1 = (x - k[j, c]) * inverse, (x - k[j + 1, c]) * inverse
                t2, t3 = (x - k[j + 2, c]) * inverse, (x - k[j + 3, c]) * inverse
                s0 += t0 * t0
                s1 += t1 * t1
                s2 += t2 * t2
                s3 += t3 * t3
            out[r, j], out[r, j + 1], out[r, j + 2], out[r, j + 3] = s0, s1, s2, s3
        for j in range(fours, k.shape[0]):
            s0 = zero
            for c in range(parameter.size):
                t0 = (q[r, c] - k[j, c]) * parameter[c]
                s0 += t0 * t0
            out[r, j] = s0


@device
def _add_row_gradients(
    q: Any, k: Any, parameter: Any, slopes: Any, rows: int, dq: Any, dk: Any, dparameter: Any
) -> None:
    """`slopes` are those of half the squares."""
    noinline()
    fours = k.shape[0] - k.shape[0] % 4
    for r in range(rows):
        for j in range(0, fours, 4):
            _add_four(
                q[r], four_rows(k, j), parameter, four_entries(slopes[r], j),
                dq[r], four_rows(dk, j), dparameter,
            )  # fmt: skip
        for j in range(fours, k.shape[0]):
            _add_one(q[r], k[j], parameter, slopes[r, j], dq[r], dk[j], dparameter)


# Rows as arguments, so that LLVM knows that they do not overlap.


@device
def _add_four(q: Any, k: Any, parameter: Any, g: Any, dq: Any, dk: Any, dparameter: Any) -> None:
    noinline()
    noalias()
    k0, k1, k2, k3 = k
    dk0, dk1, dk2, dk3 = dk
    g0, g1, g2, g3 = g
    for c in range(parameter.size):
        x, inverse = q[c], parameter[c]
        d0, d1, d2, d3 = x - k0[c], x - k1[c], x - k2[c], x - k3[c]
        t0, t1, t2, t3 = g0 * d0, g1 * d1, g2 * d2, g3 * d3
        square = inverse * inverse
        dk0[c] -= t0 * square
        dk1[c] -= t1 * square
        dk2[c] -= t2 * square
        dk3[c] -= t3 * square
        dq[c] += ((t0 + t1) + (t2 + t3)) * square
        dparameter[c] += ((t0 * d0 + t1 * d1) + (t2 * d2 + t3 * d3)) * inverse


@device
def _add_one(q: Any, k: Any, parameter: Any, g: Any, dq: Any, dk: Any, dparameter: Any) -> None:
    noinline()
    noalias()
    for c in range(parameter.size):
        difference, inverse = q[c] - k[c], parameter[c]
        step = g * difference * inverse
        dk[c] -= step * inverse
        dq[c] += step * inverse
        dparameter[c] += step * difference


class Functions(NamedTuple):
    """The tile functions of one kernel, for keys that are columns and for keys that are rows."""

    scores: Callback
    gradient: Callback
    row_scores: Callback
    row_gradient: Callback


def _of_columns(value: Device, slope: Device) -> list[Callable[..., Any]]:
    """The scores of a tile and their gradient, for keys that are columns."""

    def scores(q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real) -> None:
        noinline()
        # The last column's square is turned into a score at once: one pass over the tile less.
        last, width = k.shape[0] - 1, k.shape[1]
        _squares(q, k, parameter, rows, out, last)
        for r in range(rows):
            x, inverse = q[r, last], parameter[last]
            if last == 0:
                for j in range(width):
                    step = (x - k[last, j]) * inverse
                    out[r, j] = value(step * step)
            else:
                for j in range(width):
                    step = (x - k[last, j]) * inverse
                    out[r, j] = value(out[r, j] + step * step)

    def gradient(
        q: Real2,
        k: Real2,
        parameter: Real1,
        raw: Real2,
        upstream: Real2,
        rows: int,
        reach: Real,
        dq: Real2,
        dk: Real2,
        dparameter: Real1,
    ) -> None:
        noinline()
        width = k.shape[1]
        _squares(q, k, parameter, rows, raw, k.shape[0])
        for r in range(rows):
            for j in range(width):
                raw[r, j] = upstream[r, j] * slope(raw[r, j])
            for c in range(k.shape[0]):
                x, inverse = q[r, c], parameter[c]
                total = moment = dk.dtype.type(0)
                for j in range(width):
                    difference = (x - k[c, j]) * inverse
                    step = raw[r, j] * difference
                    total += step
                    moment += step * difference
                    dk[c, j] -= step * inverse
                dq[r, c] += total * inverse
                dparameter[c] += moment / inverse

    return [scores, gradient]


def _of_rows(value: Device, slope: Device) -> list[Callable[..., Any]]:
    """The same for keys that are rows."""

    def row_scores(
        q: Real2, k: Real2, parameter: Real1, out: Real2, rows: int, reach: Real
    ) -> None:
        noinline()
        _row_squares(q, k, parameter, rows, out)
        for r in range(rows):
            for j in range(k.shape[0]):
                out[r, j] = value(out[r, j])

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
        _row_squares(q, k, parameter, rows, raw)
        for r in range(rows):
            for j in range(k.shape[0]):
                raw[r, j] = slopes[r, j] * slope(raw[r, j])
        _add_row_gradients(q, k, parameter, raw, rows, dq, dk, dparameter)

    return [row_scores, row_gradient]


def tile_functions(kind: str, value: Device, slope: Device) -> Functions:
    """The tile functions of one kernel."""
    functions = [*_of_columns(value, slope), *_of_rows(value, slope)]
    for function in functions:
        function.__name__ = f"{kind}_{function.__name__}"
    return Functions(*map(callback, functions))
