"""Curves are answers along a grid."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table.tables import people

import qkv

TABLE = people(701)
GRID = np.linspace(1.4, 2.4, 37)
HOW: dict[str, Any] = {"similarity": "epanechnikov", "bandwidth": 0.03}


def _assert_same(curve: qkv.table.Curve, answers: list[qkv.Answer]) -> None:
    interval = curve.interval(0.8)
    for place, answer in enumerate(answers):
        if answer.value is None:
            assert np.isnan(curve.value[place])
            assert curve.effective_rows[place] == 0.0
            continue
        assert curve.value[place] == pytest.approx(answer.value, rel=1e-13)
        assert curve.std[place] == pytest.approx(answer.std, rel=1e-12)
        assert curve.effective_rows[place] == pytest.approx(answer.effective_rows, rel=1e-13)
        if answer.interval(0.8) is None:
            assert np.isnan(interval[place]).all()
        else:
            assert interval[place] == pytest.approx(answer.interval(0.8), rel=1e-12)


def test_a_curve_is_its_answers() -> None:
    database = qkv.Database(TABLE, key="height", value="income")
    curve = database.curve(GRID, **HOW)
    answers = database.query(GRID, **HOW)
    assert any(answer.value is None for answer in answers)
    _assert_same(curve, answers)
    table = curve.to_arrow()
    assert table.column_names == [
        "query.height", "value", "std", "interval_low", "interval_high", "effective_rows",
    ]  # fmt: skip
    assert table["value"].null_count == int(np.isnan(curve.value).sum())
    assert str(curve).startswith("income along height, 37 points")
    assert curve.to_dict()["points"][0]["query.height"] == GRID[0]


def test_curves_by_group_and_column(tmp_path: Path) -> None:
    database = qkv.Database(TABLE, key="height", value=["income", "age"])
    curves = database.curve(GRID, by="town", weight="age", **HOW)
    assert list(curves)[:2] == [("Kyiv", "income"), ("Kyiv", "age")]
    answers = database.query(GRID, by="town", weight="age", **HOW)
    for town in ("Kyiv", "Oslo"):
        found = [groups[town]["age"] for groups in answers if town in groups]
        there = np.isfinite(curves[town, "age"].value)
        assert there.sum() == len(found)
        values = [own.value for own in found]
        assert curves[town, "age"].value[there] == pytest.approx(values, rel=1e-13)
    table = curves.to_arrow()
    assert table.column_names[:3] == ["town", "column", "query.height"]
    assert len(table) == 6 * 37
    assert "town = Oslo, column = age" in str(curves)
    assert curves.to_dict()[0]["labels"] == {"town": "Kyiv", "column": "income"}
    figure = curves.plot(tmp_path / "curves.png")
    assert next(line.get_label() for line in figure.axes[0].lines) == "Kyiv, income"
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_dates_and_a_single_point(tmp_path: Path) -> None:
    database = qkv.Database(TABLE, key="born", value="income")
    days = [dt.date(1980, 1, 1), dt.date(1990, 1, 1)]
    curve = database.curve(days, bandwidth=dt.timedelta(days=900))
    assert curve.grid.to_pylist() == days
    _assert_same(curve, database.query(days, similarity="gaussian", bandwidth=900))
    assert len(database.curve(days[:1], bandwidth=900)) == 1
    figure = curve.plot()
    assert figure.axes[0].get_xlabel() == "born"


@pytest.mark.parametrize(
    ("key", "value", "grid", "said"),
    [
        (["height", "age"], "income", [1.0], r"^a curve needs a single key column; got h"),
        ("height", "town", [1.0], r"^a curve needs values that are numbers; column 'town'"),
        ("height", "income", [], r"^grid must be a sequence of keys, one or more; got \[\]$"),
        ("height", "income", 1.7, r"^grid must be a sequence of keys, one or more; got 1.7$"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_sentence(key: Any, value: str, grid: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        qkv.Database(TABLE, key=key, value=value).curve(grid, bandwidth=1.0)
