"""The rows' own weights: a column of weights, and exponential decay with age."""

from __future__ import annotations

import copy
import datetime as dt
import math
import re
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.columns import Kind, entries, kind_of, numbers, plain, plain_type, ticks, unit_of
from qkv.table.where import check_column

#: A column and the time in which a row's weight halves; and, if given, as of when.
DecayLike: TypeAlias = tuple[str, Any] | tuple[str, Any, Any]

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31557600.0}
_DURATION = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*")


class RowWeights:
    """The logarithm of each row's own weight, counted from the newest row met so far.

    Only ratios of weights count, so the reference cancels out; near the newest row it costs no
    digits, however many half-lives the table spans.
    """

    def __init__(self, schema: pa.Schema, weight: str | None, decay: DecayLike | None) -> None:
        self.columns: list[str] = []
        self.description: dict[str, str] = {}
        self._weight = weight
        self._decay = None if decay is None else Decay(schema, decay)
        if weight is not None:
            _check_weight(schema, weight)
            self.columns.append(weight)
            self.description[weight] = "weight of the row"
        if self._decay is not None:
            self.columns.append(self._decay.column)
            self.description[self._decay.column] = self._decay.description

    def anew(self) -> RowWeights:
        """The same weights for another pass, which has read no row yet."""
        fresh = copy.copy(self)
        fresh._decay = None if self._decay is None else self._decay.anew()
        return fresh

    def meet(self, other: RowWeights) -> tuple[float, float]:
        """By how much the weights of two passes shrink, now that both count from the newer row."""
        if self._decay is None or other._decay is None:
            return 0.0, 0.0
        return self._decay.meet(other._decay)

    def logs(self, batch: pa.RecordBatch) -> tuple[np.ndarray, float]:
        """Logarithms of weights, (m,) or (0,); and by how much earlier rows shrink from now on."""
        logs, shrink = np.empty(0), 0.0
        if self._decay is not None:
            logs, shrink = self._decay.logs(batch.column(self._decay.column))
        if self._weight is not None:
            column_logs = _log_weights(batch.column(self._weight), self._weight)
            logs = column_logs + logs if len(logs) else column_logs
        return logs, shrink


class Decay:
    """Weights that halve with every half-life of age."""

    def __init__(self, schema: pa.Schema, decay: DecayLike) -> None:
        if not isinstance(decay, (tuple, list)) or not 2 <= len(decay) <= 3:
            raise TypeError(
                "decay must be a column and a half-life, such as ('date', '90d'), and perhaps the "
                f"date as of which is asked; got {decay!r}"
            )
        self.column = decay[0]
        check_column(schema, self.column, "decay")
        self._type = plain_type(schema.field(self.column).type)
        if kind_of(self._type) not in (Kind.TIME, Kind.NUMBER):
            raise TypeError(
                f"decay must name a column of dates, times or numbers; {self.column!r} is "
                f"{self._type}"
            )
        half = half_life(decay[1], self._type, self.column)
        self._rate = math.log(2.0) / half
        self.description = f"halves every {half:g}{unit_of(self._type)}"
        self._as_of = None
        if len(decay) == 3:
            self._as_of = entries([decay[2]], self._type, self.column)[0]
            self.description += f" before {self._as_of.as_py()}; later rows weigh nothing"
        self._newest: Any = None

    def logs(self, column: pa.Array) -> tuple[np.ndarray, float]:
        """Logarithms of weights, and by how much those of earlier batches are too large."""
        ages = plain(column)
        later = None if self._as_of is None else _later(ages, self._as_of)
        newest = pc.max(ages if later is None else ages.filter(pc.invert(later)))
        if not newest.is_valid:  # all are later
            return np.full(len(ages), -np.inf), 0.0
        logs = self._since(ages, newest) * self._rate
        if later is not None:
            logs[later.to_numpy(zero_copy_only=False)] = -np.inf
        if self._newest is None:
            self._newest = newest
            return logs, 0.0
        step = self._ahead(newest)
        if step <= 0.0:
            return logs + step, 0.0
        self._newest = newest
        return logs, step

    def anew(self) -> Decay:
        fresh = copy.copy(self)
        fresh._newest = None
        return fresh

    def meet(self, other: Decay) -> tuple[float, float]:
        if self._newest is None:
            self._newest = other._newest
            return 0.0, 0.0
        if other._newest is None:
            return 0.0, 0.0
        step = self._ahead(other._newest)
        if step <= 0.0:
            return 0.0, -step
        self._newest = other._newest
        return step, 0.0

    def _ahead(self, newest: pa.Scalar) -> float:
        """How many half-lives, as a logarithm, another row is newer than the newest here."""
        entry = pa.array([newest.as_py()], newest.type)
        return self._rate * float(self._since(entry, self._newest)[0])

    def _since(self, ages: pa.Array, newest: pa.Scalar) -> np.ndarray:
        reference = pa.array([newest], ages.type)
        if kind_of(ages.type) is Kind.TIME:
            return numbers(ages, ticks(reference)[0].as_py())
        return numbers(ages) - float(numbers(reference)[0])


def half_life(given: Any, type: pa.DataType, column: str) -> float:
    """A half-life in the column's units: a number, a timedelta, or a text such as '90d'."""
    expected = f"decay of column {column!r} ({type}) must have a positive half-life"
    is_time = kind_of(type) is Kind.TIME
    if isinstance(given, str):
        match = _DURATION.fullmatch(given)
        if match is None or match[2] not in _SECONDS:
            raise ValueError(f"{expected} such as '90d', '12h' or '2y'; got {given!r}")
        given = dt.timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    if isinstance(given, dt.timedelta):
        if not is_time:
            raise TypeError(f"{expected}, a number in the column's own units; got a duration")
        days = pa.types.is_date(type)
        given = given.total_seconds() / (_SECONDS["d"] if days else 1.0)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{expected}; got {given!r}")
    if not 0.0 < given < math.inf:
        raise ValueError(f"{expected}; got {given}")
    return float(given)


def _check_weight(schema: pa.Schema, weight: Any) -> None:
    if not isinstance(weight, str):
        raise TypeError(f"weight must name a column; got {weight!r}")
    check_column(schema, weight, "weight")
    if kind_of(schema.field(weight).type) is not Kind.NUMBER:
        raise TypeError(
            f"weight must name a column of numbers; {weight!r} is {schema.field(weight).type}"
        )


def _log_weights(column: pa.Array, name: str) -> np.ndarray:
    weights = numbers(plain(column))
    if len(weights) and not (weights.min() >= 0.0 and weights.max() < np.inf):
        wrong = weights[(weights < 0.0) | np.isinf(weights)][0]
        raise ValueError(
            f"weight column {name!r} must hold finite numbers that are not negative; got {wrong:g}"
        )
    with np.errstate(divide="ignore"):  # a weight of 0 weighs nothing
        return np.log(weights)  # type: ignore[no-any-return]


def _later(ages: pa.Array, as_of: pa.Scalar) -> pa.Array:
    return pc.greater(ages, as_of)
