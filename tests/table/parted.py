"""A table in parts, questions of every kind to it, and answers compared."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from table.tables import people


def _with_gaps(table: pa.Table) -> pa.Table:
    """The table, where some entries of keys and values are missing."""
    for name, step in (("height", 17), ("income", 13), ("name", 29)):
        gone = pa.array(np.arange(len(table)) % step == 3)
        column = pc.if_else(gone, None, table.column(name))
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


TABLE = _with_gaps(people(601))
_EDGES = [0, 7, 130, 131, 400, 601]
_WRITE: dict[str, Any] = {
    "parquet": lambda rows, path: pq.write_table(rows, path, row_group_size=31),
    "ipc": pa.feather.write_feather,
    "csv": lambda rows, path: pa.csv.write_csv(rows.drop_columns(["place", "seen"]), path),
}
#: Ends of the files' names.
ENDS = {"parquet": "parquet", "ipc": "arrow", "csv": "csv"}


def in_files(kind: str, folder: Path) -> Path:
    """The rows in files of unequal length."""
    folder.mkdir()
    for number, (start, stop) in enumerate(itertools.pairwise(_EDGES)):
        _WRITE[kind](TABLE.slice(start, stop - start), folder / f"{number}.{ENDS[kind]}")
    return folder


#: Keys, value, query and how: every kind of key, value and similarity.
QUESTIONS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "equal": ("town", "income", ["Rome", "Oslo", "Nowhere"], {}),
    "gaussian": ("height", "income", 1.7, {"similarity": "gaussian", "bandwidth": 0.02}),
    "many": ("height", "income", [1.5 + place / 97 for place in range(37)],
             {"similarity": "epanechnikov", "bandwidth": 0.05}),
    "dates": ("born", "income", dt.date(1990, 5, 17),
              {"similarity": "laplacian", "bandwidth": 400.0}),
    "values": ("height", ["born", "seen", "name", "alive"], 1.7,
               {"similarity": "gaussian", "bandwidth": 0.02}),
    "text": ("name", "town", ["A1", "B22"], {"similarity": "fuzzy"}),
    "several": (["age", "town"], ["income", "alive"], (40, "Kyiv"),
                {"similarity": {"age": "triangular", "town": "equal"}, "bandwidth": {"age": 9}}),
    "where": ("height", "income", 1.7,
              {"similarity": "epanechnikov", "bandwidth": 0.1,
               "where": "age > 30 and alive = true"}),
    "arrow where": ("height", "income", 1.7, {"similarity": "gaussian", "bandwidth": 0.1,
                                              "where": pc.field("age") > 33}),
    "groups": ("height", ["income", "name"], [1.6, 1.8],
               {"similarity": "gaussian", "bandwidth": 0.1, "by": "town", "top": 2}),
    "aging": ("height", "income", 1.7,
              {"similarity": "gaussian", "bandwidth": 0.1, "decay": ("born", "4y"),
               "weight": "age"}),
    "chosen": ("height", "income", 1.7, {"similarity": "gaussian"}),
    "chosen for names": ("height", "town", 1.7, {"similarity": "triangular"}),
}  # fmt: skip


def assert_close(found: Any, expected: Any) -> None:
    """Everything that an answer says, numbers to 1e-12."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_close(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for own, other in zip(found, expected, strict=True):
            assert_close(own, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)
    else:
        assert found == expected


def as_json(answers: Any, *without: str) -> Any:
    """Answers as JSON has them, but for notes of their plans and what else is named."""
    several = answers if isinstance(answers, list) else [answers]
    return [_without(each.to_dict(), ("notes", *without)) for each in several]


def _without(said: Any, names: tuple[str, ...]) -> Any:
    if isinstance(said, dict):
        return {name: _without(each, names) for name, each in said.items() if name not in names}
    return [_without(each, names) for each in said] if isinstance(said, list) else said
