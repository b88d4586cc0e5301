"""A column of a DuckDB relation by its name, whatever that is."""

from __future__ import annotations

from typing import Any

from qkv.optional_dependencies import require


def column_named(name: str) -> Any:
    """The expression that is this column; `*` as a name is not all of them."""
    duckdb = require("duckdb", "table")
    return duckdb.SQLExpression('"*"') if name == "*" else duckdb.ColumnExpression(name)
