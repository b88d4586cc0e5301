"""Tables in memory and streams from elsewhere, by way of `__arrow_c_stream__`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from qkv.table.sources.base import BATCH_ROWS, Request, Scan, Source, filtered


class MemoryTable(Source):
    """A table that can be read again and again: each reading opens a new stream."""

    def __init__(
        self,
        description: str,
        schema: pa.Schema,
        open_stream: Callable[[list[str]], Iterator[pa.RecordBatch]],
        rows: int | None = None,
    ) -> None:
        self.description = description
        self.schema = schema
        self._open = open_stream
        self._rows = rows

    def scan(self, request: Request) -> Scan:
        columns = self.columns_for(request)
        if request.where is not None:  # it may look at columns that nobody asked for
            stream = filtered(self._open(list(self.schema.names)), columns, request.where)
            notes = ["where is applied to each batch in memory", *request.unused_window]
            return Scan(stream, columns, notes)
        return Scan(self._open(columns), columns, request.unused_window, self._rows)


class OneReading(Source):
    """A stream that is used up by reading it: a reader, or the cursor of a database."""

    once = True

    def __init__(self, description: str, reader: pa.RecordBatchReader) -> None:
        self.description = description
        self.schema = reader.schema
        self._reader = reader
        self._used = False

    def scan(self, request: Request) -> Scan:
        if self._used:
            raise ValueError(
                f"this source ({self.description}) can be read only once, and it has been; "
                "load it into a table, or put all queries into one call"
            )
        self._used = True
        columns = self.columns_for(request)
        notes = ["this source can be read only once", *request.unused_window]
        return Scan(filtered(self._reader, columns, request.where), columns, notes)


def arrow_table(table: pa.Table) -> MemoryTable:
    """A pyarrow Table, without copying."""

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(columns).to_batches(max_chunksize=BATCH_ROWS)

    return MemoryTable("Arrow table", table.schema, stream, table.num_rows)


def pandas_frame(frame: Any) -> MemoryTable:
    """A pandas DataFrame, converted slice by slice; its index is no column."""
    names = [str(name) for name in frame.columns]
    schema = pa.Schema.from_pandas(frame, preserve_index=False).remove_metadata()

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        chosen = frame[[frame.columns[names.index(name)] for name in columns]]
        wanted = pa.schema([schema.field(name) for name in columns])
        for start in range(0, len(frame), BATCH_ROWS):
            part = chosen.iloc[start : start + BATCH_ROWS]
            yield pa.RecordBatch.from_pandas(part, schema=wanted, preserve_index=False)

    return MemoryTable("pandas DataFrame", schema, stream, len(frame))


def arrow_stream(source: Any) -> MemoryTable:
    """Any other object that can be asked for an Arrow stream, as often as one likes."""

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from filtered(pa.RecordBatchReader.from_stream(source), columns, None)

    schema = pa.RecordBatchReader.from_stream(source).schema
    return MemoryTable(type(source).__name__, schema, stream)
