"""An index answers as the scan does, and costs what it touches."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.tables import people

import qkv
from qkv.table import boxes

ROWS = 20_011


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows make many blocks."""
    for module in ("boxes", "index"):
        monkeypatch.setattr(f"qkv.table.{module}.BLOCK", 61)


def _table() -> pa.Table:
    rng = np.random.default_rng(13)
    table = people(ROWS, seed=5)
    lacking = pa.array(rng.random(ROWS) < 0.02)
    gone = pa.nulls(ROWS, pa.float64())
    for name in ("height", "income"):
        table = table.set_column(
            table.column_names.index(name), name, pa.compute.if_else(lacking, gone, table[name])
        )
    count = pa.array(rng.integers(0, 4, ROWS))
    return table.append_column("count", count).append_column("row", pa.array(np.arange(ROWS)))


TABLE = _table()
MOMENT = dt.datetime(1988, 3, 4, 5, 6, 7)

#: Keys, a query, and how it is asked.
QUESTIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gaussian": ("height", 1.7, {"similarity": "gaussian", "bandwidth": 0.001}),
    "far": ("height", 99.0, {"similarity": "gaussian", "bandwidth": 0.001}),
    "squares overflow": ("age", 1e200, {"similarity": "gaussian", "bandwidth": 1.0}),
    "too narrow": ("age", 44.25, {"similarity": "gaussian", "bandwidth": 1e-200}),
    "both too far": (["height", "age"], (1e200, -1e200),
                     {"similarity": "gaussian", "bandwidth": 0.02}),
    "laplacian": ("height", 1.7, {"similarity": "laplacian", "bandwidth": 0.0003}),
    "boxcar": ("height", 1.7, {"similarity": "boxcar", "bandwidth": 0.01}),
    "triangular": ("height", 1.7, {"similarity": "triangular", "bandwidth": 0.01}),
    "integers": ("age", 44, {"similarity": "epanechnikov", "bandwidth": 2.5}),
    "equal": ("age", 44, {}),
    "text": ("name", "C17", {}),
    "nobody": ("name", "C99", {}),
    "fuzzy": ("name", "C1", {"similarity": "fuzzy"}),
    "boolean": ("alive", True, {}),
    "category": ("town", "Oslo", {}),
    "date": ("born", dt.date(1990, 1, 2), {"similarity": "triangular", "bandwidth": 30}),
    "time": ("seen", MOMENT, {"similarity": "gaussian", "bandwidth": 3e5}),
    "two": (["height", "age"], (1.7, 44), {"similarity": "gaussian", "bandwidth": 0.02}),
    "mixed": (
        ["town", "height", "born"],
        ("Kyiv", 1.7, dt.date(1990, 1, 2)),
        {
            "similarity": {"town": "equal", "height": "gaussian", "born": "boxcar"},
            "bandwidth": {"height": 0.01, "born": 300},
        },
    ),
    "many": ("height", np.linspace(1.6, 1.8, 19).tolist(),
             {"similarity": "gaussian", "bandwidth": 0.001}),
    "where": ("height", 1.7, {"similarity": "gaussian", "bandwidth": 0.001,
                              "where": "town = 'Rome' and height > 1.9"}),
    "weighed": ("height", 1.7, {"similarity": "gaussian", "bandwidth": 0.001, "weight": "count"}),
    "ageing": ("height", 1.7, {"similarity": "gaussian", "bandwidth": 0.001,
                               "decay": ("born", "30d")}),
    "chosen": ("height", 1.7, {"similarity": "gaussian"}),
}  # fmt: skip


