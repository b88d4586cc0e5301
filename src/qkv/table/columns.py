"""The kinds of columns, and how their entries become comparable values."""

from __future__ import annotations

import datetime as dt
import enum
import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000
#: Arithmetic of decimals as wide as columns may be.
_DIGITS = Context(prec=80)


class Kind(enum.Enum):
    """What a column holds, as far as comparisons are concerned."""

    NUMBER = "a number"
    TIME = "a date or time"
    TEXT = "text"
    BOOLEAN = "true or false"
    VECTOR = "a vector of numbers"
    OTHER = "something that cannot be compared"


def kind_of(type: pa.DataType) -> Kind:
    """The kind of a column of this Arrow type; a category is what its categories are."""
    if pa.types.is_dictionary(type):
        return kind_of(type.value_type)
    if isinstance(type, pa.BaseExtensionType):
        return kind_of(type.storage_type)
    if pa.types.is_boolean(type):
        return Kind.BOOLEAN
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type):
        return Kind.NUMBER
    if pa.types.is_temporal(type) and not pa.types.is_interval(type):
        return Kind.TIME
    if _is_text(type):
        return Kind.TEXT
    if _is_list(type) and kind_of(type.value_type) is Kind.NUMBER:
        return Kind.VECTOR
    return Kind.OTHER


def plain_type(type: pa.DataType) -> pa.DataType:
    """The type without its encoding: categories as what they stand for, one type of text."""
    if pa.types.is_dictionary(type):
        return plain_type(type.value_type)
    if isinstance(type, pa.BaseExtensionType):
        return plain_type(type.storage_type)
    return pa.large_string() if _is_text(type) else type


def plain(array: pa.Array) -> pa.Array:
    """The same entries without their encoding."""
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    simple_type = plain_type(array.type)
    return array if array.type == simple_type else array.cast(simple_type)


