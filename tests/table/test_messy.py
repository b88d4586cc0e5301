"""Messy data mean the same in every source; docs/table.md tells what."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.stored import KINDS, stored

import qkv
from qkv.table.sources import Request

Opened = Callable[..., qkv.Database]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path, postgres: str) -> Opened:
    """A database of keys and values in this kind of source."""

    def open_it(table: pa.Table, key: Any = "k", value: str = "v") -> qkv.Database:
        source, options = stored(kind, table, tmp_path, postgres)
        return qkv.Database(source, key=key, value=value, **options)

    return open_it


def test_an_empty_table_is_said_to_be_empty(opened: Opened, kind: str) -> None:
    schema = pa.schema([("k", pa.float64()), ("name", pa.string()), ("v", pa.float64())])
    if kind == "csv":  # which has no types: its columns hold nothing at all
        with pytest.raises(ValueError, match=r"key column 'k' holds nothing; is the table empty\?"):
            opened(schema.empty_table())
        return
    numbers, names = opened(schema.empty_table()), opened(schema.empty_table(), key="name")
    for how in ({}, {"similarity": "boxcar", "bandwidth": 1}):
        with pytest.raises(ValueError, match=r"^the table \(.*\) is empty$"):
            numbers.query(1.0, **how)
    with pytest.raises(ValueError, match="is empty"):
        numbers.query(1.0, similarity="gaussian", bandwidth=1)
    for similarity in ("equal", "fuzzy"):
        with pytest.raises(ValueError, match="is empty"):
            names.query("x", similarity=similarity)
    # Rows that a condition leaves out are there all the same.
    assert numbers.query(1.0, where="v > 3").value is None


def test_a_window_without_rows_is_no_empty_table(opened: Opened) -> None:
    database = opened(pa.table({"k": [1.0, 2.0], "v": [1.0, 2.0]}))
    assert database.query(9.0).value is None
    assert database.query(9.0, similarity="boxcar", bandwidth=1).value is None


def test_missing_entries_are_counted_alike(opened: Opened) -> None:
    table = pa.table(
        {
            "k": [1.0, None, 3.0, math.nan, 2.0, 9.0, 1.5],
            "v": [1.0, 2.0, None, 4.0, 5.0, None, math.nan],
        }
    )
    database = opened(table)
    everywhere = database.query(1.5, similarity="gaussian", bandwidth=1e6)
    assert everywhere.value == pytest.approx(3.0)
    assert everywhere.plan.missing == {"k": 2, "v": 3}
    assert everywhere.plan.rows_used == 2
    # Only what lies in the window is counted: some sources never see the rest.
    assert database.query(2.0, similarity="boxcar", bandwidth=1).plan.missing == {"k": 0, "v": 2}
    assert database.query(9.0).plan.missing == {"k": 0, "v": 1}
    assert database.query(9.0).value is None


def test_missing_texts_are_counted_alike(opened: Opened) -> None:
    table = pa.table({"k": ["ann", None, "bob", "anna"], "v": ["x", "y", None, "z"], "n": range(4)})
    database = opened(table)
    answer = database.query("ann", similarity="fuzzy", cutoff=0)
    assert answer.plan.missing == {"k": 1, "v": 1}
    assert set(answer.distribution) == {"x", "z"}
    assert database.query("bob").plan.missing == {"k": 0, "v": 1}


def test_times_without_a_zone_are_in_utc(opened: Opened, kind: str) -> None:
    days = [dt.datetime(2020, 1, day) for day in (1, 2, 3)]
    table = pa.table(
        {
            "zoned": pa.array(days, pa.timestamp("us", "Europe/Berlin")),
            "naive": pa.array(days, pa.timestamp("us")),
            "v": [1.0, 2.0, 3.0],
        }
    )
    berlin = dt.timezone(dt.timedelta(hours=1))
    for key in ("zoned", "naive"):
        database = opened(table, key=key)
        for query in (
            dt.datetime(2020, 1, 2),
            dt.datetime(2020, 1, 2, 1, tzinfo=berlin),
            np.datetime64("2020-01-02"),
            pd.Timestamp("2020-01-02"),
            dt.date(2020, 1, 2),
        ):
            assert database.query(query).value == 2.0
            near = database.query(query, similarity="boxcar", bandwidth=dt.timedelta(hours=1))
            assert (near.value, near.effective_rows) == (2.0, 1.0)
        for text in ("2020-01-02", "2020-01-02T00:00", "2020-01-02T01:00+01:00"):
            kept = database.query(days[0], where=f"{key} >= '{text}'", **_everywhere())
            assert kept.value == pytest.approx(2.5)


def test_days_come_as_dates_or_as_numpy_has_them(opened: Opened) -> None:
    days = [dt.date(2020, 1, day) for day in (1, 2, 3)]
    database = opened(pa.table({"k": days, "v": [1.0, 2.0, 3.0]}))
    for query in (dt.date(2020, 1, 2), np.datetime64("2020-01-02"), np.datetime64("2020-01-02T12")):
        assert database.query(query).value == 2.0
        assert database.query(query, similarity="boxcar", bandwidth=0.5).value == 2.0


def _everywhere() -> dict[str, Any]:
    return {"similarity": "gaussian", "bandwidth": 1e12}


def test_nul_in_a_text_matches_only_itself(opened: Opened) -> None:
    database = opened(pa.table({"k": ["a", "b"], "v": [1.0, 2.0]}))
    assert database.query("a\0b").value is None
    assert [answer.value for answer in database.query(["a\0", "b"])] == [None, 2.0]
    assert database.query("a", similarity="fuzzy", cutoff=1, where="k != 'a\0'").value == 1.0
    assert database.query("a", where="k = 'a\0'").value is None
    assert database.query("a", where="k in ('a', 'a\0')").value == 1.0
    assert database.query("a", where="not k = 'a\0'").value == 1.0


def test_bandwidths_and_keys_of_any_size(opened: Opened) -> None:
    database = opened(pa.table({"k": [0.0, 1.0, 2.0], "n": [0, 1, 2], "v": [1.0, 2.0, 3.0]}))
    for similarity in ("boxcar", "triangular", "epanechnikov", "gaussian", "laplacian"):
        for asked in (1.0, [1.0] * 20):
            answer = database.query(asked, similarity=similarity, bandwidth=1e200)
            first = answer[0] if isinstance(answer, list) else answer
            assert first.value == pytest.approx(2.0)
    far = opened(pa.table({"k": [1e300, 1.05e300, -1e300], "v": [1.0, 2.0, 3.0]}))
    for asked in (1e300, [1e300] * 20):
        answer = far.query(asked, similarity="boxcar", bandwidth=1e299)
        first = answer[0] if isinstance(answer, list) else answer
        assert first.value == 1.5


def test_integers_beyond_what_floats_hold(opened: Opened) -> None:
    big = 2**60
    steps = np.arange(0, 2000, 7)
    database = opened(pa.table({"k": big + steps, "v": steps.astype(float)}))
    near = database.query(big + 700, similarity="boxcar", bandwidth=20)
    assert (near.value, near.effective_rows) == (700.0, 5.0)
    assert database.query(big + 707).value == 707.0
    assert database.query(big + 706).value is None
    many = database.query([big + 700 + step for step in range(20)], similarity="boxcar",
                          bandwidth=20)  # fmt: skip
    counts = [sum(abs(step - 700 - place) <= 20 for step in steps) for place in range(20)]
    assert [answer.effective_rows for answer in many] == counts
    kept = database.query(big, similarity="gaussian", bandwidth=1e9, where=f"k < {big + 1}")
    assert kept.effective_rows == 1.0


def test_the_two_zeros_are_one(opened: Opened) -> None:
    database = opened(pa.table({"k": [0.0, -0.0, 1.0], "v": [1.0, 2.0, 3.0]}))
    for zero in (0, 0.0, -0.0):
        assert database.query(zero).value == 1.5
        assert database.query(1.0, where="k in (0, 5)", **_everywhere()).value == 1.5


def test_queries_come_as_any_series(opened: Opened) -> None:
    database = opened(pa.table({"k": [1.0, 2.0], "v": [1.0, 2.0]}))
    series = [
        pd.Series([2.0, 1.0], index=[7, 8]),
        pd.Index([2.0, 1.0]),
        pl.Series([2.0, 1.0]),
        pa.array([2.0, 1.0]),
        pa.chunked_array([[2.0], [1.0]]),
        np.array([2.0, 1.0]),
        pd.DataFrame({"k": [2.0, 1.0]}, index=["a", "b"]),
        pl.DataFrame({"k": [2.0, 1.0]}),
        pa.table({"k": [2.0, 1.0]}),
    ]
    for queries in series:
        assert [answer.value for answer in database.query(queries)] == [2.0, 1.0]
    both = opened(pa.table({"k": [1.0, 2.0], "name": ["a", "b"], "v": [1.0, 2.0]}), ["k", "name"])
    frame = pd.DataFrame({"k": [2.0, 2.0], "name": ["b", "a"]}, index=[3, 4])
    for asked in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        assert [answer.value for answer in both.query(asked)] == [2.0, None]
    assert both.query(frame.iloc[0]).value == 2.0  # a row of a frame is a series too


def test_one_row_is_said_to_be_one(opened: Opened) -> None:
    database = opened(pa.table({"k": [1.0, 5.0], "v": [3.0, 4.0]}))
    answer = database.query(1.0)
    assert answer.interval() is None
    assert "no interval: it needs more than one effective row" in str(answer)


def test_a_source_can_be_read_twice_at_once(opened: Opened) -> None:
    source = opened(pa.table({"k": np.arange(5.0), "v": np.arange(5.0)}))._source
    first = source.scan(Request(["k", "v"], whole_rows=False)).batches()
    second = source.scan(Request(["v"], whole_rows=False)).batches()
    left, right = next(first), next(second)
    assert sum(map(len, [left, *first])) == sum(map(len, [right, *second])) == 5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "csv"])  # which has no vectors
def test_vectors_with_gaps_are_skipped_and_counted(
    kind: str, tmp_path: Path, postgres: str
) -> None:
    rows = [[1.0, 2.0], [math.nan, 1.0], None, [2.0, 2.0], [None, 3.0]]
    table = pa.table({"k": pa.array(rows, pa.list_(pa.float64())), "v": [1.0, 2.0, 3.0, 4.0, 5.0]})
    source, options = stored(kind, table, tmp_path, postgres)
    database = qkv.Database(source, key="k", value="v", **options)
    for similarity in ("dot", "cosine", "euclidean"):
        answer = database.query([1.0, 2.0], similarity=similarity)
        assert answer.plan.missing == {"k": 3, "v": 0}
        assert 1.0 < answer.value < 4.0
    values = qkv.Database(source, key="v", value="k", **options).query(1.0, **_everywhere())
    assert values.value == pytest.approx([1.5, 2.0])
    assert values.plan.missing == {"v": 0, "k": 3}


def _repeated(kind: str, folder: Path, postgres: str) -> tuple[Any, dict[str, str]]:
    """A table with the columns k, x, x and v."""
    columns = [pa.array([1.0, 2.0]), pa.array([3, 4]), pa.array([5, 6]), pa.array([7.0, 8.0])]
    table = pa.Table.from_arrays(columns, names=["k", "x", "x", "v"])
    if kind == "postgres":
        return postgres, {
            "sql": "SELECT 1::float8 k, 3 x, 5 x, 7::float8 v UNION ALL SELECT 2, 4, 6, 8"
        }
    return stored(kind, table, folder, postgres)


@pytest.mark.parametrize("kind", ["pandas", "arrow", "csv", "parquet", "postgres"])
def test_names_that_repeat_are_numbered(kind: str, tmp_path: Path, postgres: str) -> None:
    source, options = _repeated(kind, tmp_path, postgres)
    answer = qkv.Database(source, key="k", value="v", **options).query(2.0)
    assert answer.rows == [{"weight": 1.0, "k": 2.0, "x_1": 4, "x_2": 6, "v": 8.0}]
    second = qkv.Database(source, key="x_2", value="v", **options)
    assert second.query(5, similarity="boxcar", bandwidth=0.5).value == 7.0
    with pytest.raises(ValueError, match="value names column 'x', of which there are 2: here they "
                       "are called x_1, x_2"):  # fmt: skip
        qkv.Database(source, key="k", value="x", **options)


def test_names_that_repeat_in_streams_are_numbered() -> None:
    columns = [pa.array([1.0, 2.0]), pa.array([3, 4]), pa.array([5, 6])]
    table = pa.Table.from_arrays(columns, names=["k", "x", "x"])

    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table.__arrow_c_stream__(requested_schema)

    for source in (table.to_reader(), Stream()):
        (row,) = qkv.Database(source, key="k", value="x_2").query(2.0, where="x_1 > 3").rows
        assert row == {"weight": 1.0, "k": 2.0, "x_1": 4, "x_2": 6}


def test_frames_whose_columns_are_numbers() -> None:
    frame = pd.DataFrame(np.arange(6.0).reshape(3, 2), index=[5, 6, 7])
    assert qkv.Database(frame, key="0", value="1").query(2.0).value == 3.0
    mixed = pd.DataFrame({"k": [1.0, 2.0], "odd": [1, "a"]})
    with pytest.raises(ValueError, match="column 'odd' of the pandas DataFrame must hold one type"):
        qkv.Database(mixed, key="k", value="k")


@pytest.fixture(params=["duckdb", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path, postgres: str) -> Any:
    """A database with a schema: where it is, how to tell it something, and its usual schema."""
    statements = [
        'DROP TABLE IF EXISTS "dotted.t"', "DROP SCHEMA IF EXISTS other CASCADE",
        "CREATE SCHEMA other", "CREATE TABLE other.t (k double precision, v double precision)",
        "INSERT INTO other.t VALUES (1, 2), (3, 4)",
        'CREATE TABLE "dotted.t" (k double precision, v double precision)',
        'INSERT INTO "dotted.t" VALUES (1, 5)',
    ]  # fmt: skip
    if request.param == "duckdb":
        path = tmp_path / "base.duckdb"
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)
        return path
    from adbc_driver_postgresql import dbapi

    with (
        closing(dbapi.connect(postgres, autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)
    return postgres


def test_tables_of_a_schema(server: Any) -> None:
    assert qkv.Database(server, key="k", value="v", table="other.t").query(1.0).value == 2.0
    assert qkv.Database(server, key="k", value="v", table="dotted.t").query(1.0).value == 5.0
    for name in ("nowhere.t", "nowhere"):
        with pytest.raises(ValueError, match=r"(DuckDB cannot answer|PostgreSQL refuses).*nowhere"):
            qkv.Database(server, key="k", value="v", table=name)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM other.t -- all of it",
        "SELECT * FROM other.t; -- all of it; really",
        "SELECT * FROM other.t /* all; of it */ ; ",
        "-- before\nSELECT k, v FROM other.t WHERE ';--' <> ''\n;;",
        "SELECT k, v FROM other.t WHERE $$;'$$ <> '' --",
    ],
)
def test_queries_that_end_in_comments(server: Any, sql: str) -> None:
    database = qkv.Database(server, key="k", value="v", sql=sql)
    assert database.query(1.0).value == 2.0
    assert database.query(1.0, where="v > 3", **_everywhere()).value == 4.0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1; DROP TABLE other.t", "sql must be a single query; got more after it: 'DROP'"),
        ("  -- nothing", "sql must be a query that gives rows"),
        ("SELEC 1", "DuckDB cannot answer|PostgreSQL refuses"),
    ],
)
def test_queries_that_are_none(server: Any, sql: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qkv.Database(server, key="k", value="v", sql=sql)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_folders_whose_files_differ_are_unified_by_name(suffix: str, tmp_path: Path) -> None:
    _write(pa.table({"k": [1, 2], "v": [1.0, 2.0], "old": ["a", "b"]}), tmp_path / f"a.{suffix}")
    _write(pa.table({"new": [True, False], "v": [4.5, 6.0], "k": [3.5, 1.0]}),
           tmp_path / f"b.{suffix}")  # fmt: skip
    database = qkv.Database(tmp_path, key="k", value="v")
    assert database.query(1.0).value == 3.5
    (row,) = database.query(3.5).rows
    assert row == {"weight": 1.0, "k": 3.5, "v": 4.5, "old": None, "new": True}
    later = qkv.Database(tmp_path, key="k", value="new")
    assert later.query(1.0, similarity="boxcar", bandwidth=9).distribution == {
        True: 0.5,
        False: 0.5,
    }
    assert later.query(1.0, similarity="boxcar", bandwidth=9).plan.missing == {"k": 0, "new": 2}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_folders_called_name_and_value_are_columns(suffix: str, tmp_path: Path) -> None:
    for year, town, value in ((2020, "Oslo", 1.5), (2020, "Rome", 2.0), (2021, "Oslo", 3.0)):
        folder = tmp_path / f"year={year}" / f"town={town}"
        folder.mkdir(parents=True)
        _write(pa.table({"k": [1.0], "v": [value]}), folder / f"a.{suffix}")
    database = qkv.Database(tmp_path, key="k", value="v")
    assert database.query(1.0).effective_rows == 3.0
    (row,) = database.query(1.0, where="year = 2020 and town = 'Rome'").rows
    assert row == {"weight": 1.0, "k": 1.0, "v": 2.0, "year": 2020, "town": "Rome"}
    by_year = qkv.Database(tmp_path, key="year", value="v")
    assert by_year.query(2021).value == 3.0
    assert by_year.query(2020, similarity="boxcar", bandwidth=0.5).value == 1.75


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_folders_whose_files_contradict_each_other(suffix: str, tmp_path: Path) -> None:
    _write(pa.table({"k": [1, 2], "v": [1.0, 2.0]}), tmp_path / f"a.{suffix}")
    _write(pa.table({"k": ["x", "y"], "v": [4.5, 6.0]}), tmp_path / f"b.{suffix}")
    message = (
        rf"column 'k' (holds|is) (integer|int64) in 'a.{suffix}' and (text|string) in 'b.{suffix}'"
    )
    with pytest.raises(ValueError, match=message):
        qkv.Database(tmp_path, key="k", value="v")


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        import pyarrow.feather

        pyarrow.feather.write_feather(table, str(path))
