"""The soft join: every row of one table is answered by another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from qkv.memory import budget
from qkv.table.aggregation import ProgressCallback
from qkv.table.join.chunk import Chunk, Keys, decoded_type, is_number
from qkv.table.join.index import sorting_column
from qkv.table.join.kernels import MASS, MEAN
from qkv.table.join.matches import Matches
from qkv.table.join.on import OnLike, read_on
from qkv.table.join.report import JoinReport
from qkv.table.similarity_spec import BandwidthLike, CutoffLike
from qkv.table.sources import Request, Source, open_source
from qkv.table.where import WhereLike, check_column, condition_of

#: A part of either table takes at most this share of the memory budget.
_SHARE = 16
#: Columns that describe each match, after the columns of both tables.
_SAID = {
    "row": pa.int64(),
    "similarity": pa.float64(),
    "weight": pa.float64(),
    "effective_rows": pa.float64(),
}


class SoftJoin:
    """A join that is ready to run: :meth:`batches` streams it, :meth:`to_arrow` gives one table.

    The arguments are those of :func:`soft_join`. Neither table has to fit into memory.

    >>> import pyarrow as pa
    >>> from qkv.table import SoftJoin
    >>> asked = pa.table({"name": ["ACME Corp", "Globex"]})
    >>> firms = pa.table({"name": ["Acme Corp.", "Initech"], "price": [7.5, 3.0]})
    >>> join = SoftJoin(asked, firms, on={"name": "fuzzy"}, take=["price"])
    >>> join.to_arrow()["price"].to_pylist()
    [7.5, None]
    >>> print(join.report)
    1 of 2 rows matched
    """

    def __init__(
        self,
        left: Any,
        right: Any,
        *,
        on: OnLike,
        take: str | Sequence[str] | None = None,
        top: int | None = 1,
        cutoff: CutoffLike = None,
        bandwidth: BandwidthLike = None,
        where: WhereLike = None,
        where_left: WhereLike = None,
    ) -> None:
        self._left = left if isinstance(left, Source) else open_source(left)
        self._right = right if isinstance(right, Source) else open_source(right)
        self._where = condition_of(where, self._right.schema)
        self._where_left = condition_of(where_left, self._left.schema, "where_left")
        self._on = read_on(on, self._left.schema, self._right.schema, bandwidth, cutoff)
        self._take = _taken_columns(
            take, self._right.schema, {condition.right for condition in self._on}
        )
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise ValueError(f"top must be a number of rows, or None for all; got {top!r}")
        self._top = top
        self._pooled = [
            name
            for name in self._take
            if top != 1 and is_number(self._right.schema.field(name).type)
        ]
        self.schema = self._schema()
        self.report = JoinReport()

    def __str__(self) -> str:
        lines = [f"soft join   {self._left.description} with {self._right.description}"]
        for side, where in (("left", self._where_left), ("right", self._where)):
            if where is not None:
                lines.append(f"├─ takes of the {side} table rows where {where}")
        lines += [
            f"├─ compares {condition.columns}: {condition.description}" for condition in self._on
        ]
        equal = [condition.right for condition in self._on if condition.is_equal]
        if equal:
            lines.append(f"├─ looks up {', '.join(equal)} by hash")
        place = sorting_column(self._on)
        if place is not None:
            condition = self._on[place]
            what = (
                f"the length of {condition.right}" if condition.name == "fuzzy" else condition.right
            )
            lines.append(f"├─ sorts by {what}: each row meets a run of others")
        if not equal and place is None:
            lines.append("├─ compares all pairs")
        rows = {None: "all rows that match", 1: "the heaviest row"}
        of = rows.get(self._top, f"the {self._top} heaviest rows")
        lines.append(f"└─ takes {', '.join(self._take)} of {of}")
        return "\n".join(lines)

    def to_arrow(self, progress: ProgressCallback | None = None) -> pa.Table:
        """The whole join as one table, in the order of the left one."""
        return pa.Table.from_batches(list(self.batches(progress)), self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """The join as a stream that anything that speaks Arrow can read."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self, progress: ProgressCallback | None = None) -> Iterator[pa.RecordBatch]:
        """The join in record batches, as the left table is read.

        `progress` is called after each part with the number of left rows done, and their total.
        """
        self.report = report = JoinReport()
        right = _Right(self, report)
        names = list(self._left.schema.names)
        scan = self._left.scan(Request(names, whole_rows=False, where=self._where_left))
        blocks: Iterable[pa.Table] = (pa.Table.from_batches([each]) for each in scan.batches())
        if not right.resident:
            blocks = parts(scan.batches(), _most_bytes())
        for block in blocks:
            keys = Keys(self._on, block, "left")
            matches: Matches | None = None
            done = report.rows
            for chunk, share in right.chunks():
                of_chunk = chunk.match(keys, self._top or 1)
                matches = of_chunk if matches is None else matches.merge(of_chunk)
                if progress is not None:
                    progress(done + int(share * len(block)), scan.rows)
            report.rows += len(block)
            for name, count in keys.missing.items():
                report.missing_left[name] = report.missing_left.get(name, 0) + count
            if progress is not None:
                progress(report.rows, scan.rows)
            if matches is None:  # a right table without rows
                matches = right.nothing(keys)
            report.matched += int(matches.matched.sum())
            yield self._joined(block, keys, matches)

    def _joined(self, block: pa.Table, keys: Keys, matches: Matches) -> pa.RecordBatch:
        """Left rows with their matches."""
        n, top = matches.rows.shape
        assert matches.values is not None
        heaviest = np.arange(n) * top
        columns: list[Any] = []
        for name in self._take:
            column = matches.values.column(name)
            if name not in self._pooled:
                columns.append(column if top == 1 else column.take(pa.array(heaviest)))
            elif self._top is None:
                means = matches.means[:, self._pooled.index(name)]
                columns.append(_nullable(means[:, MEAN], means[:, MASS]))
            else:
                columns.append(_mean(column, matches))
        unmatched = None if matches.matched.all() else ~matches.matched
        columns += [
            pa.array(matches.rows[:, 0], mask=unmatched),
            pa.array(matches.similarity, mask=unmatched),
            pa.array(matches.weight, mask=unmatched),
            pa.array(matches.effective_rows, mask=unmatched),
        ]
        if keys.places is not None:  # rows without a key match nothing
            places = np.full(len(block), -1)
            places[keys.places] = np.arange(len(keys.places))
            chosen = pa.array(places, mask=places < 0)
            columns = [column.take(chosen) for column in columns]
        arrays = [*block.columns, *columns]
        table = pa.table(arrays, schema=self.schema).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self.schema)

    def _schema(self) -> pa.Schema:
        fields = [self._left.schema.field(name) for name in self._left.schema.names]
        names = set(self._left.schema.names)
        for name in self._take:
            type = decoded_type(self._right.schema.field(name).type)
            unique = _free(name if name not in names else f"{name}_right", names)
            fields.append(pa.field(unique, pa.float64() if name in self._pooled else type))
        fields += [pa.field(_free(name, names), type) for name, type in _SAID.items()]
        return pa.schema(fields)


