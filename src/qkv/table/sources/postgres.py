"""PostgreSQL, by way of ADBC: rows stream as Arrow batches.

Streams are made by COPY, which takes no parameters. So the values of a condition are bound as
parameters of `set_config`, and the query reads them with `current_setting` and a cast: its text
holds names and numbers of settings, never a value, and the planner still sees through it to an
index.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from qkv.optional_dependencies import require
from qkv.table.columns import plain
from qkv.table.sources import base
from qkv.table.sources.base import Part, Request, Scan, Source, Where, filtered, numbered
from qkv.table.sources.sql import queries_of, quoted
from qkv.table.where import (
    And,
    Compare,
    Condition,
    Missing,
    Not,
    OneOf,
    Or,
    both,
)

#: NUMERIC without declared digits: half of the widest decimal on either side of the point.
_UNDECLARED = pa.decimal256(76, 38)
#: Digits of the widest decimal of 128 bits.
_WIDEST = 38
_SIGNS = {"==": "=", "!=": "<>"}
#: A whole number by which an index finds rows, the primary key first, and how many rows there are.
_INDEXED = """
    SELECT a.attname, c.reltuples::bigint
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indpred IS NULL
    AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
    ORDER BY i.indisprimary DESC, i.indisunique DESC, a.attnum LIMIT 1"""


class Postgres(Source):
    """A table or query of a PostgreSQL server."""

    description = "PostgreSQL"

    def __init__(self, uri: str, table: str | None, sql: str | None) -> None:
        self._uri = uri
        self._range: Condition | None = None  # the rows of a part
        self._is_table = table is not None
        self._query, served = self._find(queries_of(table, sql))
        names, self.repeated = numbered(served.names)
        named = list(zip(names, served, strict=True))
        # The driver gives the digits of NUMERIC as text; here they become decimals.
        self._decimals = {name: _decimal(field) for name, field in named if _is_numeric(field)}
        self.schema = pa.schema(
            pa.field(name, self._decimals.get(name, field.type)) for name, field in named
        )

    def scan(self, request: Request) -> Scan:
        condition, later = request.split()
        condition = both(condition, self._range)
        columns = self.columns_for(request) if later is None else list(self.schema.names)
        values: list[str] = []
        chosen = ", ".join(self._column(name) for name in columns)
        named = ", ".join(map(quoted, self.schema.names))
        text = f"SELECT {chosen} FROM ({self._query}\n) AS source ({named})"
        if condition is not None:
            text += f" WHERE {_sql(condition, values)}"
        requested = self.columns_for(request)
        notes = [f"PostgreSQL query: {text}"]
        if self._range is None:
            notes.append("PostgreSQL plans:\n" + self._explain(text, values))
        return Scan(self._stream(text, values, requested, later), requested, notes)

    def parts(self, request: Request) -> list[Part]:
        single = [Part(self, "PostgreSQL")]
        if not self._is_table:
            return single
        indexed = self._ask(_INDEXED, (self._query.removeprefix("SELECT * FROM "),))
        if not indexed or indexed[0][0] not in self.schema.names:
            return single
        key, rows = indexed[0]
        ((low, high),) = self._ask(
            f"SELECT min({quoted(key)}), max({quoted(key)}) FROM ({self._query}) t"
        )
        if low is None:
            return single
        rows = high - low + 1 if rows < 0 else rows  # the server has no count yet
        number = int(min(-(-rows // base.PART_ROWS), high - low + 1, base.MOST_PARTS))
        edges = [low + (high - low + 1) * place // number for place in range(1, number)]
        parts: list[Part] = []
        for start, stop in zip([None, *edges], [*edges, None], strict=True):
            ranged = copy.copy(self)
            below = None if stop is None else Compare(key, "<", stop)
            # The first part includes rows inserted below the minimum since, and rows without a key.
            ranged._range = below if start is None else both(Compare(key, ">=", start), below)
            if start is None and below is not None:
                ranged._range = Or(below, Missing(key))
            parts.append(Part(ranged, f"PostgreSQL, {ranged._range or 'all rows'}"))
        return parts

    def _ask(self, text: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            self._tried(lambda: cursor.execute(text, values or None))
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _find(self, queries: list[str]) -> tuple[str, pa.Schema]:
        """The first query that the server knows, and its columns."""
        for query in queries:
            with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
                try:
                    return query, self._tried(partial(cursor.adbc_execute_schema, query))
                except ValueError:
                    if query is queries[-1]:
                        raise
        raise AssertionError("there is always a query")

    def _column(self, name: str) -> str:
        if self._decimals.get(name) == _UNDECLARED:
            return f"trim_scale(round({quoted(name)}, {_UNDECLARED.scale})) AS {quoted(name)}"
        return quoted(name)

    def _stream(
        self, text: str, values: list[str], columns: list[str], later: Where
    ) -> Iterator[pa.RecordBatch]:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            _bind(cursor, values)
            self._tried(lambda: cursor.execute(text))
            exact = map(self._with_decimals, cursor.fetch_record_batch())
            yield from filtered(exact, columns, later)

    def _with_decimals(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for index, name in enumerate(batch.schema.names):
            if name in self._decimals:
                digits = _digits(plain(batch.column(index)), self._decimals[name], name)
                batch = batch.set_column(index, name, digits)
        return batch

    def _explain(self, text: str, values: list[str]) -> str:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            _bind(cursor, values)
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            self._tried(lambda: cursor.execute(f"EXPLAIN {text}"))
            return "\n".join(line for (line,) in cursor.fetchall())

    def _connect(self) -> Any:
        dbapi = require("adbc_driver_postgresql.dbapi", "table")
        return self._tried(lambda: dbapi.connect(self._uri, autocommit=True))

    def _tried(self, action: Any) -> Any:
        """The result of the action; the server's error in one line where it fails."""
        manager = require("adbc_driver_manager", "table")
        try:
            return action()
        except manager.Error as error:
            reason = without_secrets(" ".join(str(error).split()), self._uri)
            # The driver's error may quote the address: it is not shown as the cause.
            raise ValueError(f"PostgreSQL refuses: {reason}") from None


