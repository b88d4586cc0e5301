"""Keys of two tables as one type, and as numbers whose differences are exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, plain, plain_type, ticks, ticks_per_unit

_UNITS = ["s", "ms", "us", "ns"]
_SIGN = np.uint64(1 << 63)
#: Digits of a decimal that fit into 64 bits.
_MOST_DIGITS = 18


def common_type(left: pa.DataType, right: pa.DataType, columns: str) -> pa.DataType:
    """The type in which entries of both columns are compared, or an error that names them."""
    left_type, right_type = plain_type(left), plain_type(right)
    kind = kind_of(left_type)
    if kind is not kind_of(right_type) or kind is Kind.OTHER:
        raise TypeError(
            f"columns {columns} cannot be compared: {left} holds {kind.value}, "
            f"{right} {kind_of(right_type).value}"
        )
    if kind is Kind.NUMBER:
        return _common_number(left_type, right_type)
    if kind is Kind.TIME:
        return _common_time(left_type, right_type, columns)
    if kind is Kind.VECTOR:
        return pa.list_(pa.float64())
    return left_type


def converted(column: pa.Array, type: pa.DataType, name: str) -> pa.Array:
    """Entries of one table in the type that both share."""
    entries = plain(column)
    try:
        entries = entries if entries.type == type else entries.cast(type)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r} cannot be compared as {type}: {error}") from error
    return entries


def as_numbers(entries: pa.Array) -> np.ndarray:
    """Entries, none missing, as int64 where they count something, else as float64.

    Integers, times and short decimals become integers: their differences keep every digit.
    """
    type = entries.type
    if pa.types.is_floating(type):
        return entries.cast(pa.float64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if pa.types.is_decimal(type):
        words = np.frombuffer(entries.buffers()[1], np.int64).reshape(-1, 2)
        return words[entries.offset : entries.offset + len(entries), 0].copy()
    if pa.types.is_temporal(type):
        entries = ticks(entries)
    if pa.types.is_uint64(type):  # in the same order, and as far apart
        flipped: np.ndarray = entries.to_numpy() ^ _SIGN
        return flipped.view(np.int64)
    return entries.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def per_unit(type: pa.DataType) -> float:
    """How many of :func:`as_numbers` make one unit of a bandwidth: a day, a second, or one."""
    if pa.types.is_decimal(type):
        return float(10**type.scale)
    return float(ticks_per_unit(type)) if pa.types.is_temporal(type) else 1.0


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        decimals = [type for type in (left, right) if pa.types.is_decimal(type)]
        scale = max(0, *(type.scale for type in decimals))
        digits = max(type.precision - type.scale for type in decimals)
        short = len(decimals) == 2 and digits + scale <= _MOST_DIGITS
        return pa.decimal128(digits + scale, scale) if short else pa.float64()
    if pa.types.is_uint64(left) and pa.types.is_uint64(right):
        return pa.uint64()
    if pa.types.is_uint64(left) or pa.types.is_uint64(right):
        return pa.float64()
    return pa.int64()


def _common_time(left: pa.DataType, right: pa.DataType, columns: str) -> pa.DataType:
    if pa.types.is_date(left) and pa.types.is_date(right):
        return pa.date32()
    # A day stands for its beginning.
    left_type, right_type = (
        pa.timestamp("s") if pa.types.is_date(each) else each for each in (left, right)
    )
    zoned = [
        pa.types.is_timestamp(each) and each.tz is not None for each in (left_type, right_type)
    ]
    if _family(left_type) != _family(right_type) or zoned[0] != zoned[1]:
        raise TypeError(f"columns {columns} cannot be compared: {left} and {right}")
    unit = max(left_type.unit, right_type.unit, key=_UNITS.index)
    if pa.types.is_timestamp(left_type):
        return pa.timestamp(unit, "UTC" if zoned[0] else None)
    if pa.types.is_duration(left_type):
        return pa.duration(unit)
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _family(type: pa.DataType) -> str:
    return str(type).partition("[")[0].rstrip("0123456789")
