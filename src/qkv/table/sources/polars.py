"""Polars: frames by Arrow's stream, lazy frames as queries that Polars optimises itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from qkv.optional_dependencies import require
from qkv.table.sources.base import BATCH_ROWS, Request, Scan, Source, Where, filtered
from qkv.table.sources.stream import MemoryTable
from qkv.table.where import Dialect, both_zeros, build


def polars_frame(frame: Any) -> MemoryTable:
    """A Polars DataFrame, without copying."""

    def stream(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from filtered(pa.RecordBatchReader.from_stream(frame), columns, None)

    schema = pa.RecordBatchReader.from_stream(frame.clear()).schema
    return MemoryTable("Polars DataFrame", schema, stream, len(frame))


class LazyFrame(Source):
    """A Polars LazyFrame: the condition, the window and the columns join its query."""

    description = "Polars LazyFrame"

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        empty = frame.collect_schema().to_frame()
        self.schema = pa.RecordBatchReader.from_stream(empty).schema

    def scan(self, request: Request) -> Scan:
        columns, query = self.columns_for(request), self._frame
        condition, later = request.split()
        if condition is not None:
            query = query.filter(build(condition, _dialect()))
        if later is None:
            query = query.select(columns)
        notes = ["Polars plans: " + " | ".join(query.explain().split("\n"))]
        return Scan(self._stream(query, columns, later), columns, notes)

    @staticmethod
    def _stream(query: Any, columns: list[str], later: Where) -> Iterator[pa.RecordBatch]:
        for part in query.collect_batches(chunk_size=BATCH_ROWS, lazy=True):
            yield from filtered(pa.RecordBatchReader.from_stream(part), columns, later)


def _dialect() -> Dialect:
    polars = require("polars", "table")
    return Dialect(
        column=polars.col,
        value=polars.lit,
        one_of=lambda column, values: column.is_in(both_zeros(values)),
        missing=lambda column: column.is_null(),
    )
