"""DuckDB: relations, and files that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from qkv.extras import need
from qkv.table.sources.base import BATCH_ROWS, Request, Scan, Source, Where, filtered
from qkv.table.sources.sql import query_of
from qkv.table.where import Dialect, build


def open_duckdb(path: Path, table: str | None, sql: str | None) -> Source:
    """A table or query of a DuckDB file, which is opened to be read only."""
    duckdb = need("duckdb", "table")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    query = query_of(table, sql)
    try:
        relation = duckdb.connect(str(path), read_only=True).sql(query)
    except duckdb.Error as error:
        raise ValueError(f"DuckDB cannot answer {query!r}: {error}") from error
    if relation is None:
        raise ValueError(f"sql must be a query that gives rows; got {query!r}")
    return Relation(relation)


class Relation(Source):
    """A DuckDB relation. Values reach DuckDB as constants of its own expressions, not as text."""

    description = "DuckDB"

    def __init__(self, relation: Any) -> None:
        self._relation = relation
        self.schema = relation.limit(0).to_arrow_table().schema

    def scan(self, request: Request) -> Scan:
        columns, relation = self.columns_for(request), self._relation
        condition, later = request.split()
        if condition is not None:
            relation = relation.filter(build(condition, _dialect()))
        if later is None:
            column = need("duckdb", "table").ColumnExpression
            relation = relation.select(*(column(name) for name in columns))
        notes = ["DuckDB plans:\n" + relation.explain().rstrip()]
        return Scan(self._stream(relation, columns, later), columns, notes)

    @staticmethod
    def _stream(relation: Any, columns: list[str], later: Where) -> Iterator[pa.RecordBatch]:
        yield from filtered(relation.to_arrow_reader(BATCH_ROWS), columns, later)


def _dialect() -> Dialect:
    duckdb = need("duckdb", "table")
    constant = duckdb.ConstantExpression
    return Dialect(
        column=duckdb.ColumnExpression,
        value=constant,
        one_of=lambda column, values: column.isin(*map(constant, values)),
        missing=lambda column: column.isnull(),
    )
