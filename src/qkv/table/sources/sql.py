"""SQL text that holds names and never values."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name as SQL reads it, whatever characters it has."""
    if "\0" in name:
        raise ValueError(f"a column or table must have a name without NUL; got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def query_of(table: str | None, sql: str | None) -> str:
    """The query that a source stands for: all of a table, or the user's own."""
    if (table is None) == (sql is None):
        raise ValueError("a database must be asked with either table= or sql=")
    if table is not None:
        return f"SELECT * FROM {quoted(table)}"
    assert sql is not None
    return sql.strip().rstrip(";")