def numbers(array: pa.Array, origin: int = 0) -> np.ndarray:
    """Entries as float64, (m,); missing ones are NaN. Times are counted from `origin`.

    Dates count in days and other times in seconds. Ticks are subtracted as integers, so that a
    time keeps its nanoseconds however far it lies from 1970.
    """
    if kind_of(array.type) is Kind.TIME:
        moved = pc.subtract(ticks(array), pa.scalar(origin, pa.int64()))
        counted = moved.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return counted / ticks_per_unit(array.type)  # type: ignore[no-any-return]
    if array.type != pa.float64():
        array = array.cast(pa.float64(), safe=False)
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def vectors(array: pa.Array, column: str) -> np.ndarray:
    """Entries as float64, (m, d); there must be none missing, and all of one length."""
    flat = numbers(array.flatten())
    d = len(flat) // len(array) if len(array) else 0
    if not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(array.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            raise ValueError(
                f"column {column!r} must hold vectors of one length; "
                f"got lengths {lengths.min()} to {lengths.max()}"
            )
    return flat.reshape(len(array), d)


def missing_mask(column: pa.Array) -> np.ndarray | None:
    """Where a column is null or NaN, or a vector with either inside; None if nowhere."""
    if kind_of(column.type) is Kind.VECTOR:
        return _lacking_inside(plain(column))
    floating = pa.types.is_floating(column.type)
    if column.null_count == 0:
        if not floating or len(column) == 0:
            return None
        entries = column.to_numpy(zero_copy_only=False)
        # The minimum is NaN where a number is; much faster than checking each.
        return np.isnan(entries) if np.isnan(entries.min()) else None
    absent = column.is_null(nan_is_null=floating)
    return absent.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _lacking_inside(column: pa.Array) -> np.ndarray | None:
    inside = missing_mask(pc.list_flatten(column))
    if inside is None and column.null_count == 0:
        return None
    absent = np.array(column.is_null())
    if inside is not None:
        absent[pc.list_parent_indices(column).to_numpy()[inside]] = True
    return absent


def unit_of(type: pa.DataType) -> str:
    """What a difference of two entries is counted in."""
    if kind_of(type) is not Kind.TIME:
        return ""
    return " days" if pa.types.is_date(plain_type(type)) else " seconds"


def in_units(difference: float | dt.timedelta, type: pa.DataType, column: str) -> float:
    """A bandwidth as a number of the column's units; a timedelta is converted."""
    if isinstance(difference, dt.timedelta):
        if kind_of(type) is not Kind.TIME:
            raise TypeError(
                f"bandwidth of column {column!r} ({type}) must be a number; got a timedelta"
            )
        unit = 86400.0 if pa.types.is_date(plain_type(type)) else 1.0
        return difference.total_seconds() / unit
    if isinstance(difference, bool) or not isinstance(difference, (int, float)):
        raise TypeError(f"bandwidth of column {column!r} must be a number; got {difference!r}")
    return float(difference)


def shifted(scalar: pa.Scalar, by: float, type: pa.DataType) -> Any:
    """An entry of this type at least `by` units from the query, as Python has it; None if beyond.

    Rounded outwards, so that a window from one such entry to another loses no row.
    """
    down = by < 0
    if kind_of(type) is Kind.TIME:
        at = ticks(pa.array([scalar.as_py()], type))[0].as_py()
        moved = at + _outwards(Fraction(by) * ticks_per_unit(type), down)
        try:
            return pa.array([moved], _integer_type(type)).view(type)[0].as_py()
        except (OverflowError, ValueError, pa.ArrowInvalid):
            return None
    value = scalar.as_py()
    if pa.types.is_floating(type) or (isinstance(value, float) and not np.isfinite(value)):
        edge = np.nextafter(float(value) + by, -np.inf if down else np.inf)
        return float(edge) if np.isfinite(edge) else None
    exact = Fraction(value) + Fraction(by)
    if pa.types.is_integer(type):
        bits, signed = type.bit_width, pa.types.is_signed_integer(type)
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return min(max(_outwards(exact, down), least), most)
    digits = _outwards(exact * Fraction(10) ** type.scale, down)
    fits = abs(digits) < 10**type.precision
    return Decimal(digits).scaleb(-type.scale, _DIGITS) if fits else None


def _outwards(number: Fraction, down: bool) -> int:
    return math.floor(number) if down else math.ceil(number)


def entries(values: list[Any], type: pa.DataType, column: str) -> pa.Array:
    """Python values as entries of a column of this type, or an error that names the column."""
    kind = kind_of(type)
    for value in values:
        if not _fits(value, kind):
            raise TypeError(
                f"query for key column {column!r} must be {kind.value} ({type}); got {value!r}"
            )
    simple_type = plain_type(type)
    if kind is Kind.NUMBER:
        simple_type, values = _exact(values, simple_type)
    if pa.types.is_timestamp(simple_type):  # a day stands for its beginning
        values = [_moment(value, simple_type.unit) for value in values]
    if pa.types.is_date(simple_type):
        values = [
            value.astype("datetime64[D]").item() if isinstance(value, np.datetime64) else value
            for value in values
        ]
    if kind is Kind.VECTOR:
        simple_type = pa.list_(pa.float64())
        values = [[float(x) for x in value] for value in values]
    try:
        if pa.types.is_timestamp(simple_type):  # without a zone, a time is in UTC
            return pa.array(values, pa.timestamp(simple_type.unit)).cast(simple_type)
        return pa.array(values, simple_type)
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise ValueError(
            f"query for key column {column!r} must be {kind.value} ({type}): {error}"
        ) from error


def _exact(values: list[Any], column: pa.DataType) -> tuple[pa.DataType, list[Any]]:
    """Numbers, and the type that holds all of them exactly, if there is one.

    Identifiers beyond 2^53 would not survive as float64, nor would the digits of decimals.
    """
    all_integers = all(isinstance(value, (int, np.integer)) for value in values)
    if pa.types.is_integer(column) and all_integers:
        least, most = min(map(int, values), default=0), max(map(int, values), default=0)
        if least >= -(2**63) and most < 2**63:
            return pa.int64(), values
        if least >= 0 and most < 2**64:
            return pa.uint64(), values
    floats = pa.float64(), [float(value) for value in values]
    mixed = pa.types.is_decimal(column) or not all(isinstance(value, float) for value in values)
    if pa.types.is_floating(column) or not mixed or not np.isfinite(floats[1]).all():
        return floats
    digits = [value if isinstance(value, Decimal) else Decimal(str(value)) for value in values]
    try:
        return pa.array(digits).type, digits
    except pa.ArrowInvalid:  # 77 digits and more
        return floats


def parsed(text: str, type: pa.DataType, column: str) -> Any:
    """A word of the command line, or of a condition, as a value of this column."""
    kind = kind_of(type)
    try:
        return _parse(text, kind, plain_type(type))
    except ValueError as error:
        raise ValueError(
            f"column {column!r} ({type}) holds {kind.value}; {text[:100]!r} is none"
        ) from error


def _parse(text: str, kind: Kind, type: pa.DataType) -> Any:
    if kind is Kind.NUMBER:
        return float(text) if pa.types.is_floating(type) else _integer_or_float(text)
    if kind is Kind.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind is Kind.TIME:
        if pa.types.is_date(type):
            return dt.date.fromisoformat(text)
        if pa.types.is_time(type):
            return dt.time.fromisoformat(text)
        moment = dt.datetime.fromisoformat(text)
        if pa.types.is_timestamp(type):  # in the column's zone; without one, both are in UTC
            return pa.scalar(moment, pa.timestamp("us", type.tz)).as_py()
        return moment
    if kind is Kind.VECTOR:
        return [float(number) for number in text.strip("[]() ").split(",")]
    return text


def _integer_or_float(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _fits(value: Any, kind: Kind) -> bool:
    number = (int, float, np.integer, np.floating)
    if kind is Kind.NUMBER:
        plain_number = isinstance(value, (*number, Decimal)) and not isinstance(value, bool)
        return plain_number and value == value
    if kind is Kind.TIME:
        return isinstance(value, (dt.date, dt.time, dt.timedelta, np.datetime64))
    if kind is Kind.TEXT:
        return isinstance(value, str)
    if kind is Kind.BOOLEAN:
        return isinstance(value, (bool, np.bool_))
    if kind is Kind.VECTOR:
        return hasattr(value, "__len__") and all(isinstance(x, number) for x in value)
    return False


def _moment(value: Any, unit: str) -> Any:
    if isinstance(value, np.datetime64):
        return value.astype(f"datetime64[{unit}]")
    is_day = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    return dt.datetime.combine(value, dt.time()) if is_day else value


def _is_text(type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(type) or types.is_large_string(type) or types.is_string_view(type))


def _is_list(type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_fixed_size_list(type) or types.is_list(type) or types.is_large_list(type))


def _integer_type(type: pa.DataType) -> pa.DataType:
    return pa.int32() if type.bit_width == 32 else pa.int64()


def ticks(array: pa.Array) -> pa.Array:
    """Times as the integers that they are kept as."""
    return array.view(_integer_type(array.type)).cast(pa.int64())


def ticks_per_unit(type: pa.DataType) -> int:
    """How many of them a day has, for dates, or a second."""
    if pa.types.is_date32(type):
        return 1
    if pa.types.is_date64(type):
        return _DAY_MS
    return _SECONDS[type.unit]
