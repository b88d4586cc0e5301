"""The Gaussian over sorted keys: moments of cells, and direct sums where keys are few.

In units of the bandwidth, with c the centre of a cell, s = x − c and t = k − c,

    exp(−(x − k)²/2) = exp(−s²/2) · exp(−t²/2) · Σⱼ (s t)ʲ / j!

so a cell's sum is exp(−s²/2) times a polynomial in s, whose coefficients are moments of its keys.
Cells are half a bandwidth wide, |t| ≤ 1/4. With 24 terms every key within 8 bandwidths keeps a
relative error below 2e-15; those beyond weigh so little against the nearest key, if that lies
within `FAR`, that their larger error is lost in rounding. Queries further away sum their windows
directly. A window ends where all that lies beyond weighs less than 2⁻⁵³ of the nearest key.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device_in_order, kernel_in_order
from qkv.jit.builtins import exp
from qkv.jit.signature import Double1, Double2, Double3, Int1, PerThread
from qkv.operators.sorted.operands import Answers, KeyArrays, count_up_to, write_answer

TERMS = 24
CELL = 0.5  # a cell's width, in bandwidths
FAR = 8.0  # bandwidths to the nearest key, beyond which no cell is used
FEW = 4  # keys of a cell that are summed directly
LANES = 8  # powers that are formed together
BLOCK = 16  # queries that go through a cell together
SPAN = 8.0  # bandwidths that they may lie apart; windows are twice as wide, so they are shared
_FACTORIAL = np.array([1.0 / math.factorial(j) for j in range(TERMS)])


class Window(NamedTuple):
    """How far a query looks."""

    h: float  # the bandwidth
    margin: float  # keys that weigh less than exp(-margin) of the nearest are out of sight


class Cells(NamedTuple):
    """Runs of keys within half a bandwidth."""

    first: Int1  # (cells + 1,): the first key of each, and the end of the last
    of_key: Int1  # (m,): the cell of each key
    centre: Double1  # (cells,)
    moments: Double3  # (cells, 1 + columns, TERMS): Σ w v exp(−t²/2) tʲ/j!, v₀ = 1


class FillScratch(NamedTuple):
    """A thread's buffers for `fill`."""

    powers: Double1  # (LANES,)


class PoolScratch(NamedTuple):
    """A thread's buffers for `pool`: a block of queries, of which there may be fewer."""

    x: Double1  # (BLOCK,): the queries; the last stands in for those that are missing
    after: Int1  # (BLOCK,): the first key beyond each
    peak: Double1  # (BLOCK,): minus the log of the nearest key's weight
    s: Double1  # (BLOCK,): the distance from a cell's centre, in bandwidths
    factor: Double1  # (BLOCK,)
    sums: Double2  # (1 + columns, BLOCK), in units of the nearest key's weight
    of_query: Double1  # (1 + columns,): those of one query


def scratch_shapes(columns: int) -> PoolScratch:
    """The shapes of the buffers for values of so many columns."""
    block = (BLOCK,)
    return PoolScratch(
        x=block, after=block, peak=block, s=block, factor=block,
        sums=(1 + columns, BLOCK), of_query=(1 + columns,),
    )  # fmt: skip


@kernel_in_order
def find_cells(
    start: int, stop: int, key: Double1, h: float, first: Int1, of_key: Int1, count: Int1
) -> None:
    """Where each run of keys of one cell begins, and the cell of each key; in one piece."""
    cells, previous = 0, -1.0
    for i in range(key.size):
        place = np.floor((key[i] - key[0]) / h / CELL)
        if i == 0 or place != previous:
            first[cells] = i
            cells += 1
            previous = place
        of_key[i] = cells - 1
    first[cells] = key.size
    count[0] = cells


