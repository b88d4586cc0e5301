"""The rules of scikit-learn, and its company."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import qkv
from qkv.regression import Nearest

ESTIMATORS = [
    qkv.NadarayaWatsonRegressor(),
    qkv.NadarayaWatsonRegressor(qkv.Laplacian(), "scott", degree=1),
    qkv.NadarayaWatsonRegressor("epanechnikov", Nearest(5), empty="nearest"),
    qkv.NadarayaWatsonClassifier(),
]


@pytest.mark.filterwarnings(
    "ignore::qkv.regression.BandwidthWarning", "ignore::qkv.regression.NoNeighboursWarning"
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # their own
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn(estimator, check) -> None:
    check(estimator)


def _wave(n: int = 97, seed: int = 0):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 4, (n, 1))
    return x, 2 * np.sin(x[:, 0]) + x[:, 0] + 0.3 * random.standard_normal(n)


def test_pipeline_grid_search_clone_and_pickle() -> None:
    x, y = _wave()
    pipeline = make_pipeline(StandardScaler(), qkv.NadarayaWatsonRegressor())
    pipeline.set_output(transform="pandas")
    grid = {"nadarayawatsonregressor__bandwidth": [0.05, 0.2, "loo"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.8
    best = search.best_estimator_
    again = pickle.loads(pickle.dumps(best))
    np.testing.assert_array_equal(again.predict(x), best.predict(x))
    assert clone(best).get_params()["nadarayawatsonregressor__kernel"] == "gaussian"


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_names_of_columns(frame) -> None:
    x, y = _wave()
    table = frame({"gpa": x[:, 0], "age": x[:, 0] ** 2})
    model = qkv.NadarayaWatsonRegressor(bandwidth=1.0).fit(table, y)
    assert list(model.feature_names_in_) == ["gpa", "age"]
    other = frame({"gpa": x[:, 0], "height": x[:, 0]})
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(other)


def test_bad_input() -> None:
    x, y = _wave(11)
    fit = qkv.NadarayaWatsonRegressor(bandwidth=0.5).fit
    for bandwidth in ("knn", qkv.regression.Nearest(3)):  # what has no place for missing numbers
        with pytest.raises(ValueError, match="contains NaN"):
            qkv.NadarayaWatsonRegressor(bandwidth=bandwidth).fit(np.where(x == x[0], np.nan, x), y)
    with pytest.raises(ValueError, match="contains infinity"):
        fit(np.where(x == x[0], np.inf, x), y)
    with pytest.raises(ValueError, match="0 sample"):
        fit(x[:0], y[:0])
    with pytest.raises(ValueError, match=r"y must hold numbers .*; got values such as 'a'"):
        fit(x, ["a"] * 11)
    with pytest.raises(ValueError, match=r"X has 2 features, but .* expecting 1"):
        fit(x, y).predict(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):
        fit(x, y, sample_weight=np.zeros(11))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kernel": "gausian"}, r"^kernel must be one of gaussian, .* got 'gausian'$"),
        ({"bandwidth": 0}, r"^bandwidth must be positive and finite; got 0.0$"),
        ({"bandwidth": -1.0}, r"^bandwidth must be positive and finite; got -1.0$"),
        ({"bandwidth": [1, 2]}, r"one for each of 1 numeric columns; got shape \(2,\)$"),
        ({"bandwidth": "cv"}, r"^bandwidth must be a positive number, .* got 'cv'$"),
        ({"degree": 2}, r"^degree must be 0 or 1; got 2$"),
        ({"empty": "zero"}, r"^empty must be one of nan, nearest, prior, raise; got 'zero'$"),
        ({"categorical": ["b"]}, r"^categorical names the column 'b', which X does not have$"),
    ],
)
def test_wrong_arguments(options, text: str) -> None:
    x, y = _wave(11)
    with pytest.raises(ValueError, match=text):
        qkv.NadarayaWatsonRegressor(**options).fit(x, y)