class _Right:
    """The right table in parts; kept, if it is a single one."""

    def __init__(self, join: SoftJoin, report: JoinReport) -> None:
        self._join = join
        self._report = report
        self._parts = self._read()
        self._head = next(self._parts, None)
        following = next(self._parts, None)
        self.resident = following is None
        self._rest = [] if following is None else [following]
        self._fresh = True  # whether what was begun to be read is not used yet

    def chunks(self) -> Iterator[tuple[Chunk, float]]:
        """All parts, each with the share of the table that has been met after it."""
        if self.resident:
            if self._head is not None:
                yield self._head, 1.0
            return
        if self._fresh:
            self._fresh = False
            assert self._head is not None
            head, self._head = self._head, None
            parts: Iterable[Chunk] = _chain(head, self._rest, self._parts)
        else:
            if self._join._right.once:
                raise ValueError(
                    f"right ({self._join._right.description}) can be read only once, and both "
                    "tables are larger than memory allows; write it to a Parquet file first"
                )
            parts = self._read()
        for number, chunk in enumerate(parts):
            yield chunk, 1.0 - 0.5 ** (number + 1)

    def nothing(self, keys: Keys) -> Matches:
        """The matches of a table without rows."""
        empty = self._join._right.schema.empty_table()
        return self._chunk(empty, 0).match(keys, self._join._top or 1)

    def _read(self) -> Iterator[Chunk]:
        join, report = self._join, self._report
        names = [*dict.fromkeys([*(condition.right for condition in join._on), *join._take])]
        scan = join._right.scan(Request(names, whole_rows=False, where=join._where))
        report.passes += 1
        first = 0
        for part in parts(scan.batches(), _most_bytes()):
            chunk = self._chunk(part, first)
            first += len(part)
            if report.passes == 1:
                report.right_rows = first
                for name, count in chunk.missing.items():
                    report.missing_right[name] = report.missing_right.get(name, 0) + count
            yield chunk

    def _chunk(self, part: pa.Table, first: int) -> Chunk:
        join = self._join
        pooled = join._pooled if join._top is None else []
        return Chunk(join._on, part, first, join._take, pooled)


def _chain(head: Chunk, rest: list[Chunk], parts: Iterator[Chunk]) -> Iterator[Chunk]:
    yield head
    while rest:
        yield rest.pop()
    yield from parts


