"""Tables asked with a kernel of someone's own."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import qkv

RNG = np.random.default_rng(5)
M = 307
KEY, OTHER, VALUE = RNG.normal(size=(3, M))
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=int(x)) for x in RNG.integers(0, 90, M)]
ROWS = pa.table(
    {
        "x": KEY, "y": OTHER, "value": VALUE, "day": DAYS,
        "vector": pa.array(list(np.stack([KEY, OTHER], 1)), pa.list_(pa.float64(), 2)),
        "name": [f"name {i}" for i in range(M)],
    }
)  # fmt: skip


def cauchy(u: Tensor) -> Tensor:
    return 1 / (1 + u**2)


def _mean(answer: qkv.Answer) -> float:
    return float(answer.value)


def _expected(squared: np.ndarray) -> float:
    weights = 1 / (1 + squared)
    return float(weights @ VALUE / weights.sum())


def test_numbers() -> None:
    found = qkv.Database(ROWS, key="x", value="value").query(0.4, similarity=cauchy, bandwidth=0.2)
    assert _mean(found) == pytest.approx(_expected(((KEY - 0.4) / 0.2) ** 2), rel=1e-12)
    assert "cauchy, bandwidth 0.2" in str(found)


def test_vectors_days_and_two_columns() -> None:
    vectors = qkv.Database(ROWS, key="vector", value="value")
    found = vectors.query([0.3, -0.2], similarity=qkv.similarity.OfDistance(cauchy, 0.5))
    squared = ((KEY - 0.3) ** 2 + (OTHER + 0.2) ** 2) / 0.25
    assert _mean(found) == pytest.approx(_expected(squared), rel=1e-12)
    days = qkv.Database(ROWS, key="day", value="value")
    found = days.query(dt.date(2024, 2, 1), similarity=cauchy, bandwidth=dt.timedelta(days=5))
    away = np.array([(day - dt.date(2024, 2, 1)).days for day in DAYS])
    assert _mean(found) == pytest.approx(_expected((away / 5) ** 2), rel=1e-12)
    both = qkv.Database(ROWS, key=["x", "y"], value="value")
    how = {"x": cauchy, "y": "gaussian"}
    found = both.query({"x": 0.1, "y": 0.2}, similarity=how, bandwidth={"x": 0.3, "y": 0.4})
    weights = 1 / (1 + ((KEY - 0.1) / 0.3) ** 2) * np.exp(-0.5 * ((OTHER - 0.2) / 0.4) ** 2)
    assert _mean(found) == pytest.approx(float(weights @ VALUE / weights.sum()), rel=1e-12)


def test_a_kernel_of_the_packages_own_written_as_a_function() -> None:
    database = qkv.Database(ROWS, key="x", value="value")
    own = database.query(0.4, similarity=lambda u: (1 - u * u).clamp(min=0), bandwidth=0.2)
    known = database.query(0.4, similarity="epanechnikov", bandwidth=0.2)
    assert _mean(own) == pytest.approx(_mean(known), rel=1e-12)


def test_what_cannot_be_compared_or_weighed_is_refused() -> None:
    names = qkv.Database(ROWS, key="name", value="value")
    with pytest.raises(TypeError, match=r"similarity 'cauchy' cannot compare key column 'name'"):
        names.query("name 3", similarity=cauchy)
    database = qkv.Database(ROWS, key="x", value="value")
    with pytest.raises(ValueError, match="must give weights that are numbers, never negative"):
        database.query(0.4, similarity=lambda u: 1 - u)
    with pytest.raises(TypeError, match="a function of the distance in bandwidths"):
        database.query(0.4, similarity=3)  # type: ignore[arg-type]
    two = qkv.similarity.OfDistance(torch.exp, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"bandwidth of exp must be one number; got 2$"):
        database.query(0.4, similarity=two)
