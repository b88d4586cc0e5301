"""How queries are compared with one key column; several columns combine by product.

A comparison either provides a kernel's code and numbers for the inner loop, or computes the
logarithms of its weights itself.
"""

from __future__ import annotations

import math
import sys
import unicodedata
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.optional_dependencies import require
from qkv.table import tile_scores
from qkv.table.columns import (
    Kind,
    kind_of,
    plain,
    plain_type,
    shifted,
    unit_of,
)
from qkv.table.derived import NONE
from qkv.table.where import And, Compare, Condition, OneOf, Or
from qkv.table.wide_keys import key_words, queries_in_ticks, query_words, unit_in_ticks

#: Kernels of the distance in bandwidths, by name.
KERNELS = {
    "gaussian": tile_scores.GAUSSIAN,
    "laplacian": tile_scores.LAPLACIAN,
    "boxcar": tile_scores.BOXCAR,
    "triangular": tile_scores.TRIANGULAR,
    "epanechnikov": tile_scores.EPANECHNIKOV,
}
#: Kernels that are 0 beyond one bandwidth.
COMPACT = {"boxcar", "triangular", "epanechnikov"}
#: Similarities of vectors whose scores become weights by softmax.
PRODUCTS = {"dot", "scaled_dot", "cosine"}
NAMES = ["equal", *KERNELS, "euclidean", "fuzzy", *PRODUCTS]

_SERVES = {
    Kind.NUMBER: ["equal", *KERNELS, "euclidean"],
    Kind.TIME: ["equal", *KERNELS],
    Kind.BOOLEAN: ["equal", *KERNELS],
    Kind.TEXT: ["equal", "fuzzy"],
    Kind.VECTOR: ["equal", *KERNELS, "euclidean", *PRODUCTS],
    Kind.OTHER: [],
}
#: e to the minus this, times all the rows there may be, is below the last digit of a sum.
NEGLIGIBLE = 60.0
#: The least bound of logs that never are −inf; sums of several such are none either.
_FAR = -1e306
#: Keys that a source is asked for by name.
_MOST_LITERALS = 1000
#: Windows apart from each other that a source is asked for; more become one.
_MOST_WINDOWS = 16


def check_serves(name: str, column: str, type: pa.DataType) -> None:
    """Raise TypeError unless this similarity compares such entries."""
    able = _SERVES[kind_of(type)]
    if name not in able:
        raise TypeError(cannot_compare(name, column, type, able))


def check_serves_custom(name: str, column: str, type: pa.DataType, of_distance: bool) -> None:
    """The same for users' own similarities: of a distance, or of any two tokens."""
    able = _SERVES[kind_of(type)]
    if ("gaussian" if of_distance else "euclidean") not in able:
        raise TypeError(cannot_compare(name, column, type, able))


def cannot_compare(name: str, column: str, type: pa.DataType, able: list[str]) -> str:
    instead = f"; {' or '.join(able)} can" if able else ""
    return f"similarity {name!r} cannot compare key column {column!r} ({type}){instead}"


