"""A part of the right table, sorted and hashed, so that left rows are compared with few rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.columns import vectors
from qkv.table.comparison import NEGLIGIBLE
from qkv.table.join import spans as search
from qkv.table.join.candidates import Candidates
from qkv.table.join.keys import as_numbers
from qkv.table.join.on import On
from qkv.table.join.texts import FuzzyIndex, Texts

#: Left rows that a thread looks up at a time: neighbours are found near each other.
_GRAIN = 4096
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def prepared(condition: On, entries: pa.Array) -> Any:
    """Keys, none missing, as this comparison takes them."""
    if condition.is_distance:
        return as_numbers(entries)
    if condition.name == "fuzzy":
        return Texts.of(entries)
    if condition.is_vector:
        return vectors(entries, condition.columns)
    if pa.types.is_floating(entries.type):
        return pc.add(entries, 0.0)  # which makes 0 of -0
    return entries


def stacked(keys: list[np.ndarray], rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Columns of numbers for some rows or all, whole ones and others, (columns, rows) each."""
    columns = []
    for type in (np.int64, np.float64):
        same_type = [key if rows is None else key[rows] for key in keys if key.dtype == type]
        if len(same_type) == 1:  # as it lies in memory
            columns.append(np.ascontiguousarray(same_type[0])[None, :])
        else:
            columns.append(np.stack(same_type) if same_type else np.empty((0, 0), type))
    return columns[0], columns[1]


class Index:
    """Right rows, in an order in which those that may match a left row are neighbours.

    They are grouped by the columns that must be equal, and sorted by one more within each group:
    by a key whose kernel has an end, or else by the length of a text.
    """

    def __init__(self, on: list[On], keys: list[Any], rows: int) -> None:
        self._on = on
        self.keys = keys
        self.rows = rows
        equal = [key for condition, key in zip(on, keys, strict=True) if condition.is_equal]
        self._groups = _Groups(equal, rows) if equal else None
        self._sorted_by = sorting_column(on)
        self.order = np.arange(rows)
        if self._sorted_by is not None:
            ascending = self._sortable(keys)
            if self._groups is not None:
                self.order = np.lexsort((ascending, self._groups.codes))
            elif len(ascending) and (ascending[1:] < ascending[:-1]).any():
                self.order = np.argsort(ascending, kind="stable")
            self._ascending = _as_kernels_take(ascending[self.order])
        elif self._groups is not None:
            self.order = np.argsort(self._groups.codes, kind="stable")

        self._distances = [
            key for condition, key in zip(on, keys, strict=True) if condition.is_distance
        ]

    @property
    def finds_nearest(self) -> bool:
        """Whether spans hold only the nearest, where nothing else may match."""
        return self._sorted_by is not None and self._on[self._sorted_by].name == "nearest"

    def numbers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys that have distances, of some rows: whole numbers, and others."""
        return self._in_order if rows is self.order else stacked(self._distances, rows)

    @cached_property
    def _in_order(self) -> tuple[np.ndarray, np.ndarray]:
        return stacked(self._distances, self.order)

    def candidates(self, keys: list[Any], n: int) -> Candidates:
        """The runs of right rows that may match each of n left rows, in the sorted order."""
        spans = np.empty((n, 2), np.int64)
        spans[:, 0], spans[:, 1] = 0, self.rows
        if self._groups is not None:
            equal = [
                key for condition, key in zip(self._on, keys, strict=True) if condition.is_equal
            ]
            spans = self._groups.spans(equal, n)
        if self._sorted_by is not None and self.rows:
            self._narrow(self._on[self._sorted_by], self._sortable(keys), spans)
        return Candidates(np.arange(n), spans, self.order)

    @cached_property
    def texts(self) -> dict[int, FuzzyIndex]:
        """Fuzzy columns by number."""
        return {
            place: FuzzyIndex(key)
            for place, (condition, key) in enumerate(zip(self._on, self.keys, strict=True))
            if condition.name == "fuzzy"
        }

    def _sortable(self, keys: list[Any]) -> np.ndarray:
        assert self._sorted_by is not None
        key = keys[self._sorted_by]
        return np.asarray(key.lengths if isinstance(key, Texts) else key)

    def _narrow(self, condition: On, query: np.ndarray, spans: np.ndarray) -> None:
        """Narrow spans to the rows near each query."""
        if condition.name == "fuzzy":
            bounds = _length_bounds(query, condition.cutoff)
        elif condition.is_compact:
            bounds = _bounds(query, np.full(len(query), condition.width * (1 + 1e-12)))
        else:
            near = spans if condition.name == "nearest" else spans.copy()
            far = np.empty(len(query))
            search.nearest(
                self._ascending, *_as_kernels_take(query), near, far, count=len(query), grain=_GRAIN
            )
            if condition.name == "nearest":
                return
            # Rows left out weigh less than e^-60 of the nearest.
            far[np.isinf(far)] = 0.0
            reach = far + NEGLIGIBLE * condition.width
            if condition.name != "laplacian":
                reach = np.hypot(far, math.sqrt(2 * NEGLIGIBLE) * condition.width)
            bounds = _bounds(query, reach + 4 * np.spacing(reach))  # rounded outwards
        empty = np.empty((0, 2), np.int64), np.empty((0, 2))
        both = (bounds, empty[1]) if bounds.dtype == np.int64 else (empty[0], bounds)
        search.between(self._ascending, search.Bounds(*both), spans, count=len(query), grain=_GRAIN)


def sorting_column(on: list[On]) -> int | None:
    """By which column right rows are sorted, within what must be equal.

    A Gaussian has unbounded support: rows are left out where they are negligible beside the
    nearest, which must then match in all other columns.
    """
    others_equal = sum(not condition.is_equal for condition in on) == 1
    places = [
        place
        for place, condition in enumerate(on)
        if condition.is_compact or (condition.is_distance and others_equal)
    ]
    texts = [place for place, condition in enumerate(on) if condition.name == "fuzzy"]
    return next(iter(places + texts), None)


class _Groups:
    """Right rows by what they have in the columns that must be equal."""

    def __init__(self, columns: list[pa.Array], rows: int) -> None:
        self._values = [column.unique() for column in columns]
        self._distinct: list[np.ndarray] = []  # combinations of the columns so far
        codes = np.zeros(rows, np.int64)
        for column, values in zip(columns, self._values, strict=True):
            combined = codes * len(values) + _codes(column, values)
            distinct, codes = np.unique(combined, return_inverse=True)
            self._distinct.append(distinct)
        self.codes = codes
        size = len(self._distinct[-1])
        self._first = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=size))])

    def spans(self, columns: list[pa.Array], n: int) -> np.ndarray:
        """The run of each query's group in the sorted order, (n, 2); none is empty."""
        codes = np.zeros(n, np.int64)
        for column, values, distinct in zip(columns, self._values, self._distinct, strict=True):
            if not len(values):
                return np.zeros((n, 2), np.int64)
            codes_here = _codes(column, values)
            combined = codes * len(values) + codes_here
            place = np.minimum(np.searchsorted(distinct, combined), len(distinct) - 1)
            is_met = (codes >= 0) & (codes_here >= 0) & (distinct[place] == combined)
            codes = np.where(is_met, place, -1)
        runs = np.stack([self._first[codes], self._first[codes + 1]], axis=1)
        runs[codes < 0] = 0
        return runs


