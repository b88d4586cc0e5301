"""Local fits: the mean that attention gives (degree 0), and the line through it (degree 1).

A local line minimises Σ K(x, kᵢ) (yᵢ − a − bᵀ(kᵢ − x))². Its ingredients are moments of keys and
targets under the weights: a = ȳ + bᵀ(x − k̄), with b = cov(k, k)⁺ cov(k, y). Where the keys within
reach have no variance, b is 0 and the mean remains. A number that a key lacks counts as the mean of
those within reach; along a column that the query lacks the slope is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.regression.moments import Frame, Moments, one_by_one
from qkv.regression.pool import LeaveOneOutPool, pool
from qkv.regression.training_data import Array, Keys, Places, TrainingData, Width
from qkv.similarity import Kernel

_FLAT = 1e-9  # a spread of keys, relative to the bandwidth squared, that gives no slope
_THIN = 1e-7  # a spread relative to that along another axis, too thin for a slope of any accuracy
_ACCURATE = 1e6  # how many times its rounding a spread must be


class Fit(NamedTuple):
    answer: Array  # (n, k)
    log_total: Array  # (n,); -inf where there is nothing to attend to


class Others(NamedTuple):
    """Leave-one-out predictions."""

    answer: Array  # (m, k); the mean of all others where none of them is within reach
    leverage: Array  # (m,): the example's share in its own fitted value


def fit(examples: TrainingData, kernel: Kernel, width: Width, query: Keys, degree: int) -> Fit:
    """The fitted values at the queries."""
    if degree == 0 or examples.keys.number.shape[1] == 0:
        pooled = pool(examples, kernel, width, query, examples.target)
        return Fit(pooled.answer, pooled.log_total)
    frame = Frame(examples, kernel)
    noise = frame.noise(width)
    if noise > _FLAT / 10 or query.some_missing or examples.keys.some_missing:
        moments = one_by_one(examples, kernel, width, query, None, _is_line(examples))
    else:
        pooled = pool(examples, kernel, width, query, frame.columns)
        moments = frame.moments(pooled, query.number, width)
        doubt = np.flatnonzero(_doubtful(moments, np.full(len(query), noise)))
        if doubt.size:
            moments.put(doubt, one_by_one(
                examples, kernel, width, query.take(doubt), None, _is_line(examples)
            ))  # fmt: skip
    return Fit(_solve(moments).answer, moments.log_total)


class LeaveOneOut:
    """Leave-one-out predictions at any number of widths, each in one pass."""

    def __init__(self, examples: TrainingData, kernel: Kernel, degree: int) -> None:
        self.examples, self.kernel = examples, kernel
        self.frame: Frame | None = None
        columns = examples.target
        if degree == 1 and examples.keys.number.shape[1] > 0:
            self.frame = Frame(examples, kernel)
            columns = self.frame.columns
        self.leave_one_out = LeaveOneOutPool(examples, kernel, columns)
        self.prior = _means_of_others(examples)

    def at(self, width: Width) -> Others:
        if self.frame is None:
            pooled, share = self.leave_one_out.without_itself(width)
            answer, log_total = pooled
        else:
            answer, share, log_total = self._lines(self.frame, width)
        isolated = log_total == -np.inf
        if isolated.any():
            answer = np.where(isolated[:, None], self.prior, answer)
            share = np.where(isolated, 1.0, share)
        return Others(answer, share)

    def _lines(self, frame: Frame, width: Width) -> tuple[Array, Array, Array]:
        """Lines through the others, leverages, and log totals."""
        keys, noise = self.examples.keys, np.full(len(self.examples.target), frame.noise(width))
        if noise[0] > _FLAT / 10 or keys.some_missing:
            moments = self._one_by_one(width, np.arange(len(keys)))
            share = self.leave_one_out.share(moments.log_total, width)
        else:
            pooled, share = self.leave_one_out.without_itself(width)
            moments = frame.moments(pooled, keys.number, width)
            if not self.leave_one_out.is_sorted:  # by difference, which costs digits
                noise = noise / np.maximum(1 - share, 1e-300)
            doubt = np.flatnonzero(_doubtful(moments, noise))
            if doubt.size:
                moments.put(doubt, self._one_by_one(width, doubt))
                share[doubt] = self.leave_one_out.share(moments.log_total, width)[doubt]
        solved = _solve(moments, share)
        # As in least squares: L/(1 − L) is the example's weight over the precision of the others.
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = share / (1 - share) * solved.reach
            leverage = np.where(np.isfinite(odds), odds / (1 + odds), 1.0)
        return solved.answer, leverage, moments.log_total

    def _one_by_one(self, width: Width, places: Places) -> Moments:
        keys = self.examples.keys.take(places)
        return one_by_one(self.examples, self.kernel, width, keys, places, _is_line(self.examples))


def _means_of_others(examples: TrainingData) -> Array:
    """The mean of all examples but one, for each of them."""
    copies, target = examples.copies, examples.target
    total, self_weight = copies.sum(), np.minimum(copies, 1.0)
    rest = (total - self_weight)[:, None]
    sums = total * examples.mean - self_weight[:, None] * target
    return np.where(rest > 0, np.divide(sums, rest, where=rest > 0, out=np.zeros_like(sums)),
                    examples.mean)  # fmt: skip


def _is_line(examples: TrainingData) -> bool:
    return (examples.keys.number.shape[1], examples.keys.code.shape[1]) == (1, 0)


def _least_spread(eigenvalues: Array) -> Array:
    """The spread along an axis that gives a slope, for each query; (n, 1)."""
    return np.maximum(_FLAT, _THIN * eigenvalues[:, -1:])


def _doubtful(moments: Moments, noise: Array) -> npt.NDArray[np.bool_]:
    """Where rounding decides whether there is a slope, or makes it inaccurate."""
    eigenvalues: Array = np.linalg.eigvalsh(moments.covariance).astype(np.float64, copy=False)
    noise = noise[:, None]
    least = _least_spread(eigenvalues)
    spoilt = (eigenvalues > least / 10) & (eigenvalues < _ACCURATE * noise)
    seen = moments.log_total > -np.inf
    return np.asarray(seen & (spoilt | (noise > least / 10)).any(axis=1))


class _Solved(NamedTuple):
    answer: Array  # (n, k)
    reach: Array  # (n,): 1 + the squared distance from the mean key, in units of its covariance


def _solve(moments: Moments, share: Array | None = None) -> _Solved:
    """From the moments under the weights to the fit.

    With `share`, that of an example left out: an axis that only it would give a spread is
    infinitely far.
    """
    offset, covariance, mean, slope_side, _ = moments
    eigenvalues, vectors = np.linalg.eigh(covariance)
    least = _least_spread(eigenvalues)
    steep = eigenvalues > least
    inverse = np.divide(1.0, eigenvalues, where=steep, out=np.zeros_like(eigenvalues))
    projected = np.einsum("nde,nd->ne", vectors, offset)  # the offset along each axis of the spread
    sides = np.einsum("nde,ndk->nek", vectors, slope_side)
    answer = mean - np.einsum("ne,ne,nek->nk", projected, inverse, sides)
    reach = 1 + (projected**2 * inverse).sum(axis=1)
    if share is not None:
        opens = ~steep & ((share * (1 - share))[:, None] * projected**2 > least)
        reach = np.where(opens.any(axis=1), np.inf, reach)
    return _Solved(answer, reach)
