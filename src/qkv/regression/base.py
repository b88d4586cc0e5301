"""What regressor and classifier share: reading data, searching the bandwidth, answering."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from qkv.operators.sorted.bucket_sort import ascending
from qkv.regression import bandwidth as search
from qkv.regression import (
    batches,
    columns,
    distributed,
    distributed_search,
    fallback,
    local,
    storage,
    weight_batches,
)
from qkv.regression.adaptive_bandwidth import Nearest
from qkv.regression.kernels import KernelLike, as_kernel
from qkv.regression.training_data import Array, Keys, Places, TrainingData, Width
from qkv.similarity import Kernel

WEIGHT = np.dtype([("index", np.intp), ("weight", np.float64)])


class NadarayaWatson(BaseEstimator):  # type: ignore[misc]
    """Keys, values and a kernel; subclasses define what a value is."""

    kernel: KernelLike
    bandwidth: Any
    degree: int
    empty: str
    categorical: Any
    ordered: Any
    smoothing: Any
    verbose: bool

    columns_: columns.Columns
    examples_: TrainingData
    kernel_: Kernel
    width_: Width
    rows_: Places
    row_count_: int
    bandwidth_: Array
    smoothing_: Array
    cv_curve_: Array
    lazy_examples_: (
        distributed.DistributedData
    )  # instead of most others, where they stay on workers

    def _fit_rows(self, X: Any, target: Array, sample_weight: Any) -> Self:  # noqa: N803
        """Keep the examples, and choose the bandwidth."""
        fallback.check(self.empty)
        if self.degree not in (0, 1) or not isinstance(self.degree, numbers.Integral):
            raise ValueError(f"degree must be 0 or 1; got {self.degree!r}")
        self.kernel_ = as_kernel(self.kernel)
        self.columns_, keys = columns.learn(self, X, self.categorical, self.ordered)
        weight = None
        self.row_count_ = len(keys)
        self.rows_ = np.arange(len(keys))
        if keys.some_missing:
            self.rows_ = np.flatnonzero(~np.isnan(keys.number).all(axis=1))
            if self.rows_.size == 0:
                raise ValueError("X must hold a number in some row; all are missing")
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, keys.number, dtype=np.float64, ensure_non_negative=True
            )
            self.rows_ = self.rows_[weight[self.rows_] > 0]
            if self.rows_.size == 0:
                raise ValueError("sample_weight must not be 0 everywhere")
            weight = weight[self.rows_]
            if np.all(weight == 1):
                weight = None
        if len(self.rows_) < len(keys):  # some rows have no weight, or only missing numbers
            keys, target = keys.take(self.rows_), target[self.rows_]
        if keys.number.shape[1] == 1:  # sorted once, so that no query has to sort again
            line = ascending(np.ascontiguousarray(keys.number[:, 0]))
            keys, target = Keys(line.number[:, None], line.take(keys.code)), line.take(target)
            self.rows_ = line.take(self.rows_[:, None])[:, 0]
            weight = None if weight is None else line.take(weight[:, None])[:, 0]
        categories = tuple(names.category for names in self.columns_.names)
        self.examples_ = TrainingData.of_observed(keys, target, weight, categories)
        chosen = search.find(
            self.examples_, self.kernel_, self.bandwidth, int(self.degree),
            self._set_smoothing(), self.verbose,
        )  # fmt: skip
        self.width_ = chosen.width
        self.bandwidth_, self.smoothing_ = chosen.width.bandwidth, chosen.width.smoothing
        self.cv_curve_ = chosen.curve[np.lexsort(chosen.curve.T[::-1])]
        return self

    def _fit_lazy(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:  # noqa: N803
        """Leave the examples on the workers of a Dask cluster."""
        fallback.check(self.empty)
        distributed.check_distributed(self, sample_weight)
        self.kernel_ = as_kernel(self.kernel)
        x = distributed.as_lazy_array(X, "X")
        y = distributed.as_lazy_array(y, "y")
        if x.ndim != 2 or len(x) != len(y):
            raise ValueError(f"X must have shape (n, d) and y n rows; got {x.shape} and {y.shape}")
        self.n_features_in_ = x.shape[1]
        requested, width = self.bandwidth, Width(np.empty(0), np.empty(0))
        if not isinstance(requested, str):  # checked before anything is computed
            width = width._replace(bandwidth=search.checked(requested, x.shape[1]))
        self.lazy_examples_ = distributed.DistributedData(
            distributed.default_client(), x, y, classes
        )
        if isinstance(requested, str):
            chosen = distributed_search.find(
                self.lazy_examples_, self.kernel_, requested, self.verbose
            )
            width, curve = chosen.width, chosen.curve
            self.cv_curve_ = curve[np.lexsort(curve.T[::-1])]
        self.width_, self.bandwidth_ = width, width.bandwidth
        return self

    def _answer_lazy(self, X: Any, policy: str, finish: Any) -> Any:  # noqa: N803
        """The answer of the workers: an array for an array, a Dask array for a Dask array."""
        data = self.lazy_examples_
        finished = partial(_finished, policy, data.mean, data.pivot, finish)
        if distributed.is_lazy(X):
            query = distributed.as_lazy_array(X, "X")
            return data.lazy_answer(query, self.kernel_, self.width_, finished)
        numbers = np.asarray(X, dtype=np.float64)
        if numbers.ndim != 2 or numbers.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have shape (n, {self.n_features_in_}); got {numbers.shape}")
        return finished(data.answer(numbers, self.kernel_, self.width_))

    @property
    def _is_lazy(self) -> bool:
        return hasattr(self, "lazy_examples_")

    def _set_smoothing(self) -> Array | None:
        """The smoothing that the user set for each column of categories, if any."""
        if self.smoothing is None:
            return None
        names = [names.name for names in self.columns_.names]
        given = self.smoothing
        if isinstance(given, Mapping):
            if set(given) != set(names):
                raise ValueError(
                    f"smoothing must have a number for each of the columns {', '.join(names)}; "
                    f"got {dict(given)!r}"
                )
            given = [given[name] for name in names]
        smoothing = np.asarray(given, dtype=np.float64)
        if smoothing.ndim > 1 or (smoothing.ndim == 1 and smoothing.size != len(names)):
            raise ValueError(
                f"smoothing must be one number or one for each of {len(names)} columns of "
                f"categories; got shape {smoothing.shape}"
            )
        smoothing = np.resize(smoothing, len(names))
        for name, share, category in zip(names, smoothing, self.examples_.categories, strict=True):
            if not 0 <= share <= category.most_smoothing:
                raise ValueError(
                    f"smoothing of column {name!r} must lie between 0 and "
                    f"{category.most_smoothing:g}; got {share:g}"
                )
        return smoothing

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file, atomically: safetensors and JSON, no code."""
        check_is_fitted(self)
        self._check_here()
        storage.save(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that :meth:`save` wrote, checked before it is used."""
        model: Self = storage.load(cls, Path(path))
        return model

    def _rows_of(self, source: Any) -> Iterator[tuple[Any, Any]]:
        """Batches of a source in Arrow: all their columns, and those seen in fit."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        columns_seen = None if names is None else list(names)
        for batch in batches.batches(source, columns_seen):
            if columns_seen is None:
                yield batch, batch
            else:
                yield batch, batches.as_table(batch.select(columns_seen))

    def _keys(self, X: Any) -> Keys:  # noqa: N803
        check_is_fitted(self)
        self._check_here()
        return self.columns_.keys(self, X)

    def _check_here(self) -> None:
        if self._is_lazy:
            raise ValueError(
                "of a model that was fitted on Dask arrays only predict and predict_proba are "
                "distributed"
            )

    @property
    def _fitted(self) -> tuple[TrainingData, Kernel, Width]:
        return self.examples_, self.kernel_, self.width_

    def _answer(self, query: Keys, policy: str) -> Array:
        """The fitted values (n, k), by `policy` where no example is within reach."""
        fitted = local.fit(*self._fitted, query, int(self.degree))
        filled = self._fill(
            policy, fitted.answer, fitted.log_total, query, self.examples_.target,
            self.examples_.mean,
        )  # fmt: skip
        return self.examples_.observed(filled)

    def _fill(
        self, policy: str, answer: Array, log_total: Array, query: Keys, values: Array, prior: Array
    ) -> Array:
        is_empty = log_total == -np.inf
        is_unbounded = not self.kernel_.may_vanish and not self.examples_.categories
        if is_unbounded and is_empty.any():
            # So many bandwidths away that squares overflow: the nearest example answers.
            far = is_empty & ~np.isnan(query.number).any(axis=1)
            answer = fallback.fill(
                "nearest", answer, far, self.examples_, self.width_, query, values, prior
            )
            is_empty &= ~far
        return fallback.fill(
            policy, answer, is_empty, self.examples_, self.width_, query, values, prior
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With missing numbers distances are not comparable, so there are no nearest neighbours.
        adaptive = isinstance(self.bandwidth, Nearest) or str(self.bandwidth) == "knn"
        tags.input_tags.allow_nan = not adaptive
        return tags

    def effective_neighbours(self, X: Any) -> Array:  # noqa: N803
        """The effective number of examples in each answer, 1 / Σ α²; 0 where none is in reach."""
        query = self._keys(X)
        counts = np.empty(len(query))
        for batch, weights, _ in weight_batches.weights(*self._fitted, query):
            squares = (weights**2).sum(axis=1)
            counts[batch] = np.divide(1, squares, where=squares > 0, out=np.zeros_like(squares))
        return counts

    def weights(self, X: Any, top: int | None = None) -> npt.NDArray[Any]:  # noqa: N803
        """The weights of the training rows in each answer, (n, m); those left out of fit have 0.

        With `top`, only those of the most attended rows, the largest first: (n, top) pairs of
        (index, weight). Where fewer are within reach, the last are (-1, 0).
        """
        query = self._keys(X)
        if top is not None and not (isinstance(top, numbers.Integral) and top >= 1):
            raise ValueError(f"top must be a whole number of at least 1; got {top!r}")
        if top is None:
            dense = np.zeros((len(query), self.row_count_))
            for batch, weights, _ in weight_batches.weights(*self._fitted, query):
                dense[batch, self.rows_] = weights
            return dense
        heaviest_rows = np.zeros((len(query), int(top)), dtype=WEIGHT)
        heaviest_rows["index"] = -1
        count = min(int(top), len(self.rows_))
        for batch, weights, _ in weight_batches.weights(*self._fitted, query):
            order = np.argsort(-weights, axis=1, kind="stable")[:, :count]
            heaviest = np.take_along_axis(weights, order, axis=1)
            heaviest_rows["weight"][batch, :count] = heaviest
            heaviest_rows["index"][batch, :count] = np.where(heaviest > 0, self.rows_[order], -1)
        return heaviest_rows


def _finished(
    policy: str,
    prior: Array,
    pivot: Array,
    finish: Callable[[Array], Any],
    merged: distributed.PartialMean,
) -> Any:
    return finish(distributed.filled(policy, prior, pivot, merged))
