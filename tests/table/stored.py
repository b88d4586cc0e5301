"""The same table in every source."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

IN_MEMORY = ["pandas", "polars", "lazy", "arrow"]
KINDS = [*IN_MEMORY, "csv", "parquet", "duckdb", "postgres"]

_NUMBERS = itertools.count()


def stored(kind: str, table: pa.Table, folder: Path, postgres: str) -> tuple[Any, dict[str, str]]:
    """A source of this kind that holds the table, and what else a Database is told."""
    name = f"t{next(_NUMBERS)}"
    match kind:
        case "pandas":
            return table.to_pandas(), {}
        case "polars":
            return pl.from_arrow(table), {}
        case "lazy":
            return pl.from_arrow(table).lazy(), {}
        case "arrow":
            return table, {}
        case "csv":
            pa.csv.write_csv(table, folder / f"{name}.csv")
            return folder / f"{name}.csv", {}
        case "parquet":
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
            return folder / f"{name}.parquet", {}
        case "duckdb":
            path = folder / f"{name}.duckdb"
            with duckdb.connect(str(path)) as connection:
                connection.register("given", table)
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            return path, {"table": name}
        case "postgres":
            from adbc_driver_postgresql import dbapi

            with (
                closing(dbapi.connect(postgres, autocommit=True)) as connection,
                closing(connection.cursor()) as cursor,
            ):
                cursor.adbc_ingest(name, table)
            return postgres, {"table": name}
    raise ValueError(kind)
