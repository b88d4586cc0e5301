"""The uncertainty of an answer: its noise level, and prediction intervals.

The noise at a query is attention over squared leave-one-out residuals. An interval takes the
residuals of all examples, each divided by its leave-one-out noise; their quantiles, times the noise
at the query, are added to its answer. As fit and noise of each residual leave its example out, new
observations fall outside about as often as these do
(a conformal interval, by jackknife). The quantiles lie one place further out than those of the
examples, which is what makes it hold for few of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.operators.sorted.sorted_keys import WeightedMean
from qkv.regression.criteria import residuals
from qkv.regression.kernels import height
from qkv.regression.local import LeaveOneOut
from qkv.regression.pool import LeaveOneOutPool, pool
from qkv.regression.training_data import Array, Keys, TrainingData, Width
from qkv.similarity import Kernel


class Noise(NamedTuple):
    """Leave-one-out residuals, from which the noise at any query is estimated."""

    residual: Array  # (m, k), leave-one-out
    overall: Array  # (k,): their mean square

    def at(self, examples: TrainingData, kernel: Kernel, width: Width, query: Keys) -> Array:
        """The standard deviation of an observation at each query, (n, k)."""
        return self._shrunk(pool(examples, kernel, width, query, self.residual**2), kernel)

    def at_others(self, examples: TrainingData, kernel: Kernel, width: Width) -> Array:
        """The same at each example, from the residuals of the others, (m, k)."""
        pooled, _ = LeaveOneOutPool(examples, kernel, self.residual**2).without_itself(width)
        return self._shrunk(pooled, kernel)

    def _shrunk(self, pooled: WeightedMean, kernel: Kernel) -> Array:
        # A few neighbours may agree by chance: the overall noise counts as one more of them.
        with np.errstate(over="ignore"):
            count = np.minimum(np.exp(pooled.log_total) / height(kernel), 1e9)[:, None]
        mean = (count * np.maximum(pooled.answer, 0) + self.overall) / (count + 1)
        return np.asarray(np.sqrt(mean))


def learn(examples: TrainingData, kernel: Kernel, width: Width, degree: int) -> Noise:
    residual = residuals(examples, LeaveOneOut(examples, kernel, degree).at(width))
    return Noise(residual, np.average(residual**2, axis=0, weights=examples.weight))


def relative_bounds(
    noise: Noise, examples: TrainingData, kernel: Kernel, width: Width, level: float
) -> Array:
    """How many times the noise an interval reaches below and above its answer, (2, k)."""
    unit = noise.at_others(examples, kernel, width)
    relative = np.divide(noise.residual, unit, where=unit > 0, out=np.zeros_like(noise.residual))
    tail = (1 - level) / 2
    return np.array(
        [
            (-_upper(-column, examples.copies, 1 - tail), _upper(column, examples.copies, 1 - tail))
            for column in relative.T
        ]
    ).T


def _upper(score: Array, copies: Array, level: float) -> float:
    """The smallest score that `level` of n + 1 observations do not exceed; at most the largest."""
    order = np.argsort(score)
    reached = np.cumsum(copies[order])
    place = np.searchsorted(reached, level * (reached[-1] + 1) * (1 - 1e-12))
    return float(score[order][min(place, len(score) - 1)])
