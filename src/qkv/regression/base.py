"""What regressor and classifier share: reading, searching the width, and asking."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from qkv.operators.sorted.ascending import ascending
from qkv.regression import bandwidth as search
from qkv.regression import columns, empty, local, rows
from qkv.regression.examples import Array, Examples, Keys, Places, Width
from qkv.regression.kernels import as_kernel
from qkv.similarity import Kernel

WEIGHT = np.dtype([("index", np.intp), ("weight", np.float64)])


class NadarayaWatson(BaseEstimator):  # type: ignore[misc]
    """Keys, values and a kernel between them; subclasses say what a value is."""

    kernel: str | Kernel
    bandwidth: Any
    degree: int
    empty: str
    categorical: Any
    verbose: bool

    columns_: columns.Columns
    examples_: Examples
    kernel_: Kernel
    width_: Width
    rows_: Places
    bandwidth_: Array
    smoothing_: Array
    cv_curve_: Array

    def _see(self, X: Any, target: Array, sample_weight: Any) -> Self:  # noqa: N803
        """Keep the examples, and find out how wide to look at them."""
        empty.check(self.empty)
        if self.degree not in (0, 1) or not isinstance(self.degree, numbers.Integral):
            raise ValueError(f"degree must be 0 or 1; got {self.degree!r}")
        self.kernel_ = as_kernel(self.kernel)
        self.columns_, keys = columns.learn(self, X, self.categorical)
        weight = None
        self.rows_ = np.arange(len(keys))
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, keys.number, dtype=np.float64, ensure_non_negative=True
            )
            self.rows_ = np.flatnonzero(weight)
            if self.rows_.size == 0:
                raise ValueError("sample_weight must not be 0 everywhere")
            keys, target, weight = keys.take(self.rows_), target[self.rows_], weight[self.rows_]
            if np.all(weight == 1):
                weight = None
        if keys.number.shape[1] == 1:  # sorted once, so that no question has to sort again
            line = ascending(np.ascontiguousarray(keys.number[:, 0]))
            keys, target = Keys(line.number[:, None], line.take(keys.code)), line.take(target)
            self.rows_ = line.take(self.rows_[:, None])[:, 0]
            weight = None if weight is None else line.take(weight[:, None])[:, 0]
        counts = tuple(len(known) for known in self.columns_.categories)
        self.examples_ = Examples(keys, target, weight, counts)
        found = search.find(
            self.examples_, self.kernel_, self.bandwidth, int(self.degree), self.verbose
        )
        self.width_ = found.width
        self.bandwidth_, self.smoothing_ = found.width.bandwidth, found.width.smoothing
        self.cv_curve_ = found.curve[np.lexsort(found.curve.T[::-1])]
        return self

    def _keys(self, X: Any) -> Keys:  # noqa: N803
        check_is_fitted(self)
        return self.columns_.keys(self, X)

    @property
    def _gaze(self) -> tuple[Examples, Kernel, Width]:
        return self.examples_, self.kernel_, self.width_

    def _answer(self, query: Keys, policy: str) -> Array:
        """The fitted values (n, k), by `policy` where no example is in sight."""
        fitted = local.fit(*self._gaze, query, int(self.degree))
        return self._fill(
            policy, fitted.answer, fitted.log_total, query, self.examples_.target,
            self.examples_.mean,
        )  # fmt: skip

    def _fill(
        self, policy: str, answer: Array, log_total: Array, query: Keys, values: Array, prior: Array
    ) -> Array:
        nothing = log_total == -np.inf
        return empty.fill(
            policy, answer, nothing, self.examples_, self.width_, query, values, prior
        )

    def effective_neighbours(self, X: Any) -> Array:  # noqa: N803
        """How many examples each answer rests on, 1 / Σ α²; 0 where none is in sight."""
        query = self._keys(X)
        found = np.empty(len(query))
        for batch, weights, _ in rows.weights(*self._gaze, query):
            squares = (weights**2).sum(axis=1)
            found[batch] = np.divide(1, squares, where=squares > 0, out=np.zeros_like(squares))
        return found

    def weights(self, X: Any, top: int | None = None) -> npt.NDArray[Any]:  # noqa: N803
        """The weights of the training rows in each answer, (n, m).

        With `top`, those of the most attended rows alone, the largest first: (n, top) pairs of
        (index, weight). Where fewer are in sight, the last are (-1, 0).
        """
        query = self._keys(X)
        if top is not None and not (isinstance(top, numbers.Integral) and top >= 1):
            raise ValueError(f"top must be a whole number of at least 1; got {top!r}")
        if top is None:
            whole = np.zeros((len(query), self.rows_.max() + 1))
            for batch, weights, _ in rows.weights(*self._gaze, query):
                whole[batch, self.rows_] = weights
            return whole
        found = np.zeros((len(query), int(top)), dtype=WEIGHT)
        found["index"] = -1
        kept = min(int(top), len(self.rows_))
        for batch, weights, _ in rows.weights(*self._gaze, query):
            order = np.argsort(-weights, axis=1, kind="stable")[:, :kept]
            heaviest = np.take_along_axis(weights, order, axis=1)
            found["weight"][batch, :kept] = heaviest
            found["index"][batch, :kept] = np.where(heaviest > 0, self.rows_[order], -1)
        return found