def _assert_same(own: qkv.Answer, scanned: qkv.Answer) -> None:
    if scanned.value is None:
        assert own.value is None
        return
    assert own.value == pytest.approx(scanned.value, rel=1e-12, abs=1e-12)
    assert own.std == pytest.approx(scanned.std, rel=1e-12, abs=1e-12)
    assert own.effective_rows == pytest.approx(scanned.effective_rows, rel=1e-12)
    if scanned.interval() is None:
        assert own.interval() is None
    else:
        assert own.interval() == pytest.approx(scanned.interval(), rel=1e-12, abs=1e-12)
    weights = [row["weight"] for row in scanned.rows]
    assert [row["weight"] for row in own.rows] == pytest.approx(weights, rel=1e-11)
    if len(set(weights)) == len(weights):  # the last may be as heavy as one that is not shown
        assert [row["row"] for row in own.rows[:-1]] == [row["row"] for row in scanned.rows[:-1]]
    assert own.rows[0].keys() == scanned.rows[0].keys()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kept", ["in memory", "on disk"])
def test_an_index_answers_as_the_scan_does(question: str, kept: str, tmp_path: Path) -> None:
    key, query, options = QUESTIONS[question]
    pq.write_table(TABLE, tmp_path / "table.parquet", row_group_size=5000)
    database = qkv.Database(tmp_path / "table.parquet", key=key, value="income")
    path = tmp_path / "table.arrow" if kept == "on disk" else None
    indexed = database.indexed(path)
    found, scanned = indexed.query(query, **options), database.query(query, **options)
    many = isinstance(scanned, list)
    for own, other in zip(*((found, scanned) if many else ([found], [scanned])), strict=True):
        _assert_same(own, other)
        assert own.plan.similarity == other.plan.similarity


@pytest.mark.parametrize("question", ["gaussian", "boxcar", "text", "weighed"])
def test_groups_distributions_and_curves_of_an_index(question: str) -> None:
    key, query, options = QUESTIONS[question]
    database = qkv.Database(TABLE, key=key, value=["income", "town"])
    indexed = database.indexed()
    groups, scanned = (each.query(query, by="alive", **options) for each in (indexed, database))
    assert list(groups) == list(scanned)
    for group, answers in scanned.items():
        assert groups[group]["income"].value == pytest.approx(answers["income"].value, rel=1e-12)
        shares = dict(answers["town"].distribution)
        assert dict(groups[group]["town"].distribution) == pytest.approx(shares, rel=1e-12)


def test_a_question_costs_what_it_touches() -> None:
    indexed = qkv.Database(TABLE, key="height", value="income").indexed()
    near = indexed.query(1.7, similarity="gaussian", bandwidth=1e-4)
    assert near.plan.rows_read is not None
    assert near.plan.rows_read < ROWS // 50
    assert any("of 322 blocks of 61 rows" in note for note in near.plan.notes)
    tree = qkv.Database(TABLE, key=["height", "age"], value="income").indexed()
    both = tree.query((1.7, 44), similarity="boxcar", bandwidth={"height": 0.01, "age": 2})
    assert both.plan.rows_read is not None
    assert both.plan.rows_read < ROWS // 10
    assert near.plan.missing["height"] == TABLE["height"].null_count


def test_rows_of_no_weight_do_not_hide_what_lies_behind_them() -> None:
    """The nearest row weighs nothing by itself, or is left out; farther ones answer."""
    n = 500
    table = pa.table(
        {"k": np.arange(n) * 1.0, "w": [0.0] * (n - 1) + [2.0], "v": np.arange(n) * 1.0,
         "g": ["near"] * (n - 1) + ["far"]}
    )  # fmt: skip
    indexed = qkv.Database(table, key="k", value="v").indexed()
    options: dict[str, Any] = {"similarity": "gaussian", "bandwidth": 0.5}
    assert indexed.query(3.0, weight="w", **options).value == n - 1
    assert indexed.query(3.0, where="k > 498", **options).value == n - 1
    assert indexed.query(3.0, by="g", **options)["far"].value == n - 1
    gone = table.set_column(2, "v", pa.array([None] * (n - 1) + [7.0], pa.float64()))
    assert qkv.Database(gone, key="k", value="v").indexed().query(3.0, **options).value == 7.0


