"""Keys of more digits than float64 has: as 32-bit words, whose differences are exact.

64-bit integers, nanoseconds and decimals do not survive as one float64. Cut into words, a key less
a query is a sum of a few exact differences, rounded once, however far both lie from 0.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, numbers, ticks, ticks_per_unit

_BITS = 32
_MASK, _HALF = 2**_BITS - 1, 2 ** (_BITS - 1)
#: Keys up to here are exact in float64, and differ exactly from every query that is.
_EXACT = 2**52


def key_words(keys: pa.Array) -> np.ndarray:
    """Keys in ticks, (words, m): their sum over words is the key. One word, where that is exact.

    A tick is what the type counts in: 1, a nanosecond, the last digit of a decimal.
    """
    if kind_of(keys.type) is Kind.TIME:
        return _of_integers(ticks(keys).to_numpy(zero_copy_only=False))
    if pa.types.is_decimal(keys.type):
        return _of_decimals(keys)
    if pa.types.is_integer(keys.type):
        return _of_integers(keys.to_numpy(zero_copy_only=False))
    return numbers(keys)[None, :]


def query_words(queries: list[Any], words: int) -> np.ndarray:
    """Queries in ticks, cut as the keys are, (n, words)."""
    return np.array([_cut(query, words) for query in queries]).reshape(len(queries), words)


def queries_in_ticks(queries: pa.Array, type: pa.DataType) -> list[Any]:
    """Queries for a column of this type, as exact numbers of its ticks."""
    if kind_of(type) is Kind.TIME:
        return ticks(queries).to_pylist()  # type: ignore[no-any-return]
    unit = unit_in_ticks(type)
    return [
        value if unit == 1 and not isinstance(value, Decimal) else Fraction(value) * unit
        for value in queries.to_pylist()
    ]


def unit_in_ticks(type: pa.DataType) -> int:
    """How many ticks the unit has in which a bandwidth is given."""
    if kind_of(type) is Kind.TIME:
        return ticks_per_unit(type)
    return 10**type.scale if pa.types.is_decimal(type) and type.scale > 0 else 1


def _of_integers(integers: np.ndarray) -> np.ndarray:
    """Integers of any width up to 64 bits."""
    if integers.dtype.itemsize < 8 or len(integers) == 0:
        return integers.astype(np.float64)[None, :]
    if int(integers.max()) <= _EXACT and int(integers.min()) >= -_EXACT:
        return integers.astype(np.float64)[None, :]
    bits, mask = integers.dtype.type(_BITS), integers.dtype.type(_MASK)
    high = (integers >> bits).astype(np.float64) * 2.0**_BITS
    return _balanced(np.stack([high, (integers & mask).astype(np.float64)]))


def _of_decimals(keys: pa.Array) -> np.ndarray:
    """The digits of decimals as integers, cut where they need more than 64 bits."""
    if keys.type.scale < 0:
        keys = keys.cast(pa.decimal256(76, 0))
    elif keys.type.bit_width < 128:
        keys = keys.cast(pa.decimal128(keys.type.precision, keys.type.scale))
    count = keys.type.bit_width // _BITS
    limbs = np.frombuffer(keys.buffers()[1], "<u4") if len(keys) else np.empty(0, "<u4")
    limbs = limbs[keys.offset * count : (keys.offset + len(keys)) * count].reshape(-1, count)
    narrow = np.ascontiguousarray(limbs[:, :2]).view("<i8")[:, 0]
    sign = (narrow >> 63).astype("<u4")  # what all words above hold, where there is nothing else
    if (limbs[:, 2:] == sign[:, None]).all():
        return _of_integers(narrow)
    words = limbs.T[::-1].astype(np.float64, order="C")
    words[0] = np.ascontiguousarray(limbs[:, -1]).view("<i4")
    return _balanced(words * 2.0 ** (_BITS * np.arange(count - 1, -1, -1.0))[:, None])


def _balanced(words: np.ndarray) -> np.ndarray:
    """Words from −2^31 to 2^31, by carrying: small numbers are then small in every word."""
    for place in range(len(words) - 1, 0, -1):
        one = 2.0 ** (_BITS * (len(words) - 1 - place))
        carry = np.where(words[place] >= _HALF * one, one * 2.0**_BITS, 0.0)
        words[place] -= carry
        words[place - 1] += carry
    return words


def _cut(query: Any, words: int) -> list[float]:
    """A number as words, the highest first."""
    if isinstance(query, float) and not math.isfinite(query):
        return [query] + [0.0] * (words - 1)
    if words == 1:
        return [_float(query)]
    integer = math.floor(query)
    fraction, parts = float(query - integer), []
    for place in range(words - 1):
        low = ((integer + _HALF) & _MASK) - _HALF
        parts.append(float(low) * 2.0 ** (_BITS * place))
        integer = (integer - low) >> _BITS
    parts[0] += fraction
    return [_float(integer << _BITS * (words - 1)), *reversed(parts)]


def _float(number: Any) -> float:
    """The nearest float, infinity beyond the last."""
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)