def without_secrets(text: str, address: str) -> str:
    """The text without the address and its password, however they are quoted there."""
    parts = urlsplit(address)
    secrets = [address, parts.password or "", *parse_qs(parts.query).get("password", [])]
    for secret in [spelling for each in secrets for spelling in (each, unquote(each)) if spelling]:
        text = text.replace(secret, "…")
    return text


def _is_numeric(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return metadata.get(b"ADBC:postgresql:typname") == b"numeric"


def _decimal(field: pa.Field) -> pa.DataType:
    """NUMERIC(precision, scale) as Arrow has it."""
    declared = int((field.metadata or {}).get(b"POSTGRESQL:typmod", b"-1")) - 4
    precision, scale = declared >> 16, declared & 0x7FF
    if declared < 0 or not scale <= precision <= _UNDECLARED.precision:
        return _UNDECLARED
    is_wide = precision > _WIDEST
    return pa.decimal256(precision, scale) if is_wide else pa.decimal128(precision, scale)


def _digits(texts: pa.Array, type: pa.DataType, column: str) -> pa.Array:
    """Texts as decimals; NaN is missing, as everywhere."""
    texts = pc.if_else(pc.equal(texts, "nan"), pa.scalar(None, texts.type), texts)
    try:
        return texts.cast(type)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"PostgreSQL's column {column!r} holds a number that {type} cannot: {error}; "
            "read it by sql= with ::double precision"
        ) from error


def _bind(cursor: Any, values: list[str]) -> None:
    for number, value in enumerate(values):
        cursor.execute("SELECT set_config($1, $2, false)", (f"qkv.value_{number}", value))
        cursor.fetchall()


def _sql(condition: Condition, values: list[str]) -> str:
    """The condition as SQL; its values are appended to `values` and referred to by number."""

    def literal(value: Any) -> str:
        values.append(value.isoformat() if isinstance(value, _TIMES) else str(value))
        return f"current_setting('qkv.value_{len(values) - 1}')::{_cast(value)}"

    def text(part: Condition) -> str:
        match part:
            case Compare(column, sign, str(value)) if "\0" in value:  # which no text here holds
                if sign in ("==", "!="):
                    return (
                        f"({quoted(column)} IS NOT NULL AND {'true' if sign == '!=' else 'false'})"
                    )
                raise ValueError(
                    f"where compares column {column!r} with a text that holds NUL, which has no "
                    "place in PostgreSQL's order of texts"
                )
            case OneOf(column, several) if any(isinstance(v, str) and "\0" in v for v in several):
                others = tuple(v for v in several if not (isinstance(v, str) and "\0" in v))
                return text(OneOf(column, others)) if others else "false"
            case Compare(column, sign, value):
                return f"{quoted(column)} {_SIGNS.get(sign, sign)} {literal(value)}"
            case OneOf(column, several):
                inside = ", ".join(literal(value) for value in several)
                return f"{quoted(column)} IN ({inside})"
            case Missing(column):
                return f"{quoted(column)} IS NULL"
            case And(left, right):
                return f"({text(left)} AND {text(right)})"
            case Or(left, right):
                return f"({text(left)} OR {text(right)})"
            case Not(inner):
                return f"(NOT {text(inner)})"

    return text(condition)


_TIMES = (dt.date, dt.time)


def _cast(value: Any) -> str:
    """The SQL type in which a Python value is exact."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint" if abs(value) < 2**63 else "numeric"
        case Decimal():
            return "numeric"
        case float():
            return "double precision"
        case dt.datetime():
            return "timestamp" if value.tzinfo is None else "timestamptz"
        case dt.date():
            return "date"
        case dt.time():
            return "time"
        case _:
            return "text"
