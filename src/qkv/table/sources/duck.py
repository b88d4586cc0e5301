"""DuckDB: relations, and files that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from qkv.optional_dependencies import require
from qkv.table.sources.base import BATCH_ROWS, Request, Scan, Source, Where, filtered
from qkv.table.sources.named import column_named
from qkv.table.sources.sql import queries_of
from qkv.table.where import Dialect, build

#: Rows that DuckDB works on at once, and bytes in a batch, about.
_VECTOR_ROWS, _BATCH_BYTES = 2048, 2**26


def open_duckdb(path: Path, table: str | None, sql: str | None) -> Source:
    """A table or query of a DuckDB file, which is opened to be read only."""
    duckdb = require("duckdb", "table")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    queries = queries_of(table, sql)
    try:
        connection = connected(str(path), read_only=True)
    except duckdb.Error as error:
        raise ValueError(f"DuckDB cannot open {path.name!r}: {first_line(error)}") from error
    for query in queries:
        try:
            relation = connection.sql(query)
        except duckdb.Error as error:
            if query is not queries[-1]:
                continue
            raise ValueError(f"DuckDB cannot answer {query!r}: {first_line(error)}") from error
        if relation is not None:
            source = Relation(relation, partial(_queried, connection, query))
            source.files = [str(path)]
            return source
    raise ValueError(f"sql must be a query that gives rows; got {queries[-1]!r}")


def connected(path: str = ":memory:", **options: Any) -> Any:
    """A connection of our own, which shows no progress bar beside ours in interactive sessions."""
    connection = require("duckdb", "table").connect(path, **options)
    connection.execute("SET enable_progress_bar = false")
    return connection


def _queried(connection: Any, query: str) -> Any:
    return connection.cursor().sql(query)


def open_parquet(path: Path, names: list[str]) -> Source:
    """A Parquet file whose columns have other names here, which Arrow's datasets cannot do."""
    relation = connected().read_parquet(str(path))
    columns = map(column_named, relation.columns)
    chosen = (column.alias(name) for column, name in zip(columns, names, strict=True))
    source = Relation(relation.select(*chosen))
    source.files = [str(path)]
    return source


def first_line(error: Exception) -> str:
    """What went wrong, without the hints that follow."""
    return str(error).strip().split("\n")[0]


class Relation(Source):
    """A DuckDB relation. Values reach DuckDB as constants of its own expressions, not as text."""

    description = "DuckDB"

    def __init__(self, relation: Any, again: Callable[[], Any] | None = None) -> None:
        """`again` makes the relation on a new connection, for one scan."""
        self._again = again or (lambda: relation)
        self.schema = relation.limit(0).to_arrow_table().schema

    def scan(self, request: Request) -> Scan:
        columns, relation = self.columns_for(request), self._again()
        condition, later = request.split()
        if condition is not None:
            relation = relation.filter(build(condition, _dialect()))
        if later is None:
            relation = relation.select(*(column_named(name) for name in columns))
        notes = ["DuckDB plans:\n" + relation.explain().rstrip()]
        return Scan(self._stream(relation, columns, later), columns, notes)

    def _stream(self, relation: Any, columns: list[str], later: Where) -> Iterator[pa.RecordBatch]:
        refusals = (require("duckdb", "table").Error, pa.ArrowException, OSError)
        try:
            yield from filtered(_batches(relation), columns, later)
        except refusals as error:
            raise ValueError(self._refusal(error)) from error

    def _refusal(self, error: Exception) -> str:
        """One sentence of rows that cannot be read."""
        return f"{self.description} cannot read its rows: {first_line(error)}"


def _batches(relation: Any) -> Iterator[pa.RecordBatch]:
    """All rows in batches of bounded size, however long their cells are."""
    if all(pa.types.is_primitive(type) for type in relation.limit(0).to_arrow_table().schema.types):
        yield from relation.to_arrow_reader(BATCH_ROWS)
        return
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in relation.to_arrow_reader(_VECTOR_ROWS):
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _dialect() -> Dialect:
    duckdb = require("duckdb", "table")
    constant = duckdb.ConstantExpression
    return Dialect(
        column=column_named,
        value=constant,
        one_of=lambda column, values: column.isin(*map(constant, values)),
        missing=lambda column: column.isnull(),
    )
