"""Conditions: what they mean, and what is said to a mistake."""

from __future__ import annotations

import contextlib
import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.table.sources.base import arrow_filter
from qkv.table.where import Compare, Not, OneOf, parse

TABLE = pa.table(
    {
        "year": [2019, 2020, None, 2022],
        "name": ["it's", 'a "b"', "c", None],
        "my col": [1.5, -2.0, 3e5, 4.0],
        "day": [dt.date(2020, 1, d) for d in (1, 2, 3, 4)],
        "on": [True, False, True, None],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("year >= 2020", [1, 3]),
        ("year = 2019 or year == 2022", [0, 3]),
        ("year <> 2020", [0, 3]),
        ("not year = 2020", [0, 3]),
        ("not not year = 2020", [1]),
        ("year is null", [2]),
        ("year is not null and name is null", [3]),
        ("year in (2019, 2020) and not (name = 'it''s')", [1]),
        ("year not in (2019)", [1, 3]),
        ('"my col" between -2 and 1.5', [0, 1]),
        ('"my col" > 2.9e5', [2]),
        ("name = 'a \"b\"'", [1]),
        ("day < '2020-01-03'", [0, 1]),
        ("on = true", [0, 2]),
        ("on != true or day = '2020-01-04'", [1, 3]),
        ("year = 2019 or year = 2020 and on = true", [0]),
    ],
)
def test_conditions_keep_the_rows_they_name(text: str, rows: list[int]) -> None:
    kept = TABLE.append_column("row", pa.array(range(4))).filter(
        arrow_filter(parse(text, TABLE.schema))
    )
    assert kept["row"].to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yaer > 3", "where names column 'yaer', which is not there; did you mean 'year'\\?"),
        ("year > 'x'", "where compares column 'year', which holds a number \\(int64\\), with 'x'"),
        ("name = 3", "where compares column 'name', which holds text \\(string\\), with 3"),
        (
            "day = '2020-13-01'",
            "column 'day' \\(date32\\[day\\]\\) holds a date or time; '2020-13-01' is none",
        ),
        ("year >", "where expects a value for 'year'; got its end"),
        ("year", "where expects a comparison after 'year'; got its end"),
        ("(year = 1", "where expects '\\)'; got its end"),
        ("year = 1 year = 2", "where expects 'and', 'or' or its end; got year"),
        ("year = 1; drop table t", "where cannot be read at '; drop table t'"),
        ("__import__('os')", "where names column '__import__'"),
        ("= 3", "where expects a column; got ="),
        ("(" * 60 + "year = 1", "more than 50 nested parentheses"),
        ("x" * 10_001, "shorter than 10,000 characters"),
    ],
)
def test_a_mistake_in_a_condition_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text, TABLE.schema)


@given(st.text(max_size=30))
def test_any_text_can_be_looked_for(text: str) -> None:
    quoted = text.replace("'", "''")
    assert parse(f"name = '{quoted}'", TABLE.schema) == Compare("name", "==", text)
    assert parse(f"name not in ('{quoted}')", TABLE.schema) == Not(OneOf("name", (text,)))


@given(st.text(max_size=40))
def test_nothing_but_an_error_comes_of_nonsense(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text, TABLE.schema)
