"""Answers equal the plain formula, for every kind of key and value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz
from table.tables import kernel, people, pooled, shares

import qkv
from qkv.table.partial import TablePartial

TABLE = people()
KERNELS = ["gaussian", "laplacian", "boxcar", "triangular", "epanechnikov"]


def _same(answer: qkv.Answer, expected: tuple[float, float, float] | None) -> None:
    if expected is None:
        assert answer.value is None
        assert answer.rows == []
        assert answer.effective_rows == 0
    else:
        found = (answer.value, answer.std, answer.effective_rows)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("similarity", KERNELS)
@pytest.mark.parametrize(
    ("key", "query", "bandwidth", "unit"),
    [
        ("age", 40, 5.0, 1),
        ("height", 1.72, 0.03, 1),
        ("born", dt.date(1990, 5, 17), 400.0, dt.timedelta(days=1)),
        ("seen", dt.datetime(1999, 12, 31, 23), 1e7, dt.timedelta(seconds=1)),
        ("alive", True, 0.5, 1),
    ],
)
def test_kernels_equal_the_plain_formula(
    similarity: str, key: str, query: Any, bandwidth: float, unit: Any
) -> None:
    keys = (
        TABLE[key].to_pylist()
        if key != "seen"
        else TABLE[key].cast("timestamp[us]", safe=False).to_pylist()
    )
    weights = [kernel(similarity, float((k - query) / unit) / bandwidth) for k in keys]
    answer = qkv.Database(TABLE, key=key, value="income").query(
        query, similarity=similarity, bandwidth=bandwidth
    )
    _same(answer, pooled(weights, TABLE["income"].to_pylist()))
    heaviest = sorted(weights, reverse=True)[: len(answer.rows)]
    total = math.fsum(weights)
    assert [row["weight"] * total for row in answer.rows] == pytest.approx(heaviest, rel=1e-9)


@pytest.mark.parametrize("value", ["name", "born", "alive", "town", "seen"])
def test_values_that_are_no_numbers_give_a_distribution(value: str) -> None:
    weights = [kernel("gaussian", (h - 1.7) / 0.05) for h in TABLE["height"].to_pylist()]
    values = (
        TABLE[value].to_pylist()
        if value != "seen"
        else TABLE[value].cast("timestamp[us]", safe=False).to_pylist()
    )
    answer = qkv.Database(
        TABLE.set_column(4, "seen", TABLE["seen"].cast("timestamp[us]", safe=False)),
        key="height",
        value=value,
    ).query(1.7, similarity="gaussian", bandwidth=0.05)
    expected = shares(weights, values)
    assert dict(answer.distribution) == pytest.approx(expected, rel=1e-9)
    assert list(answer.distribution.values()) == sorted(answer.distribution.values(), reverse=True)
    assert answer.value == next(iter(answer.distribution))
    assert answer.std is None
    assert answer.interval() is None


@pytest.mark.parametrize(
    "similarity", [*KERNELS, "euclidean", "dot", "scaled_dot", "cosine", "equal"]
)
def test_vectors_equal_the_plain_formula(similarity: str) -> None:
    query = TABLE["place"][7].as_py()
    keys = np.array(TABLE["place"].to_pylist())
    distance = np.linalg.norm(keys - query, axis=1)
    if similarity in KERNELS:
        weights = [kernel(similarity, d / 1.3) for d in distance]
    elif similarity == "euclidean":
        weights = list(np.exp(-(distance**2)))
    elif similarity == "equal":
        weights = [float(d == 0) for d in distance]
    else:
        scores = keys @ query
        if similarity == "scaled_dot":
            scores = scores / math.sqrt(3)
        if similarity == "cosine":
            scores = scores / np.linalg.norm(keys, axis=1) / np.linalg.norm(query)
        weights = list(np.exp(scores))
    bandwidth = 1.3 if similarity in KERNELS else None
    answer = qkv.Database(TABLE, key="place", value="income").query(
        query, similarity=similarity, bandwidth=bandwidth
    )
    _same(answer, pooled(weights, TABLE["income"].to_pylist()))


def test_vectors_as_values_give_a_vector() -> None:
    weights = [kernel("gaussian", (a - 40) / 5) for a in TABLE["age"].to_pylist()]
    places = np.array(TABLE["place"].to_pylist())
    answer = qkv.Database(TABLE, key="age", value="place").query(
        40, similarity="gaussian", bandwidth=5
    )
    each = [pooled(weights, places[:, c].tolist()) for c in range(3)]
    assert answer.value == pytest.approx([found[0] for found in each if found])
    assert answer.std == pytest.approx([found[1] for found in each if found])


def _likeness(query: str, name: str, bandwidth: float, cutoff: float) -> float:
    ratio = fuzz.ratio(query, name.casefold()) / 100
    return math.exp((ratio - 1) / bandwidth) if ratio >= cutoff else 0.0


@pytest.mark.parametrize("cutoff", [0, 0.4, 0.5, None, 1])
def test_fuzzy_weighs_by_the_ratio_of_texts(cutoff: float | None) -> None:
    least = 0.6 if cutoff is None else cutoff
    weights = [_likeness("a7", name, 0.2, least) for name in TABLE["name"].to_pylist()]
    answer = qkv.Database(TABLE, key="name", value="income").query(
        "A7", similarity="fuzzy", bandwidth=0.2, cutoff=cutoff
    )
    _same(answer, pooled(weights, TABLE["income"].to_pylist()))
    assert answer.plan.similarity["name"] == f"fuzzy, bandwidth 0.2, cutoff {least:g}"


def test_texts_are_compared_as_unicode_says_they_are_the_same() -> None:
    names = ["Muller", "Mu\u0308ller", "ＳＭＩＴＨ", "Straße", "Jones", "\ufb01nch"]
    database = qkv.Database(
        pa.table({"name": names, "row": np.arange(6.0)}), key="name", value="row"
    )
    for query, row in [("Müller", 1), ("müLLER", 1), ("smith", 2), ("STRASSE", 3), ("Finch", 5)]:
        answer = database.query(query, similarity="fuzzy", cutoff=1)
        assert answer.value == row
    assert database.query("Müller", similarity="fuzzy").rows[0]["row"] == 1


def test_nothing_is_like_nonsense() -> None:
    names = ["Ana", "John", "Mei", "Zoë", "Li", "Omar", "Eva"]
    database = qkv.Database(pa.table({"name": names, "v": np.arange(7.0)}), key="name", value="v")
    answer = database.query("zzzzzz", similarity="fuzzy")
    assert answer.value is None
    assert "no v found" in str(answer)
    assert "cutoff 0.6" in str(answer)
    assert database.query("zzzzzz", similarity="fuzzy", cutoff=0).value == pytest.approx(3.0)


def test_several_keys_combine_by_product() -> None:
    columns = ["age", "height", "town", "name"]
    weights = [
        kernel("gaussian", (a - 40) / 9) * kernel("triangular", (h - 1.7) / 0.2) * (t == "Oslo")
        * _likeness("b1", n, 0.5, 0.3)
        for a, h, t, n in zip(*(TABLE[c].to_pylist() for c in columns), strict=True)
    ]  # fmt: skip
    database = qkv.Database(TABLE, key=columns, value="income")
    how: dict[str, Any] = {
        "similarity": {
            "age": qkv.Gaussian(9.0),
            "height": "triangular",
            "town": "equal",
            "name": "fuzzy",
        },
        "bandwidth": {"height": 0.2, "name": 0.5},
        "cutoff": {"name": 0.3},
    }
    expected = pooled(weights, TABLE["income"].to_pylist())
    _same(database.query((40, 1.7, "Oslo", "B1"), **how), expected)
    by_name = {"name": "B1", "town": "Oslo", "height": 1.7, "age": 40}
    _same(database.query([by_name], **how)[0], expected)


def test_a_hard_look_up_is_one_hot_and_says_when_there_is_none() -> None:
    students = pa.table({"name": ["Ana", "John", "Mei"], "major": ["art", "physics", "art"]})
    database = qkv.Database(students, key="name", value="major")
    found = database.query("John")
    assert found.value == "physics"
    assert found.rows == [{"weight": 1.0, "name": "John", "major": "physics"}]
    none = database.query("Zoe")
    assert none.value is None
    assert not none.found
    assert "no major found" in str(none)
    assert database.swap().query("art").distribution == {"Ana": 0.5, "Mei": 0.5}


@pytest.mark.parametrize("big", [2**53, 2**60])
def test_integers_are_told_apart_beyond_what_floats_can(big: int) -> None:
    table = pa.table({"id": [big, big + 1, big + 2], "value": [1.0, 2.0, 3.0]})
    database = qkv.Database(table, key="id", value="value")
    assert database.query(big + 1).value == 2.0
    assert database.query(0.5).value is None


def test_odd_types_are_compared_as_what_they_are() -> None:
    def found(column: Any, query: Any) -> Any:
        source = column if hasattr(column, "columns") else pa.table({"k": column, "v": [1.0, 2.0]})
        return qkv.Database(source, key="k", value="v").query(query).value

    assert found(pa.array([2**63 + 5, 1], pa.uint64()), 2**63 + 5) == 1.0
    assert found(pa.array([Decimal("1.10"), Decimal("2.2")]), Decimal("1.1")) == 1.0
    days = pa.array([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2)], pa.timestamp("us", "UTC"))
    assert found(days, dt.date(2020, 1, 2)) == 2.0
    categories = pl.DataFrame({"k": ["a", "b"], "v": [1, 2]}, {"k": pl.Categorical, "v": pl.Int8})
    assert found(categories, "b") == 2.0
    assert found(pd.DataFrame({"k": pd.Categorical(["a", "b"]), "v": [1, 2]}), "a") == 1.0
    assert found(pa.array([1, 2], pa.int8()), 300) is None
    assert found(pa.array([1.0, math.inf]), math.inf) == 2.0


def test_times_keep_their_nanoseconds() -> None:
    first = 1_700_000_000_000_000_000
    table = pa.table({"at": pa.array([first, first + 100], pa.timestamp("ns")), "v": [0.0, 1.0]})
    at = np.datetime64(first + 50, "ns")
    answer = qkv.Database(table, key="at", value="v").query(
        at, similarity="laplacian", bandwidth=1e-8
    )
    assert answer.value == pytest.approx(0.5, abs=1e-12)


def test_a_timedelta_is_a_bandwidth() -> None:
    database = qkv.Database(TABLE, key="born", value="income")
    day = dt.date(1990, 1, 1)
    days = database.query(day, similarity="gaussian", bandwidth=30)
    assert (
        days.value
        == database.query(day, similarity="gaussian", bandwidth=dt.timedelta(days=30)).value
    )


def test_values_far_from_zero_keep_their_spread() -> None:
    rng = np.random.default_rng(0)
    values = 1e9 + rng.normal(size=5000)
    table = pa.table({"k": rng.random(5000), "v": values})
    answer = qkv.Database(table, key="k", value="v").query(0.5, similarity="boxcar", bandwidth=1)
    assert answer.std == pytest.approx(values.std(), rel=1e-9)


def test_a_gaussian_far_from_all_keys_finds_the_nearest() -> None:
    table = pa.table({"k": [0.0, 1.0, 2.0], "v": [5.0, 6.0, 7.0]})
    answer = qkv.Database(table, key="k", value="v").query(1e6, similarity="gaussian", bandwidth=1)
    assert answer.value == 7.0


def test_many_queries_in_one_pass_equal_single_ones() -> None:
    database = qkv.Database(TABLE, key="height", value="income")
    asked = [1.5, 1.7, 9.0, 1.7]
    together = database.query(np.array(asked), similarity="epanechnikov", bandwidth=0.04)
    alone = [database.query(q, similarity="epanechnikov", bandwidth=0.04) for q in asked]
    for left, right in zip(together, alone, strict=True):
        assert (left.value, left.std, left.rows) == (right.value, right.std, right.rows)
    assert together[2].value is None


@pytest.mark.parametrize("similarity", KERNELS)
@pytest.mark.parametrize("value", ["v", "label", "pair"])
def test_so_many_queries_that_batches_are_sorted_equal_single_ones(
    similarity: str, value: str
) -> None:
    rng = np.random.default_rng(5)
    keys = rng.normal(1e4, 1.0, 3001)
    table = pa.table(
        {
            "k": keys,
            "v": rng.normal(size=3001),
            "label": rng.choice(["x", "y"], 3001),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=6002)), 2),
            "row": np.arange(3001),
        }
    )
    asked = [*rng.normal(1e4, 1.0, 17), 1e4 - 30.0, 1e4 + 7.0]
    answers = qkv.Database(table, key="k", value=value).query(
        asked, similarity=similarity, bandwidth=0.25
    )
    for query, answer in zip(asked, answers, strict=True):
        alone = qkv.Database(table, key="k", value=value).query(
            query, similarity=similarity, bandwidth=0.25
        )
        weights = [row["weight"] for row in answer.rows]
        assert weights == pytest.approx([row["weight"] for row in alone.rows][: len(weights)])
        if alone.value is None:
            assert answer.value is None
        elif value == "label":
            # Rows that weigh less than e⁻⁶⁰ of the heaviest are left out where batches are sorted.
            both = [dict.fromkeys("xy", 0.0) | dict(own.distribution) for own in (answer, alone)]
            assert both[0] == pytest.approx(both[1], abs=1e-12)
        else:
            assert answer.value == pytest.approx(alone.value, rel=1e-9, abs=1e-12)
            assert answer.std == pytest.approx(alone.std, rel=1e-9, abs=1e-12)


def test_missing_entries_are_skipped_and_counted() -> None:
    table = pa.table(
        {"k": [1.0, None, 3.0, math.nan, 2.0], "v": [1, 2, None, 4, 5], "x": list("abcde")}
    )
    database = qkv.Database(table, key="k", value="v")
    answer = database.query(1.5, similarity="gaussian", bandwidth=5)
    assert answer.value == 3.0
    assert answer.plan.missing == {"k": 2, "v": 1}
    # Sources may skip what lies outside of a window: nobody counts there, and null is outside.
    assert database.query(2.0, similarity="boxcar", bandwidth=5).plan.missing == {"k": 0, "v": 1}
    assert database.query(1.0, similarity="boxcar", bandwidth=1).plan.missing == {"k": 0, "v": 0}
    assert (answer.plan.rows_read, answer.plan.rows_used) == (5, 2)
    assert [row["x"] for row in answer.rows] == ["a", "e"]
    assert "skipped 2 without k, 1 without v" in str(answer)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "gaussian", "equal"])
def test_vectors_with_anything_missing_inside_are_skipped_and_counted(
    fixed: bool, similarity: str
) -> None:
    rows = [[1.0, 2.0], [math.nan, 1.0], None, [2.0, 2.0], [None, 3.0], [1.0, 2.0]]
    column = pa.array(rows, pa.list_(pa.float64(), 2) if fixed else pa.list_(pa.float64()))
    table = pa.table({"k": column, "v": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "w": [1.0] * 6})
    how: dict[str, Any] = {"similarity": similarity}
    how |= {"bandwidth": 1.0} if similarity == "gaussian" else {}
    answer = qkv.Database(table.slice(0, 6), key="k", value="v").query([1.0, 2.0], **how)
    whole = qkv.Database(table.take([0, 3, 5]), key="k", value="v").query([1.0, 2.0], **how)
    assert (answer.value, answer.std) == (whole.value, whole.std)
    assert answer.plan.missing == {"k": 3, "v": 0}
    later = qkv.Database(table.slice(1), key="k", value="v").query([1.0, 2.0], **how)
    assert later.plan.missing == {"k": 3, "v": 0}
    values = qkv.Database(table, key="w", value="k").query(
        1.0, similarity="gaussian", bandwidth=1.0
    )
    assert values.value == pytest.approx([4 / 3, 2.0])
    assert values.plan.missing == {"w": 0, "k": 3}


def test_one_row_cannot_tell_how_far_it_is_off() -> None:
    table = pa.table({"k": [1.0], "v": [5.0]})
    database = qkv.Database(table, key="k", value="v")
    answer = database.query(1.0)
    assert answer.interval() is None
    assert "v 5 (one row)" in str(answer)
    assert "no interval: it needs more than one effective row" in str(answer)
    chosen = database.query(1.0, similarity="gaussian")
    assert "a default: leave-one-out needs two rows or more" in chosen.plan.similarity["k"]


def test_a_bandwidth_is_chosen_by_leave_one_out_and_told() -> None:
    rng = np.random.default_rng(1)
    k = rng.random(600)
    table = pa.table({"k": k, "v": np.sin(12 * k) + rng.normal(0, 0.05, 600)})
    database = qkv.Database(table, key="k", value="v")
    answer = database.query(0.3, similarity="gaussian")
    assert "by leave-one-out" in answer.plan.similarity["k"]
    assert answer.value == pytest.approx(math.sin(3.6), abs=0.05)
    width = float(answer.plan.similarity["k"].split()[2])
    assert 0.002 < width < 0.05

    def error(h: float) -> float:
        logs = -0.5 * ((k[:, None] - k[None]) / h) ** 2
        np.fill_diagonal(logs, -np.inf)
        weights = np.exp(logs - logs.max(1, keepdims=True))
        foretold = weights @ table["v"].to_numpy() / weights.sum(1)
        return float(((foretold - table["v"].to_numpy()) ** 2).mean())

    assert error(width) <= min(error(width / 2), error(width * 2))


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(-1e3, 1e3)), min_size=1, max_size=40),
    st.integers(0, 40),
    st.sampled_from(KERNELS),
)
def test_any_split_of_the_rows_gives_the_same_answer(
    rows: list[tuple[float, float]], cut: int, similarity: str
) -> None:
    keys, values = map(list, zip(*rows, strict=True))
    cut = min(cut, len(rows))
    parts = pa.chunked_array([keys[:cut], keys[cut:]], pa.float64())
    weighed = pa.chunked_array([values[:cut], values[cut:]], pa.float64())
    answer = qkv.Database(pa.table({"k": parts, "v": weighed}), key="k", value="v").query(
        1.0, similarity=similarity, bandwidth=7.0
    )
    expected = pooled([kernel(similarity, (k - 1.0) / 7.0) for k in keys], values)
    if expected is None:
        assert answer.value is None
    else:
        assert answer.value == pytest.approx(expected[0], rel=1e-9, abs=1e-7)
        assert answer.std == pytest.approx(expected[1], rel=1e-6, abs=1e-6)
        assert answer.effective_rows == pytest.approx(expected[2], rel=1e-9)


def test_partials_merge_with_nothing_to_themselves() -> None:
    rng = np.random.default_rng(0)
    own = TablePartial(
        rng.normal(size=5), rng.random(5), rng.random(5), rng.random((5, 2)), rng.random((5, 2)),
        ["a", "b"], rng.random((5, 2)),
    )  # fmt: skip
    for merged in (own.merge(TablePartial.nothing(5, 2)), TablePartial.nothing(5, 2).merge(own)):
        for name in ("peak", "total", "squared", "mean", "spread", "mass"):
            np.testing.assert_allclose(getattr(merged, name), getattr(own, name), rtol=1e-12)
        assert merged.values == ["a", "b"]


def test_an_interval_narrows_as_rows_grow() -> None:
    rng = np.random.default_rng(2)

    def width(rows: int) -> float:
        table = pa.table({"k": rng.random(rows), "v": rng.normal(size=rows)})
        answer = qkv.Database(table, key="k", value="v").query(
            0.5, similarity="boxcar", bandwidth=1
        )
        low, high = answer.interval(0.9)
        assert low < answer.value < high
        return high - low

    # 2 · 1.6449 · σ / √(n − 1), z from the normal table
    assert width(10_001) == pytest.approx(2 * 1.6449 / 100, rel=0.03)
    assert width(101) > 5 * width(10_001)
