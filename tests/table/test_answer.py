"""Answers as people and programs see them; mistakes; the picture."""

# ruff: noqa: E501 - mistakes and what is said to them read better a line each

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table.tables import people

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.table.samples import SALARIES, STUDENTS, make

TABLE = people()
EVIL = "<script>alert('1')</script>"


@pytest.mark.parametrize(
    ("options", "query", "how", "error", "message"),
    [
        ({"key": "hieght"}, 1, {}, ValueError, "key names column 'hieght', which is not there; did you mean 'height'"),
        ({"value": "x"}, 1, {}, ValueError, "value names column 'x', which is not there; there are age, height"),
        ({"key": []}, 1, {}, ValueError, "key must name at least one column"),
        ({"key": 3}, 1, {}, TypeError, "key must name a column, or several; got 3"),
        ({}, "tall", {}, TypeError, "query for key column 'height' must be a number \\(double\\); got 'tall'"),
        ({}, math.nan, {}, TypeError, "query for key column 'height' must be a number"),
        ({}, True, {}, TypeError, "must be a number \\(double\\); got True"),
        ({"key": "name"}, 5, {}, TypeError, "query for key column 'name' must be text \\(string\\); got 5"),
        ({"key": "born"}, "1990-01-01", {}, TypeError, "'born' must be a date or time"),
        ({"key": "name"}, "A1", {"similarity": "gaussian"}, TypeError,
         "similarity 'gaussian' cannot compare key column 'name' \\(string\\); equal or fuzzy can"),
        ({}, 1.7, {"similarity": "fuzzy"}, TypeError, "similarity 'fuzzy' cannot compare key column 'height'"),
        ({}, 1.7, {"similarity": "gausian"}, ValueError, "did you mean 'gaussian'\\?"),
        ({}, 1.7, {"similarity": 3}, TypeError, "similarity must be a name, a qkv.Similarity"),
        ({}, 1.7, {"similarity": "gaussian", "bandwidth": 0}, ValueError, "bandwidth of column 'height' must be positive"),
        ({}, 1.7, {"similarity": "gaussian", "bandwidth": "wide"}, TypeError, "bandwidth of column 'height' must be a number"),
        ({}, 1.7, {"bandwidth": 2}, ValueError, "similarity 'equal' of column 'height' has no bandwidth"),
        ({"key": "name"}, "A1", {"similarity": "fuzzy", "cutoff": 60}, ValueError, "cutoff of column 'name' must be a number from 0 to 1; got 60"),
        ({}, 1.7, {"cutoff": 0.5}, ValueError, "similarity 'equal' of column 'height' has no cutoff"),
        ({}, 1.7, {"top": -1}, ValueError, "top must be a number of rows from 0 to 10,000; got -1"),
        ({}, 1.7, {"where": 3}, TypeError, "where must be a sentence or a pyarrow.compute.Expression"),
        ({"key": ["age", "name"]}, 40, {}, ValueError, "a query must have a key for each of age, name; got 40"),
        ({"key": ["age", "name"]}, (40, "x"), {"similarity": {"age": "equal"}}, ValueError, "similarity has no entry for key column 'name'"),
        ({"key": "place"}, [1.0, 2.0], {"similarity": "dot"}, ValueError, "'place' must be a vector of 3 numbers; got 2"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_that_names_the_column(
    options: dict[str, Any], query: Any, how: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        qkv.Database(TABLE, **{"key": "height", "value": "income", **options}).query(query, **how)


def test_other_mistakes(tmp_path: Path) -> None:
    nested = pa.table({"k": [{"a": 1}], "v": [1.0]})
    with pytest.raises(
        TypeError, match=r"key column 'k' \(struct.* holds something that cannot be compared"
    ):
        qkv.Database(nested, key="k", value="v")
    empty = qkv.Database(TABLE.slice(0, 0), key="age", value="income")
    with pytest.raises(ValueError, match=r"^the table \(Arrow table\) is empty$"):
        empty.query(3, similarity="gaussian", bandwidth=1)
    (tmp_path / "header.csv").write_text("k,v\n")
    with pytest.raises(ValueError, match="key column 'k' holds nothing; is the table empty"):
        qkv.Database(tmp_path / "header.csv", key="k", value="v")
    (tmp_path / "bad.parquet").write_text("nonsense")
    with pytest.raises(ValueError, match=r"^'bad.parquet' cannot be read as parquet: "):
        qkv.Database(tmp_path / "bad.parquet", key="k", value="v")
    with pytest.raises(TypeError, match="source must be a path, a postgresql:// address"):
        qkv.Database(42, key="a", value="b")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        qkv.Database("nowhere.csv", key="a", value="b")
    with pytest.raises(ValueError, match=r"a table's name must end in \.csv"):
        qkv.Database(Path(__file__), key="a", value="b")
    with pytest.raises(ValueError, match=r"table= and sql= are for \.duckdb files"):
        qkv.Database(TABLE, key="age", value="income", sql="SELECT 1")
    with pytest.raises(ValueError, match="swap needs a single key column; got age, name"):
        qkv.Database(TABLE, key=["age", "name"], value="income").swap()
    twice = pa.Table.from_arrays(
        [pa.array([1]), pa.array([2]), pa.array([3.0])], names=["k", "k", "v"]
    )
    with pytest.raises(ValueError, match="key names column 'k', of which there are 2"):
        qkv.Database(twice, key="k", value="v")
    with pytest.raises(ValueError, match="level must lie between 0 and 1; got 2"):
        qkv.Database(TABLE, key="age", value="income").query(40).interval(2)


def test_an_answer_prints_well() -> None:
    answer = qkv.Database(SALARIES, key="gpa", value="salary").query(
        3.5, similarity="gaussian", bandwidth=0.1
    )
    lines = str(answer).splitlines()
    assert lines[0] == f"gpa = 3.5  →  salary {answer.value:,.0f} ± {answer.std:,.0f}"
    assert "effective of 400 rows" in lines[1]
    assert "gaussian, bandwidth 0.1" in lines[1]
    assert len(lines) == 3 + 5
    assert all(len(line) <= 110 for line in lines)


def test_html_is_escaped() -> None:
    table = pa.table({EVIL: [EVIL, "x"], "v": [EVIL, EVIL + "2"]})
    answer = qkv.Database(table, key=EVIL, value="v").query(EVIL, similarity="fuzzy")
    html = answer._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert str(answer)  # brackets are no markup either
    markup = pa.table({"k": ["[red]x[/red]"], "v": ["[/]"]})
    assert "[/]" in str(qkv.Database(markup, key="k", value="v").query("[red]x[/red]"))


def test_answers_become_tables_and_json(tmp_path: Path) -> None:
    numbers = qkv.Database(TABLE, key="age", value="income").query([40, 999])
    whole = pa.concat_tables([a.to_arrow() for a in numbers], promote_options="permissive")
    assert whole["query.age"].to_pylist() == [40, 999]
    assert whole["value"].to_pylist() == [numbers[0].value, None]
    words = qkv.Database(TABLE, key="town", value="name").query("Oslo")
    pq.write_table(words.to_arrow(), tmp_path / "a.parquet")
    assert sum(p["weight"] for p in words.to_arrow()["distribution"][0].as_py()) == pytest.approx(1)
    for kind in ("born", "seen", "town", "place", "alive"):
        told = json.loads(
            json.dumps(
                qkv.Database(TABLE, key="age", value=kind).query(40).to_dict(), allow_nan=False
            )
        )
        assert set(told) >= {"value", "std", "interval", "effective_rows", "rows", "plan"}
        assert told["rows"][0]["age"] == 40


def test_a_column_named_weight_keeps_its_name() -> None:
    table = pa.table({"k": [1], "weight": [70.0]})
    (row,) = qkv.Database(table, key="k", value="weight").query(1).rows
    assert row == {"weight_": 1.0, "k": 1, "weight": 70.0}


@pytest.mark.parametrize("key", ["age", "born", "name", "town", "alive"])
@pytest.mark.parametrize("value", ["income", "town", "name"])
def test_answers_can_be_drawn(key: str, value: str, tmp_path: Path) -> None:
    query = TABLE[key][0].as_py()
    qkv.Database(TABLE, key=key, value=value).query(query).plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_the_picture_shows_the_weights() -> None:
    answer = qkv.Database(TABLE, key="age", value="income").query(
        40, similarity="triangular", bandwidth=10
    )
    above, below = answer.plot().axes
    assert above.get_title(loc="left").startswith("age 40 → income")
    x, y = below.lines[0].get_data()
    np.testing.assert_allclose(
        y, np.maximum(0, 1 - np.abs(x - 40) / 10) / y.max() * y.max(), atol=0.11
    )


@pytest.mark.skipif(not can_measure_memory(), reason="memory is measured on Linux only")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def extra(rows: int) -> float:
        path = tmp_path / f"{rows}.parquet"
        rng = np.random.default_rng(0)
        with pq.ParquetWriter(
            path, pa.schema([("k", pa.float64()), ("v", pa.float64())])
        ) as writer:
            for _ in range(rows // 2**17):
                writer.write_table(pa.table({"k": rng.random(2**17), "v": rng.random(2**17)}))
        database = qkv.Database(path, key="k", value="v")
        database.query(0.5, similarity="gaussian", bandwidth=0.1)
        return (
            peak_extra_bytes(lambda: database.query(0.5, similarity="gaussian", bandwidth=0.1))
            / 1e6
        )

    assert extra(2**23) < extra(2**20) + 60  # the larger file holds 134 MB


def test_the_samples_are_what_the_script_makes(tmp_path: Path) -> None:
    for path, rows in ((STUDENTS, make.students()), (SALARIES, make.salaries())):
        make.write(tmp_path / path.name, rows)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
