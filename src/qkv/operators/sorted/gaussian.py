"""The Gaussian over sorted keys: moments of cells, and direct sums where keys are few.

In units of the bandwidth, with c the centre of a cell, s = x − c and t = k − c,

    exp(−(x − k)²/2) = exp(−s²/2) · exp(−t²/2) · Σⱼ (s t)ʲ / j!

so a cell's sum is exp(−s²/2) times a polynomial in s, whose coefficients are moments of its keys.
Cells are half a bandwidth wide, |t| ≤ 1/4. With 24 terms every key within 8 bandwidths keeps a
relative error below 2e-15; those beyond weigh so little against the nearest key, if that lies
within `FAR`, that their larger error is lost in rounding. Queries further away sum their windows
directly. A window ends where all that lies beyond weighs less than 2⁻⁵³ of the nearest key.

A file of kernels calls no function of another file: Numba would not see that one change.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from qkv.operators.fused.cache import kernel_cache

TERMS = 24
CELL = 0.5  # a cell's width, in bandwidths
FAR = 8.0  # bandwidths to the nearest key, beyond which no cell is used
FEW = 4  # keys of a cell that are summed directly
LANES = 8  # powers that are formed together
BLOCK = 16  # queries that go through a cell together
SPAN = 8.0  # bandwidths that they may lie apart; windows are twice as wide, so they are shared
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816e-01, 1.90821492927058770e-10
_FACTORIAL = np.array([1.0 / math.factorial(j) for j in range(TERMS)])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


@numba.njit(**_OPTIONS)
def _exp_into(x: Any, out: Any, rest: Any, bits: Any, powers: Any) -> None:
    """out = exp(x) for a block of x ≤ 0; `powers` is `bits` read as floats. No call to libm."""
    for q in range(BLOCK):
        clamped = max(x[q], -708.0)
        n = np.floor(clamped * _LOG2E + 0.5)
        rest[q] = clamped - n * _LN2_HIGH - n * _LN2_LOW
        out[q] = 1.0 / 6227020800.0
        bits[q] = (np.int64(n) + 1023) << 52
    for j in range(12, -1, -1):
        coefficient = _FACTORIAL[j]
        for q in range(BLOCK):
            out[q] = out[q] * rest[q] + coefficient
    for q in range(BLOCK):
        out[q] = out[q] * powers[q] if x[q] > -708.0 else 0.0


@numba.njit(**_OPTIONS)
def _cells(keys: Any, h: float) -> Any:
    """Where each run of keys of one cell begins, and the cell of each key."""
    n = keys.size
    first = np.empty(n + 1, np.int64)
    cell_of = np.empty(n, np.int64)
    count, previous = 0, -1.0
    for i in range(n):
        place = np.floor((keys[i] - keys[0]) / h / CELL)
        if i == 0 or place != previous:
            first[count] = i
            count += 1
            previous = place
        cell_of[i] = count - 1
    first[count] = n
    return first[: count + 1], cell_of


@numba.njit(**_OPTIONS)
def _fill(
    keys: Any, weights: Any, values: Any, h: float, prepared: Any, begin: int, end: int
) -> None:
    """The centres and polynomials of the cells from `begin` to `end`."""
    first, _, centres, moments = prepared
    columns = values.shape[1]
    powers = np.empty(LANES)
    for cell in range(begin, end):
        start, stop = first[cell], first[cell + 1]
        # Any number amid the keys will do: differences from it are as good as those of keys.
        centres[cell] = keys[start] + 0.5 * (keys[stop - 1] - keys[start])
        moments[cell] = 0.0
        if stop - start <= FEW:
            continue
        for i in range(start, stop):
            t = (keys[i] - centres[cell]) / h
            power = weights[i] * math.exp(-0.5 * t * t)
            for lane in range(LANES):
                powers[lane] = power
                power *= t
            stride = (t * t) * (t * t) * ((t * t) * (t * t))
            # Eight powers at a time, which LLVM turns into one vector.
            for block in range(0, TERMS, LANES):
                for lane in range(LANES):
                    moments[cell, 0, block + lane] += powers[lane]
                for c in range(columns):
                    value = values[i, c]
                    for lane in range(LANES):
                        moments[cell, 1 + c, block + lane] += powers[lane] * value
                for lane in range(LANES):
                    powers[lane] *= stride
        for c in range(1 + columns):
            for j in range(TERMS):
                moments[cell, c, j] *= _FACTORIAL[j]


@numba.njit(**_OPTIONS)
def _nearest(keys: Any, x: float, after: int, skip: int) -> Any:
    """The distance to the nearest key but `skip`; `after` is the first key beyond x."""
    left, right = after - 1, after
    if left == skip:
        left -= 1
    if right == skip:
        right += 1
    near = np.inf
    if left >= 0:
        near = x - keys[left]
    if right < keys.size:
        near = min(near, keys[right] - x)
    return near


@numba.njit(**_OPTIONS)
def _direct(
    keys: Any,
    weights: Any,
    values: Any,
    h: float,
    x: float,
    after: int,
    own: int,
    rest: float,
    margin: float,
    sums: Any,
) -> float:
    """The window's sums, term by term, key `own` with the weight `rest`; the log of their scale."""
    near = _nearest(keys, x, after, own if rest == 0.0 else -1) / h
    reach = math.sqrt(near * near + 2.0 * margin)
    sums[:] = 0.0
    for step in (-1, 1):
        i = after - 1 if step < 0 else after
        while 0 <= i < keys.size:
            u = abs(x - keys[i]) / h
            if u > reach:
                break
            # The difference of squares as a product: far away the squares alone overflow.
            weight = rest if i == own else weights[i]
            weight *= math.exp(-0.5 * max(u - near, 0.0) * (u + near))
            sums[0] += weight
            for c in range(values.shape[1]):
                sums[1 + c] += weight * values[i, c]
            i += step
    return -0.5 * near * near  # type: ignore[no-any-return]


