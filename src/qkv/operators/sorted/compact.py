"""Kernels that are polynomials within one bandwidth and 0 beyond, over sorted keys.

Between two keys of one cell, Σ w t^j v is a difference of two prefix sums; with s = (x − c)/h and
t = (k − c)/h from the cell's centre c, a kernel of u = |s − t| is a polynomial in t. Prefix sums
start anew in each cell, one bandwidth wide, so keys may lie anywhere: sums over all keys would
lose all digits to an offset such as that of timestamps.

A difference may still cancel, where most of a cell lies outside of the window or the kernel is
almost 0 on all of it. Such windows, short ones, and those that touch a cell with a wild value are
summed key by key.

A file of kernels calls no function of another file: Numba would not see that one change.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from qkv.operators.fused.cache import kernel_cache

FEW = 12  # keys of a window that are summed directly
ACCURACY = 1e-12  # what cancellation may cost, relative to the total weight
WILD = 1e4  # a value so many times the mean of its cell spoils the differences of others

#: Kernels as polynomials in u: the coefficients of u⁰, u¹, …
POLYNOMIALS: dict[str, tuple[float, ...]] = {
    "boxcar": (1,),
    "triangular": (1, -1),
    "epanechnikov": (1, 0, -1),
    "biweight": (1, 0, -2, 0, 1),
    "tricube": (1, 0, 0, -3, 0, 0, 3, 0, 0, -1),
}

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
#: What makes no array need not count who holds one; counting took most of the time.
_INNER = {**_OPTIONS, "_nrt": False}


def expansion(name: str) -> tuple[Any, float]:
    """aⱼ·C(j, i) as a matrix (i, j), and the largest share of a cell that a window may cancel."""
    polynomial = POLYNOMIALS[name]
    size = len(polynomial)
    matrix = np.zeros((size, size))
    for j, a in enumerate(polynomial):
        for i in range(j + 1):
            matrix[i, j] = a * math.comb(j, i)
    # |s| + |t| ≤ 2 wherever a window touches a cell.
    magnitude = sum(abs(a) * 2.0**j for j, a in enumerate(polynomial))
    return matrix, min(0.5, magnitude * np.finfo(float).eps / ACCURACY)


def room(keys: int, columns: int, matrix: Any) -> Any:
    """Room for the prefix sums of so many keys."""
    # Made by NumPy, which asks for huge pages: small ones of so much memory take long to get.
    return np.empty((keys, 1 + columns, len(matrix)))


def prepare(keys: Any, h: float, moments: Any) -> tuple[Any, ...]:
    """The cells: where each begins; and room for what `fill` finds of them."""
    first = cells(keys, h)
    count = first.size - 1
    return first, np.empty(count), np.empty(count, np.bool_), moments


def _cells(keys: Any, h: float) -> Any:
    """Where each run of keys within one bandwidth begins, and where the last ends."""
    first = np.empty(keys.size + 1, np.int64)
    count, start = 0, 0
    for i in range(keys.size):
        if i == 0 or keys[i] - keys[start] > h:
            first[count] = start = i
            count += 1
    first[count] = keys.size
    return first[: count + 1].copy()


def _fill(
    keys: Any, weights: Any, values: Any, h: float, prepared: Any, begin: int, end: int
) -> None:
    """Centres, wildness and prefix moments of the cells from `begin` to `end`."""
    first, centres, wild, moments = prepared
    columns, size = values.shape[1], moments.shape[2]
    running = np.empty((1 + columns, size))
    largest, mean = np.empty(1 + columns), np.empty(1 + columns)
    for cell in range(begin, end):
        start, stop = first[cell], first[cell + 1]
        centres[cell] = keys[start] + 0.5 * (keys[stop - 1] - keys[start])
        running[:], largest[:], mean[:], wild[cell] = 0.0, 0.0, 0.0, False
        for i in range(start, stop):
            t = (keys[i] - centres[cell]) / h
            for c in range(1 + columns):
                term = weights[i] * (values[i, c - 1] if c > 0 else 1.0)
                largest[c] = max(largest[c], abs(term))
                mean[c] += abs(term)
                for j in range(size):
                    running[c, j] += term
                    moments[i, c, j] = running[c, j]
                    term *= t
        for c in range(1 + columns):
            if largest[c] * (stop - start) > WILD * mean[c]:
                wild[cell] = True


@numba.njit(**_INNER)
def _direct(
    x: float, lo: int, hi: int, own: int, rest: float, keys: Any, weights: Any, values: Any,
    h: float, matrix: Any, sums: Any,
) -> None:  # fmt: skip
    """The sums over the keys lo to hi, one by one, key `own` with the weight `rest`."""
    degree = matrix.shape[1] - 1
    for c in range(sums.size):
        sums[c] = 0.0
    for i in range(lo, hi):
        u = abs(x - keys[i]) / h
        kernel = matrix[0, degree]
        for j in range(degree - 1, -1, -1):
            kernel = kernel * u + matrix[0, j]
        weight = (rest if i == own else weights[i]) * max(kernel, 0.0)
        sums[0] += weight
        for c in range(values.shape[1]):
            sums[1 + c] += weight * values[i, c]


@numba.njit(**_INNER)
def _by_cells(
    x: float, lo: int, hi: int, cell: int, sign: float, h: float, matrix: Any, first: Any,
    centres: Any, wild: Any, moments: Any, coefficients: Any, sums: Any,
) -> Any:  # fmt: skip
    """Add the sums over the keys lo to hi, from `cell` on, on which u = sign·(x − k)/h.

    Gives the weight of the cells touched, or inf where one is wild.
    """
    size = matrix.shape[0]
    touched = 0.0
    while first[cell] < hi:
        start, stop = max(lo, first[cell]), min(hi, first[cell + 1])
        touched += np.inf if wild[cell] else moments[first[cell + 1] - 1, 0, 0]
        s = sign * (x - centres[cell]) / h
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
                if start > first[cell]:
                    moment -= moments[start - 1, c, i]
                total += coefficients[i] * moment
            sums[c] += total
        cell += 1
    return touched


@numba.njit(**_INNER)
def _answer(
    queries: Any, start: int, stop: int, keys: Any, weights: Any, values: Any, h: float,
    guard: float, others: bool, matrix: Any, even: bool, first: Any, centres: Any, wild: Any,
    moments: Any, lo: int, cell: int, coefficients: Any, sums: Any, answer: Any, log_total: Any,
) -> None:  # fmt: skip
    """What `pool` does, given a key `lo` that no window lies left of, and its cell."""
    n, columns = values.shape
    hi, middle, middle_cell = lo, lo, cell
    for i in range(start, stop):
        x = queries[i]
        taken = min(weights[i], 1.0) if others else 0.0
        while lo < n and x - keys[lo] > h:
            lo += 1
        hi = max(hi, lo)
        while hi < n and keys[hi] - x <= h:
            hi += 1
        direct = hi - lo <= FEW
        if not direct:
            while first[cell + 1] <= lo:
                cell += 1
            for c in range(sums.size):
                sums[c] = 0.0
            if even:
                touched = _by_cells(
                    x, lo, hi, cell, 1.0, h, matrix, first, centres, wild, moments, coefficients,
                    sums,
                )  # fmt: skip
            else:
                middle = max(middle, lo)
                while middle < hi and keys[middle] <= x:
                    middle += 1
                while first[middle_cell + 1] <= middle and middle < n:
                    middle_cell += 1
                touched = _by_cells(
                    x, lo, middle, cell, 1.0, h, matrix, first, centres, wild, moments,
                    coefficients, sums,
                )  # fmt: skip
                touched += _by_cells(
                    x, middle, hi, middle_cell, -1.0, h, matrix, first, centres, wild, moments,
                    coefficients, sums,
                )  # fmt: skip
            if others:
                sums[0] -= taken
                for c in range(columns):
                    sums[1 + c] -= taken * values[i, c]
            direct = not sums[0] > guard * touched
        if direct:
            own, rest = (i, weights[i] - taken) if others else (-1, 1.0)
            _direct(x, lo, hi, own, rest, keys, weights, values, h, matrix, sums)
        empty = not sums[0] > 0.0
        log_total[i] = -np.inf if empty else math.log(sums[0])
        for c in range(columns):
            answer[i, c] = 0.0 if empty else sums[1 + c] / sums[0]


def _pool(
    queries: Any,
    start: int,
    stop: int,
    keys: Any,
    weights: Any,
    values: Any,
    h: float,
    guard: float,
    others: bool,
    matrix: Any,
    even: bool,
    prepared: Any,
    answer: Any,
    log_total: Any,
) -> None:
    """Answers to sorted queries from `start` to `stop`; with `others`, i leaves a copy of i out."""
    first, centres, wild, moments = prepared
    sums, coefficients = np.empty(1 + values.shape[1]), np.empty(matrix.shape[0])
    # Nothing left of the first window can be in a later one.
    lo = max(0, np.searchsorted(keys, queries[start] - 1.001 * h) - 1)
    while lo > 0 and queries[start] - keys[lo] <= h:
        lo -= 1
    cell = np.searchsorted(first, lo, side="right") - 1
    _answer(
        queries, start, stop, keys, weights, values, h, guard, others, matrix, even, first,
        centres, wild, moments, lo, cell, coefficients, sums, answer, log_total,
    )  # fmt: skip


with kernel_cache():
    cells = numba.njit(cache=True, **_OPTIONS)(_cells)
    fill = numba.njit(cache=True, **_OPTIONS)(_fill)
    pool = numba.njit(cache=True, **_OPTIONS)(_pool)