def _codes(column: pa.Array, values: pa.Array) -> np.ndarray:
    codes = pc.index_in(column, value_set=values).fill_null(-1)
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _as_kernels_take(keys: np.ndarray) -> search.Ascending:
    """Whole numbers, or others."""
    keys = np.ascontiguousarray(keys)
    if keys.dtype == np.int64:
        return search.Ascending(keys, np.empty(0))
    return search.Ascending(np.empty(0, np.int64), keys)


def _bounds(query: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Queries ± reach, (n, 2), rounded outwards: the kernel itself has the last word."""
    if query.dtype != np.int64:
        low = np.nextafter(query - reach, -np.inf)
        return np.stack([low, np.nextafter(query + reach, np.inf)], axis=1)
    steps = np.ceil(np.minimum(reach, 2.0**62)).astype(np.int64) + 1
    low = np.where(query < _LEAST + steps, _LEAST, query - steps)
    high = np.where(query > _MOST - steps, _MOST, query + steps)
    far = reach >= 2.0**62
    return np.stack([np.where(far, _LEAST, low), np.where(far, _MOST, high)], axis=1)


def _length_bounds(lengths: np.ndarray, cutoff: float) -> np.ndarray:
    """The lengths of the shortest and the longest text that can match, (n, 2), rounded outwards.

    A ratio is at most 2 · shorter / (shorter + longer).
    """
    if cutoff == 0.0:
        return np.tile([0, _MOST], (len(lengths), 1))
    share = cutoff / (2.0 - cutoff) * (1.0 - 1e-9)
    longest = np.minimum(np.ceil(lengths / share), 2.0**62)
    return np.stack([np.floor(lengths * share), longest], axis=1).astype(np.int64)
