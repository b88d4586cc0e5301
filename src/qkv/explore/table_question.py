"""A query to a table as the page states it, and the same in code."""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

import qkv
from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.fields import Fields
from qkv.explore.opened import Opened
from qkv.table.columns import Kind, parsed
from qkv.table.samples import SALARIES, STUDENTS
from qkv.table.where import check_column

SAMPLES = {"salaries": SALARIES, "students": STUDENTS}
#: What each kind of key can be compared by, as the page offers it.
_KERNELS = ["gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight", "tricube"]
SIMILARITIES = {
    Kind.NUMBER: ["equal", *_KERNELS, "euclidean"],
    Kind.TIME: ["equal", *_KERNELS],
    Kind.BOOLEAN: ["equal"],
    Kind.TEXT: ["equal", "fuzzy"],
}
NAMES = list(dict.fromkeys(name for names in SIMILARITIES.values() for name in names))


class Key(NamedTuple):
    """One key column: its query, and how it is compared."""

    column: str
    typed: str  # the query as it was typed
    similarity: str
    bandwidth: float | None

    @classmethod
    def of(cls, fields: Fields) -> Key:
        return cls(
            fields.text("key", "gpa", 200),
            fields.text("query", "3.5", 200),
            fields.choice("similarity", "gaussian", NAMES),
            fields.number_or_none("bandwidth", 1e-9, 1e12),
        )

    @property
    def width(self) -> float | None:
        """The bandwidth, where it is given."""
        return self.bandwidth if self.similarity in (*_KERNELS, "fuzzy") else None


class Question(NamedTuple):
    """All fields of a request to the room."""

    source: str
    keys: tuple[Key, ...]
    value: str
    where: str
    by: str
    weight: str
    decay: tuple[str, str, str]  # column, half-life, and as of when
    file: str  # what the user calls it; shown, never opened

    @classmethod
    def of(cls, fields: Fields) -> Question:
        keys = (Key.of(fields), *map(Key.of, fields.several("also", limits.KEYS - 1)))
        names = [key.column for key in keys]
        if len(set(names)) < len(names):
            raise ValueError(f"each key must be another column; got {', '.join(names)}")
        decay = [fields.text(name, "", 200).strip() for name in ("decay", "half_life", "as_of")]
        return cls(
            fields.text("source", "salaries", 16),
            keys,
            fields.text("value", "salary", 200),
            fields.text("where", "", 300).strip(),
            fields.text("by", "", 200),
            fields.text("weight", "", 200),
            (decay[0], decay[1], decay[2]),
            fields.text("file", "", 200),
        )

    @property
    def names(self) -> list[str]:
        return [key.column for key in self.keys]

    def database(self, desk: Desk) -> qkv.Database:
        key = ("table", self.source, *self.names, self.value)
        return desk.once(key, partial(self._open, desk))

    def _open(self, desk: Desk) -> qkv.Database:
        named: dict[str, Any] = {"key": self.names, "value": self.value}
        if self.source == "open":
            given = opened(desk)
            return qkv.Database(given.source, table=given.table, **named)
        return qkv.Database(rows_of(self.source, desk), **named)

    def query(self, schema: pa.Schema) -> Any:
        """The query in the columns' types: one key, or one for each column."""
        entries = [
            parsed(key.typed, schema.field(key.column).type, key.column) for key in self.keys
        ]
        return entries[0] if len(entries) == 1 else tuple(entries)

    def options(self, schema: pa.Schema) -> dict[str, Any]:
        """The options, as :meth:`qkv.Database.query` takes them."""
        one = len(self.keys) == 1
        widths = {key.column: key.width for key in self.keys if key.width is not None}
        options: dict[str, Any] = {
            "similarity": self.keys[0].similarity
            if one
            else {key.column: key.similarity for key in self.keys}
        }
        if widths:
            options["bandwidth"] = self.keys[0].width if one else widths
        named = {"where": self.where, "by": self.by, "weight": self.weight}
        options |= {name: text for name, text in named.items() if text}
        if self.decay[0]:
            options["decay"] = self._decay(schema)
        return options

    def _decay(self, schema: pa.Schema) -> tuple[Any, ...]:
        column, life, as_of = self.decay
        if not life:
            raise ValueError("the half-life must be a number or such as 90d; there is none yet")
        half: Any = life
        with contextlib.suppress(ValueError):
            half = float(life)
        if not as_of:
            return column, half
        check_column(schema, column, "decay")
        return column, half, parsed(as_of, schema.field(column).type, column)


def as_python(question: Question, query: Any, options: dict[str, Any], desk: Desk) -> str:
    imports = {"datetime": ["import datetime"], "decimal": ["from decimal import Decimal"]}
    entries = [*(query if isinstance(query, tuple) else (query,)), *options.get("decay", ())]
    modules = dict.fromkeys(type(entry).__module__ for entry in entries)
    lines = [*(line for module in modules for line in imports.get(module, [])), "import qkv"]
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if question.source in SAMPLES:
        name = question.source.upper()
        lines += [f"from qkv.table.samples import {name}"]
    else:
        name = repr(_name(question, desk))
    table = desk.opened.table if question.source == "open" and desk.opened else None
    more = "" if table is None else f", table={table!r}"
    key = question.names[0] if len(question.keys) == 1 else question.names
    columns = f"key={key!r}, value={question.value!r}{more}"
    return "\n".join(
        [
            *lines,
            "",
            f"database = qkv.Database({name}, {columns})",
            f"answer = database.query({query!r}, {arguments})",
            "print(answer)",
        ]
    )


def as_command(question: Question, desk: Desk) -> str:
    words = ["qkv", "query"]
    words += ["--demo"] if question.source in SAMPLES else [_name(question, desk)]
    typed = [key.typed for key in question.keys]
    words.append(typed[0] if len(typed) == 1 else _as_csv(typed))
    words += [f"--key={name}" for name in question.names]
    words.append(f"--value={question.value}")
    if question.source == "open" and desk.opened and desk.opened.table:
        words.append(f"--table={desk.opened.table}")
    words += [f"--similarity={key.similarity}" for key in question.keys]
    if any(key.width is not None for key in question.keys):
        widths = ["-" if key.width is None else repr(key.width) for key in question.keys]
        words += [f"--bandwidth={width}" for width in widths]
    named = {"where": question.where, "by": question.by, "weight": question.weight}
    words += [f"--{name}={text}" for name, text in named.items() if text]
    column, life, as_of = question.decay
    if column:
        words.append(f"--decay={column}={life}")
        words += [f"--as-of={as_of}"] if as_of else []
    return shlex.join(words)


def _as_csv(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _name(question: Question, desk: Desk) -> str:
    if question.source == "open" and desk.opened is not None:
        secret = desk.opened.source.startswith(("postgresql:", "postgres:"))
        return "postgresql://…" if secret else desk.opened.source
    return question.file or "table.csv"


def opened(desk: Desk) -> Opened:
    if desk.opened is None or desk.opened.kind != "table":
        raise ValueError("no table was opened: start with `qkv explore --open FILE`")
    return desk.opened


def rows_of(source: str, desk: Desk) -> pa.Table:
    if source in SAMPLES:
        import pyarrow.csv

        return desk.once(("sample", source), lambda: pyarrow.csv.read_csv(SAMPLES[source]))
    return desk.uploads.get(source)
