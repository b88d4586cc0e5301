"""SQL text that holds names and never values."""

from __future__ import annotations

import re

#: What a semicolon or a comment's sign may stand in without being one, and comments themselves.
_PIECE = re.compile(
    r"""(?P<comment>--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<end>;)
    |(?P<word>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"
        |(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)|\w+|\S)
    |(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)


def quoted(name: str) -> str:
    """A name as SQL reads it, whatever characters it has."""
    if "\0" in name:
        raise ValueError(f"a column or table must have a name without NUL; got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def queries_of(table: str | None, sql: str | None) -> list[str]:
    """The queries that a source may stand for: the first that its database knows is meant.

    All of a table, or the user's own. ``public.t`` is a table of that name, or else t in public.
    """
    if (table is None) == (sql is None):
        raise ValueError("a database must be asked with either table= or sql=")
    if table is not None:
        names = [quoted(table)]
        if "." in table.strip("."):
            names.append(".".join(quoted(part) for part in table.split(".")))
        return [f"SELECT * FROM {name}" for name in names]
    assert sql is not None
    return [one_statement(sql)]


def one_statement(sql: str) -> str:
    """The query in this text, without the semicolon and the comments after it."""
    last, ended = 0, False
    for piece in _PIECE.finditer(sql):
        if piece.lastgroup == "end":
            ended = True
        elif piece["word"] is not None:
            if ended:
                raise ValueError(f"sql must be a single query; got more after it: {piece[0]!r}")
            last = piece.end()
    if last == 0:
        raise ValueError(f"sql must be a query that gives rows; got {sql!r}")
    return sql[:last]
