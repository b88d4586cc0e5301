"""Values and keys far from zero keep their digits, on processors of every level."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from table.tables import kernel

import qkv

ROWS = 9_001
BANDWIDTH = 0.4

RNG = np.random.default_rng(11)
KEYS = RNG.random(ROWS)
VALUES = {
    "whole numbers": 1e12 + RNG.integers(-3, 4, ROWS),
    "below zero": -1e12 + RNG.integers(0, 2, ROWS),
    "noise": 1e9 + RNG.normal(size=ROWS),
    "all the same": np.full(ROWS, 1e12 + 0.1),
    "a rise": 1e12 + np.linspace(-5.0, 5.0, ROWS),
}


def _table(keys: np.ndarray, values: np.ndarray, cuts: list[int]) -> pa.Table:
    """In batches that end at the cuts."""
    parts = zip(np.split(keys, cuts), np.split(values, cuts), strict=True)
    return pa.concat_tables([pa.table({"k": k, "v": v}) for k, v in parts])


def _exact(weights: list[float], values: np.ndarray) -> tuple[Fraction, float]:
    """Mean and deviation by exact sums of differences, which are themselves exact."""
    pivot, total = float(values[0]), math.fsum(weights)
    shifted = [v - pivot for v in values.tolist()]
    mean = math.fsum(w * v for w, v in zip(weights, shifted, strict=True)) / total
    spread = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, shifted, strict=True)) / total
    return Fraction(pivot) + Fraction(mean), math.sqrt(spread)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("similarity", ["boxcar", "gaussian"])
@pytest.mark.parametrize("cuts", [[], [1, 700, 703, 5000], list(range(50, ROWS, 50))])
def test_means_are_right_to_the_last_digit_and_deviations_to_twelve(
    values: np.ndarray, similarity: str, cuts: list[int]
) -> None:
    weights = [kernel(similarity, (k - 0.5) / BANDWIDTH) for k in KEYS.tolist()]
    mean, deviation = _exact(weights, values)
    answer = qkv.Database(_table(KEYS, values, cuts), key="k", value="v").query(
        0.5, similarity=similarity, bandwidth=BANDWIDTH
    )
    assert abs(Fraction(answer.value) - mean) <= Fraction(math.ulp(answer.value))
    assert answer.std == pytest.approx(deviation, rel=1e-12, abs=1e-11)


@pytest.mark.parametrize("cuts", [[], [1], [1024]])
def test_values_far_away_that_weigh_nothing_leave_no_rounding(cuts: list[int]) -> None:
    near, far = RNG.normal(size=3000), np.full(1024, 1e15)
    keys = np.concatenate([np.full(1024, -800.0), RNG.random(3000)])
    values = np.concatenate([far, near])
    mean, deviation = _exact([math.exp(-abs(k)) for k in keys[1024:].tolist()], near)
    answer = qkv.Database(_table(keys, values, cuts), key="k", value="v").query(
        0.0, similarity="laplacian", bandwidth=1.0
    )
    assert answer.value == pytest.approx(float(mean), rel=1e-12)
    assert answer.std == pytest.approx(deviation, rel=1e-12)


@pytest.mark.parametrize("cuts", [[], [1], [3000]])
def test_an_infinite_value_makes_the_mean_infinite(cuts: list[int]) -> None:
    values = RNG.normal(size=ROWS)
    values[17] = math.inf
    answer = qkv.Database(_table(KEYS, values, cuts), key="k", value="v").query(
        0.5, similarity="gaussian", bandwidth=BANDWIDTH
    )
    assert answer.value == math.inf
    assert math.isnan(answer.std)


def test_vectors_far_from_zero_keep_their_distances() -> None:
    keys = 1e9 + RNG.normal(size=(300, 3))
    query = keys[0].tolist()
    squares = [sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(k, query, strict=True))
               for k in keys.tolist()]  # fmt: skip
    weights = [math.exp(-0.5 * float(square / Fraction(0.3) ** 2)) for square in squares]
    values = RNG.normal(size=300)
    table = pa.table(
        {"k": pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), 3), "v": values}
    )
    mean, deviation = _exact(weights, values)
    answer = qkv.Database(table, key="k", value="v").query(
        query, similarity="gaussian", bandwidth=0.3
    )
    assert answer.value == pytest.approx(float(mean), rel=1e-12)
    assert answer.std == pytest.approx(deviation, rel=1e-12)


def test_a_bandwidth_does_not_depend_on_where_the_values_lie() -> None:
    keys = RNG.random(500)
    values = np.round(np.sin(9.0 * keys) * 2**10) / 2**10
    chosen = {
        qkv.Database(_table(keys, values + far, []), key="k", value="v")
        .explain(0.5, similarity="gaussian")
        .similarity["k"]
        for far in (0.0, 2.0**40)  # to which they are added without rounding
    }
    assert len(chosen) == 1
