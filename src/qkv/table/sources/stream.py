"""Tables in memory and streams from elsewhere, by way of `__arrow_c_stream__`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from qkv.table.sources.base import BATCH_ROWS, Request, Scan, Source, filtered, numbered


class MemoryTable(Source):
    """A table that can be read again and again: each reading opens a new stream."""

    def __init__(
        self,
        description: str,
        schema: pa.Schema,
        open_stream: Callable[[list[str]], Iterator[pa.RecordBatch]],
        rows: int | None = None,
        repeated: dict[str, list[str]] | None = None,
    ) -> None:
        self.description = description
        self.schema = schema
        self._open = open_stream
        self._rows = rows
        self.repeated = repeated or {}

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
        names, self.repeated = numbered(reader.schema.names)
        self.description = description
        self.schema = _renamed(reader.schema, names)
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
        batches = (batch.rename_columns(self.schema.names) for batch in self._reader)
        return Scan(filtered(batches, columns, request.where), columns, notes)


def arrow_table(table: pa.Table) -> MemoryTable:
    """A pyarrow Table, without copying."""
    names, repeated = numbered(table.column_names)
    table = table.rename_columns(names)

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(columns).to_batches(max_chunksize=BATCH_ROWS)

    return MemoryTable("Arrow table", table.schema, stream, table.num_rows, repeated)


def pandas_frame(frame: Any, schema: pa.Schema | None = None) -> MemoryTable:
    """A pandas DataFrame, converted slice by slice; its index is no column.

    Its columns have the types of `schema`, or those that they tell themselves.
    """
    names, repeated = numbered([str(name) for name in frame.columns])
    frame = frame.copy(deep=False)
    frame.columns = names
    schema = schema or pa.schema([pandas_field(frame, name) for name in names])

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        schema_read = pa.schema([schema.field(name) for name in columns])
        for start in range(0, len(frame), BATCH_ROWS):
            # Sliced first: columns that are chosen are copied. Threads cost more than they save.
            part = frame.iloc[start : start + BATCH_ROWS][columns]
            yield pa.RecordBatch.from_pandas(part, schema_read, preserve_index=False, nthreads=1)

    return MemoryTable("pandas DataFrame", schema, stream, len(frame), repeated)


def pandas_field(frame: Any, name: str) -> pa.Field:
    try:
        field = pa.Schema.from_pandas(frame[[name]], preserve_index=False).field(0)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"column {name!r} of the pandas DataFrame must hold one type, or be left out: {reason}"
        ) from error
    return field.remove_metadata()


def arrow_stream(source: Any) -> MemoryTable:
    """Any other object that can be asked for an Arrow stream, as often as one likes."""
    schema = pa.RecordBatchReader.from_stream(source).schema
    names, repeated = numbered(schema.names)

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        reader = pa.RecordBatchReader.from_stream(source)
        yield from filtered((batch.rename_columns(names) for batch in reader), columns, None)

    renamed = _renamed(schema, names)
    return MemoryTable(type(source).__name__, renamed, stream, repeated=repeated)


def _renamed(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema(field.with_name(name) for field, name in zip(schema, names, strict=True))
