"""The soft join against plain loops over all pairs."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from table import joins
from table.tables import people

import qkv
from qkv.table import SoftJoin, soft_join

LEFT, RIGHT = 47, 131


def _tables() -> tuple[pa.Table, pa.Table]:
    return people(LEFT, seed=5), people(RIGHT, seed=7)


def check(
    joined: pa.Table, expected: list[list[tuple[float, int]]], right: pa.Table, top: int | None
) -> None:
    """Every column of a join with `take=["income", "name"]` against the loops' matches."""
    incomes, names = right["income"].to_pylist(), right["name"].to_pylist()
    name = "name_right" if "name_right" in joined.column_names else "name"
    for row, found in zip(joined.to_pylist(), expected, strict=True):
        if not found:
            said = [row[each] for each in ("row", "income_right", name, "weight", "effective_rows")]
            assert said == [None] * 5
            continue
        weights = [weight for weight, _ in found]
        # Rounding may exchange rows that are equally heavy but for it.
        assert weights[0] == pytest.approx({n: w for w, n in found}[row["row"]], rel=1e-9)
        assert row["similarity"] == pytest.approx(weights[0], rel=1e-9)
        total = math.fsum(weights)
        assert row["weight"] == pytest.approx(weights[0] / total, rel=1e-9)
        squares = math.fsum(weight * weight for weight in weights)
        assert row["effective_rows"] == pytest.approx(total**2 / squares, rel=1e-9)
        assert row[name] == names[row["row"]]
        if top == 1:
            assert row["income_right"] == incomes[row["row"]]
        else:
            assert row["income_right"] == pytest.approx(joins.mean(found[:top], incomes), rel=1e-9)


