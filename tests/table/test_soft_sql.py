"""soft_mean in DuckDB's SQL gives what Database gives."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from table.tables import people

import qkv
import qkv.table.duckdb

TABLE = people(503)
SELECT = "SELECT town, soft_mean(income, {key}, $1, $2, $3), soft_rows(income, {key}, $1, $2, $3)"


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.register("people", TABLE)
        qkv.table.duckdb.register(connection)
        yield connection


def _assert_same(rows: list[Any], groups: Any) -> None:
    assert {town for town, mean, _ in rows if mean is not None} == set(groups)
    for town, mean, effective in rows:
        if mean is None:
            assert effective == 0.0
        else:
            assert mean == pytest.approx(groups[town].value, rel=1e-12)
            assert effective == pytest.approx(groups[town].effective_rows, rel=1e-12)


@pytest.mark.parametrize(
    "kernel", ["gaussian", "laplacian", "boxcar", "triangular", "epanechnikov"]
)
@pytest.mark.parametrize(
    ("key", "query", "bandwidth"),
    [
        ("height", 1.7, 0.05),
        ("height", 1.7, 1e-4),
        ("height", 70.0, 2.0),  # some 34 bandwidths from all keys: squares of weights vanish
        ("age", 44, 3),
        ("born", dt.date(1990, 1, 2), 300.0),
        ("seen", dt.datetime(1988, 3, 4, 5, 6, 7), 3e7),
    ],
)
def test_the_same_numbers_as_a_database(
    connection: duckdb.DuckDBPyConnection, kernel: str, key: str, query: Any, bandwidth: float
) -> None:
    sql = SELECT.format(key=key) + " FROM people GROUP BY town"
    rows = connection.execute(sql, [query, kernel, bandwidth]).fetchall()
    database = qkv.Database(TABLE, key=key, value="income")
    _assert_same(rows, database.query(query, similarity=kernel, bandwidth=bandwidth, by="town"))


@pytest.mark.parametrize(("query", "bandwidth"), [(2.0, 1e-160), (2.4, 1e-160), (1e200, 1.0)])
def test_squares_may_overflow(
    connection: duckdb.DuckDBPyConnection, query: float, bandwidth: float
) -> None:
    connection.register("few", pa.table({"k": [1.0, 2.0, 4.0], "v": [5.0, 6.0, 7.0]}))
    sql = "SELECT soft_mean(v, k, $1::DOUBLE, 'gaussian', $2) FROM few"
    ((mean,),) = connection.execute(sql, [query, bandwidth]).fetchall()
    assert mean == 6.0


def test_the_nearest_answer_where_all_weights_vanish(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sql = SELECT.format(key="height") + " FROM people GROUP BY town"
    rows = connection.execute(sql, [9.0, "gaussian", 0.01]).fetchall()
    database = qkv.Database(TABLE, key="height", value="income")
    groups = database.query(9.0, similarity="gaussian", bandwidth=0.01, by="town")
    _assert_same(rows, groups)
    with pytest.raises(duckdb.Error, match="so far from all keys that its weights vanish"):
        connection.sql(
            "SELECT soft_mean(income, 0.0, 99.0, 'gaussian', 0.1) FROM people"
        ).fetchall()


def test_keys_that_must_be_equal(connection: duckdb.DuckDBPyConnection) -> None:
    rows = connection.sql(
        "SELECT town, soft_mean(income, name, 'C17'), soft_rows(income, name, 'C17') "
        "FROM people GROUP BY town"
    ).fetchall()
    _assert_same(rows, qkv.Database(TABLE, key="name", value="income").query("C17", by="town"))
    by_number = connection.execute("SELECT soft_mean(income, age, 44, 'equal', 1) FROM people")
    expected = qkv.Database(TABLE, key="age", value="income").query(44)
    assert by_number.fetchone() == pytest.approx((expected.value,), rel=1e-12)


def test_missing_entries_are_left_out_and_offsets_kept(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    rng = np.random.default_rng(2)
    k = np.where(rng.random(301) < 0.1, np.nan, rng.normal(size=301))
    v = np.where(rng.random(301) < 0.1, np.nan, 1e9 + rng.normal(size=301))
    table = pa.table({"k": k, "v": pa.array(v, mask=rng.random(301) < 0.1)})
    qkv.table.duckdb.register(connection)  # twice does no harm
    connection.register("t", table)
    found = connection.execute("SELECT soft_mean(v, k, 0.1, 'gaussian', 0.3) FROM t").fetchone()
    expected = qkv.Database(table, key="k", value="v").query(
        0.1, similarity="gaussian", bandwidth=0.3
    )
    assert found == pytest.approx((expected.value,), rel=1e-15)
    nothing = connection.execute("SELECT soft_mean(v, k, 9e9, 'boxcar', 0.3) FROM t").fetchone()
    assert nothing == (None,)


def test_integers_beyond_the_digits_of_floats(connection: duckdb.DuckDBPyConnection) -> None:
    rows = f"FROM (SELECT {2**60} + range AS k, range AS v FROM range(1000))"
    sql = f"SELECT soft_rows(v, k, {2**60 + 500}, 'boxcar', 2), soft_mean(v, k, {2**60 + 7}) {rows}"
    assert connection.execute(sql).fetchone() == (5.0, 7.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("soft_mean(income, height, 1.7, 'gausian', 1)", "kernel must be one of .*; got gausian"),
        ("soft_mean(income, height, 1.7, 'gaussian', 0)", "bandwidth must be positive and finite"),
        ("soft_mean(income, name, 'x', 'gaussian', 1)", "soft_mean"),
    ],
)
def test_mistakes_are_told(connection: duckdb.DuckDBPyConnection, call: str, said: str) -> None:
    with pytest.raises(duckdb.Error, match=said):
        connection.sql(f"SELECT {call} FROM people").fetchall()


def test_the_module_does_not_hide_duckdb_itself() -> None:
    assert sys.modules["duckdb"] is duckdb
    assert qkv.table.duckdb is not duckdb
