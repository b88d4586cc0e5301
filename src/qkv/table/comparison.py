"""How queries are compared with one key column; several columns combine by product.

A comparison either says a kernel's code and gives numbers for the inner loop, or computes the
logarithms of its weights itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.extras import need
from qkv.table import kernels
from qkv.table.columns import (
    Kind,
    kind_of,
    numbers,
    origin_of,
    plain,
    plain_type,
    shifted,
    unit_of,
    vectors,
)
from qkv.table.where import Both, Compare, Condition, Either, OneOf

#: Kernels of the distance in bandwidths, by name.
KERNELS = {
    "gaussian": kernels.GAUSSIAN,
    "laplacian": kernels.LAPLACIAN,
    "boxcar": kernels.BOXCAR,
    "triangular": kernels.TRIANGULAR,
    "epanechnikov": kernels.EPANECHNIKOV,
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
#: Keys that a source is asked for by name.
_MOST_LITERALS = 1000
#: Windows apart from each other that a source is asked for; more become one.
_MOST_WINDOWS = 16


def check_serves(name: str, column: str, type: pa.DataType) -> None:
    """Raise TypeError unless this similarity compares entries of this type."""
    able = _SERVES[kind_of(type)]
    if name not in able:
        instead = f"; {' or '.join(able)} can" if able else ""
        raise TypeError(
            f"similarity {name!r} cannot compare key column {column!r} ({type}){instead}"
        )


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


class Coded(Comparison):
    """A comparison that the inner loop knows: of one number with another."""

    code: int
    #: Queries as the inner loop takes them, (n,), and 1 / bandwidth.
    query: np.ndarray
    inverse = 1.0

    @abstractmethod
    def numbers(self, keys: pa.Array) -> np.ndarray:
        """Keys as the inner loop takes them, (m,)."""


class Distance(Coded):
    """A kernel of the difference between numbers, or times."""

    def __init__(
        self, column: str, type: pa.DataType, entries: pa.Array, name: str, bandwidth: float
    ) -> None:
        super().__init__(column, f"{name}, bandwidth {bandwidth:g}{unit_of(type)}")
        self.code = KERNELS[name]
        self.inverse = 1.0 / bandwidth
        self._origin = origin_of(entries)
        self.query = numbers(entries, self._origin)
        self._entries = entries
        self._type = type
        self._name = name
        self._reach = bandwidth if name in COMPACT else None

    def numbers(self, keys: pa.Array) -> np.ndarray:
        return numbers(plain(keys), self._origin)

    def logs(self, keys: pa.Array) -> np.ndarray:
        difference = self.query[:, None] - self.numbers(keys)[None, :]
        return log_kernel(self._name, (difference * self.inverse) ** 2)

    def spans(self, ascending: np.ndarray) -> np.ndarray:
        """Which of these keys can weigh anything for each query, (n, 2)."""
        width = 1.0 / self.inverse
        if self._reach is None:
            after = np.clip(np.searchsorted(ascending, self.query), 1, len(ascending)) - 1
            nearest = np.minimum(
                np.abs(self.query - ascending[after]),
                np.abs(self.query - ascending[np.minimum(after + 1, len(ascending) - 1)]),
            )
            if self._name == "gaussian":
                reach = np.sqrt(nearest**2 + 2 * NEGLIGIBLE * width**2)
            else:
                reach = nearest + NEGLIGIBLE * width
        else:
            reach = np.full(len(self.query), self._reach * (1 + 1e-12))
        # Rounded outwards: the kernel itself has the last word.
        low, high = (
            np.nextafter(self.query - reach, -np.inf),
            np.nextafter(self.query + reach, np.inf),
        )
        return np.stack(
            [np.searchsorted(ascending, low), np.searchsorted(ascending, high, "right")], axis=1
        )

    def window(self) -> Condition | None:
        if self._reach is None or kind_of(self._type) is Kind.BOOLEAN:
            return None
        order = np.argsort(self.query)
        runs: list[list[int]] = []  # of queries whose windows touch
        for place in map(int, order):
            if runs and self.query[place] - self.query[runs[-1][-1]] <= 2 * self._reach:
                runs[-1].append(place)
            else:
                runs.append([place])
        if len(runs) > _MOST_WINDOWS:
            runs = [[int(order[0]), int(order[-1])]]
        condition: Condition | None = None
        for run in runs:
            between = self._between(run[0], run[-1])
            if between is None:
                return None
            condition = between if condition is None else Either(condition, between)
        return condition

    def _between(self, first: int, last: int) -> Condition | None:
        assert self._reach is not None
        low = shifted(self._entries[first], -self._reach)
        high = shifted(self._entries[last], self._reach)
        if low is None or high is None:
            return None
        if pa.types.is_integer(plain_type(self._type)):
            low, high = math.floor(low), math.ceil(high)
            if max(-low, high) >= 2**63:
                return None
        return Both(Compare(self.column, ">=", low), Compare(self.column, "<=", high))


class Same(Coded):
    """The hard look-up: a weight of 1 where key and query are the same, else 0."""

    code = kernels.EQUAL

    def __init__(self, column: str, type: pa.DataType, entries: pa.Array) -> None:
        super().__init__(column, "equal")
        wanted = plain_type(type)
        known = [_cast_or_none(entry, wanted) for entry in entries]
        self._known = pa.array([entry for entry in known if entry is not None], wanted).unique()
        codes = pc.index_in(pa.array(known, wanted), value_set=self._known)
        # A query that no key can equal, such as 3.5 among integers, matches nothing.
        self.query = codes.fill_null(-2).to_numpy(zero_copy_only=False).astype(np.float64)

    def numbers(self, keys: pa.Array) -> np.ndarray:
        codes = pc.index_in(plain(keys), value_set=self._known).fill_null(-1)
        return np.asarray(codes.to_numpy(zero_copy_only=False), np.float64)

    def logs(self, keys: pa.Array) -> np.ndarray:
        return np.where(self.query[:, None] == self.numbers(keys)[None, :], 0.0, -np.inf)

    def window(self) -> Condition | None:
        if not 0 < len(self._known) <= _MOST_LITERALS:
            return None
        return OneOf(self.column, tuple(self._known.to_pylist()))


class Fuzzy(Comparison):
    """exp(−(1 − r) / bandwidth), r being rapidfuzz's ratio, 0 to 1; case is ignored."""

    def __init__(self, column: str, entries: pa.Array, bandwidth: float) -> None:
        super().__init__(column, f"fuzzy, bandwidth {bandwidth:g}")
        self._queries = [text.casefold() for text in entries.to_pylist()]
        self._bandwidth = bandwidth
        self._process = need("rapidfuzz.process", "table")
        self._fuzz = need("rapidfuzz.fuzz", "table")

    def logs(self, keys: pa.Array) -> np.ndarray:
        distinct = plain(keys).dictionary_encode()
        texts = [text.casefold() for text in distinct.dictionary.to_pylist()]
        ratio = self._process.cdist(self._queries, texts, scorer=self._fuzz.ratio, dtype=np.float64)
        scores = (ratio / 100.0 - 1.0) / self._bandwidth
        return scores[:, distinct.indices.to_numpy()]  # type: ignore[no-any-return]


