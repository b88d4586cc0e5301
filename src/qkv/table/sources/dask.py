"""Dask DataFrames, partition by partition; with a client each stays on its worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from qkv.optional_dependencies import require
from qkv.table.sources.base import Part, Request, Scan, Source, numbered
from qkv.table.sources.stream import MemoryTable, pandas_field, pandas_frame

#: Rows from which types are inferred that Dask does not know, such as vectors.
_LOOK = 20


class DaskFrame(Source):
    """A Dask DataFrame; its index is no column."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        count = frame.npartitions
        self.description = f"Dask DataFrame, {count:,} partition" + ("s" if count != 1 else "")
        names, self.repeated = numbered([str(name) for name in frame.columns])
        self.schema = _schema(frame._meta, names)
        if any(pa.types.is_null(field.type) for field in self.schema):
            self.schema = _schema(frame.head(_LOOK, npartitions=-1), names)

    def scan(self, request: Request) -> Scan:
        notes = [f"{self.description}: computed one after another by Dask"]
        return Scan(self._batches(request), self.columns_for(request), notes)

    def parts(self, request: Request) -> list[Part]:
        opened = require("dask", "cluster").delayed(pandas_frame, pure=False)
        return [
            Part(opened(partition, self.schema), f"partition {number} of the Dask DataFrame")
            for number, partition in enumerate(self._frame.to_delayed())
        ]

    def _batches(self, request: Request) -> Iterator[pa.RecordBatch]:
        for partition in self._frame.to_delayed():
            part: MemoryTable = pandas_frame(partition.compute(), self.schema)
            yield from part.scan(request).batches()


def _schema(frame: Any, names: list[str]) -> pa.Schema:
    frame = frame.copy(deep=False)
    frame.columns = names
    return pa.schema([pandas_field(frame, name) for name in names])
