"""Columns of whatever table users pass, as NumPy arrays: pandas, Polars, Arrow, or an array."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


def is_table(X: Any) -> bool:  # noqa: N803 - scikit-learn's name
    """Whether X is a table, with a type for each column."""
    return hasattr(X, "iloc") or hasattr(X, "to_series") or is_arrow(X)


def is_arrow(X: Any) -> bool:  # noqa: N803
    return type(X).__module__.partition(".")[0] == "pyarrow" and hasattr(X, "column_names")


def width(X: Any) -> int:  # noqa: N803
    return int(X.shape[1] if hasattr(X, "shape") else np.asarray(X).shape[1])


def column(X: Any, place: int) -> Values:  # noqa: N803
    """One column: numbers, datetime64, or objects, missing ones as NaN, NaT or None."""
    if is_arrow(X):
        import pyarrow as pa

        values = X.column(place)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if hasattr(X, "iloc"):
        return _of_pandas(X.iloc[:, place])
    if hasattr(X, "to_series"):
        return np.asarray(X.to_series(place))
    return np.asarray(X)[:, place]


def _of_pandas(series: Any) -> Values:
    kind = getattr(series.dtype, "kind", "O")
    if kind == "M":  # those of a time zone are objects otherwise
        return np.asarray(series.to_numpy(dtype="datetime64[ns]"))
    if kind in "iufb" and hasattr(series.dtype, "na_value") and series.isna().any():
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series)


def missing(values: Values) -> npt.NDArray[np.bool_]:
    """Which values are missing."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), dtype=bool)
    return np.array([_is_missing(value) for value in values], dtype=bool)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def as_times(values: Values) -> tuple[Values, str] | None:
    """Dates and times as datetime64, and what they are counted in: days or seconds.

    None where the column holds something else.
    """
    if values.dtype.kind == "M":
        return values, "days" if np.datetime_data(values.dtype)[0] == "D" else "seconds"
    present = values[~missing(values)] if values.dtype.kind == "O" else values[:0]
    if len(present) == 0 or not all(isinstance(value, dt.date) for value in present):
        return None
    dates = not any(isinstance(value, dt.datetime) for value in present)
    if not dates and any(getattr(value, "tzinfo", None) is not None for value in present):
        if not all(getattr(value, "tzinfo", None) is not None for value in present):
            raise ValueError("a column of times must have a time zone in all rows, or in none")
        values = np.array(
            [
                None if _is_missing(value) else value.astimezone(dt.UTC).replace(tzinfo=None)
                for value in values
            ],
            dtype=object,
        )
    return values.astype("datetime64[D]" if dates else "datetime64[us]"), (
        "days" if dates else "seconds"
    )
