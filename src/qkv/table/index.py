"""A table sorted by its keys, so that a query reads only the blocks that matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from qkv.atomic_write import replacing
from qkv.table.aggregation import ProgressCallback, complete
from qkv.table.boxes import BLOCK, Boxes, boxes_of, order_of
from qkv.table.columns import Kind, kind_of
from qkv.table.sources import Request, Scan, Source
from qkv.table.sources.base import as_python, filtered
from qkv.table.sources.read_errors import READ_ERRORS

#: The format name in an index file's metadata.
_FORMAT = "qkv.index.1"
#: Rows given at once, at most.
_BATCH = 2**22


class IndexedRows(NamedTuple):
    """The rows of a table that have all keys, sorted, with their metadata."""

    rows: pa.RecordBatch
    boxes: Boxes
    missing: dict[str, int]  # rows that lacked a key
    complete: frozenset[str]  # columns that lack nothing
    stamp: list[Any]  # of the files they were read from


class Index(Source):
    """The rows of another source, in memory or in a separate file.

    Files are checked before each query: where size or modification time differ, the index is
    rebuilt. A table in memory is assumed to be unchanged.
    """

    def __init__(
        self,
        open_source: Callable[[], Source],
        key: list[str],
        path: Path | None,
        progress: ProgressCallback | None,
    ) -> None:
        self._open = open_source
        self._key = key
        self._path = path
        source = open_source()
        for name in key:
            if kind_of(source.schema.field(name).type) is Kind.VECTOR:
                raise TypeError(
                    f"an index needs keys with an order: numbers, dates, texts or booleans; column "
                    f"{name!r} holds vectors"
                )
        self._kept = self._load(source) or self._make(source, progress)

    @property
    def original(self) -> Source:
        return self._original

    def scan(self, request: Request) -> Scan:
        notes = []
        if _stamp(self.files) != self._kept.stamp:
            self._kept = self._make(self._open(), None)
            notes.append("the file has changed since, so the index was rebuilt")
        indexed = self._kept
        # Where rows may be left out, or weigh more than others, the nearest one decides nothing.
        counts = request.where is None and not request.by and not request.weighted
        counts = counts and set(request.columns) <= indexed.complete
        chosen = indexed.boxes.chosen(request.comparisons, request.queries, counts)
        notes.append(f"index: {int(chosen.sum()):,} of {len(chosen):,} blocks of {BLOCK:,} rows")
        return _IndexScan(indexed, chosen, request, notes)

    def _make(self, source: Source, progress: ProgressCallback | None) -> IndexedRows:
        """Read the whole source, and put its rows in order."""
        self._describe(source)
        stamp = _stamp(self.files)
        missing = dict.fromkeys(self._key, 0)
        names = list(source.schema.names)
        scan = source.scan(Request(names, whole_rows=True))
        parts, read = [source.schema.empty_table()], 0
        for batch in scan.batches():
            read += len(batch)
            parts.append(pa.Table.from_batches([complete(batch, missing)[0]]))
            if progress is not None:
                progress(read, scan.rows)
        rows = _one_batch(pa.concat_tables(parts))
        rows = rows.take(pa.array(order_of({name: rows.column(name) for name in self._key})))
        complete_columns = frozenset(n for n in names if complete(rows, {n: 0})[1] is None)
        indexed = self._keep(rows, missing, complete_columns, stamp)
        if self._path is not None:
            _write(self._path, indexed, self._key)
            return self._load(source) or indexed
        return indexed

    def _load(self, source: Source) -> IndexedRows | None:
        """The index on disk; None if there is none, or one of other rows or keys."""
        self._describe(source)
        if self._path is None or not self._path.exists():
            return None
        try:
            table = pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
            metadata = json.loads((table.schema.metadata or {}).get(_FORMAT.encode(), b"{}"))
        except (*READ_ERRORS, ValueError, OSError) as error:
            raise ValueError(f"{str(self._path)!r} is not the index of a table: {error}") from error
        stamp = _stamp(self.files)
        if not stamp or metadata.get("stamp") != stamp or metadata.get("key") != self._key:
            return None
        rows = _one_batch(table.replace_schema_metadata())
        return self._keep(rows, metadata["missing"], frozenset(metadata["complete"]), stamp)

    def _describe(self, source: Source) -> None:
        self.schema = source.schema
        self.files = source.files
        self._original = source
        self.notes = source.notes
        self.description = f"{source.description}, indexed by {', '.join(self._key)}"

    def _keep(
        self,
        rows: pa.RecordBatch,
        missing: dict[str, int],
        complete_columns: frozenset[str],
        stamp: list[Any],
    ) -> IndexedRows:
        boxes = boxes_of({name: rows.column(name) for name in self._key})
        return IndexedRows(rows, boxes, missing, complete_columns, stamp)


class _IndexScan(Scan):
    """Blocks of an index, one batch for those that lie side by side."""

    def __init__(
        self, indexed: IndexedRows, chosen: np.ndarray, request: Request, notes: list[str]
    ) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.view(np.int8), [0]])))
        self._runs = np.minimum(edges.reshape(-1, 2) * BLOCK, len(indexed.rows))
        rows = int((self._runs[:, 1] - self._runs[:, 0]).sum())
        super().__init__([], request.columns, notes, rows if request.where is None else None)
        self.complete = indexed.complete
        if request.window is None:  # else they lie outside
            self.missing = indexed.missing
        self._kept = indexed
        self._request = request
        self._given = self._runs  # the runs of the batch just given
        self._kept_of_given = np.empty(0, np.int64)  # and which of its rows `where` has left

    def batches(self) -> Iterator[pa.RecordBatch]:
        rows, where = self._kept.rows, self._request.where
        names = self._request.columns if where is None else rows.schema.names
        chosen = rows.select(names)
        for run in _together(self._runs):
            parts = [chosen.slice(start, stop - start) for start, stop in run]
            batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
            self._given = np.array(run)
            if where is None:
                yield batch
                continue
            numbered = batch.append_column(_PLACE, pa.array(np.arange(len(batch))))
            for part in filtered([numbered], [*self._request.columns, _PLACE], where):
                self._kept_of_given = part.column(_PLACE).to_numpy()
                yield part.select(self._request.columns)

    def keep(self, batch: pa.RecordBatch, rows: list[int]) -> list[Any]:
        places = np.array(rows)
        if len(self._kept_of_given):
            places = self._kept_of_given[places]
        ends = np.cumsum(self._given[:, 1] - self._given[:, 0])
        run = np.searchsorted(ends, places, "right")
        return list(places - ends[run] + self._given[run, 1])

    def fetch(self, places: list[Any]) -> list[dict[str, Any]]:
        return as_python(self._kept.rows.take(pa.array(places, pa.int64())))


#: The name of a column of row numbers, which no table should have.
_PLACE = "\0place"


def _together(runs: np.ndarray) -> Iterator[list[tuple[int, int]]]:
    """Runs of rows that are given in one batch."""
    waiting: list[tuple[int, int]] = []
    size = 0
    for start, stop in runs.tolist():
        for first in range(start, stop, _BATCH):
            part = (first, min(first + _BATCH, stop))
            if waiting and size + part[1] - part[0] > _BATCH:
                yield waiting
                waiting, size = [], 0
            waiting.append(part)
            size += part[1] - part[0]
    if waiting:
        yield waiting


def _stamp(files: Sequence[str]) -> list[Any]:
    """The names, sizes and modification times of files, by which changes are detected."""
    stamps = []
    for file in files:
        status = Path(file).stat()
        stamps.append([file, status.st_size, status.st_mtime_ns])
    return stamps


def _write(path: Path, indexed: IndexedRows, key: list[str]) -> None:
    metadata = {
        "key": key,
        "stamp": indexed.stamp,
        "missing": indexed.missing,
        "complete": sorted(indexed.complete),
    }
    schema = indexed.rows.schema.with_metadata({_FORMAT: json.dumps(metadata)})
    with replacing(path) as half, pa.ipc.new_file(str(half), schema) as writer:
        writer.write_batch(indexed.rows.replace_schema_metadata(schema.metadata))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows in one batch; texts get wider offsets where there are too many for narrow ones."""
    columns = []
    for column in table.columns:
        combined = column.combine_chunks()
        if isinstance(combined, pa.ChunkedArray) and combined.num_chunks > 1:
            combined = column.cast(pa.large_string()).combine_chunks()
        columns.append(combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined)
    return pa.RecordBatch.from_arrays(columns, table.schema.names)