@kernel_in_order
def fill(
    start: int, stop: int, keys: KeyArrays, h: float, cells: Cells,
    scratch: PerThread[FillScratch],
) -> None:  # fmt: skip
    """The centres and polynomials of cells."""
    moments, powers = cells.moments, scratch.powers
    for cell in range(start, stop):
        begin, end = cells.first[cell], cells.first[cell + 1]
        # Any number amid the keys will do: differences from it are as good as those of keys.
        centre = keys.key[begin] + 0.5 * (keys.key[end - 1] - keys.key[begin])
        cells.centre[cell] = centre
        if end - begin <= FEW:
            continue
        for c in range(moments.shape[1]):
            for j in range(TERMS):
                moments[cell, c, j] = 0.0
        for i in range(begin, end):
            t = (keys.key[i] - centre) / h
            power = keys.weight[i] * exp(-0.5 * t * t)
            for lane in range(LANES):
                powers[lane] = power
                power *= t
            stride = (t * t) * (t * t) * ((t * t) * (t * t))
            # Eight powers at a time, which LLVM turns into one vector.
            for block in range(0, TERMS, LANES):
                for lane in range(LANES):
                    moments[cell, 0, block + lane] += powers[lane]
                for c in range(keys.value.shape[1]):
                    value = keys.value[i, c]
                    for lane in range(LANES):
                        moments[cell, 1 + c, block + lane] += powers[lane] * value
                for lane in range(LANES):
                    powers[lane] *= stride
        for c in range(moments.shape[1]):
            for j in range(TERMS):
                moments[cell, c, j] *= _FACTORIAL[j]


@kernel_in_order
def pool(
    start: int, stop: int, query: Double1, itself: int, keys: KeyArrays, window: Window,
    cells: Cells, answers: Answers, scratch: PerThread[PoolScratch],
) -> None:  # fmt: skip
    """Answer sorted queries; if `itself` ≥ 0, query i leaves out a copy of key `itself` + i."""
    of_query = scratch.of_query
    i, after = start, count_up_to(keys.key, query[start])
    while i < stop:
        size, after, furthest = _gather(i, stop, after, query, keys.key, window.h, scratch)
        if size > 0:
            _through_cells(size, furthest, keys, window, cells, scratch)
        for q in range(max(size, 1)):
            key = itself + i + q if itself >= 0 else -1
            taken = min(keys.weight[key], 1.0) if itself >= 0 else 0.0
            log_scale, direct = 0.0, size == 0
            if not direct:
                log_scale = -scratch.peak[q]
                for c in range(of_query.size):
                    of_query[c] = scratch.sums[c, q]
                if itself >= 0:
                    # The key itself is exp(0); what is left must not be a difference of equals.
                    of_query[0] -= taken
                    for c in range(keys.value.shape[1]):
                        of_query[1 + c] -= taken * keys.value[key, c]
                    direct = of_query[0] < 0.5 * taken
            if direct:
                beyond = after if size == 0 else scratch.after[q]
                rest = keys.weight[key] - taken if itself >= 0 else 1.0
                log_scale = _direct(query[i + q], beyond, key, rest, keys, window, of_query)
            write_answer(i + q, of_query, log_scale, keys, answers)
        i += max(size, 1)


@device_in_order
def _gather(
    start: int, stop: int, after: int, query: Any, key: Any, h: float, block: Any
) -> Any:  # fmt: skip
    """Fill a block with queries from `start` on that lie near each other and near keys.

    Gives their number; the first key beyond the last of them, or beyond the query that is too far
    away; and how far the furthest is from its nearest key, in bandwidths.
    """
    size, furthest = 0, 0.0
    while start + size < stop and size < BLOCK:
        x = query[start + size]
        if (x - query[start]) / h > SPAN:
            break
        while after < key.size and key[after] <= x:
            after += 1
        near = _nearest(key, x, after, -1) / h
        if near > FAR:
            break
        block.x[size], block.after[size], block.peak[size] = x, after, 0.5 * near * near
        furthest = max(furthest, near)
        size += 1
    for q in range(size if size > 0 else BLOCK, BLOCK):
        block.x[q], block.peak[q] = block.x[size - 1], block.peak[size - 1]
    return size, after, furthest