class Comparison(ABC):
    """Queries against one key column."""

    def __init__(self, column: str, description: str) -> None:
        self.column = column
        self.description = description

    @abstractmethod
    def logs(self, keys: pa.Array) -> np.ndarray:
        """Logarithms of weights, (n, m)."""

    def window(self) -> Condition | None:
        """A condition that every row of any weight fulfils, where there is one."""
        return None

    def bounds(self, low: pa.Array, high: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """The most and the least that logs of keys from `low` to `high` can be, (n or 1, boxes)."""
        return np.full((1, len(low)), np.finfo(float).max), np.full((1, len(low)), -np.inf)


class Coded(Comparison):
    """A comparison that the inner loop computes: of one number with another."""

    code: int
    #: 1 / bandwidth
    inverse = 1.0
    #: The kernel, where it is derived from a formula.
    derived = NONE

    @abstractmethod
    def operands(self, keys: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Keys and queries as the inner loop takes them, (words, m) and (n, words)."""

    def check(self, total: np.ndarray) -> None:
        """Raise ValueError if sums of weights show that some are none."""


class Distance(Coded):
    """A kernel of the difference between numbers, or times, taken in the type of the keys."""

    def __init__(
        self,
        column: str,
        type: pa.DataType,
        entries: pa.Array,
        name: str,
        bandwidth: float,
    ) -> None:
        super().__init__(column, f"{name}, bandwidth {bandwidth:g}{unit_of(type)}")
        self._type = plain_type(type)
        self._entries = entries
        self._query_values = queries_in_ticks(entries, self._type)
        for query in self._query_values:
            if isinstance(query, float) and math.isinf(query):
                raise ValueError(f"query for key column {column!r} must be finite; got {query}")
        unit, most = unit_in_ticks(self._type), sys.float_info.max
        # Neither 0 nor infinite, which times infinity and 0 would be NaN.
        self.inverse = min(1.0 / min(bandwidth * unit, most), most)
        self._queries: dict[int, np.ndarray] = {}  # by the number of words
        self._name = name
        self.code = self._code()
        self._reach = bandwidth if self._is_compact() else None

    def _code(self) -> int:
        return KERNELS[self._name]

    def _is_compact(self) -> bool:
        return self._name in COMPACT

    @property
    def has_reach(self) -> bool:
        """Whether it is known from which distance on rows are negligible."""
        return True

    def operands(self, keys: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        key = key_words(plain(keys))
        if len(key) not in self._queries:
            self._queries[len(key)] = query_words(self._query_values, len(key))
        return key, self._queries[len(key)]

    def logs(self, keys: pa.Array) -> np.ndarray:
        with np.errstate(over="ignore"):
            return log_kernel(self._name, self.squares(keys))

    def squares(self, keys: pa.Array) -> np.ndarray:
        """Squared distances in bandwidths, (n, m)."""
        with np.errstate(over="ignore"):
            return (self._differences(keys) * self.inverse) ** 2

    def _differences(self, keys: pa.Array) -> np.ndarray:
        """Keys less queries, (n, m)."""
        key, query = self.operands(keys)
        difference: np.ndarray = key[0] - query[:, 0, None]
        for word in range(1, len(key)):
            difference += key[word] - query[:, word, None]
        return difference

    def spans(self, ascending: np.ndarray, query: np.ndarray, spare: float = 0.0) -> np.ndarray:
        """The range of keys, all in ticks, that can have weight for each query, (n, 2).

        The logarithms of the rows' own weights may differ by `spare`.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            width = 1.0 / self.inverse
            # What keys of several words lost when they became one number.
            slack = 4.0 * np.spacing(np.abs(query))
            reach = np.full(len(query), width * (1 + 1e-12))
            if self._reach is None:
                after = np.clip(np.searchsorted(ascending, query), 1, len(ascending)) - 1
                nearest = slack + np.minimum(
                    np.abs(query - ascending[after]),
                    np.abs(query - ascending[np.minimum(after + 1, len(ascending) - 1)]),
                )
                if self._name == "gaussian":
                    reach = np.hypot(nearest, math.sqrt(2 * (NEGLIGIBLE + spare)) * width)
                else:
                    reach = nearest + (NEGLIGIBLE + spare) * width
            # Rounded outwards: the kernel itself has the last word.
            reach += slack + 4.0 * np.spacing(reach)
            reach = np.where(np.isfinite(reach), reach, np.inf)
            low, high = query - reach, query + reach
        return np.stack(
            [np.searchsorted(ascending, low), np.searchsorted(ascending, high, "right")], axis=1
        )

    def bounds(self, low: pa.Array, high: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            below, above = (self._differences(side) * self.inverse for side in (low, high))
            near = np.maximum(np.maximum(below, -above), 0.0) * (1.0 - 1e-12)  # rounded inwards
            far = np.maximum(np.abs(below), np.abs(above))
            most, least = log_kernel(self._name, near**2), log_kernel(self._name, far**2)
        if self._reach is None:  # however far, the nearest rows count
            return np.maximum(most, _FAR), np.maximum(least, _FAR)
        return most, least

    def window(self) -> Condition | None:
        if self._reach is None or kind_of(self._type) is Kind.BOOLEAN:
            return None
        values = self._query_values
        order = sorted(range(len(values)), key=values.__getitem__)
        together = 2 * Fraction(self._reach) * unit_in_ticks(self._type)
        runs: list[list[int]] = []  # of queries whose windows touch
        for place in order:
            if runs and values[place] - values[runs[-1][-1]] <= together:
                runs[-1].append(place)
            else:
                runs.append([place])
        if len(runs) > _MOST_WINDOWS:
            runs = [[order[0], order[-1]]]
        condition: Condition | None = None
        for run in runs:
            between = self._between(run[0], run[-1])
            if between is None:
                return None
            condition = between if condition is None else Or(condition, between)
        return condition

    def _between(self, first: int, last: int) -> Condition | None:
        assert self._reach is not None
        low = shifted(self._entries[first], -self._reach, self._type)
        high = shifted(self._entries[last], self._reach, self._type)
        if low is None or high is None:
            return None
        return And(Compare(self.column, ">=", low), Compare(self.column, "<=", high))


class Same(Coded):
    """The hard look-up: a weight of 1 where key and query are the same, else 0."""

    code = tile_scores.EQUAL

    def __init__(self, column: str, type: pa.DataType, entries: pa.Array) -> None:
        super().__init__(column, "equal")
        simple_type = plain_type(type)
        values = _one_zero(
            pa.array([_cast_or_none(entry, simple_type) for entry in entries], simple_type)
        )
        self._known = values.drop_null().unique()
        codes = pc.index_in(values, value_set=self._known)
        # A query that no key can equal, such as 3.5 among integers, matches nothing.
        query = codes.fill_null(-2).to_numpy(zero_copy_only=False)
        self._query = query.astype(np.float64)[:, None]

    def operands(self, keys: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        codes = pc.index_in(_one_zero(plain(keys)), value_set=self._known).fill_null(-1)
        key = np.asarray(codes.to_numpy(zero_copy_only=False), np.float64)
        return key[None, :], self._query

    def logs(self, keys: pa.Array) -> np.ndarray:
        key, query = self.operands(keys)
        return np.where(query == key, 0.0, -np.inf)

    def bounds(self, low: pa.Array, high: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        most, least = np.full((2, len(self._query), len(low)), -np.inf)
        for number, code in enumerate(self._query[:, 0].astype(np.int64)):
            if code >= 0:
                at_least = pc.less_equal(low, self._known[code])
                at_most = pc.greater_equal(high, self._known[code])
                inside = pc.and_(at_least, at_most).to_numpy(zero_copy_only=False)
                most[number, inside] = 0.0
        least[:, pc.equal(low, high).to_numpy(zero_copy_only=False)] = 0.0
        return most, np.minimum(most, least)

    def window(self) -> Condition | None:
        if not 0 < len(self._known) <= _MOST_LITERALS:
            return None
        return OneOf(self.column, tuple(self._known.to_pylist()))


class Fuzzy(Comparison):
    """exp(−(1 − r) / bandwidth), r being rapidfuzz's ratio, 0 to 1; below `cutoff` nothing.

    Texts are compared as Unicode says they are the same: composed or not, wide or narrow (NFKC),
    and in whatever case.
    """

    def __init__(self, column: str, entries: pa.Array, bandwidth: float, cutoff: float) -> None:
        super().__init__(column, f"fuzzy, bandwidth {bandwidth:g}, cutoff {cutoff:g}")
        self._queries = [normalised(text) for text in entries.to_pylist()]
        self._bandwidth = bandwidth
        self._cutoff = cutoff
        self._process = require("rapidfuzz.process", "table")
        self._fuzz = require("rapidfuzz.fuzz", "table")

    def logs(self, keys: pa.Array) -> np.ndarray:
        distinct = plain(keys).dictionary_encode()
        texts = [normalised(text) for text in distinct.dictionary.to_pylist()]
        ratio = self._process.cdist(
            self._queries,
            texts,
            scorer=self._fuzz.ratio,
            score_cutoff=100.0 * self._cutoff,  # below which the ratio given is 0
            dtype=np.float64,
        )
        scores = (ratio / 100.0 - 1.0) / self._bandwidth
        if self._cutoff > 0.0:
            scores[ratio == 0.0] = -np.inf
        return scores[:, distinct.indices.to_numpy()]  # type: ignore[no-any-return]


def normalised(text: str) -> str:
    """Text without differences of case and of encoding."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def log_kernel(name: str, squared: np.ndarray) -> np.ndarray:
    """Logarithms of weights from squared distances in bandwidths."""
    # NumPy's, not torch's: in a forked child torch's threads would wait for each other for ever.
    with np.errstate(divide="ignore"):
        match name:
            case "gaussian":
                return -0.5 * squared
            case "euclidean":
                return -squared
            case "laplacian":
                return -np.sqrt(squared)  # type: ignore[no-any-return]
            case "boxcar":
                return np.where(squared <= 1.0, 0.0, -np.inf)
            case "triangular":
                return np.log(np.maximum(1.0 - np.sqrt(squared), 0.0))  # type: ignore[no-any-return]
            case "epanechnikov":
                return np.log(np.maximum(1.0 - squared, 0.0))
            case _:
                return np.where(squared == 0.0, 0.0, -np.inf)


def _one_zero(array: pa.Array) -> pa.Array:
    """The same numbers with 0.0 for −0.0, which hashing takes for another."""
    return pc.add(array, pa.scalar(0.0, array.type)) if pa.types.is_floating(array.type) else array


def _cast_or_none(entry: Any, type: pa.DataType) -> Any:
    try:
        return entry.cast(type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
