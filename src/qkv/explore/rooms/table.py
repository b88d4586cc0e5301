"""Table: a soft query to a table, its answer, and the rows of largest weight."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import qkv
from qkv.explore import limits
from qkv.explore.desk import Desk
from qkv.explore.fields import Fields
from qkv.explore.table_question import (
    SIMILARITIES,
    Question,
    as_command,
    as_python,
    opened,
    rows_of,
)
from qkv.explore.workers import Ticket
from qkv.table.columns import Kind, kind_of
from qkv.table.sources import open_source

TOP = 300  # rows that are drawn
COLUMNS, CELL = 10, 120  # columns of a row that are shown, and characters of a cell
GRID = 101  # keys along a curve
GROUPS, LINES = 60, 6  # that are shown, and drawn


def columns(fields: Fields, desk: Desk, _: Ticket) -> dict[str, Any]:
    """The columns of the table: kind, possible similarities, and range."""
    source = fields.text("source", "salaries", 16)
    if source == "open":
        given = opened(desk)
        schema = desk.once("opened", lambda: open_source(given.source, given.table)).schema
        table = None
    else:
        table = rows_of(source, desk)
        schema = table.schema
    described = []
    for field in schema:
        kind = kind_of(field.type)
        if kind in SIMILARITIES and not pa.types.is_null(field.type):
            description = {"name": field.name, "kind": kind.name.lower()}
            ends = _ends(table, field.name, kind)
            described.append({**description, "similarities": SIMILARITIES[kind], "ends": ends})
    if not described:
        raise ValueError("the table has no column of numbers, dates or text to ask by")
    return {"columns": described, "rows": None if table is None else len(table)}


def ask(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The answer with the rows that weighed most, or one for each group; and the plan."""
    question = Question.of(fields)
    database = question.database(desk)
    query, options = question.query(database.schema), question.options(database.schema)
    _check_groups(question, desk)
    top = None if question.by else TOP
    answer = database.query(query, **options, top=top, progress=ticket.check)
    code = {
        "python": as_python(question, query, options, desk),
        "command": as_command(question, desk),
    }
    if question.by:
        groups = list(answer.items())
        plan = str(groups[0][1].plan) if groups else ""
        shown = sorted(groups, key=lambda each: -each[1].effective_rows)[:GROUPS]
        rows_of_groups = [{"group": _cell(group), **_value(each)} for group, each in shown]
        return {"groups": rows_of_groups, "of": len(groups), "rows": [], "plan": plan, **code}
    names = _shown(database.schema.names, question)
    rows = [
        {"weight": row["weight"], "cells": [_cell(row.get(name)) for name in names]}
        for row in answer.to_dict()["rows"]
    ]
    plan = str(answer.plan)
    return {**_value(answer), "columns": names, "rows": rows, "plan": plan, **code}


def _value(answer: qkv.table.Answer) -> dict[str, Any]:
    """A summary of an answer."""
    content = answer.to_dict()
    return {
        "value": _cell(content["value"]) if isinstance(content["value"], str) else content["value"],
        "std": content["std"],
        "interval": content["interval"],
        "distribution": [
            {"value": _cell(each["value"]), "weight": each["weight"]}
            for each in content["distribution"][:30]
        ],
        "effective": content["effective_rows"],
    }


def curve(fields: Fields, desk: Desk, ticket: Ticket) -> dict[str, Any]:
    """The same question over a range of queries; a line for each group."""
    question = Question.of(fields)
    low = fields.number("low", 2.0, -1e15, 1e15)
    high = fields.number("high", 4.0, -1e15, 1e15)
    if not low < high:
        raise ValueError(f"the range must go upwards; got {low:g} to {high:g}")
    if len(question.keys) > 1:
        raise ValueError("a curve goes along one key, and this question has several")
    database = question.database(desk)
    grid = [low + (high - low) * step / (GRID - 1) for step in range(GRID)]
    options = question.options(database.schema)
    if options["similarity"] == "equal":
        raise ValueError("a curve needs a kernel: equal keys give no answers in between")
    _check_groups(question, desk)
    curves = database.curve(grid, **options, progress=ticket.check)
    lines = dict(list(curves.items())[:LINES]) if question.by else {None: curves}
    return {
        "grid": grid,
        "lines": [{"group": _cell(group), **_line(each)} for group, each in lines.items()],
    }


def _line(curve: Any) -> dict[str, Any]:
    points = curve.to_dict()["points"]
    names = {"value": "value", "low": "interval_low", "high": "interval_high"}
    return {name: [point[place] for point in points] for name, place in names.items()}


ACTIONS = {"columns": columns, "ask": ask, "curve": curve}


def _check_groups(question: Question, desk: Desk) -> None:
    """Limit the number of groups, which would take long to serialise and cannot all be shown."""
    if question.source == "open" or question.by not in rows_of(question.source, desk).column_names:
        return
    groups = pc.count_distinct(rows_of(question.source, desk)[question.by], mode="all").as_py()
    if groups > limits.GROUPS:
        raise ValueError(
            f"by must name a column of at most {limits.GROUPS:,} different entries; "
            f"{question.by!r} has {groups:,}"
        )


def _ends(table: pa.Table | None, name: str, kind: Kind) -> list[float] | None:
    """The least and the greatest number of a column."""
    if table is None or kind is not Kind.NUMBER:
        return None
    ends = pc.min_max(table.column(name).cast(pa.float64(), safe=False)).as_py()
    limits = [ends["min"], ends["max"]]
    return limits if all(each is not None and abs(each) < 1e15 for each in limits) else None


def _shown(names: list[str], question: Question) -> list[str]:
    """Key and value first: these are what the question was about."""
    return list(dict.fromkeys([*question.names, question.value, *names]))[:COLUMNS]


def _cell(entry: Any) -> Any:
    if isinstance(entry, (int, float)) or entry is None:
        return entry
    text = str(entry)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
