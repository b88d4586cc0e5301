"""Soft joins of messy tables, of all sources, and of mistakes."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import joins
from table.tables import people

import qkv
from qkv.table import SoftJoin, soft_join

LEFT, RIGHT = 47, 131


def _tables() -> tuple[pa.Table, pa.Table]:
    return people(LEFT, seed=5), people(RIGHT, seed=7)


def test_types_meet_in_one_that_holds_both() -> None:
    day = pa.table({"t": [dt.date(2020, 1, 2)]})
    hours = pa.table({"t": [dt.datetime(2020, 1, 2, h) for h in (3, 1)], "v": [0, 1]})
    assert soft_join(day, hours, on={"t": "nearest"})["v"].to_pylist() == [1]
    small = pa.table({"t": pa.array([3], pa.int8())})
    large = pa.table({"t": pa.array([3.5, 2.9], pa.float32()), "v": [0, 1]})
    assert soft_join(small, large, on={"t": "nearest"})["v"].to_pylist() == [1]
    coarse = pa.table({"t": pa.array([5], pa.timestamp("s"))})
    fine = pa.table({"t": pa.array([5 * 10**9 + 1, 5 * 10**9], pa.timestamp("ns")), "v": [0, 1]})
    assert soft_join(coarse, fine, on={"t": "equal"})["v"].to_pylist() == [1]
    category = pa.table({"t": pa.array(["x", "y"]).dictionary_encode()})
    plain = pa.table({"t": pa.array(["y"], pa.large_string()), "v": [7]})
    assert soft_join(category, plain, on={"t": "equal"})["v"].to_pylist() == [None, 7]
    prices = pa.table({"t": pa.array([1.25], pa.float64()).cast(pa.decimal128(9, 2))})
    other = pa.table({
        "t": pa.array([1.3, 1.249], pa.float64()).cast(pa.decimal128(9, 3)), "v": [0, 1],
    })  # fmt: skip
    assert soft_join(prices, other, on={"t": qkv.Boxcar(0.01)})["v"].to_pylist() == [1]
    zeros = pa.table({"t": [0.0, -0.0]})
    assert soft_join(zeros, pa.table({"t": [-0.0], "v": [1]}), on={"t": "equal"})[
        "v"
    ].to_pylist() == [1, 1]


_MESSY = st.lists(
    st.fixed_dictionaries({
        "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e300]),
        "n": st.none() | st.integers(-3, 3),
        "t": st.none() | st.sampled_from(["", "ü", "u\u0308", "Ü", "zzz", "𝔘nicode", "unicode"]),
        "v": st.none() | st.sampled_from([1.0, 2.0, math.nan]),
    }),
    max_size=11,
)  # fmt: skip
_SCHEMA = pa.schema(
    [("x", pa.float64()), ("n", pa.int32()), ("t", pa.string()), ("v", pa.float64())]
)


@given(left=_MESSY, right=_MESSY, top=st.sampled_from([1, 2, None]))
@pytest.mark.parametrize(
    ("on", "weigh"),
    [
        ({"x": "equal"}, {"x": joins.equal}),
        ({"x": qkv.Triangular(2)}, {"x": joins.near("triangular", 2)}),
        (
            {"n": qkv.Boxcar(1), "t": "fuzzy"},
            {"n": joins.near("boxcar", 1), "t": joins.fuzzy(0.6)},
        ),
        (
            {"n": "equal", "x": qkv.Epanechnikov(3)},
            {"n": joins.equal, "x": joins.near("epanechnikov", 3)},
        ),
        ({"n": qkv.Gaussian(0.5)}, {"n": joins.near("gaussian", 0.5)}),
    ],
    ids=["equal", "triangular", "boxcar and fuzzy", "equal and epanechnikov", "gaussian"],
)
def test_messy_tables(
    left: list[dict[str, Any]],
    right: list[dict[str, Any]],
    top: int | None,
    on: dict[str, Any],
    weigh: dict[str, joins.Weigh],
) -> None:
    asked, known = (pa.Table.from_pylist(rows, _SCHEMA) for rows in (left, right))
    join = SoftJoin(asked, known, on=on, take="v", top=top)
    joined = join.to_arrow().to_pylist()
    expected = joins.matches(left, right, {(name, name): own for name, own in weigh.items()})
    for row, found in zip(joined, expected, strict=True):
        assert (row["row"] is None) == (not found)
        if found:
            assert row["similarity"] == pytest.approx(found[0][0], rel=1e-9)
            assert row["weight"] == pytest.approx(found[0][0] / math.fsum(w for w, _ in found))
            if top is None:
                mean = joins.mean(found, [each["v"] for each in right])
                assert row["v_right"] == (None if mean is None else pytest.approx(mean))
    for side, rows, counted in (
        ("left", left, join.report.missing_left), ("right", right, join.report.missing_right),
    ):  # fmt: skip
        for name in on:
            lacking = sum(joins.missing(row[name]) for row in rows)
            assert counted.get(name, 0) == lacking, side
    assert join.report.matched == sum(bool(found) for found in expected)


def _source(kind: str, table: pa.Table, path: Path) -> Any:
    if kind == "arrow":
        return table
    if kind == "pandas":
        return table.to_pandas()
    if kind == "reader":
        return table.to_reader(max_chunksize=13)
    path = path.with_suffix(f".{kind}")
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=17)
    else:
        table.to_pandas().to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["pandas", "parquet", "csv", "reader"])
def test_sources_of_both_sides(kind: str, tmp_path: Path) -> None:
    left, right = (table.select(["age", "name", "income"]) for table in _tables())

    on = {"age": qkv.Gaussian(3), "name": "fuzzy"}
    expected = soft_join(left, right, on=on, take="income")
    sources = _source(kind, left, tmp_path / "a"), _source(kind, right, tmp_path / "b")
    joined = soft_join(*sources, on=on, take="income")
    assert joined["row"].to_pylist() == expected["row"].to_pylist()
    assert joined["income_right"].to_pylist() == pytest.approx(expected["income_right"].to_pylist())


@pytest.mark.parametrize("kind", ["arrow", "pandas", "parquet", "csv", "reader", "duckdb"])
@pytest.mark.parametrize("wanted", ["sentence", "expression"])
def test_where_keeps_rows_of_either_side(kind: str, wanted: str, tmp_path: Path) -> None:
    left, right = (table.select(["age", "name", "income"]) for table in _tables())
    on = {"age": qkv.Gaussian(3), "name": "fuzzy"}
    old, rich = pc.field("age") >= 30, pc.field("income") > 1000.0
    expected = soft_join(left.filter(old), right.filter(rich), on=on, take="income")
    assert 0 < len(expected) < LEFT
    keep = {"where_left": "age >= 30", "where": "income > 1000"}
    if wanted == "expression":
        keep = {"where_left": old, "where": rich}
    if kind == "duckdb":
        connection = duckdb.connect()
        sources = [connection.from_arrow(table) for table in (left, right)]
    else:
        sources = [_source(kind, t, tmp_path / n) for t, n in ((left, "a"), (right, "b"))]
    join = SoftJoin(*sources, on=on, take="income", **keep)
    joined = join.to_arrow()
    assert joined["row"].to_pylist() == expected["row"].to_pylist()
    assert joined["name"].to_pylist() == expected["name"].to_pylist()
    assert joined["income_right"].to_pylist() == pytest.approx(expected["income_right"].to_pylist())
    assert join.report.rows == len(expected)
    assert "takes of the left table rows where" in str(join)
    none = soft_join(left, right, on=on, take="income", where="income < -1e9")
    assert none["row"].null_count == LEFT


def test_the_nearest_matches_however_far_it_is() -> None:
    left = pa.table({"k": [2.0, 2.4, 3.5, 1e200, -1e300]})
    right = pa.table({"k": [1.0, 2.0, 4.0], "v": [5, 6, 7]})
    for kernel in (qkv.Gaussian(1e-160), qkv.Laplacian(1e-160)):
        joined = soft_join(left.slice(0, 3), right, on={"k": kernel})
        assert joined["v"].to_pylist() == [6, 6, 7]
    far = soft_join(left, right, on={"k": qkv.Gaussian(1.0)})
    assert far["v"].to_pylist() == [6, 6, 7, 5, 5]  # of those equally near, the first
    assert far["similarity"].to_pylist()[3:] == [0.0, 0.0]


def test_databases_join_where() -> None:
    left, right = (qkv.Database(table, key="age", value="income") for table in _tables())
    joined = left.soft_join(right, on={"age": "nearest"}, where="age > 40", where_left="age < 30")
    assert min(joined["age"].to_pylist()) < 30
    assert max(joined["age"].to_pylist()) < 30
    assert joined["similarity"].null_count == 0
    again = left.soft_join(
        right, on={"age": qkv.Boxcar(9)}, where="age > 40", where_left="age < 30"
    )
    assert again["row"].null_count == len(again)


def test_a_reader_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = _tables()
    monkeypatch.setenv("QKV_MEMORY_BUDGET", str(16 * 2000))
    with pytest.raises(ValueError, match=r"right \(Arrow reader\) can be read only once, and both"):
        soft_join(left, right.to_reader(), on={"age": "equal"})


def test_a_stream_comes_as_the_left_table_is_read() -> None:
    batches = pa.table({"age": list(range(40))}).to_batches(max_chunksize=7)
    read = 0

    def counted() -> Any:
        nonlocal read
        for batch in batches:
            read += 1
            yield batch

    left = pa.RecordBatchReader.from_batches(batches[0].schema, counted())
    reader = SoftJoin(left, people(53), on={"age": "nearest"}, take="income").reader()
    assert len(reader.read_next_batch()) == 7
    assert read < len(batches)
    assert len(reader.read_all()) == 33


def test_progress_is_told_of_left_rows() -> None:
    left, right = _tables()
    told: list[tuple[int, int | None]] = []
    soft_join(left, right, on={"age": "equal"}, progress=lambda *each: told.append(each))
    assert told[-1] == (LEFT, LEFT)


def test_empty_tables() -> None:
    left, right = _tables()
    for on in (
        {"name": "fuzzy"},
        {"age": "equal"},
        {"height": qkv.Gaussian(1)},
        {"age": "nearest"},
    ):
        for top in (1, 2, None):
            nothing = soft_join(left, right.slice(0, 0), on=on, take=["income", "town"], top=top)
            assert nothing["income_right"].null_count == LEFT
            assert nothing["row"].null_count == LEFT
            empty = soft_join(left.slice(0, 0), right, on=on, take=["income", "town"], top=top)
            assert len(empty) == 0
            assert empty.schema == nothing.schema


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "name"}, r"on must map columns to similarities.*got str"),
        ({"on": {}}, "on must name at least one column"),
        ({"on": {3: "equal"}}, "on must have columns, or pairs of a left and a right one; got 3"),
        ({"on": {"nam": "equal"}}, r"on \(left\) names column 'nam'.*did you mean 'name'"),
        ({"on": {("name", "nam"): "equal"}}, r"on \(right\) names column 'nam'"),
        ({"on": {("name", "age"): "equal"}}, "columns 'name' and 'age' cannot be compared: string"),
        ({"on": {("born", "name"): "equal"}}, "'born' and 'name' cannot be compared"),
        ({"on": {"name": "gaussian"}}, "similarity 'gaussian' cannot compare key column 'name'"),
        ({"on": {"age": "gaussian"}}, "'gaussian' of column 'age' needs a bandwidth"),
        ({"on": {"age": "nearby"}}, "similarity must be one of equal"),
        ({"on": {"name": "nearest"}}, "'nearest' cannot compare column 'name'"),
        ({"on": {"age": "nearest", "born": "nearest"}}, "at most one 'nearest' column"),
        ({"on": {"name": "fuzzy"}, "cutoff": 80}, "cutoff of column 'name' must be a number"),
        ({"on": {"age": "equal"}, "cutoff": 0.8}, "cutoff is for 'fuzzy' columns, and on has none"),
        ({"on": {"age": "equal"}, "cutoff": {"name": 0.8}}, "cutoff names 'name', on which"),
        ({"on": {"age": "equal"}, "bandwidth": {"born": 3}}, "bandwidth names 'born', on which"),
        ({"on": {"age": "equal"}, "take": "incom"}, "take names column 'incom'.*'income'"),
        ({"on": {"age": "equal"}, "take": [3]}, "take must name columns of the right table; got 3"),
        ({"on": {"age": "equal"}, "take": ["age", "age"]}, "take must name each column once"),
        ({"on": {"age": "equal"}, "where": "incom > 3"}, "where names column 'incom'.*'income'"),
        ({"on": {"age": "equal"}, "where_left": 3}, "where_left must be a sentence.*got int"),
        ({"on": {"age": "equal"}, "top": 0}, "top must be a number of rows, or None.*got 0"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(arguments: dict[str, Any], message: str) -> None:
    left, right = _tables()
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        soft_join(left, right, **arguments)
    assert "\n" not in str(caught.value)


def test_vectors_must_be_of_one_length() -> None:
    left = pa.table({"p": [[1.0, 2.0]]})
    right = pa.table({"p": [[1.0, 2.0, 3.0]], "v": [1]})
    with pytest.raises(
        ValueError, match="'p' must hold vectors of one length; got 2 on the left and 3"
    ):
        soft_join(left, right, on={"p": "dot"})


def test_zones_do_not_mix() -> None:
    naive = pa.table({"t": pa.array([0], pa.timestamp("s"))})
    zoned = pa.table({"t": pa.array([0], pa.timestamp("s", "UTC")), "v": [1]})
    with pytest.raises(TypeError, match="columns 't' cannot be compared: timestamp"):
        soft_join(naive, zoned, on={"t": "nearest"})
