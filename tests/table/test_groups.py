"""Groups, row weights, decay and several value columns, against slow sums."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table.tables import kernel, pooled, shares

import qkv
from qkv.table.groups import Groups
from qkv.table.partial import TablePartial

ROWS = 3007
FEW = [3.5]
MANY = np.linspace(-2.0, 9.0, 23).tolist()  # so many that batches are sorted


def _some(rng: np.random.Generator, entries: Any) -> pa.Array:
    """These entries, of which a few are missing."""
    return pa.array(entries, mask=rng.random(len(entries)) < 0.03)


def _table(rows: int = ROWS, offset: float = 0.0) -> pa.Table:
    """In three batches; `n` has zeros, and some entries of everything are missing."""
    rng = np.random.default_rng(11)
    table = pa.table(
        {
            "k": _some(rng, rng.normal(3.0, 2.0, rows)),
            "field": _some(rng, rng.choice(["art", "law", "tax"], rows, p=[0.7, 0.29, 0.01])),
            "year": rng.integers(2019, 2023, rows),
            "n": _some(rng, rng.integers(0, 5, rows).astype(float)),
            "day": pa.array(rng.integers(17000, 19000, rows).astype("datetime64[D]")),
            "v": _some(rng, offset + rng.normal(size=rows)),
            "label": _some(rng, rng.choice(["x", "y", "z"], rows)),
        }
    )  # fmt: skip
    return pa.concat_tables([table.slice(0, 1009), table.slice(1009, 17), table.slice(1026)])


TABLE = _table()


def _oracle(
    query: float,
    similarity: str,
    value: str,
    keep: dict[str, Any],
    own: Any,
    table: pa.Table = TABLE,
) -> tuple[list[float], list[Any]]:
    """Weights and values of the rows that have what is needed."""
    weights, values = [], []
    for row in table.to_pylist():
        weight = None if row["k"] is None else kernel(similarity, (row["k"] - query) / 0.7)
        if weight is None or row[value] is None or own(row) is None:
            continue
        if all(row[name] == entry for name, entry in keep.items()):
            weights.append(weight * own(row))
            values.append(row[value])
    return weights, values


def _assert_same(answer: qkv.Answer, weights: list[float], values: list[Any]) -> None:
    expected = pooled(weights, values)
    assert expected is not None
    assert answer.value == pytest.approx(expected[0], rel=1e-12, abs=1e-12)
    assert answer.std == pytest.approx(expected[1], rel=1e-11)
    assert answer.effective_rows == pytest.approx(expected[2], rel=1e-12)


def _one(row: dict[str, Any]) -> float:
    return 1.0


OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "alike": ({}, _one),
    "weighed": ({"weight": "n"}, lambda row: row["n"]),
    "ageing": (
        {"decay": ("day", "90d")},
        lambda row: 0.5 ** ((dt.date(2022, 1, 8) - row["day"]).days / 90),
    ),
    "as of": (
        {"decay": ("day", dt.timedelta(days=90), dt.date(2019, 3, 1))},
        lambda row: (
            0.5 ** ((dt.date(2019, 3, 1) - row["day"]).days / 90)
            if row["day"] <= dt.date(2019, 3, 1)
            else 0.0
        ),
    ),
    "both": (
        {"weight": "n", "decay": ("year", 1.5)},
        lambda row: None if row["n"] is None else row["n"] * 0.5 ** ((2022 - row["year"]) / 1.5),
    ),
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("similarity", ["gaussian", "boxcar", "laplacian"])
@pytest.mark.parametrize("queries", [FEW, MANY], ids=["few", "many"])
def test_groups_equal_slow_sums(own: str, similarity: str, queries: list[float]) -> None:
    options, weight_of = OWN[own]
    database = qkv.Database(TABLE, key="k", value="v")
    found = database.query(queries, similarity=similarity, bandwidth=0.7, by="field", **options)
    assert len(found) == len(queries)
    for query, groups in list(zip(queries, found, strict=True))[::5]:
        for field in ("art", "law", "tax"):
            weights, values = _oracle(query, similarity, "v", {"field": field}, weight_of)
            if math.fsum(weights) == 0.0:
                assert field not in groups
            else:
                _assert_same(groups[field], weights, values)
    assert list(found[0]) == sorted(found[0])


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("queries", [FEW, MANY], ids=["few", "many"])
def test_row_weights_without_groups(own: str, queries: list[float]) -> None:
    options, weight_of = OWN[own]
    database = qkv.Database(TABLE, key="k", value="v")
    answers = database.query(queries, similarity="gaussian", bandwidth=0.7, **options)
    for query, answer in list(zip(queries, answers, strict=True))[::4]:
        _assert_same(answer, *_oracle(query, "gaussian", "v", {}, weight_of))
        heaviest = sorted(_oracle(query, "gaussian", "v", {}, weight_of)[0], reverse=True)[:5]
        total = math.fsum(_oracle(query, "gaussian", "v", {}, weight_of)[0])
        assert [row["weight"] for row in answer.rows] == pytest.approx(
            [weight / total for weight in heaviest], rel=1e-11
        )


def test_a_group_far_from_the_query_is_answered_as_if_alone() -> None:
    table = pa.table({"k": [0.0, 1.0, 900.0, 901.0], "g": list("aabb"), "v": [1.0, 2.0, 3.0, 4.0]})
    database = qkv.Database(table, key="k", value="v")
    groups = database.query(0.5, similarity="gaussian", bandwidth=1.0, by="g")
    assert groups["a"].value == pytest.approx(1.5, rel=1e-15)
    alone = database.query(0.5, similarity="gaussian", bandwidth=1.0, where="g = 'b'")
    assert groups["b"].value == alone.value == pytest.approx(3.0, rel=1e-12)


def test_several_value_columns_are_answered_each_as_if_alone() -> None:
    both = qkv.Database(TABLE, key="k", value=["v", "label"])
    options: dict[str, Any] = {"similarity": "epanechnikov", "bandwidth": 0.7, "weight": "n"}
    answers = both.query(3.5, **options, by=["field", "year"], top=3)
    for value in ("v", "label"):
        alone = qkv.Database(TABLE, key="k", value=value)
        expected = alone.query(3.5, **options, by=["field", "year"], top=3)
        assert list(expected) == list(answers)
        for group, answer in expected.items():
            own = answers[group][value]
            assert own.to_dict() | {"plan": None} == answer.to_dict() | {"plan": None}
            assert own.plan.missing == answer.plan.missing
            assert own.plan.rows_used == answer.plan.rows_used
    weights, values = _oracle(
        3.5, "epanechnikov", "label", {"field": "art", "year": 2020}, OWN["weighed"][1]
    )
    assert dict(answers["art", 2020]["label"].distribution) == pytest.approx(
        shares(weights, values), rel=1e-12
    )


def test_values_far_from_zero_keep_the_digits_of_their_spread() -> None:
    table = _table(offset=1e9)
    database = qkv.Database(table, key="k", value="v")
    groups = database.query(3.0, similarity="gaussian", bandwidth=0.7, by="field", weight="n")
    for field, answer in groups.items():
        weights, values = _oracle(3.0, "gaussian", "v", {"field": field}, OWN["weighed"][1], table)
        expected = pooled(weights, values)
        assert expected is not None
        assert answer.value == pytest.approx(expected[0], rel=1e-15)
        assert answer.std == pytest.approx(expected[1], rel=1e-7)  # of digits that values have


def test_decay_keeps_its_digits_over_many_half_lives() -> None:
    """Rows a million half-lives after the first still weigh by how they differ."""
    days = np.concatenate([np.arange(7), 20_000 + np.arange(5)]).astype("datetime64[D]")
    table = pa.table({"k": np.zeros(12), "d": days, "v": np.arange(12.0)})
    batches = pa.concat_tables([table.slice(0, 5), table.slice(5, 5), table.slice(10)])
    answer = qkv.Database(batches, key="k", value="v").query(0.0, decay=("d", "30min"))
    weights = [0.5 ** (48 * (11 - i)) for i in range(7, 12)]
    expected = pooled(weights, [7.0, 8.0, 9.0, 10.0, 11.0])
    assert expected is not None
    assert answer.value == pytest.approx(expected[0], rel=1e-14)
    assert answer.std == pytest.approx(expected[1], rel=1e-12)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(-3, 3), st.integers(0, 3), st.integers(-9, 9)
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 19),
)
@settings(deadline=None, max_examples=40)
def test_groups_are_what_where_gives(rows: list[tuple[str, int, int, int]], n: int) -> None:
    g, k, w, v = (list(column) for column in zip(*rows, strict=True))
    database = qkv.Database(
        pa.table({"g": g, "k": k, "w": w, "v": pa.array(v, pa.float64())}), key="k", value="v"
    )
    queries = np.linspace(-4, 4, n).tolist()
    options: dict[str, Any] = {"similarity": "triangular", "bandwidth": 1.5, "weight": "w"}
    for number, groups in enumerate(database.query(queries, by="g", **options)):
        for name in "abc":
            alone = database.query(queries, where=f"g = '{name}'", **options)[number]
            assert (name in groups) == alone.found
            if alone.found:
                assert groups[name].value == pytest.approx(alone.value, abs=1e-12)
                assert groups[name].effective_rows == pytest.approx(alone.effective_rows)


def test_many_answers_print_and_become_tables() -> None:
    database = qkv.Database(TABLE, key="k", value=["v", "label"])
    groups = database.query(3.5, similarity="boxcar", bandwidth=0.7, by="field")
    table = groups.to_arrow()
    assert table.column_names[:3] == ["field", "query.k", "v.value"]
    assert table["field"].to_pylist() == ["art", "law", "tax"]
    assert table["label.value"].to_pylist() == [groups[f]["label"].value for f in groups]
    assert "3 answers by field" in str(groups)
    assert "label" in str(groups)
    assert str(groups["art"]).startswith("k = 3.5  →  2 answers by column")
    assert "<th>field</th>" in groups._repr_html_()
    assert groups.to_dict()["groups"][0]["group"] == {"field": "art"}
    assert repr(groups) == "<GroupAnswers of 'art', 'law', 'tax'>"
    nowhere = database.query(99.0, similarity="boxcar", bandwidth=0.7, by="field")
    assert len(nowhere) == 0
    assert nowhere.to_arrow().num_rows == 0
    assert "0 answers" in str(nowhere)


def test_the_plan_tells_groups_and_weights() -> None:
    database = qkv.Database(TABLE, key="k", value="v")
    plan = database.explain(1.0, by="field", weight="n", decay=("day", "2w", dt.date(2020, 1, 1)))
    assert "groups  by field" in str(plan)
    assert "weighs  n: weight of the row" in str(plan)
    assert "halves every 14 days before 2020-01-01; later rows weigh nothing" in str(plan)
    answer = database.query(3.0, similarity="gaussian", bandwidth=9.0, weight="n")
    lacking = {name: TABLE[name].null_count for name in ("k", "n", "v")}
    assert answer.plan.missing == lacking


def test_partials_of_groups_merge_as_the_whole() -> None:
    rng = np.random.default_rng(5)
    parts = [
        TablePartial(
            rng.random(7),
            rng.random(7),
            rng.random(7),
            rng.random((7, 2)),
            rng.random((7, 2)),
            ["a"],
            rng.random((7, 1)),
        )
        for _ in range(2)
    ]
    whole = parts[0].merge(parts[1])
    places = np.array([6, 0, 3])
    some = parts[0].take(np.arange(7))
    some.merge_at(places, parts[1].take(places))
    np.testing.assert_array_equal(some.mean[places], whole.mean[places])
    np.testing.assert_array_equal(some.mass[places], whole.mass[places])
    np.testing.assert_array_equal(some.mean[1], parts[0].mean[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "feild"}, r"^by names column 'feild', which is not there; did you mean 'field'\?$"),
        ({"by": ["k", "k"]}, r"^by must name each column once; got \['k', 'k'\]$"),
        ({"by": [3]}, r"^by must name a column, or several; got \[3\]$"),
        ({"by": "place"}, r"^by must name a column of numbers, texts, dates or booleans; 'place' "),
        ({"weight": "field"}, r"^weight must name a column of numbers; 'field' is string$"),
        ({"weight": 3}, r"^weight must name a column; got 3$"),
        ({"weight": "minus"}, r"^weight column 'minus' must hold finite numbers .*; got -1$"),
        ({"weight": "inf"}, r"^weight column 'inf' must hold finite numbers .*; got inf$"),
        ({"decay": "day"}, r"^decay must be a column and a half-life, such as"),
        ({"decay": ("day", "soon")}, r"must have a positive half-life such as .* got 'soon'$"),
        ({"decay": ("day", -3)}, r"^decay of column 'day' \(date32.*positive half-life; got -3$"),
        ({"decay": ("day", True)}, r"must have a positive half-life; got True$"),
        ({"decay": ("k", "3d")}, r"a number in the column's own units; got a duration$"),
        ({"decay": ("field", 3)}, r"^decay must name a column of dates, times or numbers; 'field'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(options: dict[str, Any], said: str) -> None:
    table = pa.table(
        {
            "k": [1.0, 2.0],
            "field": ["a", "b"],
            "day": pa.array([0, 1], pa.date32()),
            "place": [[1.0], [2.0]],
            "minus": [1, -1],
            "inf": [1.0, math.inf],
            "v": [1.0, 2.0],
        }
    )
    with pytest.raises((TypeError, ValueError), match=said):
        qkv.Database(table, key="k", value="v").query(1.0, **options)


def test_too_many_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.table.groups.MOST_SUMS", 14)
    table = pa.table({"k": np.zeros(8), "g": np.arange(8), "v": np.zeros(8)})
    database = qkv.Database(table, key="k", value="v")
    with pytest.raises(ValueError, match=r"^by makes more than 7 groups of g, too many"):
        database.query([0.0, 1.0], by="g")
    assert len(Groups(["g"], 1).labels) == 0


@pytest.mark.parametrize("value", [[], ["v", "v"]])
def test_value_columns_are_checked(value: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^value must name"):
        qkv.Database(TABLE, key="k", value=value)
    with pytest.raises(ValueError, match=r"^swap needs a single value column; got v, label$"):
        qkv.Database(TABLE, key="k", value=["v", "label"]).swap()
