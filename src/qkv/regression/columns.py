"""From what users pass to keys: numbers, dates as numbers, and categories as codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_array, validate_data

from qkv.regression.categories import MISSING, UNSEEN, Category
from qkv.regression.table_columns import as_times, column, is_table, missing, width
from qkv.regression.training_data import Array, Codes, Keys

Values = npt.NDArray[Any]


class Number(NamedTuple):
    """A column that has a distance."""

    place: int
    name: str
    counted_in: str | None = None  # "days" or "seconds", if it holds dates or times
    origin: str | None = None  # from which on

    def read(self, values: Values) -> Array:
        """float64, NaN where missing."""
        times = as_times(values)
        if (times is None) != (self.counted_in is None):
            expected = "numbers" if self.counted_in is None else "dates or times"
            raise ValueError(
                f"column {self.name!r} must hold {expected}, as in fit; got {values.dtype}"
            )
        if times is None:
            return _as_numbers(values, self.name)
        # Counted from the origin before they become floats, so that nanoseconds are kept.
        unit = np.timedelta64(1, "D" if self.counted_in == "days" else "s")
        numbers = (times[0] - np.datetime64(self.origin)) / unit
        return np.asarray(numbers, dtype=np.float64)

    def shown(self, number: Array) -> Values:
        """Numbers as the column has them."""
        if self.counted_in is None:
            return number
        unit = np.timedelta64(1, "D" if self.counted_in == "days" else "s")
        nanoseconds = (number * (unit / np.timedelta64(1, "ns"))).astype("timedelta64[ns]")
        return np.datetime64(self.origin) + nanoseconds


class Names(NamedTuple):
    """A column of categories."""

    place: int
    name: str
    values_seen: list[Any]  # in their order, if they have one
    ordered: bool = False

    def codes(self, values: Values) -> Codes:
        """The index of each value among the categories seen in fit."""
        place_of = {value: place for place, value in enumerate(self.values_seen)}
        gone = missing(values)
        codes = np.full(len(values), MISSING, dtype=np.int64)
        plain = _plain_values(values[~gone])
        codes[~gone] = [place_of.get(value, UNSEEN) for value in plain]
        return codes

    @property
    def category(self) -> Category:
        if not self.ordered:
            return Category(len(self.values_seen))
        numbers = all(isinstance(value, (int, float)) for value in self.values_seen)
        places = self.values_seen if numbers else range(len(self.values_seen))
        return Category(len(self.values_seen), np.array(places, dtype=np.float64))


class Columns(NamedTuple):
    """Which columns are numbers, and which categories the others have."""

    numbers: list[Number]
    names: list[Names]

    @property
    def are_plain(self) -> bool:
        return not self.names and all(number.counted_in is None for number in self.numbers)

    def keys(self, estimator: Any, X: Any) -> Keys:  # noqa: N803 - scikit-learn's name
        """The rows of X, which must have the columns that were seen in fit."""
        if self.are_plain and not is_table(X):
            return _plain(validate_data(estimator, X, reset=False, **_options(estimator)))
        validate_data(estimator, X, reset=False, skip_check_array=True)
        return self.read(estimator, X)

    def read(self, estimator: Any, X: Any) -> Keys:  # noqa: N803
        count = len(column(X, 0))
        number = np.empty((count, 0))
        if self.numbers:
            read = [each.read(column(X, each.place)) for each in self.numbers]
            number = check_array(np.column_stack(read), estimator=estimator, **_options(estimator))
        codes = np.empty((count, len(self.names)), dtype=np.int64)
        for at, each in enumerate(self.names):
            codes[:, at] = each.codes(column(X, each.place))
        return Keys(np.require(number, requirements=["C", "W"]), codes)


def learn(estimator: Any, X: Any, categorical: Any, ordered: Any) -> tuple[Columns, Keys]:  # noqa: N803
    """Which columns of X there are, and its rows as keys."""
    is_times = not is_table(X) and getattr(X, "dtype", np.dtype(float)).kind == "M"
    if categorical is None and ordered is None and not is_table(X) and not is_times:
        number = validate_data(estimator, X, **_options(estimator))
        plain = [Number(place, f"x{place}") for place in range(number.shape[1])]
        return Columns(plain, []), _plain(number)
    if not is_table(X):
        validate_data(estimator, X, dtype=None, ensure_all_finite=False)
    validate_data(estimator, X, skip_check_array=True)
    count = width(X)
    names = list(getattr(estimator, "feature_names_in_", [f"x{place}" for place in range(count)]))
    orders = _orders(ordered, names)
    chosen = _chosen(categorical, X, names)
    columns = Columns([], [])
    for place, name in enumerate(names):
        values = column(X, place)
        if place in orders or place in chosen:
            order = orders.get(place) or _pandas_order(X, place)
            is_ordered = place in orders or order is not None
            columns.names.append(
                Names(place, name, _known(values) if order is None else order, is_ordered)
            )
            continue
        times_of = as_times(values)
        if times_of is None:
            columns.numbers.append(Number(place, name))
            continue
        present = times_of[0][~np.isnat(times_of[0])]
        origin = str(present[0]) if len(present) else "1970-01-01"
        columns.numbers.append(Number(place, name, times_of[1], origin))
    return columns, columns.read(estimator, X)


def _options(estimator: Any) -> dict[str, Any]:
    may_be_missing = estimator.__sklearn_tags__().input_tags.allow_nan
    return {"dtype": np.float64, "ensure_all_finite": "allow-nan" if may_be_missing else True}


def _plain(number: Any) -> Keys:
    # Writable, because torch does not share memory that is not.
    number = np.require(number, requirements=["C", "W"])
    return Keys(number, np.empty((len(number), 0), dtype=np.int64))


def _as_numbers(values: Values, name: str) -> Array:
    if values.dtype.kind == "O":
        gone = missing(values)
        values = np.where(gone, np.nan, values)
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        some = next(value for value in values if not isinstance(value, (int, float)))
        raise ValueError(
            f"column {name!r} must hold numbers, dates or times; got values such as {some!r} "
            "(categorical= and ordered= take names)"
        ) from None


def _chosen(categorical: Any, X: Any, names: list[str]) -> set[int]:  # noqa: N803
    if categorical is None:
        return set()
    if isinstance(categorical, str):
        if categorical != "auto":
            raise ValueError(
                f"categorical must be None, 'auto' or a list of columns; got {categorical!r}"
            )
        return {
            place
            for place in range(len(names))
            if (values := column(X, place)).dtype.kind in "OUSTb" and as_times(values) is None
        }
    if not isinstance(categorical, (list, tuple, np.ndarray)):
        raise ValueError(
            f"categorical must be None, 'auto' or a list of columns; got {categorical!r}"
        )
    return {_place(each, names, "categorical") for each in categorical}


def _orders(ordered: Any, names: list[str]) -> dict[int, list[Any] | None]:
    """The places of ordered columns, with their order where it is given."""
    if ordered is None:
        return {}
    if isinstance(ordered, Mapping):
        return {
            _place(each, names, "ordered"): _plain_values(np.array(list(order), dtype=object))
            for each, order in ordered.items()
        }
    if isinstance(ordered, (list, tuple, np.ndarray)):
        return {_place(each, names, "ordered"): None for each in ordered}
    raise ValueError(
        "ordered must be None, a list of columns, or a mapping of columns to their categories in "
        f"order; got {ordered!r}"
    )


def _place(named: Any, names: Sequence[str], argument: str) -> int:
    if isinstance(named, str) and named in names:
        return list(names).index(named)
    if isinstance(named, (int, np.integer)) and 0 <= named < len(names):
        return int(named)
    raise ValueError(f"{argument} names the column {named!r}, which X does not have")


def _pandas_order(X: Any, place: int) -> list[Any] | None:  # noqa: N803
    """The order of an ordered pandas category; None for other columns."""
    if not hasattr(X, "iloc"):
        return None
    dtype: Any = X.iloc[:, place].dtype
    if not getattr(dtype, "ordered", False):
        return None
    return _plain_values(np.asarray(dtype.categories))


def _known(values: Values) -> list[Any]:
    return sorted(set(_plain_values(values[~missing(values)])))


def _plain_values(values: Values) -> list[Any]:
    """Text as text, numbers as numbers, all else by its text."""
    if values.dtype.kind in "biuf":
        return list(values.tolist())
    if values.dtype.kind == "O" and all(isinstance(value, (bool, int, float)) for value in values):
        return list(values)
    return [str(value) for value in values]
