"""One pass over a table: missing entries left out, rows weighed, partial answers merged."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import torch

from qkv.operators.fused import threads
from qkv.table import kernels
from qkv.table.columns import Kind, kind_of, numbers, plain, vectors
from qkv.table.comparison import Coded, Comparison, Distance
from qkv.table.leaders import Leaders
from qkv.table.partial import TablePartial
from qkv.table.sources import Scan

#: Is told how many rows have been read, and how many there are, where that is known.
Progress: TypeAlias = Callable[[int, int | None], None]

#: Entries of a (queries, rows) block that is made at once.
_BLOCK = 2**22
#: Queries from which on a batch is sorted, so that each meets only the rows near it.
_WORTH_SORTING = 16
#: Rows kept for a picture of the table, at most.
_SAMPLE = 1024


@dataclass
class Sample:
    """Every so-many-th row, more sparsely as more come."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    step: int = 1
    seen: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        places = np.arange(-self.seen % self.step, len(batch), self.step)
        self.seen += len(batch)
        if len(places):
            self.batches.append(batch.take(pa.array(places)))
        while sum(map(len, self.batches)) > _SAMPLE:
            whole = pa.Table.from_batches(self.batches).combine_chunks()
            self.batches = whole.take(pa.array(np.arange(0, len(whole), 2))).to_batches()
            self.step *= 2


@dataclass
class Reading:
    """What a pass found."""

    partial: TablePartial
    leaders: Leaders
    rows: int  # that came
    used: int  # of these, with nothing missing
    missing: dict[str, int]  # of the others, how many lack which column
    sample: Sample


def read(
    scan: Scan,
    comparisons: list[Comparison],
    value: str,
    n: int,
    top: int,
    progress: Progress | None,
) -> Reading:
    """Weigh every row of the scan for each of n queries."""
    columns = [own.column for own in comparisons]
    reading = Reading(
        TablePartial.nothing(n, 1),
        Leaders(n, top),
        0,
        0,
        dict.fromkeys([*columns, value], 0),
        Sample(),
    )
    partial: TablePartial | None = None
    for batch in scan.batches():
        reading.rows += len(batch)
        chosen, positions = _complete(batch, reading.missing)
        if len(chosen):
            first = reading.used
            for piece, start in _pieces(chosen, comparisons, value, n):
                found = _weigh(piece, comparisons, value, n, reading.leaders, first + start)
                partial = found if partial is None else partial.merge(found)
            reading.used += len(chosen)
            if top:
                reading.leaders.remember(scan, batch, first, positions)
            reading.sample.add(chosen.select([*dict.fromkeys([*columns, value])]))
        if progress is not None:
            progress(reading.rows, scan.rows)
    if partial is not None:
        reading.partial = partial
    return reading


def _complete(
    batch: pa.RecordBatch, missing: dict[str, int]
) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """The rows with nothing missing, and where they stood; None if all are there."""
    there: np.ndarray | None = None
    for name in missing:
        lacking = _lacking(batch.column(name))
        if lacking is not None:
            missing[name] += int(lacking.sum())
            there = ~lacking if there is None else there & ~lacking
    if there is None:
        return batch, None
    positions = np.flatnonzero(there)
    return batch.take(pa.array(positions)), positions


def _lacking(column: pa.Array) -> np.ndarray | None:
    """Where a column is null or NaN; None if nowhere."""
    floating = pa.types.is_floating(column.type)
    if column.null_count == 0:
        if not floating or len(column) == 0:
            return None
        entries = column.to_numpy(zero_copy_only=False)
        # The least of numbers is NaN where one of them is; much quicker than asking each.
        return np.isnan(entries) if np.isnan(entries.min()) else None
    lacking = column.is_null(nan_is_null=floating)
    return lacking.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _pieces(
    batch: pa.RecordBatch, comparisons: list[Comparison], value: str, n: int
) -> list[tuple[pa.RecordBatch, int]]:
    """The batch in parts small enough for blocks of (queries, rows), where such are needed."""
    kind = kind_of(batch.column(value).type)
    if all(isinstance(own, Coded) for own in comparisons) and kind is Kind.NUMBER:
        return [(batch, 0)]
    rows = max(kernels.TILE, _BLOCK // n)
    return [(batch.slice(start, rows), start) for start in range(0, len(batch), rows)]


def _weigh(
    batch: pa.RecordBatch,
    comparisons: list[Comparison],
    value: str,
    n: int,
    leaders: Leaders,
    first_row: int,
) -> TablePartial:
    """What the rows of this batch say; leaders are updated in place."""
    coded = [own for own in comparisons if isinstance(own, Coded)]
    query = np.stack([own.query for own in coded], axis=1) if coded else np.empty((n, 0))
    key = np.empty((0, len(batch)))
    if coded:  # a single column is taken as it lies in memory
        columns = [own.numbers(batch.column(own.column)) for own in coded]
        key = columns[0][None, :] if len(columns) == 1 else np.stack(columns)
    given = np.zeros((0, 0))
    for own in comparisons:
        if not isinstance(own, Coded):
            logs = own.logs(batch.column(own.column))
            given = logs if len(given) == 0 else given + logs
    entries, codes, distinct = _values(plain(batch.column(value)), value)
    rows = np.arange(first_row, first_row + len(batch))
    spans = np.tile([0, len(batch)], (n, 1))
    if n >= _WORTH_SORTING and len(comparisons) == 1 and isinstance(comparisons[0], Distance):
        order = np.argsort(key[0])
        key, entries = np.take(key, order, axis=1), np.take(entries, order, axis=1)
        rows = rows[order]
        codes = codes[order] if len(codes) else codes
        spans = comparisons[0].spans(key[0])
    shared = (
        np.array([own.code for own in coded], np.int64),
        query,
        key,
        np.array([own.inverse for own in coded]),
        np.ascontiguousarray(given),
    )
    found = TablePartial.nothing(n, len(entries))
    found.values, found.mass = distinct, np.zeros((n, len(distinct)))
    for component in range(len(entries)):
        peak, sums = np.full(n, -np.inf), np.zeros((n, 4))
        mine = component == 0  # weights are the same for every component
        results = (
            peak,
            sums,
            found.mass,
            leaders.logs if mine else np.empty((n, 0)),
            leaders.rows if mine else np.empty((n, 0), np.int64),
        )
        _on_threads(
            n,
            lambda begin, end, component=component, results=results: kernels.weigh(  # type: ignore[misc]
                *shared, entries[component], codes, rows, spans, begin, end, *results
            ),
        )
        found.peak, found.total, found.squared = peak, sums[:, 0], sums[:, 1]
        found.mean[:, component], found.spread[:, component] = sums[:, 2], sums[:, 3]
    return found


def _values(column: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray, list[object]]:
    """Values as numbers (d, m); or, for other kinds, as codes (m,) of distinct values."""
    none = np.empty(0, np.int64)
    kind = kind_of(column.type)
    if kind is Kind.NUMBER:
        return numbers(column)[None, :], none, []
    if kind is Kind.VECTOR:
        return np.ascontiguousarray(vectors(column, name).T), none, []
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return np.zeros((1, len(column))), codes, encoded.dictionary.to_pylist()


def _on_threads(n: int, work: Callable[[int, int], None]) -> None:
    """Share n queries out; each block is drawn by whoever is free."""
    count = min(torch.get_num_threads(), n)
    size = -(-n // (4 * count))
    blocks = itertools.count(0, size)

    def task() -> None:
        for begin in blocks:
            if begin >= n:
                return
            work(begin, min(begin + size, n))

    threads.run(task, count)
