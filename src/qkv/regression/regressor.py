"""NadarayaWatsonRegressor: the answer to a query is the attention-weighted mean of the targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted

from qkv.bandwidth import BandwidthWarning
from qkv.optional_dependencies import require
from qkv.regression import batches, distributed, local, uncertainty, weight_batches
from qkv.regression.base import NadarayaWatson
from qkv.regression.criteria import residuals
from qkv.regression.kernels import KernelLike
from qkv.regression.training_data import Array, Keys


class NadarayaWatsonRegressor(RegressorMixin, NadarayaWatson):  # type: ignore[misc]
    """Kernel regression (Eq. 4) as a scikit-learn estimator.

    g(x) = Σᵢ yᵢ K(x, xᵢ) / Σⱼ K(x, xⱼ): queries are what is asked, keys the training inputs, values
    the targets.

    >>> import numpy as np, qkv
    >>> x = np.linspace(0, 4, 101)[:, None]
    >>> y = 2 * np.sin(x[:, 0]) + x[:, 0]
    >>> model = qkv.NadarayaWatsonRegressor(bandwidth=0.1).fit(x, y)
    >>> model.predict([[1.0], [2.0]]).round(1)
    array([2.7, 3.8])

    Args:
        kernel: "gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight" or
            "tricube", or a :class:`qkv.similarity.Kernel`, whose shape is taken and whose own
            bandwidth is not; or any function of the distance in bandwidths, in torch, that is never
            negative: ``lambda u: 1 / (1 + u**2)``. Its kernel is compiled as those with names are.
        bandwidth: a number, or one for each numeric column; "scott" or "silverman", rules of
            thumb; "loo" (leave-one-out error), "aicc" or "gcv", criteria that are minimised; "knn"
            or ``qkv.regression.Nearest(k)``: each query's bandwidth is the distance to its k
            nearest examples, with k searched for or given.
        degree: 0 fits a mean around each query, 1 a line (or plane).
        empty: what to answer where no example is within reach: "nan" (with a warning), "nearest"
            (the target of the nearest example), "prior" (the mean of all) or "raise". Gaussian and
            Laplacian kernels reach everywhere; far away they answer with the nearest example.
        categorical: columns that are equal or not, by name or place; "auto" takes those that hold
            neither numbers nor dates. They are smoothed after Aitchison and Aitken.
        ordered: columns whose categories have an order, by name or place, or a mapping of columns
            to their categories in order. They are smoothed after Wang and van Ryzin, by how far
            categories lie apart: as numbers, if they are such, else as places in the order.
        smoothing: how much other categories weigh, one number or one for each column of
            categories, or a mapping by name; None searches for it where the bandwidth is searched
            for, and otherwise takes a tenth of the maximum.
        verbose: show the progress of the search for a bandwidth, if it takes over a second.

    X is an array, or a table of pandas, Polars or Arrow; or a Dask array or frame, whose rows then
    stay on the workers: docs/scale.md says what is distributed. Dates count in days, other times in
    seconds, booleans as 0 and 1. A number that is missing (NaN, None, null) takes no part in the
    distance to its row, which is scaled up by the share of columns that do; it adds nothing to the
    slope of a line along its column. Nearest neighbours take no missing numbers. A missing
    category has the average weight of the categories.

    `sample_weight` counts copies of a row: leave-one-out leaves one copy out. Of rows with weights
    of at most 1, the row is left out entirely.

    After fit, `bandwidth_` (d,) is the bandwidth of each numeric column, `smoothing_` that of each
    categorical one, and `cv_curve_` what was tried: bandwidths, smoothings and error by column.
    """

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        bandwidth: Any = "loo",
        degree: int = 0,
        empty: str = "nan",
        categorical: Any = None,
        ordered: Any = None,
        smoothing: Any = None,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.empty = empty
        self.categorical = categorical
        self.ordered = ordered
        self.smoothing = smoothing
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Keep the rows of X (n, d) with their targets y (n,) or (n, k); search the bandwidth."""
        if distributed.is_lazy(X):
            self._one_output = getattr(y, "ndim", 1) == 1
            return self._fit_lazy(X, y, sample_weight)
        target = _targets(self, y)
        check_consistent_length(X, target)
        self._one_output = target.ndim == 1
        return self._fit_rows(X, target.reshape(len(target), -1), sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """The answers, (n,) or (n, k).

        With `return_std`, also the standard deviation of an observation about each: attention
        over squared leave-one-out residuals.
        """
        if self._is_lazy and not return_std:
            return self._answer_lazy(X, self.empty, _first if self._one_output else _all)
        query = self._keys(X)
        answer = self._shaped(self._answer(query, self.empty))
        if not return_std:
            return answer
        if self._cannot_tell("the standard deviation"):
            return answer, np.full_like(answer, np.nan)
        noise = uncertainty.learn(*self._fitted, int(self.degree))
        return answer, self._shaped(noise.at(*self._fitted, query))

    def predict_batches(self, source: Any, level: float | None = None) -> Iterator[Any]:
        """The rows of `source` with their answers, as Arrow record batches, one after the other.

        `source` is the path of a Parquet file or of a folder of them, or anything that speaks
        Arrow; columns are found by the names seen in fit, others are passed through. Each batch
        gains a column ``answer``, and with `level` the bounds ``low`` and ``high`` of
        :meth:`predict_interval`. Memory does not grow with the number of rows.
        """
        intervals = None if level is None else self._intervals(level)
        for batch, known_columns in self._rows_of(source):
            query = self._keys(known_columns)
            answers = {"answer": self._shaped(self._answer(query, self.empty))}
            if intervals is not None:
                bounds = intervals(query)
                answers |= {"low": bounds[:, 0], "high": bounds[:, 1]}
            yield batches.with_answers(batch, answers)

    def plot(self, level: float = 0.9, points: int = 401) -> Any:
        """The examples, the curve of answers and the interval about it, a Matplotlib figure.

        For models of one column of numbers, dates or times.
        """
        check_is_fitted(self)
        self._check_here()
        numbers = self.columns_.numbers
        if len(numbers) != 1 or self.columns_.names or not self._one_output:
            raise ValueError(
                "plot draws the answers of one column of numbers; this model has "
                f"{self.n_features_in_} columns and {self.examples_.target.shape[1]} outputs"
            )
        require("matplotlib", "plot")
        from qkv.visualization.plot import band

        key = self.examples_.keys.number[:, 0]
        curve = Keys(np.linspace(key.min(), key.max(), points)[:, None],
                     np.empty((points, 0), np.int64))  # fmt: skip
        answer = self._shaped(self._answer(curve, self.empty))
        bounds = self._intervals(level)(curve)
        names = (numbers[0].name if hasattr(self, "feature_names_in_") else "x", "y")
        return band(numbers[0].shown(key), self.examples_.observed(self.examples_.target)[:, 0],
                    numbers[0].shown(curve.number[:, 0]), answer, bounds,
                    names=names, level=level)  # fmt: skip

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:  # noqa: N803
        """Bounds (n, 2) between which a share `level` of new observations falls; or (n, 2, k).

        See :mod:`qkv.regression.uncertainty`. From few examples no bounds can promise much: below
        2 / (1 − level) of them, the largest residuals are used. With one example: NaN, with a
        warning.
        """
        return self._intervals(level)(self._keys(X))

    def _intervals(self, level: float) -> Callable[[Keys], Array]:
        """A function that gives the intervals of queries; the noise is estimated once."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1; got {level!r}")
        check_is_fitted(self)
        self._check_here()
        if self._cannot_tell("the interval"):
            k = self.examples_.target.shape[1]
            return lambda query: self._shaped(np.full((len(query), 2, k), np.nan))
        noise = uncertainty.learn(*self._fitted, int(self.degree))
        relative = uncertainty.relative_bounds(noise, *self._fitted, level)  # (2, k)

        def of(query: Keys) -> Array:
            answer, unit = self._answer(query, self.empty), noise.at(*self._fitted, query)
            return self._shaped(answer[:, None] + relative * unit[:, None])

        return of

    def predict_quantile(self, X: Any, quantiles: float | Sequence[float]) -> Array:  # noqa: N803
        """Quantiles of the targets under each query's weights, (n, q), or (n, q, k).

        A quantile is the smallest target up to which the weights sum to it.
        """
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        if levels.ndim > 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise ValueError(f"quantiles must lie between 0 and 1; got {quantiles!r}")
        query = self._keys(X)
        target = self.examples_.target
        answers, totals = np.empty((len(query), levels.size, target.shape[1])), np.empty(len(query))
        for batch, weights, totals[batch] in weight_batches.weights(*self._fitted, query):
            answers[batch] = _quantiles(weights, target, levels)
        copies = self.examples_.copies[None]
        alone = np.repeat(target[:, None], levels.size, axis=1)
        prior = _quantiles(copies / copies.sum(), target, levels)[0]
        filled = self._fill(self.empty, answers, totals, query, alone, prior)
        return self._shaped(self.examples_.observed(filled))

    def loo_score(self) -> float:
        """R² of predicting each example from all others, averaged over outputs.

        With one example: NaN, with a warning.
        """
        check_is_fitted(self)
        self._check_here()
        examples = self.examples_
        if self._cannot_tell("R²"):
            return math.nan
        others = local.LeaveOneOut(examples, self.kernel_, int(self.degree)).at(self.width_)
        errors = np.average(residuals(examples, others) ** 2, axis=0, weights=examples.weight)
        spread = np.average((examples.target - examples.mean) ** 2, axis=0, weights=examples.weight)
        share = np.divide(errors, spread, where=spread > 0, out=(errors > 0).astype(float))
        return float(1 - share.mean())

    def _cannot_tell(self, what: str) -> bool:
        """Whether there is only one example, which leaves nothing to compare with; then warns."""
        one = len(self.examples_.target) == 1 and self.examples_.copies[0] <= 1
        if one:
            warnings.warn(
                f"{what} cannot be estimated from one row of data; the answer is NaN",
                BandwidthWarning,
                stacklevel=3,
            )
        return one

    def _shaped(self, answer: Array) -> Array:
        return answer[..., 0] if self._one_output else answer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _first(answer: Array) -> Array:
    return answer[:, 0]


def _all(answer: Array) -> Array:
    return answer


def _targets(estimator: Any, y: Any) -> Array:
    if y is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        )
    target = np.asarray(y)
    if target.dtype.kind in "OUST":
        try:
            target = target.astype(np.float64)
        except (TypeError, ValueError):
            (some,) = target.flat[:1].tolist()
            raise ValueError(
                f"y must hold numbers for a regressor; got values such as {some!r}. "
                "NadarayaWatsonClassifier takes names."
            ) from None
    checked: Array = check_array(
        target, ensure_2d=False, dtype=np.float64, input_name="y", estimator=estimator
    )
    return np.require(checked, requirements="W")  # torch shares no memory that is not


def _quantiles(weights: Array, target: Array, levels: Array) -> Array:
    """Of each column of the targets (m, k) under weights (n, m): (n, q, k)."""
    quantiles = np.empty((len(weights), levels.size, target.shape[1]))
    for column in range(target.shape[1]):
        order = np.argsort(target[:, column], kind="stable")
        reached = np.cumsum(weights[:, order], axis=1)
        # Rounding must not carry a sum that is exactly the quantile to the next target.
        share = levels * reached[:, -1:] * (1 - 1e-12)
        for row in range(len(weights)):
            places = np.searchsorted(reached[row], share[row])
            quantiles[row, :, column] = target[order[np.minimum(places, len(order) - 1)], column]
    return quantiles