#: What to join on, and the same as a function of both keys.
SIMILARITIES: dict[str, tuple[dict[str, Any], dict[str, joins.Weigh], str | None]] = {
    "equal integers": ({"age": "equal"}, {"age": joins.equal}, None),
    "equal categories": ({"town": "equal"}, {"town": joins.equal}, None),
    "equal booleans": ({"alive": qkv.Equal()}, {"alive": joins.equal}, None),
    "two equal": (
        {"town": "equal", "age": "equal"}, {"town": joins.equal, "age": joins.equal}, None,
    ),
    "gaussian": ({"height": qkv.Gaussian(0.01)}, {"height": joins.near("gaussian", 0.01)}, None),
    "laplacian": ({"age": qkv.Laplacian(2)}, {"age": joins.near("laplacian", 2)}, None),
    "boxcar": ({"born": qkv.Boxcar(300)}, {"born": joins.near("boxcar", 300)}, None),
    "triangular": (
        {"seen": qkv.Triangular(3e7)}, {"seen": joins.near("triangular", 3e7)}, None,
    ),
    "epanechnikov": (
        {"height": qkv.Epanechnikov(0.02)}, {"height": joins.near("epanechnikov", 0.02)}, None,
    ),
    "euclidean": ({"height": "euclidean"}, {"height": joins.near("gaussian", 0.5**0.5)}, None),
    "nearest": ({"seen": "nearest"}, {}, "seen"),
    "fuzzy": ({"name": "fuzzy"}, {"name": joins.fuzzy(0.6)}, None),
    "equal and nearest": ({"town": "equal", "born": "nearest"}, {"town": joins.equal}, "born"),
    "fuzzy and nearest": ({"name": "fuzzy", "age": "nearest"}, {"name": joins.fuzzy(0.6)}, "age"),
    "boxcar and nearest": (
        {"age": qkv.Boxcar(9), "height": "nearest"}, {"age": joins.near("boxcar", 9)}, "height",
    ),
    "fuzzy and gaussian": (
        {"name": "fuzzy", "born": qkv.Gaussian(900)},
        {"name": joins.fuzzy(0.6), "born": joins.near("gaussian", 900)}, None,
    ),
    "equal, fuzzy and two kernels": (
        {"town": "equal", "name": "fuzzy", "age": qkv.Triangular(31), "height": qkv.Laplacian(0.1)},
        {
            "town": joins.equal, "name": joins.fuzzy(0.6), "age": joins.near("triangular", 31),
            "height": joins.near("laplacian", 0.1),
        }, None,
    ),
    "gaussian and laplacian": (
        {"height": qkv.Gaussian(0.05), "age": qkv.Laplacian(5)},
        {"height": joins.near("gaussian", 0.05), "age": joins.near("laplacian", 5)}, None,
    ),
    "vectors": (
        {"place": qkv.Gaussian(0.7)},
        {"place": lambda a, b: math.exp(-0.5 * (joins.distance(a, b) / 0.7) ** 2)}, None,
    ),
    "cosine within equal": (
        {"town": "equal", "place": "cosine"},
        {
            "town": joins.equal,
            "place": lambda a, b: math.exp(
                sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
            ),
        }, None,
    ),
    "fuzzy and vectors": (
        {"name": "fuzzy", "place": qkv.Boxcar(1.5)},
        {
            "name": joins.fuzzy(0.6),
            "place": lambda a, b: 1.0 if joins.distance(a, b) <= 1.5 else 0.0,
        }, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("top", [1, 3, None])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_every_similarity_is_that_of_two_loops(name: str, top: int | None) -> None:
    left, right = _tables()
    on, weigh, nearest = SIMILARITIES[name]
    joined = soft_join(left, right, on=on, take=["income", "name"], top=top)
    assert joined.select(left.column_names).equals(left)
    expected = joins.matches(
        left.to_pylist(),
        right.to_pylist(),
        {(column, column): own for column, own in weigh.items()},
        (nearest, nearest) if nearest else None,
    )
    assert any(expected)
    check(joined, expected, right, top)


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("top", [1, 3, None])
def test_parts_of_both_tables_give_the_same(
    name: str, top: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = _tables()
    on, _, _ = SIMILARITIES[name]
    whole = SoftJoin(left, right, on=on, take=["income", "name", "town"], top=top)
    expected = whole.to_arrow()
    assert whole.report.passes == 1
    monkeypatch.setenv("QKV_MEMORY_BUDGET", str(16 * 2000))
    parts = SoftJoin(left, right, on=on, take=["income", "name", "town"], top=top)
    joined = parts.to_arrow()
    assert parts.report.passes > 1
    assert joined.schema == expected.schema
    for column in expected.column_names:
        if pa.types.is_floating(expected.schema.field(column).type):
            one, other = (each[column].to_pandas().to_numpy() for each in (joined, expected))
            np.testing.assert_allclose(one, other, rtol=1e-12)
        else:
            assert joined[column].to_pylist() == expected[column].to_pylist(), column


def test_names_may_differ_and_databases_join() -> None:
    left = pa.table({"firm": ["ACME Corp", "Globex", "Initrode"], "price": [1, 2, 3]})
    right = pa.table({"company": ["Initech", "Acme Corp."], "price": [5.0, 7.0], "row": ["a", "b"]})
    asked = qkv.Database(left, key="firm", value="price")
    known = qkv.Database(right, key="company", value="price")
    joined = asked.soft_join(known, on={("firm", "company"): "fuzzy"}, cutoff=0.8)
    names = ["firm", "price", "price_right", "row", "similarity", "weight", "effective_rows"]
    assert joined.column_names == names
    assert joined["price_right"].to_pylist() == [7.0, None, None]
    assert joined["row"].to_pylist() == [1, None, None]
    more = asked.soft_join(right, on={("firm", "company"): "fuzzy"}, cutoff=0.6)
    assert more.column_names == [
        "firm", "price", "price_right", "row", "row_", "similarity", "weight", "effective_rows",
    ]  # fmt: skip
    assert more["row"].to_pylist() == ["b", None, "a"]


def test_one_row_gives_its_own_values_and_several_their_mean() -> None:
    left = pa.table({"t": [0.0]})
    right = pa.table({
        "t": [0.0, 1.0, 2.0], "n": pa.array([3, None, 5], pa.int8()),
        "at": [dt.date(2020, 1, day) for day in (1, 2, 3)],
    })  # fmt: skip
    on = {"t": qkv.Triangular(2.5)}
    one = soft_join(left, right, on=on)
    assert one["n"].to_pylist() == [3]
    assert one.schema.field("n").type == pa.int8()
    every = soft_join(left, right, on=on, top=None)
    assert every["n"].to_pylist() == [pytest.approx((3 * 1.0 + 5 * 0.2) / 1.2)]
    assert every["at"].to_pylist() == [dt.date(2020, 1, 1)]
    two = soft_join(left, right, on=on, top=2)
    assert two["n"].to_pylist() == [3.0]  # the second has none
    for joined in (one, every, two):  # of all rows that match, whatever is taken
        assert joined["weight"].to_pylist() == [pytest.approx(1 / 1.8)]


def test_of_equals_the_nearest_wins_and_then_the_first() -> None:
    right = pa.table({"t": [5.0, 3.0, 3.0, 1.0], "v": list("abcd")})
    left = pa.table({"t": [2.9, 4.0, 2.0]})
    assert soft_join(left, right, on={"t": qkv.Boxcar(3)})["v"].to_pylist() == ["b", "a", "b"]
    assert soft_join(left, right, on={"t": "nearest"})["v"].to_pylist() == ["b", "a", "b"]


def test_means_far_from_zero_keep_their_digits() -> None:
    rng = np.random.default_rng(5)
    values = 1e12 + rng.random(2003)
    right = pa.table({"k": rng.random(2003), "v": values})
    left = pa.table({"k": [0.2, 0.8]})
    joined = soft_join(left, right, on={"k": qkv.Gaussian(0.1)}, top=None)
    for own, mean in zip((0.2, 0.8), joined["v"].to_pylist(), strict=True):
        weights = np.exp(-0.5 * ((right["k"].to_numpy() - own) / 0.1) ** 2)
        moved = math.fsum(weights * (values - 1e12)) / math.fsum(weights)
        assert mean - 1e12 == pytest.approx(moved, abs=1e-3)


def test_the_plan_says_how_rows_meet() -> None:
    left, right = _tables()
    told = str(SoftJoin(left, right, on={"town": "equal", "born": qkv.Gaussian(9)}, take="age"))
    assert "looks up town by hash" in told
    assert "sorts by born: each row meets a run of others" in told
    assert "takes age of the heaviest row" in told
    assert "compares all pairs" in str(SoftJoin(left, right, on={"place": "dot"}, top=None))
    assert "the length of name" in str(SoftJoin(left, right, on={"name": "fuzzy"}, top=2))