def test_keys_beyond_the_digits_of_floats(tmp_path: Path) -> None:
    keys = 2**60 + np.arange(1000)
    table = pa.table({"k": keys, "v": np.arange(1000.0)})
    indexed = qkv.Database(table, key="k", value="v").indexed()
    assert indexed.query(2**60 + 77).value == 77.0
    answer = indexed.query(2**60 + 500, similarity="boxcar", bandwidth=2)
    assert answer.effective_rows == pytest.approx(5.0)


def test_a_changed_file_is_indexed_anew(tmp_path: Path) -> None:
    path, index = tmp_path / "t.parquet", tmp_path / "t.arrow"
    pq.write_table(pa.table({"k": [1.0, 2.0], "v": [10.0, 20.0]}), path)
    database = qkv.Database(path, key="k", value="v")
    indexed = database.indexed(index)
    assert indexed.query(1.0).value == 10.0
    pq.write_table(pa.table({"k": [1.0, 2.0, 1.0], "v": [11.0, 20.0, 13.0]}), path)
    answer = indexed.query(1.0)
    assert answer.value == 12.0
    assert any("the index was rebuilt" in note for note in answer.plan.notes)
    assert not any("rebuilt" in note for note in indexed.query(1.0).plan.notes)
    os.utime(path, ns=(0, 0))  # the same bytes, written at another time
    assert any("rebuilt" in note for note in indexed.query(1.0).plan.notes)


def test_an_index_on_disk_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, index = tmp_path / "t.csv", tmp_path / "t.arrow"
    path.write_text("k,v\n1,10\n2,20\n,30\n")
    qkv.Database(path, key="k", value="v").indexed(index)
    assert index.exists()
    monkeypatch.setattr("qkv.table.index.Index._make", None)  # would fail if it were called
    again = qkv.Database(path, key="k", value="v").indexed(index)
    answer = again.query(2, similarity="gaussian", bandwidth=1e-3)
    assert (answer.value, answer.plan.missing) == (20.0, {"k": 1, "v": 0})
    with pytest.raises(TypeError, match="not callable"):  # another key is another index
        qkv.Database(path, key="v", value="k").indexed(index)


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(-3, 3)), min_size=1, max_size=300),
       st.floats(-12, 12), st.sampled_from(["gaussian", "laplacian", "triangular"]))  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_boxes_lose_no_row(rows: list[tuple[float, int]], query: float, name: str) -> None:
    k, j = (list(column) for column in zip(*rows, strict=True))
    table = pa.table({"k": k, "j": j, "v": np.arange(len(rows)) * 1.0, "row": range(len(rows))})
    for key, asked in (("k", query), (["k", "j"], (query, 1))):
        database = qkv.Database(table, key=key, value="v")
        options: dict[str, Any] = {"similarity": name, "bandwidth": 0.4}
        _assert_same(database.indexed().query(asked, **options), database.query(asked, **options))


def test_leaves_are_whole_blocks() -> None:
    rng = np.random.default_rng(1)
    keys = {"x": pa.array(rng.random(1000)), "t": pa.array(rng.choice(["a", "b"], 1000))}
    order = boxes.order_of(keys)
    assert sorted(order) == list(range(1000))
    taken = {name: column.take(pa.array(order)) for name, column in keys.items()}
    found = boxes.boxes_of(taken)
    wide = np.array(found.high["x"]) - np.array(found.low["x"])
    assert np.median(wide) < 0.3
    assert set(found.low["t"].to_pylist()) <= {"a", "b"}


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^an index needs keys with an order: .* 'place' holds"):
        qkv.Database(TABLE, key="place", value="income").indexed()
    database = qkv.Database(TABLE, key="age", value="income")
    with pytest.raises(ValueError, match=r"^an index's name must end in .arrow or .feather"):
        database.indexed(tmp_path / "index.pkl")
    (tmp_path / "x.arrow").write_text("no index")
    with pytest.raises(ValueError, match=r"x.arrow' is not the index of a table: "):
        database.indexed(tmp_path / "x.arrow")
