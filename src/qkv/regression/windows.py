"""Moments of the keys within reach of each query on a line, taken about the query's nearest key.

Local lines need the variance of the keys within reach. Computed from sums about one centre it has
an error of eps · (distance from the centre / bandwidth)²; where bandwidths are narrow, each window
is therefore summed separately, key by key, without that error.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device_in_order, kernel_in_order
from qkv.jit.builtins import exp
from qkv.jit.signature import Double1, Double2, Int1
from qkv.operators.sorted.operands import KeyArrays, count_below, count_up_to

GAUSSIAN, LAPLACIAN, POLYNOMIAL = 0, 1, 2


class Shape(NamedTuple):
    """A kernel at a bandwidth."""

    kind: int
    coefficients: Double1  # of a polynomial in u, 0 beyond 1
    h: float
    margin: float  # keys that weigh less than exp(-margin) of the nearest are ignored


class Moments(NamedTuple):
    """Of z = (k − x)/h and the values y under the weights of each query."""

    mean: Double1  # (n,): z̄
    variance: Double1  # (n,): of z
    value: Double2  # (n, columns): ȳ, less the keys' mean
    slope: Double2  # (n, columns): cov(z, y)
    log_total: Double1  # (n,); -inf where no key is within reach


@kernel_in_order
def window_moments(
    start: int, stop: int, query: Double1, itself: Int1, keys: KeyArrays, shape: Shape,
    moments: Moments,
) -> None:  # fmt: skip
    """For queries in any order; where `itself` ≥ 0, one leaves out a copy of that key."""
    key, m = keys.key, keys.key.size
    for i in range(start, stop):
        x, self_index, self_weight = query[i], itself[i], 0.0
        before, after = 0, 0
        if self_index >= 0:
            self_weight = max(keys.weight[self_index] - 1.0, 0.0)
            before, after = self_index - 1, self_index + 1
        else:
            after = count_up_to(key, x)
            before = after - 1
        pivot = self_index if self_weight > 0.0 else _nearer(x, before, after, key)
        moments.log_total[i] = -np.inf
        if pivot < 0:
            continue
        near = abs(x - key[pivot]) / shape.h
        # Keys beyond are negligible compared with the nearest; slightly wider, for rounding.
        reach = 1.0
        if shape.kind == GAUSSIAN:
            reach = math.sqrt(near * near + 2.0 * shape.margin)
        elif shape.kind == LAPLACIAN:
            reach = near + shape.margin
        reach = reach * shape.h * (1.0 + 1e-12)
        lo, hi = count_below(key, x - reach), count_up_to(key, x + reach)
        # The pivot belongs to the window whatever rounding does to its ends.
        lo, hi = min(lo, pivot), min(max(hi, pivot + 1), m)
        _sum(i, x, lo, hi, self_index, self_weight, pivot, keys, shape, moments)


@device_in_order
def _nearer(x: float, before: int, after: int, key: Any) -> Any:
    """Whichever of the two keys is nearer; -1 if there is none."""
    if before < 0:
        return after if after < key.size else -1
    if after >= key.size or x - key[before] <= key[after] - x:
        return before
    return after


@device_in_order
def _sum(
    i: int, x: float, lo: int, hi: int, self_index: int, self_weight: float, pivot: int, keys: Any,
    shape: Any, moments: Any,
) -> None:  # fmt: skip
    """The moments of query i over the keys lo to hi, key `self_index` weighted `self_weight`."""
    h, columns = shape.h, keys.value.shape[1]
    near, centre = abs(x - keys.key[pivot]) / h, (keys.key[pivot] - x) / h
    total, first, second = 0.0, 0.0, 0.0
    for c in range(columns):
        moments.value[i, c], moments.slope[i, c] = 0.0, 0.0
    for j in range(lo, hi):
        weight = (self_weight if j == self_index else keys.weight[j]) * _weigh(
            x, keys.key[j], near, shape
        )
        z = (keys.key[j] - keys.key[pivot]) / h
        total += weight
        first += weight * z
        second += weight * z * z
        for c in range(columns):
            moments.value[i, c] += weight * keys.value[j, c]
            moments.slope[i, c] += weight * z * keys.value[j, c]
    if not total > 0.0:
        return
    mean = first / total
    moments.mean[i], moments.variance[i] = centre + mean, max(second / total - mean * mean, 0.0)
    for c in range(columns):
        value = moments.value[i, c] / total
        moments.value[i, c] = value
        moments.slope[i, c] = moments.slope[i, c] / total - mean * value
    scale = 0.0
    if shape.kind == GAUSSIAN:
        scale = -0.5 * near * near
    elif shape.kind == LAPLACIAN:
        scale = -near
    moments.log_total[i] = math.log(total) + scale


@device_in_order
def _weigh(x: float, key: float, near: float, shape: Any) -> Any:
    """The kernel, relative to that of the nearest key unless it is a polynomial."""
    distance = abs(x - key)
    u = distance / shape.h
    if shape.kind == GAUSSIAN:
        return exp(0.5 * (near - u) * (near + u))
    if shape.kind == LAPLACIAN:
        return exp(near - u)
    if distance > shape.h:
        return 0.0
    degree = shape.coefficients.size - 1
    weight = shape.coefficients[degree]
    for j in range(degree - 1, -1, -1):
        weight = weight * u + shape.coefficients[j]
    return max(weight, 0.0)
