"""A part of the right table that fits into memory, and how a block of left rows meets it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, lacking, numbers, plain
from qkv.table.join import along, kernels
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
        names = [getattr(own, side) for own in on]
        entries = [
            converted(_one_array(table.column(name)), own.type, name)
            for own, name in zip(on, names, strict=True)
        ]
        there: np.ndarray | None = None
        self.missing = dict.fromkeys(names, 0)
        for name, column in zip(names, entries, strict=True):
            missing = lacking(column)
            if missing is not None:
                self.missing[name] = int(missing.sum())
                there = ~missing if there is None else there & ~missing
        #: Where the rows stand that lack nothing; None if all do.
        self.places = None if there is None else np.flatnonzero(there)
        if self.places is not None:
            entries = [column.take(pa.array(self.places)) for column in entries]
        self.count = len(entries[0])
        self.keys = [prepared(own, column) for own, column in zip(on, entries, strict=True)]
        self._distances = [key for own, key in zip(on, self.keys, strict=True) if own.is_distance]

    def numbers(self, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The keys that have distances, of some rows or all: whole numbers, and others."""
        return stacked(self._distances, rows)


class Chunk:
    """Some rows of the right table, ready to be met by any left rows."""

    def __init__(
        self, on: list[On], table: pa.Table, first: int, take: list[str], pooled: list[str]
    ) -> None:
        self._on = on
        self._keys = Keys(on, table, "right")
        self._index = Index(on, self._keys.keys, self._keys.count)
        self._kinds = _kinds(on)
        self._first = first  # the number of its first row
        taken = table.select(take)
        for place, field in enumerate(taken.schema):
            taken = taken.set_column(place, field.name, _decoded(taken.column(place)))
        if self._keys.places is not None:
            taken = taken.take(pa.array(self._keys.places))
        self._taken = taken.combine_chunks()
        self._values = np.empty((0, self._keys.count))
        if pooled:
            columns = [numbers(plain(_one_array(taken.column(name)))) for name in pooled]
            self._values = np.stack(columns)
        self.missing = self._keys.missing

    def match(self, left: Keys, top: int) -> Matches:
        """What these rows say to each of the left rows that lack nothing."""
        if left.count and self._keys.count:
            found = Matches.unwritten(left.count, top, len(self._values))
            for candidates in self._candidates(left):
                self._weigh(left, candidates, found)
        else:
            found = Matches.none(left.count, top, len(self._values))
        if self._index.finds_nearest:
            found.least = np.where(found.matched, found.far[:, 0], np.inf)
        chosen = found.rows.ravel()
        absent = chosen < 0
        found.taken = self._taken.take(pa.array(chosen, mask=absent if absent.any() else None))
        if self._keys.places is not None or self._first > 0:
            there = found.rows >= 0
            if self._keys.places is not None:
                found.rows[there] = self._keys.places[found.rows[there]]
            found.rows[there] += self._first
        return found

    def _candidates(self, left: Keys) -> Iterator[Candidates]:
        """Cheap comparisons first: each leaves fewer candidates to the next."""
        found: Iterable[Candidates] = [self._index.candidates(left.keys, left.count)]
        for place, own in enumerate(self._on):
            if own.name == "fuzzy":
                found = self._fuzzy(own, place, left, found)
        for place, own in enumerate(self._on):
            if own.is_vector:
                found = self._along(own, place, left, found)
        yield from found

    def _fuzzy(
        self, own: On, place: int, left: Keys, before: Iterable[Candidates]
    ) -> Iterator[Candidates]:
        for each in before:
            yield from self._index.texts[place].compare(
                left.keys[place], each, own.cutoff, own.bandwidth
            )

    def _along(
        self, own: On, place: int, left: Keys, before: Iterable[Candidates]
    ) -> Iterator[Candidates]:
        for each in before:
            yield from along.compare(own, left.keys[place], self._index.keys[place], each)

    def _weigh(self, left: Keys, candidates: Candidates, found: Matches) -> None:
        n = len(candidates.left)
        room = (kernels.TILE,)
        every = n == left.count
        part = found if every else Matches.unwritten(n, found.rows.shape[1], found.means.shape[1])
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
            part.found(),
            count=n,
            grain=_GRAIN,
            scratch=kernels.Scratch(room, room, room, room, (found.rows.shape[1],)),
        )
        if part is not found:
            found.put(candidates.left, part)


class _Kinds(NamedTuple):
    """How distances weigh, in the order of :func:`stacked`."""

    codes: np.ndarray
    inverse: np.ndarray  # 1 / bandwidth
    nearest: int  # which one must be the least; -1 if none is, or spans see to it


def _kinds(on: list[On]) -> _Kinds:
    chosen = sorted((own for own in on if own.is_distance), key=lambda own: not own.is_whole)
    codes = [own.code for own in chosen]
    sorted_by = sorting_column(on)
    known = sorted_by is not None and on[sorted_by].name == "nearest"
    nearest = codes.index(kernels.NEAREST) if kernels.NEAREST in codes and not known else -1
    # Neither 0 nor infinite, which times infinity and 0 would be NaN.
    most = sys.float_info.max
    inverse = np.array([min(1.0 / min(own.width, most), most) for own in chosen])
    return _Kinds(np.array(codes, np.int64), inverse, nearest)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; not copied, if it is."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def decoded_type(type: pa.DataType) -> pa.DataType:
    """Categories as what they stand for: parts of a table have categories of their own."""
    return type.value_type if pa.types.is_dictionary(type) else type


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(decoded_type(column.type))


def is_number(type: pa.DataType) -> bool:
    return kind_of(type) is Kind.NUMBER
