"""Kernels that are polynomials within one bandwidth and 0 beyond, over sorted keys.

Between two keys of one cell, Σ w t^j v is a difference of two prefix sums; with s = (x − c)/h and
t = (k − c)/h from the cell's centre c, a kernel of u = |s − t| is a polynomial in t. Prefix sums
start anew in each cell, one bandwidth wide, so keys may lie anywhere: sums over all keys would
lose all digits to an offset such as that of timestamps.

A difference may still cancel, where most of a cell lies outside of the window or the kernel is
almost 0 on all of it. Such windows, short ones, and those that touch a cell with a wild value are
summed key by key.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device_in_order, kernel_in_order
from qkv.jit.signature import Bool1, Double1, Double2, Double3, Int1, PerThread
from qkv.operators.sorted.operands import (
    Answers,
    KeyArrays,
    count_below,
    count_up_to,
    write_answer,
)

FEW = 12  # keys of a window that are summed directly
ACCURACY = 1e-12  # what cancellation may cost, relative to the total weight
WILD = 1e4  # a value so many times the mean of its cell spoils the differences of others

#: Kernels as polynomials in u: the coefficients of u⁰, u¹, …
COEFFICIENTS: dict[str, tuple[float, ...]] = {
    "boxcar": (1,),
    "triangular": (1, -1),
    "epanechnikov": (1, 0, -1),
    "biweight": (1, 0, -2, 0, 1),
    "tricube": (1, 0, 0, -3, 0, 0, 3, 0, 0, -1),
}


class Polynomial(NamedTuple):
    """A kernel Σ aⱼ uʲ, ready to be expanded about the centre of a cell."""

    matrix: Double2  # (size, size): aⱼ·C(j, i) at (i, j)
    even: bool  # whether it is one in u²
    guard: float  # the smallest share of its cells' weight that a window must have


class Cells(NamedTuple):
    """Runs of keys within one bandwidth."""

    first: Int1  # (cells + 1,): the first key of each, and the end of the last
    centre: Double1  # (cells,)
    wild: Bool1  # (cells,): whether a value is much larger than the others
    moments: Double3  # (m, 1 + columns, size): prefix sums of w tʲ v within the cell, v₀ = 1


class FillScratch(NamedTuple):
    """A thread's buffers for `fill`."""

    running: Double2  # (1 + columns, size)
    largest: Double1  # (1 + columns,)
    mean: Double1  # (1 + columns,)


class PoolScratch(NamedTuple):
    """A thread's buffers for `pool`."""

    coefficients: Double1  # (size,)
    sums: Double1  # (1 + columns,)


def polynomial(name: str) -> Polynomial:
    """A kernel by its name."""
    coefficients = COEFFICIENTS[name]
    size = len(coefficients)
    matrix = np.zeros((size, size))
    for j, a in enumerate(coefficients):
        for i in range(j + 1):
            matrix[i, j] = a * math.comb(j, i)
    # |s| + |t| ≤ 2 wherever a window touches a cell.
    magnitude = sum(abs(a) * 2.0**j for j, a in enumerate(coefficients))
    guard = min(0.5, magnitude * np.finfo(float).eps / ACCURACY)
    return Polynomial(matrix, not any(coefficients[1::2]), guard)


@kernel_in_order
def find_cells(
    start: int, stop: int, key: Double1, h: float, first: Int1, count: Int1
) -> None:  # fmt: skip
    """Where each run of keys within one bandwidth begins, and where the last ends; in one piece."""
    cells, begin = 0, 0
    for i in range(key.size):
        if i == 0 or key[i] - key[begin] > h:
            first[cells] = begin = i
            cells += 1
    first[cells] = key.size
    count[0] = cells


@kernel_in_order
def fill(
    start: int, stop: int, keys: KeyArrays, h: float, cells: Cells,
    scratch: PerThread[FillScratch],
) -> None:  # fmt: skip
    """Centres, wildness and prefix moments of cells."""
    running, largest, mean = scratch
    for cell in range(start, stop):
        begin, end = cells.first[cell], cells.first[cell + 1]
        centre = keys.key[begin] + 0.5 * (keys.key[end - 1] - keys.key[begin])
        running[:], largest[:], mean[:] = 0.0, 0.0, 0.0
        for i in range(begin, end):
            t = (keys.key[i] - centre) / h
            for c in range(running.shape[0]):
                term = keys.weight[i] * (keys.value[i, c - 1] if c > 0 else 1.0)
                largest[c] = max(largest[c], abs(term))
                mean[c] += abs(term)
                for j in range(running.shape[1]):
                    running[c, j] += term
                    cells.moments[i, c, j] = running[c, j]
                    term *= t
        wild = False
        for c in range(running.shape[0]):
            if largest[c] * (end - begin) > WILD * mean[c]:
                wild = True
        cells.centre[cell], cells.wild[cell] = centre, wild


