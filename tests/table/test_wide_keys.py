"""Keys of more digits than float64 has, and distances beyond its range: against exact fractions."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.table.wide_keys import key_words, query_words

COMPACT = ["boxcar", "triangular", "epanechnikov"]
SOFT = ["gaussian", "laplacian"]
RNG = np.random.default_rng(13)
STEPS = np.unique(RNG.integers(0, 3000, 701))
DIGITS = Context(prec=80)


def _decimals(places: int, digits: int, first: int) -> pa.Array:
    numbers = [Decimal(first + int(step)).scaleb(-places, DIGITS) for step in STEPS]
    return pa.array(numbers, pa.decimal128(digits, places))


#: Keys; the number of a key's ticks as an exact fraction of the unit that bandwidths count in.
KEYS: dict[str, tuple[pa.Array, Fraction]] = {
    "int64": (pa.array(2**60 + STEPS), Fraction(1)),
    "below zero": (pa.array(-(2**62) + STEPS), Fraction(1)),
    "around 2^53": (pa.array(2**53 - 1500 + STEPS), Fraction(1)),
    "uint64": (pa.array(np.uint64(2**64 - 3001) + STEPS.astype(np.uint64)), Fraction(1)),
    "nanoseconds": (pa.array(1_700_000_000_123_456_000 + 1000 * STEPS, pa.timestamp("ns")),
                    Fraction(1, 10**9)),
    "long ago": (pa.array(-(2**55) + STEPS, pa.timestamp("us")),
                 Fraction(1, 10**6)),
    "money": (_decimals(2, 20, 10**17), Fraction(1, 100)),
    "decimal": (_decimals(2, 30, 10**27), Fraction(1, 100)),
    "decimal of few digits": (_decimals(3, 30, 5), Fraction(1, 1000)),
    "decimal256": (_decimals(5, 38, -(10**37)).cast(pa.decimal256(50, 5)), Fraction(1, 10**5)),
}  # fmt: skip


def _ticks(keys: pa.Array, unit: Fraction) -> list[int]:
    if pa.types.is_timestamp(keys.type):
        return keys.cast(pa.int64()).to_pylist()
    return [int(Fraction(key) / unit) for key in keys.to_pylist()]


def _query(keys: pa.Array, row: int) -> Any:
    if keys.type == pa.timestamp("ns"):
        return np.datetime64(keys[row].value, "ns")
    if pa.types.is_timestamp(keys.type):
        return np.datetime64(keys[row].value, "us")
    return keys[row].as_py()


def _weight(name: str, u: Fraction) -> float:
    u = abs(u)
    match name:
        case "boxcar":
            return 1.0 if u <= 1 else 0.0
        case "triangular":
            return float(max(0, 1 - u))
        case "epanechnikov":
            return float(max(0, 1 - u * u))
        case "gaussian":
            return math.exp(-0.5 * float(u * u))
        case _:
            return math.exp(-float(u))


def _expected(ticks: list[int], row: int, name: str, width: int) -> tuple[float, float]:
    weights = [_weight(name, Fraction(tick - ticks[row], width)) for tick in ticks]
    total = math.fsum(weights)
    mean = math.fsum(w * v for v, w in enumerate(weights)) / total
    return mean, total**2 / math.fsum(w * w for w in weights)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("similarity", COMPACT + SOFT)
def test_differences_are_taken_in_the_type_of_the_keys(kind: str, similarity: str) -> None:
    keys, unit = KEYS[kind]
    ticks = _ticks(keys, unit)
    scale = 1000 if kind == "nanoseconds" else 1
    width = 20 * scale
    database = qkv.Database(
        pa.table({"k": keys, "v": np.arange(float(len(keys)))}), key="k", value="v"
    )
    how: dict[str, Any] = {"similarity": similarity, "bandwidth": float(width * unit)}
    rows = RNG.integers(0, len(keys), 23).tolist()  # so many that batches are sorted
    together = database.query([_query(keys, row) for row in rows], **how, top=2)
    for row, answer in zip(rows, together, strict=True):
        expected = pytest.approx(_expected(ticks, row, similarity, width), rel=1e-9, abs=1e-9)
        assert (answer.value, answer.effective_rows) == expected
        if row in rows[:3]:
            alone = database.query(_query(keys, row), **how)
            assert (alone.value, alone.effective_rows) == expected
            assert similarity == "boxcar" or alone.rows[0]["v"] == row


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (kind, source)
        for kind in KEYS
        for source in ("parquet", "duckdb", "polars")
        if (kind, source) not in {("decimal256", "duckdb"), ("decimal256", "polars")}  # 38 digits
    ],
)
def test_windows_of_wide_keys_lose_no_row(kind: str, source: str, tmp_path: Path) -> None:
    keys, unit = KEYS[kind]
    table = pa.table({"k": keys, "v": np.arange(float(len(keys)))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=50)
    asked: Any = tmp_path / "t.parquet"
    if source == "duckdb":
        asked = duckdb.connect().from_arrow(table)
    if source == "polars":
        asked = pl.from_arrow(table).lazy()
    width = 20 * (1000 if kind == "nanoseconds" else 1)
    ticks, row = _ticks(keys, unit), len(keys) // 2
    database = qkv.Database(asked, key="k", value="v")
    for similarity in COMPACT:
        answer = database.query(
            _query(keys, row), similarity=similarity, bandwidth=float(width * unit)
        )
        expected = _expected(ticks, row, similarity, width)
        assert (answer.value, answer.effective_rows) == pytest.approx(expected, rel=1e-9)
        if source == "parquet" and kind != "decimal256":
            assert answer.plan.row_groups_read is not None
            assert answer.plan.row_groups_read <= 3
    exact = database.query(_query(keys, row))
    assert (exact.value, exact.effective_rows) == (row, 1.0)


_NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(_NUMBERS, min_size=1, max_size=20), st.one_of(_NUMBERS, st.floats(-1e19, 1e19)))
def test_words_of_keys_and_queries_add_up_to_their_difference(
    keys: list[int], query: int | float
) -> None:
    key = key_words(pa.array(keys, pa.int64()))
    asked = query_words([query], len(key))
    for place, exact in enumerate(keys):
        difference = 0.0
        for word in range(len(key)):
            difference += key[word, place] - asked[0, word]
        assert difference == pytest.approx(float(Fraction(exact) - Fraction(query)), rel=1e-15)


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20), st.data())
def test_words_of_decimals_add_up_to_their_difference(keys: list[int], data: Any) -> None:
    near = data.draw(st.integers(-5, 5))
    query = min(max(data.draw(st.sampled_from(keys)) + near, -(10**38)), 10**38)
    column = pa.array([Decimal(key).scaleb(-7, DIGITS) for key in keys], pa.decimal128(38, 7))
    key = key_words(column)
    asked = query_words([query], len(key))
    for place, exact in enumerate(keys):
        difference = 0.0
        for word in range(len(key)):
            difference += key[word, place] - asked[0, word]
        assert difference == pytest.approx(float(exact - query), rel=1e-14)


def test_queries_of_every_kind_keep_their_digits() -> None:
    table = pa.table({"k": [2**60, 2**60 + 1, 2**60 + 2], "v": [0.0, 1.0, 2.0]})
    database = qkv.Database(table, key="k", value="v")
    how: dict[str, Any] = {"similarity": "boxcar", "bandwidth": 0.75}
    answers = database.query([2**60 + 1, 3.5, Decimal(2**60) + Decimal("1.5"), 2**70, -1], **how)
    assert [a.value for a in answers] == [1.0, None, 1.5, None, None]
    unsigned = qkv.Database(
        pa.table({"k": pa.array([2**64 - 1, 0], pa.uint64()), "v": [1.0, 2.0]}), key="k", value="v"
    )
    assert [a.value for a in unsigned.query([2**64 - 1, -1, 2**64])] == [1.0, None, None]
    assert [a.value for a in unsigned.query([2**64 - 1, -1], **how)] == [1.0, None]


@pytest.mark.parametrize("n", [1, 20])
def test_the_two_zeros_are_one(n: int, tmp_path: Path) -> None:
    table = pa.table({"k": [0.0, -0.0, 1.0], "v": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    sources: list[Any] = [table, tmp_path / "t.parquet", duckdb.connect().from_arrow(table),
                          pl.from_arrow(table).lazy(), table.to_pandas()]  # fmt: skip
    for source in sources:
        database = qkv.Database(source, key="k", value="v")
        for zero in (0.0, -0.0, 0):
            for answer in database.query([zero] * n):
                assert (answer.value, answer.effective_rows) == (1.5, 2.0)
        assert database.query(1.0, similarity="boxcar", bandwidth=5, where="k in (0)").value == 1.5


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("similarity", SOFT)
@pytest.mark.parametrize(
    ("far", "bandwidth"),
    [
        (far, width)
        for far in (1e-3, 1e160, 1e200, 1e300)
        for width in (1e-320, 1e-160, 1.0, 1e150)
        if width < far / 10  # which sees no other row
    ],
)
def test_an_exact_hit_counts_at_any_distance(
    n: int, similarity: str, far: float, bandwidth: float
) -> None:
    keys = np.concatenate([[far], -far * np.arange(1.0, 1500.0), [0.0]])
    keys = keys[np.isfinite(keys)]
    table = pa.table({"k": keys, "v": np.arange(float(len(keys)))})
    answers = qkv.Database(table, key="k", value="v").query(
        [far] * n, similarity=similarity, bandwidth=bandwidth
    )
    for answer in answers:
        assert (answer.value, answer.effective_rows) == (0.0, 1.0)


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("similarity", SOFT)
@pytest.mark.parametrize(
    ("query", "bandwidth"), [(1e200, 1.0), (1.5, 1e-200), (-1e300, 1e-300), (1e-3, 1e-320)]
)
def test_the_nearest_is_found_beyond_the_range_of_squares(
    n: int, similarity: str, query: float, bandwidth: float
) -> None:
    keys = np.concatenate([RNG.normal(size=2000) * 1e3, [1e199, -1e299, 1.6]])
    table = pa.table({"k": keys, "v": np.arange(2003.0)})
    answers = qkv.Database(table, key="k", value="v").query(
        [query] * n, similarity=similarity, bandwidth=bandwidth
    )
    for answer in answers:
        assert answer.value == np.argmin(np.abs(keys - query))
    pair = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(keys, 2)), 2)
    vectors = qkv.Database(pa.table({"k": pair, "v": np.arange(2003.0)}), key="k", value="v")
    for answer in vectors.query([[query, query]] * n, similarity=similarity, bandwidth=bandwidth):
        assert answer.value == np.argmin(np.abs(keys - query))


def test_two_far_columns_are_ranked_by_their_distance_together() -> None:
    # √(3² + 3²) is more than 4 and less than 5.
    table = pa.table({"a": [3e200, 4e200, 0.0], "b": [3e200, 0.0, 5e200], "v": [0.0, 1.0, 2.0]})
    answer = qkv.Database(table, key=["a", "b"], value="v").query(
        (0.0, 0.0), similarity="gaussian", bandwidth=1.0
    )
    assert answer.value == 1.0


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("similarity", COMPACT + SOFT)
def test_bandwidths_and_keys_beyond_the_range_of_squares(n: int, similarity: str) -> None:
    keys = np.array([1e300, 1.05e300, -1e300])
    table = pa.table({"k": keys, "v": [1.0, 2.0, 3.0]})
    database = qkv.Database(table, key="k", value="v")
    weights = [_weight(similarity, (Fraction(k) - Fraction(1e300)) / Fraction(1e299))
               if k > 0 else 0.0 for k in keys]  # fmt: skip
    for answer in database.query([1e300] * n, similarity=similarity, bandwidth=1e299):
        assert answer.value == pytest.approx(np.average([1.0, 2.0, 3.0], weights=weights))
    small = pa.table({"k": [0, 1, 2], "day": [dt.date(2020, 1, 1)] * 3, "v": [1.0, 2.0, 3.0]})
    for key, query in (("k", 1), ("day", dt.date(2020, 1, 1))):
        for width in (1e200, 1e308):
            answers = qkv.Database(small, key=key, value="v").query(
                [query] * n, similarity=similarity, bandwidth=width
            )
            assert [a.value for a in answers] == pytest.approx([2.0] * n)


def test_a_query_for_a_kernel_is_finite() -> None:
    database = qkv.Database(pa.table({"k": [1.0], "v": [1.0]}), key="k", value="v")
    with pytest.raises(ValueError, match="query for key column 'k' must be finite; got inf"):
        database.query(math.inf, similarity="gaussian", bandwidth=1)
