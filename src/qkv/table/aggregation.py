"""One pass over a table: rows with missing entries skipped, rows weighted, partial sums merged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from qkv.table import kernels
from qkv.table.block import Block, Question, Rows, block, weigh
from qkv.table.columns import Kind, kind_of, missing_mask, plain
from qkv.table.comparison import Coded
from qkv.table.groups import Groups
from qkv.table.row_weights import RowWeights
from qkv.table.sources import Scan
from qkv.table.sources.base import arrow_filter
from qkv.table.sums import Sums
from qkv.table.where import Condition, columns_of

#: Called with the number of rows read, and their total where that is known.
ProgressCallback: TypeAlias = Callable[[int, int | None], None]

#: Entries of a (queries, rows) block that is allocated at once.
_BLOCK = 2**22
#: Rows kept for a picture of the table, at most.
_SAMPLE = 1024


@dataclass
class Sample:
    """Every n-th row; n doubles as more rows arrive, so that the sample stays bounded."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    step: int = 1
    seen: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        step = self.step
        while -(-(self.seen + len(batch)) // step) > _SAMPLE:
            step *= 2
        self.batches = _thinned(self, step)
        places = np.arange(-self.seen % step, len(batch), step)
        if len(places):
            self.batches.append(batch.take(pa.array(places)))
        self.step, self.seen = step, self.seen + len(batch)

    def __deepcopy__(self, memo: object) -> Sample:
        return Sample(list(self.batches), self.step, self.seen)  # batches never change

    def merge(self, other: Sample) -> None:
        """Append another sample, thinning both to the same step."""
        step = max(self.step, other.step)
        while -(-self.seen // step) + -(-other.seen // step) > _SAMPLE:
            step *= 2
        self.batches = _thinned(self, step) + _thinned(other, step)
        self.step, self.seen = step, self.seen + other.seen


def _thinned(sample: Sample, step: int) -> list[pa.RecordBatch]:
    if step == sample.step or not sample.batches:
        return sample.batches
    table = pa.Table.from_batches(sample.batches).combine_chunks()
    places = pa.array(np.arange(0, len(table), step // sample.step))
    return table.take(places).to_batches()  # type: ignore[no-any-return]


@dataclass
class Reading:
    """The sums of a pass, for every value column."""

    sums: list[Sums]  # one for each value column
    groups: Groups
    weights: RowWeights
    missing: dict[str, int]  # rows that lack a column which every answer needs
    rows: int = 0  # that came
    used: int = 0  # of these, with nothing of that missing
    sample: Sample = field(default_factory=Sample)

    def merge(self, other: Reading) -> Reading:
        """This pass and one over the rows after it, as one pass.

        Associative up to rounding, so rows may be split in any way, over any workers. Neither
        operand is changed: a worker may have to send its result again.
        """
        merged, other = copy.deepcopy((self, other))
        our_scale, their_scale = merged.weights.meet(other.weights)
        groups = merged.groups.numbers(other.groups)
        for left, right in zip(merged.sums, other.sums, strict=True):
            left.shrink(our_scale)
            right.shrink(their_scale)
            left.merge(right, groups, merged.used)
            left.leaders.forget()
        for name, count in other.missing.items():
            merged.missing[name] += count
        merged.rows += other.rows
        merged.used += other.used
        merged.sample.merge(other.sample)
        return merged


def read(
    scan: Scan,
    question: Question,
    values: list[str],
    by: list[str],
    weights: RowWeights,
    progress: ProgressCallback | None = None,
) -> Reading:
    """Weigh every row of the scan for each query."""
    keys = [comparison.column for comparison in question.comparisons]
    needed = [*dict.fromkeys([*keys, *by, *weights.columns])]
    reading = Reading(
        [Sums(name, question.n, question.top) for name in values],
        Groups(by, question.n),
        weights,
        {name: scan.missing.get(name, 0) for name in needed},
    )
    for batch in scan.batches():
        reading.rows += len(batch)
        chosen, positions = complete(batch, reading.missing, scan.complete, scan.window)
        if positions is not None:
            _count_removed(batch, positions, reading.sums, scan.window)
        if len(chosen):
            _read(chosen, question, weights, reading, scan)
            for sums in reading.sums if question.top else []:
                sums.leaders.remember(scan, batch, reading.used, positions)
            reading.used += len(chosen)
            reading.sample.add(chosen.select([*dict.fromkeys([*needed, *values])]))
        if progress is not None:
            progress(reading.rows, scan.rows)
    return reading


def _read(
    batch: pa.RecordBatch,
    question: Question,
    weights: RowWeights,
    reading: Reading,
    scan: Scan,
) -> None:
    """Add the rows of a batch, none of which lacks a key, to the sums."""
    kinds = [kind_of(batch.column(sums.column).type) for sums in reading.sums]
    for piece, start in _pieces(batch, question, kinds):
        logs, shrunk = weights.logs(piece)
        rows = Rows(piece, logs, reading.groups.of(piece), np.empty(0, np.int64))
        full_block: Block | None = None
        for sums in reading.sums:
            if shrunk:
                sums.shrink(shrunk)
            absent = (
                None if sums.column in scan.complete else missing_mask(piece.column(sums.column))
            )
            if absent is None:
                compared = full_block = full_block or block(rows, question)
                sums.used += len(piece)
            else:
                present = np.flatnonzero(~absent)
                sums.missing += _count_inside(piece, absent, scan.window)
                sums.used += len(present)
                compared = block(rows.take(present), question)
            if len(compared.rows.batch) and len(compared.arrangement.groups):
                partial = weigh(compared, sums.column, reading.used + start, question)
                sums.add(partial, compared.arrangement.groups)


def complete(
    batch: pa.RecordBatch,
    missing: dict[str, int],
    complete_columns: frozenset[str] = frozenset(),
    window: Condition | None = None,
) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """The rows that lack none of these columns, and where they stood; None if all are there.

    `missing` is told how many lack which; of columns that are `known` nothing is missing. Sources
    that can skip rows outside of the window never see what these lack; so, of all sources, only
    rows inside are counted.
    """
    present: np.ndarray | None = None
    for name in missing:
        absent = None if name in complete_columns else missing_mask(batch.column(name))
        if absent is not None:
            missing[name] += _count_inside(batch, absent, window)
            present = ~absent if present is None else present & ~absent
    if present is None:
        return batch, None
    positions = np.flatnonzero(present)
    return batch.take(pa.array(positions)), positions


def _count_inside(batch: pa.RecordBatch, chosen: np.ndarray, window: Condition | None) -> int:
    if window is None:
        return int(chosen.sum())
    rows = batch.filter(pa.array(chosen))
    columns = {name: plain(rows.column(name)) for name in columns_of(window)}
    return len(pa.table(columns).filter(arrow_filter(window)))


def _count_removed(
    batch: pa.RecordBatch, positions: np.ndarray, columns: list[Sums], window: Condition | None
) -> None:
    """Count missing entries of rows that are skipped for lack of a key."""
    removed = np.ones(len(batch), bool)
    removed[positions] = False
    for sums in columns:
        absent = missing_mask(batch.column(sums.column))
        if absent is not None:
            sums.missing += _count_inside(batch, absent & removed, window)


def _pieces(
    batch: pa.RecordBatch, question: Question, kinds: list[Kind]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batch in parts small enough for blocks of (queries, rows), where such are needed."""
    coded = all(isinstance(comparison, Coded) for comparison in question.comparisons)
    if coded and all(kind is Kind.NUMBER for kind in kinds):
        yield batch, 0
        return
    rows = max(kernels.TILE, _BLOCK // question.n)
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows), start