@kernel_in_order
def pool(
    start: int, stop: int, query: Double1, itself: int, keys: KeyArrays, h: float,
    kernel: Polynomial, cells: Cells, answers: Answers, scratch: PerThread[PoolScratch],
) -> None:  # fmt: skip
    """Answer sorted queries; if `itself` ≥ 0, query i leaves out a copy of key `itself` + i."""
    key, sums = keys.key, scratch.sums
    lo = _left_of_window(query[start], key, h)
    cell = count_up_to(cells.first, lo) - 1
    hi, middle, middle_cell = lo, lo, cell
    for i in range(start, stop):
        x, own_key = query[i], itself + i if itself >= 0 else -1
        taken = min(keys.weight[own_key], 1.0) if itself >= 0 else 0.0
        while lo < key.size and x - key[lo] > h:
            lo += 1
        hi = max(hi, lo)
        while hi < key.size and key[hi] - x <= h:
            hi += 1
        direct = hi - lo <= FEW
        if not direct:
            while cells.first[cell + 1] <= lo:
                cell += 1
            for c in range(sums.size):
                sums[c] = 0.0
            if kernel.even:
                touched = _by_cells(x, lo, hi, cell, 1.0, h, kernel, cells, scratch)
            else:
                middle = max(middle, lo)
                while middle < hi and key[middle] <= x:
                    middle += 1
                while middle < hi and cells.first[middle_cell + 1] <= middle:
                    middle_cell += 1
                touched = _by_cells(x, lo, middle, cell, 1.0, h, kernel, cells, scratch)
                touched += _by_cells(x, middle, hi, middle_cell, -1.0, h, kernel, cells, scratch)
            if itself >= 0:
                sums[0] -= taken
                for c in range(keys.value.shape[1]):
                    sums[1 + c] -= taken * keys.value[own_key, c]
            direct = not sums[0] > kernel.guard * touched
        if direct:
            rest = keys.weight[own_key] - taken if itself >= 0 else 1.0
            _direct(x, lo, hi, own_key, rest, keys, h, kernel.matrix, sums)
        write_answer(i, sums, 0.0, keys, answers)


@device_in_order
def _left_of_window(x: float, key: Any, h: float) -> Any:
    """A key that lies left of x's window, or the first; near it, to begin with."""
    lo = max(0, count_below(key, x - 1.001 * h) - 1)
    while lo > 0 and x - key[lo] <= h:
        lo -= 1
    return lo


@device_in_order
def _by_cells(
    x: float, lo: int, hi: int, cell: int, sign: float, h: float, kernel: Any, cells: Any,
    scratch: Any,
) -> Any:  # fmt: skip
    """Add the sums over the keys lo to hi, the first of which is in `cell`; u = sign·(x − k)/h.

    Gives the weight of the cells touched, or inf where one is wild.
    """
    matrix, moments = kernel.matrix, cells.moments
    coefficients, sums = scratch.coefficients, scratch.sums
    size = matrix.shape[0]
    touched = 0.0
    while lo < hi:
        begin, end = cells.first[cell], cells.first[cell + 1]
        stop = min(hi, end)
        touched += np.inf if cells.wild[cell] else moments[end - 1, 0, 0]
        s = sign * (x - cells.centre[cell]) / h
        flip = 1.0
        for i in range(size):
            value = matrix[i, size - 1]
            for j in range(size - 2, i - 1, -1):
                value = value * s + matrix[i, j]
            coefficients[i] = value * flip
            flip *= -sign
        for c in range(sums.size):
            total = 0.0
            for i in range(size):
                moment = moments[stop - 1, c, i]
                if lo > begin:
                    moment -= moments[lo - 1, c, i]
                total += coefficients[i] * moment
            sums[c] += total
        lo, cell = stop, cell + 1
    return touched


@device_in_order
def _direct(
    x: float,
    lo: int,
    hi: int,
    own_key: int,
    rest: float,
    keys: Any,
    h: float,
    matrix: Any,
    sums: Any,
) -> None:
    """The sums over the keys lo to hi, one by one, `own_key` with the weight `rest`."""
    degree = matrix.shape[1] - 1
    for c in range(sums.size):
        sums[c] = 0.0
    for i in range(lo, hi):
        u = abs(x - keys.key[i]) / h
        kernel = matrix[0, degree]
        for j in range(degree - 1, -1, -1):
            kernel = kernel * u + matrix[0, j]
        weight = (rest if i == own_key else keys.weight[i]) * max(kernel, 0.0)
        sums[0] += weight
        for c in range(keys.value.shape[1]):
            sums[1 + c] += weight * keys.value[i, c]
