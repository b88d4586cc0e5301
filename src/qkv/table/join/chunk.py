"""A part of the right table that fits into memory, matched with a block of left rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, missing_mask, numbers, plain
from qkv.table.join import kernels, vectors
from qkv.table.join.candidates import Candidates
from qkv.table.join.index import Index, prepared, sorting_column, stacked
from qkv.table.join.keys import converted
from qkv.table.join.matches import Matches
from qkv.table.join.on import On

#: Left rows that a thread weighs at a time.
_GRAIN = 1024


class Keys:
    """The keys of some rows; rows that lack one are left out and counted."""

    def __init__(self, on: list[On], table: pa.Table, side: str) -> None:
        names = [getattr(condition, side) for condition in on]
        entries = [
            converted(_one_array(table.column(name)), condition.type, name)
            for condition, name in zip(on, names, strict=True)
        ]
        present: np.ndarray | None = None
        self.missing = dict.fromkeys(names, 0)
        for name, column in zip(names, entries, strict=True):
            missing = missing_mask(column)
            if missing is not None:
                self.missing[name] = int(missing.sum())
                present = ~missing if present is None else present & ~missing
        #: Where the rows stand that lack nothing; None if all do.
        self.places = None if present is None else np.flatnonzero(present)
        if self.places is not None:
            entries = [column.take(pa.array(self.places)) for column in entries]
        self.count = len(entries[0])
        self.keys = [
            prepared(condition, column) for condition, column in zip(on, entries, strict=True)
        ]
        self._distances = [
            key for condition, key in zip(on, self.keys, strict=True) if condition.is_distance
        ]

    def numbers(self, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The keys that have distances, of some rows or all: whole numbers, and others."""
        return stacked(self._distances, rows)


class Chunk:
    """Some rows of the right table, indexed for matching with any left rows."""

    def __init__(
        self, on: list[On], table: pa.Table, first: int, take: list[str], pooled: list[str]
    ) -> None:
        self._on = on
        self._keys = Keys(on, table, "right")
        self._index = Index(on, self._keys.keys, self._keys.count)
        self._kinds = _kinds(on)
        self._first = first  # the number of its first row
        values = table.select(take)
        for place, field in enumerate(values.schema):
            values = values.set_column(place, field.name, _decoded(values.column(place)))
        if self._keys.places is not None:
            values = values.take(pa.array(self._keys.places))
        self._taken = values.combine_chunks()
        self._values = np.empty((0, self._keys.count))
        if pooled:
            columns = [numbers(plain(_one_array(values.column(name)))) for name in pooled]
            self._values = np.stack(columns)
        self.missing = self._keys.missing

    def match(self, left: Keys, top: int) -> Matches:
        """The matches of these rows for each of the left rows that lack no key."""
        if left.count and self._keys.count:
            matches = Matches.unwritten(left.count, top, len(self._values))
            for candidates in self._candidates(left):
                self._weigh(left, candidates, matches)
        else:
            matches = Matches.none(left.count, top, len(self._values))
        if self._index.finds_nearest:
            matches.least = np.where(matches.matched, matches.far[:, 0], np.inf)
        chosen = matches.rows.ravel()
        absent = chosen < 0
        matches.values = self._taken.take(pa.array(chosen, mask=absent if absent.any() else None))
        if self._keys.places is not None or self._first > 0:
            has_match = matches.rows >= 0
            if self._keys.places is not None:
                matches.rows[has_match] = self._keys.places[matches.rows[has_match]]
            matches.rows[has_match] += self._first
        return matches

    def _candidates(self, left: Keys) -> Iterator[Candidates]:
        """Cheap comparisons first: each leaves fewer candidates to the next."""
        candidates: Iterable[Candidates] = [self._index.candidates(left.keys, left.count)]
        for place, condition in enumerate(self._on):
            if condition.name == "fuzzy":
                candidates = self._fuzzy(condition, place, left, candidates)
        for place, condition in enumerate(self._on):
            if condition.is_vector:
                candidates = self._along(condition, place, left, candidates)
        yield from candidates

    def _fuzzy(
        self, condition: On, place: int, left: Keys, before: Iterable[Candidates]
    ) -> Iterator[Candidates]:
        for each in before:
            yield from self._index.texts[place].compare(
                left.keys[place], each, condition.cutoff, condition.bandwidth
            )

    def _along(
        self, condition: On, place: int, left: Keys, before: Iterable[Candidates]
    ) -> Iterator[Candidates]:
        for each in before:
            yield from vectors.compare(condition, left.keys[place], self._index.keys[place], each)

    def _weigh(self, left: Keys, candidates: Candidates, matches: Matches) -> None:
        n = len(candidates.left)
        room = (kernels.TILE,)
        every = n == left.count
        part = (
            matches
            if every
            else Matches.unwritten(n, matches.rows.shape[1], matches.means.shape[1])
        )
        kernels.match(
            kernels.Candidates(
                candidates.right,
                *self._index.numbers(candidates.right),
                candidates.logs,
                self._values,
            ),
            kernels.Queries(
                *left.numbers(None if every else candidates.left),
                self._kinds.codes,
                self._kinds.inverse,
                self._kinds.nearest,
                np.ascontiguousarray(candidates.spans),
            ),
            part.as_sums(),
            count=n,
            grain=_GRAIN,
            scratch=kernels.Scratch(room, room, room, room, (matches.rows.shape[1],)),
        )
        if part is not matches:
            matches.put(candidates.left, part)


class _Kinds(NamedTuple):
    """How distances weigh, in the order of :func:`stacked`."""

    codes: np.ndarray
    inverse: np.ndarray  # 1 / bandwidth
    nearest: int  # which one must be the least; -1 if none is, or spans see to it


def _kinds(on: list[On]) -> _Kinds:
    chosen = sorted(
        (condition for condition in on if condition.is_distance),
        key=lambda condition: not condition.is_whole,
    )
    codes = [condition.code for condition in chosen]
    sorted_by = sorting_column(on)
    is_nearest = sorted_by is not None and on[sorted_by].name == "nearest"
    nearest = codes.index(kernels.NEAREST) if kernels.NEAREST in codes and not is_nearest else -1
    # Neither 0 nor infinite, which times infinity and 0 would be NaN.
    most = sys.float_info.max
    inverse = np.array([min(1.0 / min(condition.width, most), most) for condition in chosen])
    return _Kinds(np.array(codes, np.int64), inverse, nearest)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; not copied, if it is."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def decoded_type(type: pa.DataType) -> pa.DataType:
    """Decode categories, since parts of a table have different dictionaries."""
    return type.value_type if pa.types.is_dictionary(type) else type


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(decoded_type(column.type))


def is_number(type: pa.DataType) -> bool:
    return kind_of(type) is Kind.NUMBER
