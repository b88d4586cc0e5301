"""NadarayaWatsonClassifier: the share of attention that each class gets."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from qkv.optional_dependencies import require
from qkv.regression import distributed
from qkv.regression.base import NadarayaWatson
from qkv.regression.kernels import KernelLike
from qkv.regression.training_data import Array


class NadarayaWatsonClassifier(ClassifierMixin, NadarayaWatson):  # type: ignore[misc]
    """Kernel regression of classes: p(c | x) is the weight of the examples of class c (Eq. 4).

    >>> import numpy as np, qkv
    >>> x = np.array([[0.0], [1.0], [3.0], [4.0]])
    >>> model = qkv.NadarayaWatsonClassifier(bandwidth=1.0).fit(x, ["low", "low", "high", "high"])
    >>> model.predict([[0.5], [3.4]])
    array(['low', 'high'], dtype='<U4')

    The arguments are those of :class:`qkv.NadarayaWatsonRegressor`. "loo" searches for the least
    squared error of the probabilities. Where no example is within reach, `empty` is by default
    "prior", the classes' shares among all examples; with "nan" the probabilities are NaN, and the
    class predicted is the most frequent one.
    """

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        bandwidth: Any = "loo",
        degree: int = 0,
        empty: str = "prior",
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
        """Keep the rows of X (n, d) with their classes y (n,); search the bandwidth."""
        if y is None:
            raise ValueError(
                "NadarayaWatsonClassifier requires y to be passed, but the target y is None"
            )
        if distributed.is_lazy(X):
            names = distributed.as_lazy_array(y, "y")
            self.classes_ = np.asarray(require("dask.array", "cluster").unique(names).compute())
            return self._fit_lazy(X, names, sample_weight, self.classes_)
        check_classification_targets(y)
        names = column_or_1d(y, warn=True)
        check_consistent_length(X, names)
        self.classes_, place = np.unique(names, return_inverse=True)
        return self._fit_rows(X, np.eye(len(self.classes_))[place], sample_weight)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probability of each class in `classes_`, (n, classes)."""
        if self._is_lazy:
            shares: Array = self._answer_lazy(X, self.empty, _probabilities)
            return shares
        return _probabilities(self._answer(self._keys(X), self.empty))

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The most probable class, (n,)."""
        policy = "prior" if self.empty == "nan" else self.empty
        if self._is_lazy:
            names: npt.NDArray[Any] = self._answer_lazy(X, policy, partial(_class, self.classes_))
            return names
        answer = self._answer(self._keys(X), policy)  # raises if not fitted
        return _class(self.classes_, answer)


def _class(classes: npt.NDArray[Any], answer: Array) -> npt.NDArray[Any]:
    return np.asarray(classes[_probabilities(answer).argmax(axis=1)])


def _probabilities(answer: Array) -> Array:
    # A line may leave the range that a mean cannot.
    inside = np.clip(answer, 0.0, 1.0)
    return np.asarray(inside / inside.sum(axis=1, keepdims=True))