class Vectors(Comparison):
    """Vectors, by distance or by product."""

    def __init__(
        self, column: str, entries: pa.Array, name: str, bandwidth: float, temperature: float
    ) -> None:
        says = f", bandwidth {bandwidth:g}" if name in KERNELS else ""
        super().__init__(column, name + says)
        self.query = vectors(entries, column)  # (n, d)
        self._name = name
        self._score: Callable[[np.ndarray], np.ndarray] = {
            "dot": lambda key: self.query @ key.T,
            "scaled_dot": lambda key: self.query @ key.T / math.sqrt(key.shape[1]),
            "cosine": lambda key: _unit(self.query) @ _unit(key).T / temperature,
        }.get(name) or (lambda key: log_kernel(name, self._distances(key, bandwidth)))

    def logs(self, keys: pa.Array) -> np.ndarray:
        key = vectors(plain(keys), self.column)
        if key.shape[1] != self.query.shape[1] and len(key):
            raise ValueError(
                f"query for key column {self.column!r} must be a vector of {key.shape[1]} "
                f"numbers; got {self.query.shape[1]}"
            )
        return self._score(key)

    def _distances(self, key: np.ndarray, bandwidth: float) -> np.ndarray:
        out = np.empty((len(self.query), len(key)))
        kernels.squared_distances(self.query / bandwidth, key / bandwidth, out)
        return out


def log_kernel(name: str, squared: np.ndarray) -> np.ndarray:
    """Logarithms of weights from squared distances in bandwidths."""
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


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0.0, 1.0, lengths)


def _cast_or_none(entry: Any, type: pa.DataType) -> Any:
    try:
        return entry.cast(type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
