"""Open whatever users pass as a source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from qkv.table.sources.base import Source
from qkv.table.sources.dask import DaskFrame
from qkv.table.sources.duck import Relation, open_duckdb
from qkv.table.sources.files import open_dataset, open_files
from qkv.table.sources.polars import LazyFrame, polars_frame
from qkv.table.sources.postgres import Postgres
from qkv.table.sources.stream import (
    OneReading,
    arrow_stream,
    arrow_table,
    pandas_frame,
)

_SERVERS = ("postgresql://", "postgres://")
_DATABASES = (".duckdb", ".ddb")


def open_source(
    source: Any,
    table: str | None = None,
    sql: str | None = None,
    csv: Mapping[str, Any] | None = None,
    needed: Sequence[str] = (),
) -> Source:
    """The source that `source` stands for: a path, an address, or an object that speaks Arrow.

    `csv` says how CSV files are written; of columns that are `needed` the types must be right.
    """
    is_path = isinstance(source, (str, os.PathLike)) and not str(source).startswith(_SERVERS)
    if csv is not None and not is_path:
        raise ValueError(f"csv= is for CSV files; got {type(source).__name__}")
    if isinstance(source, str) and source.startswith(_SERVERS):
        return Postgres(source, table, sql)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix.lower() in _DATABASES:
            return open_duckdb(path, table, sql)
        _no_database(table, sql)
        return open_files(path, csv, list(needed))
    _no_database(table, sql)
    return _open_object(source)


def _no_database(table: str | None, sql: str | None) -> None:
    if table is not None or sql is not None:
        raise ValueError("table= and sql= are for .duckdb files and postgresql:// addresses only")


def _open_object(source: Any) -> Source:
    if isinstance(source, pa.Table):
        return arrow_table(source)
    if isinstance(source, pa.RecordBatch):
        return arrow_table(pa.Table.from_batches([source]))
    if isinstance(source, ds.Dataset):
        return open_dataset(source)
    if isinstance(source, pa.RecordBatchReader):
        return OneReading("Arrow reader", source)
    # Packages that may not be installed are known by the names of their classes.
    match type(source).__module__.partition(".")[0], type(source).__name__:
        case "pandas", "DataFrame":
            return pandas_frame(source)
        case "dask", "DataFrame":
            return DaskFrame(source)
        case "polars", "LazyFrame":
            return LazyFrame(source)
        case "polars", "DataFrame":
            return polars_frame(source)
        case _, "DuckDBPyRelation":
            return Relation(source)
        case "adbc_driver_manager", "Cursor":
            return OneReading("ADBC cursor", source.fetch_record_batch())
    if hasattr(source, "__arrow_c_stream__"):
        return arrow_stream(source)
    raise TypeError(
        "source must be a path, a postgresql:// address, or a table that speaks Arrow (pandas, "
        f"Polars, pyarrow, DuckDB, ADBC); got {type(source).__name__}"
    )