def parts(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """The same rows in tables of at most so many bytes, or of one row."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        rows = max(1, len(batch) * most // max(1, batch.nbytes))
        for start in range(0, len(batch), rows):
            piece = batch.slice(start, rows)
            if pending and size + piece.nbytes > most:
                yield pa.Table.from_batches(pending)
                pending, size = [], 0
            pending.append(piece)
            size += piece.nbytes
    if pending:
        yield pa.Table.from_batches(pending)


def _most_bytes() -> int:
    return max(1, budget(torch.device("cpu")) // _SHARE)


def _taken_columns(
    take: str | Sequence[str] | None, schema: pa.Schema, keys: set[str]
) -> list[str]:
    """The columns to take: those named, or all that are not joined on."""
    if take is None:
        return [name for name in schema.names if name not in keys]
    names = [take] if isinstance(take, str) else list(take)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"take must name columns of the right table; got {name!r}")
        check_column(schema, name, "take")
    if len(set(names)) < len(names):
        raise ValueError(f"take must name each column once; got {', '.join(names)}")
    return names


def _free(name: str, names: set[str]) -> str:
    """The name, with underscores where it is taken; it is taken from now on."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def _mean(column: pa.ChunkedArray, matches: Matches) -> pa.Array:
    """The weighted mean over the heaviest rows that have a value."""
    n, top = matches.rows.shape
    values = column.cast(pa.float64(), safe=False).to_numpy().reshape(n, top)
    with np.errstate(invalid="ignore"):
        weights = np.exp(matches.logs - matches.logs[:, :1])
    weights = np.where((matches.rows >= 0) & ~np.isnan(values), weights, 0.0)
    total = weights.sum(axis=1)
    # Values relative to one of them: those far from 0 keep their digits.
    pivot = values[np.arange(n), weights.argmax(axis=1)][:, None]
    with np.errstate(invalid="ignore"):
        moved = np.where(weights > 0.0, values - pivot, 0.0)
        mean = pivot[:, 0] + (weights * moved).sum(axis=1) / np.where(total > 0, total, 1.0)
    return _nullable(mean, total)


def _nullable(mean: np.ndarray, mass: np.ndarray) -> pa.Array:
    return pa.array(mean, mask=mass <= 0.0)


def soft_join(
    left: Any,
    right: Any,
    *,
    on: OnLike,
    take: str | Sequence[str] | None = None,
    top: int | None = 1,
    cutoff: CutoffLike = None,
    bandwidth: BandwidthLike = None,
    where: WhereLike = None,
    where_left: WhereLike = None,
    progress: ProgressCallback | None = None,
) -> pa.Table:
    """The left table with the columns of its best matches in the right one.

    - `left` and `right` are whatever :class:`qkv.Database` takes: a path, or anything that speaks
      Arrow.
    - `on` maps columns to similarities, as in ``{"name": "fuzzy", "date": qkv.Gaussian(3)}``; a
      pair ``("name", "company")`` is a left column and a right one. Several combine by product.
      ``"nearest"`` lets only the nearest match, of those that the other columns let match.
    - `take` names columns of the right table; without it, all that are not joined on.
    - `top` says from how many of the heaviest rows: with 1 these are the values of that row; with
      more, or None for all that match, numbers are weighted means, others the heaviest row's.
    - `cutoff` is the least ratio, 0 to 1, at which fuzzy texts match: one, or by left column.
    - `bandwidth` is as in :meth:`qkv.Database.query`, by left column.
    - `where` keeps rows of the right table, as in a query; `where_left` those of the left one.
    - `progress` is called with the number of left rows done, and their total.

    Every left row kept gives one row, in the same order: its own columns, those taken (a name that
    the left table has gets ``_right``), and, of the heaviest row, `row`, its number from 0 among
    the right rows kept, `similarity`, the product of its similarities, `weight`, its share of the
    weight of all rows that match, and `effective_rows`, the effective number of rows that match.
    All are null where nothing matches. Of rows equally heavy the nearest counts as the
    heaviest, and then the first.

    >>> import pyarrow as pa, qkv
    >>> trades = pa.table({"time": [3.0, 9.0], "share": ["x", "y"]})
    >>> quotes = pa.table({"time": [1.0, 2.5, 9.1], "share": ["x", "x", "y"], "price": [1, 2, 3]})
    >>> qkv.table.soft_join(trades, quotes, on={"share": "equal", "time": "nearest"})["price"]
    ... # doctest: +ELLIPSIS
    <pyarrow.lib.ChunkedArray object at ...>
    [
      [
        2,
        3
      ]
    ]
    """
    join = SoftJoin(
        left,
        right,
        on=on,
        take=take,
        top=top,
        cutoff=cutoff,
        bandwidth=bandwidth,
        where=where,
        where_left=where_left,
    )
    return join.to_arrow(progress)
