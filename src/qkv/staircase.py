"""The exact error curve of a boxcar kernel over its bandwidth, at every step of it.

The error of a boxcar is piecewise constant in the bandwidth, with a step at each distance between
two keys: too many and too narrow for a grid. But each step changes the prediction for one key only,
so cumulative sums over neighbours in the order of their distance give all errors at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Keys whose distances are sorted, at most.
MOST_KEYS = 1000
#: How many of the lowest steps are returned.
MOST_LOWEST = 8
#: A difference of distances, as a share of them, that rounding may have made.
_SAME = 1e-12
#: A variance of keys, by the squared bandwidth, that gives no slope.
_FLAT = 1e-9


class Staircase(NamedTuple):
    """Errors from each distance on to the next."""

    width: Array  # (steps,): a bandwidth inside each step
    left_out: Array  # (steps,): Σ w (y − leave-one-out prediction)²
    fitted: Array  # (steps,): Σ w (y − ŷ)²
    trace: Array  # (steps,): of the smoother


def staircase(key: Array, target: Array, copies: Array, degree: int) -> Staircase:
    """The curve of keys (m,) and targets (m, k), weighted by their number of copies (m,).

    A leave-one-out prediction leaves one copy out; without neighbours it is the mean of all others.
    """
    m, target = len(key), target - np.average(target, axis=0, weights=copies)
    distance = np.abs(key[:, None] - key)
    np.fill_diagonal(distance, -1.0)  # first of all: what is left of the key itself
    order = np.argsort(distance, axis=1, kind="stable")
    distance = np.take_along_axis(distance, order, axis=1)
    weight = copies[order]
    weight[:, 0] = np.maximum(copies - 1.0, 0.0)
    self_weight = np.minimum(copies, 1.0)[:, None]
    total = np.cumsum(weight, axis=1)
    safe = np.where(total > 0.0, total, 1.0)
    share, reach = self_weight / (self_weight + total), np.ones((m, m))
    predicted = _means(weight, target[order], safe)  # (m, steps, k)
    if degree == 1:
        moved = key[order] - key[:, None]
        mean = np.cumsum(weight * moved, axis=1) / safe
        variance = np.cumsum(weight * moved**2, axis=1) / safe - mean**2
        steep = variance > _FLAT * distance**2
        inverse = np.divide(1.0, variance, where=steep, out=np.zeros((m, m)))
        cross = _means(weight, moved[:, :, None] * target[order], safe)
        predicted = predicted - (
            (cross - mean[:, :, None] * predicted) * (mean * inverse)[:, :, None]
        )
        opens = ~steep & (share * (1 - share) * mean**2 > _FLAT * distance**2)
        reach = np.where(opens, np.inf, 1 + mean**2 * inverse)
    others = -self_weight * target / (copies.sum() - self_weight)  # of targets whose mean is 0
    predicted = np.where((total > 0.0)[:, :, None], predicted, others[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = share / (1 - share) * reach
        leverage = np.where(np.isfinite(odds), odds / (1 + odds), 1.0)
    squares = copies[:, None] * ((target[:, None] - predicted) ** 2).mean(axis=2)
    of_each = squares, squares * (1 - leverage) ** 2, leverage * copies[:, None] / self_weight
    distances = distance[:, 1:].ravel()
    at = np.argsort(distances)
    distances = distances[at]
    last = np.append(np.diff(distances) > _SAME * distances[1:], True)  # of those at one distance
    left_out, fitted, trace = (
        (each[:, 0].sum() + np.cumsum(np.diff(each, axis=1).ravel()[at]))[last] for each in of_each
    )
    ends = distances[last]
    return Staircase((ends + np.append(ends[1:], 2 * ends[-1])) / 2, left_out, fitted, trace)


def lowest(width: Array, error: Array) -> Array:
    """The widths of the lowest steps."""
    valid = (width > 0.0) & np.isfinite(error)
    return np.asarray(width[valid][np.argsort(error[valid], kind="stable")[:MOST_LOWEST]])


def _means(weight: Array, value: Array, total: Array) -> Array:
    """Means over the neighbours up to each, (m, steps, k)."""
    return np.asarray(np.cumsum(weight[:, :, None] * value, axis=1) / total[:, :, None])
