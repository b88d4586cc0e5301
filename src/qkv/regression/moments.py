"""Moments of the examples within reach of each query, from which a local line is fitted.

They are attention too, with products of keys and targets as values. Taken about one centre, the
covariance of keys loses digits where bandwidths are narrow, and so does the difference where an
example is left out that has almost all the weight; such queries are computed one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from qkv.jit.kernels import UnavailableError, warn_once
from qkv.operators.sorted.polynomial import COEFFICIENTS
from qkv.operators.sorted.sorted_keys import SortedKeys, WeightedMean
from qkv.regression import weight_batches, windows
from qkv.regression.kernels import at
from qkv.regression.training_data import Array, Keys, Places, TrainingData, Width
from qkv.similarity import CompactKernel, Kernel
from qkv.similarity.base import SortedForm

_TINY = float(np.finfo(np.float64).tiny)
_EPS = float(np.finfo(np.float64).eps)


class Moments(NamedTuple):
    """Of z, the keys as seen from the query in bandwidths, and the targets y, under its weights."""

    offset: Array  # (n, d): the mean of z
    covariance: Array  # (n, d, d): of z
    mean: Array  # (n, k): of y
    slope_side: Array  # (n, d, k): cov(z, y)
    log_total: Array  # (n,); -inf where no example is within reach

    def put(self, places: Places, others: Moments) -> None:
        for mine, other in zip(self, others, strict=True):
            mine[places] = other


class Frame:
    """Columns whose means under any weights give the moments."""

    def __init__(self, examples: TrainingData, kernel: Kernel) -> None:
        key, target = examples.keys.number, examples.target
        self.examples, self.kernel = examples, kernel
        self.centre, self.middle = key.mean(axis=0), target.mean(axis=0)
        spread = np.abs(key - self.centre).max(axis=0, initial=0)
        self.unit = np.where(spread > 0, spread, 1.0)
        z, y = (key - self.centre) / self.unit, target - self.middle
        self.columns = np.hstack([y, z, _outer(z, z), _outer(z, y)])

    def moments(self, pooled: WeightedMean, query: Array, width: Width) -> Moments:
        """From the weighted means of the columns at the queries (n, d)."""
        d, k = self.examples.keys.number.shape[1], self.examples.target.shape[1]
        mean_y, mean_z, zz, zy = np.split(pooled.answer, np.cumsum([k, d, d * d]), axis=1)
        ratio = self.unit / width.bandwidth
        covariance = zz.reshape(-1, d, d) - mean_z[:, :, None] * mean_z[:, None, :]
        side = zy.reshape(-1, d, k) - mean_z[:, :, None] * mean_y[:, None, :]
        return Moments(
            (mean_z - (query - self.centre) / self.unit) * ratio,
            covariance * (ratio[:, None] * ratio),
            mean_y + self.middle,
            side * ratio[:, None],
            pooled.log_total.copy(),
        )

    def noise(self, width: Width) -> float:
        """What rounding may add to a variance of z."""
        # Prefix sums of compact kernels are differences.
        digits = 100 if isinstance(self.kernel, CompactKernel) else 8
        return float(digits * _EPS * (self.unit / width.bandwidth).max() ** 2)


def one_by_one(
    examples: TrainingData,
    kernel: Kernel,
    width: Width,
    query: Keys,
    self_index: Places | None,
    line: bool,
) -> Moments:
    """Moments about each query, without loss of digits; key `self_index` is left out.

    `line` says that the keys are one column of sorted numbers, so that windows can be found. A
    missing number counts as the mean of those within reach, so that it adds nothing to a slope.
    """
    form = None
    if line and not query.some_missing and width.neighbors is None:
        form = at(kernel, width.bandwidth).as_sorted(torch.from_numpy(examples.keys.number))
    if isinstance(form, SortedForm):
        try:
            return _by_windows(examples, form, query, self_index)
        except UnavailableError as reason:
            warn_once(str(reason))
    return _by_rows(examples, kernel, width, query, self_index)


def _by_windows(
    examples: TrainingData, form: SortedForm, query: Keys, self_index: Places | None
) -> Moments:
    line = SortedKeys(examples.keys.number[:, 0], examples.target, examples.weight)
    n, k = len(query), examples.target.shape[1]
    indices = np.full(n, -1) if self_index is None else self_index
    sums = windows.Moments(np.zeros(n), np.zeros(n), np.zeros((n, k)), np.zeros((n, k)),
                            np.empty(n))  # fmt: skip
    kinds = {"gaussian": windows.GAUSSIAN, "laplacian": windows.LAPLACIAN}
    shape = windows.Shape(
        kinds.get(form.kernel, windows.POLYNOMIAL),
        np.array(COEFFICIENTS.get(form.kernel, (1.0,)), dtype=np.float64),
        form.bandwidth,
        line.margin,
    )
    windows.window_moments(
        np.ascontiguousarray(query.number[:, 0]), np.ascontiguousarray(indices, dtype=np.int64),
        line.keys, shape, sums, count=n, grain=64,
    )  # fmt: skip
    return Moments(
        sums.mean[:, None],
        sums.variance[:, None, None],
        sums.value + line.keys.mean,
        sums.slope[:, None],
        sums.log_total,
    )


def _by_rows(
    examples: TrainingData, kernel: Kernel, width: Width, query: Keys, self_index: Places | None
) -> Moments:
    key, target = examples.keys.number, examples.target
    parts = []
    for batch, weights, log_total in weight_batches.weights(
        examples, kernel, width, query, self_index, leave_out=self_index is not None
    ):
        step = (key[None] - query.number[batch, None]) / width.bandwidth  # (rows, m, d)
        # Keys without weight may be infinitely many bandwidths away.
        step = np.where(weights[:, :, None] > 0, step, 0.0)
        gone = np.isnan(step)
        offset, mean = np.einsum("nm,nmd->nd", weights, np.where(gone, 0.0, step)), weights @ target
        if gone.any():
            offset /= np.maximum(np.einsum("nm,nmd->nd", weights, ~gone), _TINY)
        step = np.where(gone, 0.0, step - offset[:, None])
        covariance = np.einsum("nm,nmd,nme->nde", weights, step, step, optimize=True)
        side = np.einsum("nm,nmd,mk->ndk", weights, step, target, optimize=True)
        parts.append(Moments(offset, covariance, mean, side, log_total))
    return Moments(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _outer(left: Array, right: Array) -> Array:
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
