"""Tables asked with a kernel of someone's own."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import qkv
from qkv.similarity import Kernel

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


def pairs(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT


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


class OwnLaplacian(Kernel):
    """A kernel that says its logarithm, and so ranks keys where its weights underflow."""

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-squared.sqrt())

    def log_profile(self, squared: Tensor) -> Tensor:
        return -squared.sqrt()


def test_a_kernel_that_says_its_logarithm() -> None:
    database = qkv.Database(ROWS, key="x", value="value")
    for query in (0.4, 1e5):
        own = database.query(query, similarity=OwnLaplacian(0.2))
        known = database.query(query, similarity="laplacian", bandwidth=0.2)
        assert _mean(own) == pytest.approx(_mean(known), rel=1e-12)
        assert own.effective_rows == pytest.approx(known.effective_rows, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_weights_of_any_size(scale: float) -> None:
    """Weights are relative, and so is what is said of them."""
    database = qkv.Database(ROWS, key="x", value="value")
    own = database.query(0.4, similarity=lambda u: scale / (0.1 + u), bandwidth=0.2)
    weights = 1 / (0.1 + np.abs(KEY - 0.4) / 0.2)
    assert _mean(own) == pytest.approx(float(weights @ VALUE / weights.sum()), rel=1e-12)
    assert own.effective_rows == pytest.approx(weights.sum() ** 2 / (weights @ weights), rel=1e-12)
    assert [row["x"] for row in own.rows[:3]] == KEY[np.argsort(-weights)[:3]].tolist()


def test_many_queries_of_keys_of_several_words_in_groups() -> None:
    """Nanoseconds of this century take two words, and tiles end anywhere."""
    m = 3011
    away = RNG.integers(0, 10**10, m)
    table = pa.table(
        {
            "t": pa.array(1_700_000_000_000_000_000 + away, pa.timestamp("ns")),
            "value": RNG.normal(size=m),
        }
    )
    database = qkv.Database(table, key="t", value="value")
    asked = [1_700_000_000_000_000_000 + 10**9 * i for i in range(19)]
    times = pa.array(asked, pa.timestamp("ns")).to_pandas().tolist()
    curve = database.curve(times, similarity=cauchy, bandwidth=0.5)
    tricube = database.curve(times, similarity=qkv.Tricube(0.5))
    value = table["value"].to_numpy()
    for place, query in enumerate(asked):
        u = np.abs(away - (query - asked[0])) / 0.5e9
        weights = 1 / (1 + u**2)
        assert curve.value[place] == pytest.approx(weights @ value / weights.sum(), rel=1e-9)
        weights = np.maximum(1 - u**3, 0) ** 3
        if weights.sum():
            expected = weights @ value / weights.sum()
            assert tricube.value[place] == pytest.approx(expected, rel=1e-9)


def test_formulas_of_two_tokens() -> None:
    """Any similarity compares vectors, and numbers as vectors of one column."""
    tokens = np.stack([KEY, OTHER], 1)
    vectors = qkv.Database(ROWS, key="vector", value="value")

    def city_block(query: Tensor, key: Tensor) -> Tensor:
        return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)

    weights = np.exp(-np.abs(tokens - [0.3, -0.2]).sum(1))
    expected = float(weights @ VALUE / weights.sum())
    found = vectors.query([0.3, -0.2], similarity=city_block)
    assert _mean(found) == pytest.approx(expected, rel=1e-12)
    assert "city_block" in str(found)
    numbers = qkv.Database(ROWS, key="x", value="value").query(0.3, similarity=city_block)
    weights = np.exp(-np.abs(KEY - 0.3))
    assert _mean(numbers) == pytest.approx(float(weights @ VALUE / weights.sum()), rel=1e-12)
    torch.manual_seed(3)
    for learned in (qkv.Additive(2, 2, 5).double(), qkv.Bilinear(2, 2).double()):
        query, key = torch.tensor([[0.3, -0.2]], dtype=torch.float64), torch.from_numpy(tokens)
        with torch.no_grad():
            plain = qkv.attend(query, key, torch.from_numpy(VALUE)[:, None], similarity=learned)
        found = vectors.query([0.3, -0.2], similarity=learned)
        assert _mean(found) == pytest.approx(float(plain), rel=1e-9)


def test_a_formula_that_is_not_compiled() -> None:
    """Torch computes what no kernel can be derived from."""

    def ranked(u: Tensor) -> Tensor:
        return 1 / (1 + u.float().double().view(u.shape).cumsum(0)[:1] * 0 + u**2)

    database = qkv.Database(ROWS, key="x", value="value")
    found = database.query(0.4, similarity=ranked, bandwidth=0.2)
    assert _mean(found) == pytest.approx(_expected(((KEY - 0.4) / 0.2) ** 2), rel=1e-12)


def test_what_cannot_be_compared_or_weighed_is_refused() -> None:
    names = qkv.Database(ROWS, key="name", value="value")
    with pytest.raises(TypeError, match=r"similarity 'cauchy' cannot compare key column 'name'"):
        names.query("name 3", similarity=cauchy)
    database = qkv.Database(ROWS, key="x", value="value")
    with pytest.raises(ValueError, match="must give weights that are numbers, never negative"):
        database.query(0.4, similarity=lambda u: 1 - u)
    with pytest.raises(ValueError, match="must give weights that are numbers, never negative"):
        database.query(0.4, similarity=lambda u: u / (u * 0))
    with pytest.raises(ValueError, match="similarity 'pairs' of column 'x' has no bandwidth"):
        database.query(0.4, similarity=pairs, bandwidth=0.2)
    with pytest.raises(TypeError, match=r"similarity 'pairs' cannot compare key column 'day'"):
        qkv.Database(ROWS, key="day", value="value").query(DAYS[0], similarity=pairs)
    with pytest.raises(TypeError, match="a function of the distance in bandwidths"):
        database.query(0.4, similarity=3)  # type: ignore[arg-type]
    two = qkv.similarity.OfDistance(torch.exp, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"bandwidth of exp must be one number; got 2$"):
        database.query(0.4, similarity=two)