@numba.njit(**_OPTIONS)
def _through_cells(
    queries: Any,
    a: int,
    b: int,
    keys: Any,
    weights: Any,
    values: Any,
    h: float,
    reach: float,
    peak: Any,
    begin: int,
    first: Any,
    cell_of: Any,
    centres: Any,
    moments: Any,
    sums: Any,
    work: Any,
    bits: Any,
    powers: Any,
) -> None:
    """Add to `sums` (1 + columns, BLOCK) what the cells say to the queries a to b."""
    columns = values.shape[1]
    s, logit, factor, total = work[0], work[1], work[2], work[3]
    sums[:] = 0.0
    for step in (-1, 1):
        cell = cell_of[begin] if step < 0 else cell_of[begin] + 1
        while 0 <= cell < centres.size:
            start, stop = first[cell], first[cell + 1]
            if step < 0 and (queries[a] - keys[stop - 1]) / h > reach:
                break
            if step > 0 and (keys[start] - queries[b - 1]) / h > reach:
                break
            if stop - start > FEW:
                for q in range(BLOCK):
                    s[q] = (queries[min(a + q, b - 1)] - centres[cell]) / h
                    logit[q] = -0.5 * s[q] * s[q] + peak[q]
                _exp_into(logit, factor, work[4], bits, powers)
                for c in range(1 + columns):
                    total[:] = 0.0
                    for j in range(TERMS - 1, -1, -1):
                        moment = moments[cell, c, j]
                        for q in range(BLOCK):
                            total[q] = total[q] * s[q] + moment
                    for q in range(BLOCK):
                        sums[c, q] += factor[q] * total[q]
            else:
                for i in range(start, stop):
                    for q in range(BLOCK):
                        u = (queries[min(a + q, b - 1)] - keys[i]) / h
                        logit[q] = min(-0.5 * u * u + peak[q], 0.0)
                    _exp_into(logit, factor, work[4], bits, powers)
                    for q in range(BLOCK):
                        sums[0, q] += factor[q] * weights[i]
                    for c in range(columns):
                        product = weights[i] * values[i, c]
                        for q in range(BLOCK):
                            sums[1 + c, q] += factor[q] * product
            cell += step


@numba.njit(**_OPTIONS)
def _pool(
    queries: Any, start: int, stop: int, keys: Any, weights: Any, values: Any, h: float,
    margin: float, others: bool, prepared: Any, answer: Any, log_total: Any,
) -> None:  # fmt: skip
    """Answers to sorted queries from `start` to `stop`; with `others`, i leaves a copy of i out."""
    first, cell_of, centres, moments = prepared
    columns, n = values.shape[1], keys.size
    sums, own = np.empty((1 + columns, BLOCK)), np.empty(1 + columns)
    work, bits, peak = np.empty((5, BLOCK)), np.empty(BLOCK, np.int64), np.empty(BLOCK)
    powers = bits.view(np.float64)
    after_of = np.empty(BLOCK, np.int64)
    a, after = start, np.searchsorted(keys, queries[start], side="right")
    while a < stop:
        b, furthest = a, 0.0
        while b < stop and b < a + BLOCK and (queries[b] - queries[a]) / h <= SPAN:
            while after < n and keys[after] <= queries[b]:
                after += 1
            near = _nearest(keys, queries[b], after, -1) / h
            if near > FAR:
                break
            after_of[b - a], peak[b - a] = after, 0.5 * near * near
            furthest = max(furthest, near)
            b += 1
        if b > a:
            peak[b - a :] = peak[b - a - 1]
            reach = math.sqrt(furthest * furthest + 2.0 * margin)
            begin = min(max(after_of[0] - 1, 0), n - 1)
            _through_cells(
                queries, a, b, keys, weights, values, h, reach, peak, begin,
                first, cell_of, centres, moments, sums, work, bits, powers,
            )  # fmt: skip
        for i in range(a, max(b, a + 1)):
            scale, direct, taken = 0.0, b == a, min(weights[i], 1.0) if others else 0.0
            if not direct:
                scale = -peak[i - a]
                own[:] = sums[:, i - a]
                if others:
                    # The key itself is exp(0); what is left must not be a difference of equals.
                    own[0] -= taken
                    for c in range(columns):
                        own[1 + c] -= taken * values[i, c]
                    direct = own[0] < 0.5 * taken
            if direct:
                place = after if b == a else after_of[i - a]
                itself, rest = (i, weights[i] - taken) if others else (-1, 1.0)
                scale = _direct(
                    keys, weights, values, h, queries[i], place, itself, rest, margin, own
                )
            if own[0] > 0.0:
                log_total[i] = math.log(own[0]) + scale
                for c in range(columns):
                    answer[i, c] = own[1 + c] / own[0]
            else:
                log_total[i] = -np.inf
                answer[i] = 0.0
        a = max(b, a + 1)


@numba.njit(**_OPTIONS)
def _prepare(keys: Any, values: Any, h: float) -> Any:
    """The cells: where each begins, that of each key; and room for centres and polynomials."""
    first, cell_of = _cells(keys, h)
    count = first.size - 1
    return first, cell_of, np.empty(count), np.empty((count, 1 + values.shape[1], TERMS))


with kernel_cache():
    prepare = numba.njit(cache=True, **_OPTIONS)(_prepare.py_func)
    fill = numba.njit(cache=True, **_OPTIONS)(_fill.py_func)
    pool = numba.njit(cache=True, **_OPTIONS)(_pool.py_func)
