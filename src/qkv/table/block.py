"""Rows of a batch as compiled code takes them, and their sums over a value column."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from qkv.table import kernels
from qkv.table.arrangement import Arrangement, Grouped, Sorted, bounds_of
from qkv.table.columns import Kind, kind_of, numbers, plain, vectors
from qkv.table.comparison import Coded, Comparison, Distance
from qkv.table.groups import Membership
from qkv.table.partial import TablePartial
from qkv.table.top_rows import best

#: Queries from which on rows are sorted, so that each query meets only the rows near it.
_WORTH_SORTING = 16
#: Rows of a group from which on they are sorted for that.
_ROWS_WORTH_SORTING = 1024
#: Rows that one thread processes for a single query, while other cores decode the next batch; and
#: into how many parts more rows are cut at most.
_LONG, _CUTS = 2**18, 8
#: Tasks that one thread does at a time, at most.
_GRAIN = 64


class Question(NamedTuple):
    """What is computed for each row."""

    comparisons: list[Comparison]
    n: int  # queries
    top: int  # rows to be shown

    @property
    def coded(self) -> list[Coded]:
        """Comparisons that the inner loop makes."""
        return [comparison for comparison in self.comparisons if isinstance(comparison, Coded)]


class Rows(NamedTuple):
    """Some rows, and what is known of them before they are compared."""

    batch: pa.RecordBatch
    logs: np.ndarray  # (m,): logarithms of their own weights, or (0,)
    groups: Membership
    places: np.ndarray  # (m,): where they stood in the batch that was read, or (0,)

    def take(self, places: np.ndarray) -> Rows:
        return Rows(
            self.batch.take(pa.array(places)),
            _picked(self.logs, places),
            self.groups._replace(codes=_picked(self.groups.codes, places)),
            _picked(self.places, places) if len(self.places) else places,
        )


class Block(NamedTuple):
    """Keys, in the order in which they are met, and the tasks that meet them.

    For g groups, n queries and c cuts of the rows there are c · g · n tasks, in this order.
    """

    rows: Rows
    key: np.ndarray  # (words, m)
    logs: np.ndarray  # (m,) or (0,)
    arrangement: Arrangement
    queries: kernels.Queries
    tasks: kernels.Tasks

    @property
    def offsets(self) -> np.ndarray:
        """Where rows stood in the batch that was read, or (0,) if they stand there still."""
        order, places = self.arrangement.order, self.rows.places
        return places[order] if len(order) and len(places) else order if len(order) else places


class BlockSums(NamedTuple):
    """The sums of a block over a value column; a row for each group and query, in this order."""

    partial: TablePartial
    lead_logs: np.ndarray  # (g · n, top)
    lead_rows: np.ndarray


def block(rows: Rows, question: Question) -> Block:
    """Rows prepared once for all value columns."""
    coded, n = question.coded, question.n
    key, query, words = np.empty((0, len(rows.batch))), np.empty((n, 0)), []
    for one in coded:
        key_words, query_words = one.operands(rows.batch.column(one.column))
        words.append(len(key_words))
        # A single column is taken as it lies in memory.
        key = np.concatenate([key, key_words]) if len(key) else key_words
        query = np.concatenate([query, query_words], axis=1)
    given = np.zeros((0, 0))
    for comparison in question.comparisons:
        if not isinstance(comparison, Coded):
            logs = comparison.logs(rows.batch.column(comparison.column))
            given = logs if len(given) == 0 else given + logs
    arrangement = _arrangement(rows, key, question)
    key = arrangement.arranged(key)
    if len(given):
        given = arrangement.arranged(given)
    queries = kernels.Queries(
        np.ascontiguousarray(query),
        np.array(words, np.int64),
        np.array([comparison.code for comparison in coded], np.int64),
        np.array([comparison.inverse for comparison in coded]),
        np.array([comparison.derived.address for comparison in coded], np.int64),
        np.concatenate([np.empty(0), *(comparison.derived.parameter for comparison in coded)]),
        np.cumsum([0, *(len(comparison.derived.parameter) for comparison in coded)]),
        np.ascontiguousarray(given),
    )
    logs = arrangement.arranged(rows.logs[None])[0] if len(rows.logs) else rows.logs
    tasks = _tasks(_line(key), query, logs, arrangement.bounds, question)
    return Block(rows, key, logs, arrangement, queries, tasks)


def _arrangement(rows: Rows, key: np.ndarray, question: Question) -> Arrangement:
    """Groups lie together, and where that pays, keys ascend within them.

    Rows with a weight of 0 are not sorted: the nearest of the others bounds the window.
    """
    codes, numbers = rows.groups
    if not _sorts(question):
        if len(codes):
            return Grouped(rows.groups)
        return Arrangement(numbers, np.array([0, len(rows.batch)]))
    order = np.lexsort((_line(key), codes)) if len(codes) else np.argsort(_line(key))
    if len(rows.logs):
        order = order[rows.logs[order] > -np.inf]
    if not len(codes):
        return Sorted(order, numbers, np.array([0, len(order)]))
    return Sorted(order, *bounds_of(codes[order], numbers))


def _tasks(
    line: np.ndarray,
    query: np.ndarray,
    logs: np.ndarray,
    bounds: np.ndarray,
    question: Question,
) -> kernels.Tasks:
    """Each query for each group, cut where there are few and each is long."""
    n, g, m = question.n, len(bounds) - 1, int(bounds[-1])
    spans = np.repeat(np.stack([bounds[:-1], bounds[1:]], axis=1), n, axis=0)  # (g · n, 2)
    if _sorts(question):
        distance = question.comparisons[0]
        assert isinstance(distance, Distance)
        for number in range(g):
            low, high = bounds[number], bounds[number + 1]
            if high - low >= _ROWS_WORTH_SORTING or g == 1:
                span = distance.spans(line[low:high], query.sum(axis=1), _range(logs[low:high]))
                spans[number * n : (number + 1) * n] = low + span
    cuts = min(_CUTS, -(-m // _LONG)) if g * n < _CUTS else 1
    parts = [spans]
    if cuts > 1:
        edges = np.linspace(0, m, cuts + 1).astype(np.int64)
        parts = [np.clip(spans, low, high) for low, high in pairwise(edges)]
    query = np.tile(np.arange(n), g * len(parts))
    return kernels.Tasks(query, np.concatenate(parts))


def weigh(block: Block, column: str, first: int, question: Question) -> BlockSums:
    """The sums of the rows over a value column, of which none lacks its entry.

    `first` is the number of the first row of the batch that was read.
    """
    entries, codes, distinct = _values(plain(block.rows.batch.column(column)), column)
    entries = block.arrangement.arranged(entries)
    if len(codes):
        codes = block.arrangement.arranged(codes.view(np.float64)[None])[0].view(np.int64)
    offsets = block.offsets if question.top else np.empty(0, np.int64)
    t = len(block.tasks.query)
    partial = TablePartial.nothing(t, len(entries))
    partial.values, partial.mass = distinct, np.zeros((t, len(distinct)))
    lead_logs, lead_rows = np.full((t, question.top), -np.inf), np.full((t, question.top), -1)
    every = np.zeros((len(entries), t, kernels.SUMS))
    leads = lead_logs, lead_rows
    for entry, sums in zip(entries, every, strict=True):
        partial.peak = np.full(t, -np.inf)
        kernels.weigh(
            kernels.Rows(block.key, block.logs, entry, codes, first, offsets),
            block.queries,
            block.tasks,
            kernels.Accumulators(partial.peak, sums, partial.mass, *leads),
            count=t,
            grain=_grain(t, question.n, len(entry)),
            scratch=kernels.SCRATCH,
        )
        # Weights are the same for every component: the first has found who leads.
        leads = np.empty((t, 0)), np.empty((t, 0), np.int64)
        partial.total, partial.squared = sums[:, kernels.TOTAL], sums[:, kernels.SQUARED]
    for one in question.coded:
        one.check(partial.total)
    partial.mean, partial.rest = every[:, :, kernels.MEAN].T, every[:, :, kernels.REST].T
    partial.spread = every[:, :, kernels.SPREAD].T
    return _folded(
        BlockSums(partial, lead_logs, lead_rows), len(block.arrangement.groups) * question.n
    )


def _grain(tasks: int, n: int, rows: int) -> int:
    """How many tasks a thread does at a time."""
    if n == 1 and rows <= _LONG:
        return tasks
    return min(_GRAIN, -(-tasks // (4 * min(torch.get_num_threads(), tasks))))


def _folded(sums: BlockSums, rows: int) -> BlockSums:
    """The cuts of each task put together again, two by two."""
    while len(sums.partial.peak) > rows:
        cuts = len(sums.partial.peak) // rows
        half = cuts // 2 * rows
        left, right = np.arange(half), np.arange(half, 2 * half)
        rest = np.arange(2 * half, cuts * rows)
        merged = sums.partial.take(left).merge(sums.partial.take(right))
        logs, numbers = best(
            np.hstack([sums.lead_logs[left], sums.lead_logs[right]]),
            np.hstack([sums.lead_rows[left], sums.lead_rows[right]]),
        )
        if len(rest):
            merged = merged.joined(sums.partial.take(rest))
            logs = np.vstack([logs, sums.lead_logs[rest]])
            numbers = np.vstack([numbers, sums.lead_rows[rest]])
        sums = BlockSums(merged, logs, numbers)
    return sums


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


def _sorts(question: Question) -> bool:
    if question.n < _WORTH_SORTING or len(question.comparisons) > 1:
        return False
    only = question.comparisons[0]
    return isinstance(only, Distance) and only.has_reach


def _line(key: np.ndarray) -> np.ndarray:
    """Keys of one column as numbers, their words added up."""
    return np.asarray(key[0] if len(key) == 1 else key.sum(axis=0))


def _range(logs: np.ndarray) -> float:
    return float(logs.max() - logs.min()) if len(logs) else 0.0


def _picked(entries: np.ndarray, places: np.ndarray) -> np.ndarray:
    return entries[places] if len(entries) else entries