@device_in_order
def _nearest(key: Any, x: float, after: int, skip: int) -> Any:
    """The distance to the nearest key but `skip`; `after` is the first key beyond x."""
    left, right = after - 1, after
    if left == skip:
        left -= 1
    if right == skip:
        right += 1
    near = np.inf
    if left >= 0:
        near = x - key[left]
    if right < key.size:
        near = min(near, key[right] - x)
    return near


@device_in_order
def _through_cells(
    size: int, furthest: float, keys: Any, window: Any, cells: Any, block: Any
) -> None:
    """Sum up what all cells in sight say to the queries of a block."""
    h = window.h
    reach = math.sqrt(furthest * furthest + 2.0 * window.margin)
    for c in range(block.sums.shape[0]):
        for q in range(BLOCK):
            block.sums[c, q] = 0.0
    begin = cells.of_key[min(max(block.after[0] - 1, 0), keys.key.size - 1)]
    for step in (-1, 1):
        cell = begin if step < 0 else begin + 1
        while 0 <= cell < cells.centre.size:
            start, stop = cells.first[cell], cells.first[cell + 1]
            if step < 0 and (block.x[0] - keys.key[stop - 1]) / h > reach:
                break
            if step > 0 and (keys.key[start] - block.x[size - 1]) / h > reach:
                break
            if stop - start > FEW:
                _by_polynomial(cell, h, cells, block)
            else:
                for i in range(start, stop):
                    _by_key(i, h, keys, block)
            cell += step


@device_in_order
def _by_polynomial(cell: int, h: float, cells: Any, block: Any) -> None:
    """Add what a cell says to each query of a block."""
    s, factor, moments = block.s, block.factor, cells.moments
    for q in range(BLOCK):
        s[q] = (block.x[q] - cells.centre[cell]) / h
        factor[q] = exp(-0.5 * s[q] * s[q] + block.peak[q])
    for c in range(block.sums.shape[0]):
        # LLVM unrolls the inner loop, and turns the outer one into vectors.
        for q in range(BLOCK):
            total = 0.0
            for j in range(TERMS - 1, -1, -1):
                total = total * s[q] + moments[cell, c, j]
            block.sums[c, q] += factor[q] * total


@device_in_order
def _by_key(i: int, h: float, keys: Any, block: Any) -> None:
    """Add what a key says to each query of a block."""
    factor = block.factor
    for q in range(BLOCK):
        u = (block.x[q] - keys.key[i]) / h
        factor[q] = exp(min(-0.5 * u * u + block.peak[q], 0.0))
    for q in range(BLOCK):
        block.sums[0, q] += factor[q] * keys.weight[i]
    for c in range(keys.value.shape[1]):
        product = keys.weight[i] * keys.value[i, c]
        for q in range(BLOCK):
            block.sums[1 + c, q] += factor[q] * product


@device_in_order
def _direct(
    x: float, after: int, own_key: int, rest: float, keys: Any, window: Any, sums: Any
) -> Any:  # fmt: skip
    """The window's sums, term by term, `own_key` with the weight `rest`; the log of their scale."""
    near = _nearest(keys.key, x, after, own_key if rest == 0.0 else -1) / window.h
    reach = math.sqrt(near * near + 2.0 * window.margin)
    for c in range(sums.size):
        sums[c] = 0.0
    for step in (-1, 1):
        i = after - 1 if step < 0 else after
        while 0 <= i < keys.key.size:
            u = abs(x - keys.key[i]) / window.h
            if u > reach:
                break
            # The difference of squares as a product: far away the squares alone overflow.
            weight = rest if i == own_key else keys.weight[i]
            weight *= exp(-0.5 * max(u - near, 0.0) * (u + near))
            sums[0] += weight
            for c in range(keys.value.shape[1]):
                sums[1 + c] += weight * keys.value[i, c]
            i += step
    return -0.5 * near * near
