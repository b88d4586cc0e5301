"""Table: a soft question to a table, its answer, and the rows that weighed most."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import qkv
from qkv.explore.desk import Desk
from qkv.explore.fields import Fields
from qkv.explore.workers import Ticket
from qkv.table.columns import Kind, kind_of, parsed
from qkv.table.samples import SALARIES, STUDENTS
from qkv.table.sources import open_source

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

TOP = 300  # rows that are drawn
COLUMNS, CELL = 10, 120  # columns of a row that are shown, and characters of a cell
GRID = 101  # keys along a curve


class Question(NamedTuple):
    """Everything the room can be asked, as the page states it."""

    source: str
    key: str
    value: str
    similarity: str
    bandwidth: float | None
    where: str
    file: str  # what the user calls it; shown, never opened

    @classmethod
    def of(cls, fields: Fields) -> Question:
        return cls(
            fields.text("source", "salaries", 16),
            fields.text("key", "gpa", 200),
            fields.text("value", "salary", 200),
            fields.choice("similarity", "gaussian", NAMES),
            fields.number_or_none("bandwidth", 1e-9, 1e12),
            fields.text("where", "", 300).strip(),
            fields.text("file", "", 200),
        )

    def database(self, desk: Desk) -> qkv.Database:
        return desk.once(("table", self.source, self.key, self.value), partial(self._open, desk))

    def _open(self, desk: Desk) -> qkv.Database:
        named: dict[str, Any] = {"key": self.key, "value": self.value}
        if self.source == "open":
            opened = _opened(desk)
            return qkv.Database(opened.source, table=opened.table, **named)
        return qkv.Database(_in_memory(self.source, desk), **named)

    @property
    def options(self) -> dict[str, Any]:
        told: dict[str, Any] = {"similarity": self.similarity}
        if self.bandwidth is not None and self.similarity in (*_KERNELS, "fuzzy"):
            told["bandwidth"] = self.bandwidth
        if self.where:
            told["where"] = self.where
        return told


def columns(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """What the table has: each column, its kind, how it can be compared, and its ends."""
    source = fields.text("source", "salaries", 16)
    if source == "open":
        opened = _opened(desk)
        schema = desk.once("opened", lambda: open_source(opened.source, opened.table)).schema
        table = None
    else:
        table = _in_memory(source, desk)
        schema = table.schema
    found = []
    for field in schema:
        kind = kind_of(field.type)
        if kind in SIMILARITIES and not pa.types.is_null(field.type):
            known = {"name": field.name, "kind": kind.name.lower()}
            ends = _ends(table, field.name, kind)
            found.append({**known, "similarities": SIMILARITIES[kind], "ends": ends})
    if not found:
        raise ValueError("the table has no column of numbers, dates or text to ask by")
    return {"columns": found, "rows": None if table is None else len(table)}


def ask(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The answer to a query, with the rows that weighed most and the plan."""
    question = Question.of(fields)
    typed = fields.text("query", "3.5", 200)
    database = question.database(desk)
    query = parsed(typed, database.schema.field(question.key).type, question.key)
    answer = database.query(query, **question.options, top=TOP, progress=ticket.check)
    told = answer.to_dict()
    names = _shown(database.schema.names, question)
    return {
        "value": _cell(told["value"]) if isinstance(told["value"], str) else told["value"],
        "std": told["std"],
        "interval": told["interval"],
        "distribution": [
            {"value": _cell(each["value"]), "weight": each["weight"]}
            for each in told["distribution"][:30]
        ],
        "effective": told["effective_rows"],
        "columns": names,
        "rows": [
            {"weight": row["weight"], "cells": [_cell(row.get(name)) for name in names]}
            for row in told["rows"]
        ],
        "plan": str(answer.plan),
        "python": as_python(question, query, desk),
        "command": as_command(question, typed, desk),
    }


def curve(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The same question over a range of queries."""
    question = Question.of(fields)
    low = fields.number("low", 2.0, -1e15, 1e15)
    high = fields.number("high", 4.0, -1e15, 1e15)
    if not low < high:
        raise ValueError(f"the range must go upwards; got {low:g} to {high:g}")
    database = question.database(desk)
    grid = [low + (high - low) * step / (GRID - 1) for step in range(GRID)]
    options = question.options
    if options["similarity"] == "equal":
        raise ValueError("a curve needs a kernel: equal keys alone say nothing in between")
    found = database.curve(grid, **options, progress=ticket.check)
    points = found.to_dict()["points"]
    return {
        "grid": grid,
        "value": [point["value"] for point in points],
        "low": [point["interval_low"] for point in points],
        "high": [point["interval_high"] for point in points],
    }


ACTIONS = {"columns": columns, "ask": ask, "curve": curve}


def as_python(question: Question, query: Any, desk: Desk) -> str:
    imports = {"datetime": ["import datetime"], "decimal": ["from decimal import Decimal"]}
    lines = [*imports.get(type(query).__module__, []), "import qkv"]
    told = ", ".join(f"{name}={value!r}" for name, value in question.options.items())
    if question.source in SAMPLES:
        name = question.source.upper()
        lines += [f"from qkv.table.samples import {name}"]
    else:
        name = repr(_name(question, desk))
    table = desk.opened.table if question.source == "open" and desk.opened else None
    more = "" if table is None else f", table={table!r}"
    columns = f"key={question.key!r}, value={question.value!r}{more}"
    return "\n".join(
        [
            *lines,
            "",
            f"database = qkv.Database({name}, {columns})",
            f"answer = database.query({query!r}, {told})",
            "print(answer)",
        ]
    )


def as_command(question: Question, typed: str, desk: Desk) -> str:
    words = ["qkv", "query"]
    words += ["--demo"] if question.source in SAMPLES else [_name(question, desk)]
    words.append(typed)
    words += [f"--key={question.key}", f"--value={question.value}"]
    if question.source == "open" and desk.opened and desk.opened.table:
        words.append(f"--table={desk.opened.table}")
    words += [f"--{name}={value}" for name, value in question.options.items()]
    return shlex.join(words)


def _name(question: Question, desk: Desk) -> str:
    if question.source == "open" and desk.opened is not None:
        secret = desk.opened.source.startswith(("postgresql:", "postgres:"))
        return "postgresql://…" if secret else desk.opened.source
    return question.file or "table.csv"


def _opened(desk: Desk) -> Any:
    if desk.opened is None or desk.opened.kind != "table":
        raise ValueError("no table was opened: start with `qkv explore --open FILE`")
    return desk.opened


def _in_memory(source: str, desk: Desk) -> pa.Table:
    if source in SAMPLES:
        import pyarrow.csv

        return desk.once(("sample", source), lambda: pyarrow.csv.read_csv(SAMPLES[source]))
    return desk.uploads.get(source)


def _ends(table: pa.Table | None, name: str, kind: Kind) -> list[float] | None:
    """The least and the greatest number of a column."""
    if table is None or kind is not Kind.NUMBER:
        return None
    ends = pc.min_max(table.column(name).cast(pa.float64(), safe=False)).as_py()
    known = [ends["min"], ends["max"]]
    return known if all(each is not None and abs(each) < 1e15 for each in known) else None


def _shown(names: list[str], question: Question) -> list[str]:
    """Key and value first: these are what the question was about."""
    return list(dict.fromkeys([question.key, question.value, *names]))[:COLUMNS]


def _cell(entry: Any) -> Any:
    if isinstance(entry, (int, float)) or entry is None:
        return entry
    said = str(entry)
    return said if len(said) <= CELL else f"{said[: CELL - 1]}…"
