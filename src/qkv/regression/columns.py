"""From what users pass to keys: numbers, and categories as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array, validate_data

from qkv.regression.examples import Codes, Keys


class Columns(NamedTuple):
    """Which columns are categories, and which categories they have."""

    numeric: list[int]
    categorical: list[int]
    categories: list[npt.NDArray[Any]]

    def keys(self, estimator: Any, X: Any) -> Keys:  # noqa: N803 - scikit-learn's name
        """The rows of X, which must have the columns that were seen in fit."""
        if not self.categorical:
            number = validate_data(estimator, X, reset=False, dtype=np.float64)
            return _plain(number)
        validate_data(estimator, X, reset=False, skip_check_array=True)
        return self._read(X)

    def _read(self, X: Any) -> Keys:  # noqa: N803
        numbers = [_column(X, place) for place in self.numeric]
        rows = len(_column(X, 0))
        number = np.empty((rows, 0))
        if numbers:
            number = check_array(np.column_stack(numbers), dtype=np.float64)
        codes = np.empty((rows, len(self.categorical)), dtype=np.int64)
        for at, (place, known) in enumerate(zip(self.categorical, self.categories, strict=True)):
            codes[:, at] = _codes(_column(X, place), known)
        return Keys(np.ascontiguousarray(number), codes)


def learn(estimator: Any, X: Any, categorical: Any) -> tuple[Columns, Keys]:  # noqa: N803
    """Which columns of X there are, and its rows as keys."""
    if categorical is None:
        number = validate_data(estimator, X, dtype=np.float64)
        return Columns(list(range(number.shape[1])), [], []), _plain(number)
    validate_data(estimator, X, skip_check_array=True)
    names = getattr(estimator, "feature_names_in_", None)
    chosen = _chosen(categorical, X, names, estimator.n_features_in_)
    if not chosen:
        return learn(estimator, X, None)
    categories = [_categories(_column(X, place), place) for place in chosen]
    rest = [place for place in range(estimator.n_features_in_) if place not in chosen]
    columns = Columns(rest, chosen, categories)
    return columns, columns._read(X)


def _plain(number: Any) -> Keys:
    # Writable, because torch does not share memory that is not.
    number = np.require(number, requirements=["C", "W"])
    return Keys(number, np.empty((len(number), 0), dtype=np.int64))


def _chosen(categorical: Any, X: Any, names: Any, count: int) -> list[int]:  # noqa: N803
    if isinstance(categorical, str):
        if categorical != "auto":
            raise ValueError(
                f"categorical must be None, 'auto' or a list of columns; got {categorical!r}"
            )
        return [place for place in range(count) if _column(X, place).dtype.kind in "OUSTb"]
    chosen = []
    known = [] if names is None else list(names)
    for column in _listed(categorical):
        if isinstance(column, str) and column in known:
            chosen.append(known.index(column))
        elif isinstance(column, (int, np.integer)) and 0 <= column < count:
            chosen.append(int(column))
        else:
            raise ValueError(f"categorical names the column {column!r}, which X does not have")
    return sorted(set(chosen))


def _listed(categorical: Any) -> Sequence[Any]:
    if not isinstance(categorical, (list, tuple, np.ndarray)):
        raise ValueError(
            f"categorical must be None, 'auto' or a list of columns; got {categorical!r}"
        )
    return list(categorical)


def _column(X: Any, place: int) -> npt.NDArray[Any]:  # noqa: N803
    if hasattr(X, "iloc"):
        return np.asarray(X.iloc[:, place])
    if hasattr(X, "to_series"):
        return np.asarray(X.to_series(place))
    return np.asarray(X)[:, place]


def _categories(column: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
    if any(value is None or value != value for value in column):
        raise ValueError(f"the categorical column {place} holds missing values")
    return np.unique(column.astype(str) if column.dtype.kind == "O" else column)


def _codes(column: npt.NDArray[Any], known: npt.NDArray[Any]) -> Codes:
    """The place of each value among the known categories; -1 where it is none of them."""
    if known.dtype.kind in "UT":
        column = column.astype(str)
    place = np.searchsorted(known, column)
    place = np.minimum(place, len(known) - 1)
    return np.where(known[place] == column, place, -1).astype(np.int64)
