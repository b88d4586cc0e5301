"""Columns as people have them: missing values, ordered categories, dates, booleans, Arrow."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics.pairwise import nan_euclidean_distances

import qkv
from qkv.regression import NoNeighboursWarning, pool, weight_batches

Regressor = qkv.NadarayaWatsonRegressor


def _mixed(n: int = 61, seed: int = 0):
    random = np.random.default_rng(seed)
    number, kind = random.uniform(0, 1, n), random.choice(["a", "b", "c"], n)
    size = random.choice(["small", "medium", "large", "huge"], n)
    order = ["small", "medium", "large", "huge"]
    y = np.sin(5 * number) + (kind == "b") + [order.index(each) for each in size]
    y = y + 0.1 * random.standard_normal(n)
    return pd.DataFrame({"number": number, "kind": kind, "size": size}), y, order


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "epanechnikov"])
def test_a_missing_number_takes_no_part_in_the_distance(kernel, monkeypatch) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (83, 3))
    y = x.sum(axis=1) + 0.1 * random.standard_normal(83)
    x[random.uniform(size=x.shape) < 0.2] = np.nan
    asked = np.array([[0.3, np.nan, 0.7], [0.1, 0.2, 0.3], [np.nan, np.nan, 0.5]])
    h = np.array([0.4, 0.6, 0.8])
    model = Regressor(kernel, h, empty="prior").fit(x, y)
    distance = nan_euclidean_distances(asked / h, x / h)  # scaled up for what is missing
    profile = {
        "gaussian": lambda u: np.exp(-0.5 * u**2),
        "laplacian": lambda u: np.exp(-u),
        "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    }[kernel]
    weight = np.where(np.isnan(distance), 0.0, profile(np.nan_to_num(distance)))
    expected = weight @ y / weight.sum(axis=1)
    np.testing.assert_allclose(model.predict(asked), expected, rtol=1e-10)
    weights = model.weights(asked)
    np.testing.assert_allclose(weights, weight / weight.sum(axis=1, keepdims=True), atol=1e-12)
    monkeypatch.setattr(pool, "MOST_PARTS", 1)  # many patterns go by the weights themselves
    np.testing.assert_allclose(model.predict(asked), expected, rtol=1e-10)


def test_missing_numbers_are_left_out_of_leave_one_out_as_of_fits() -> None:
    random = np.random.default_rng(1)
    x = random.uniform(0, 1, (41, 2))
    y = np.sin(4 * x[:, 0]) + x[:, 1]
    x[::5, 0] = np.nan
    x[3] = np.nan  # a row of which nothing is known is never seen
    model = Regressor(bandwidth=0.2).fit(x, y)
    assert model.weights(x[:2]).shape == (2, 41)
    assert (model.weights(x[:2])[:, 3] == 0).all()
    keep = np.arange(41) != 3
    assert model.loo_score() == pytest.approx(
        Regressor(bandwidth=0.2).fit(x[keep], y[keep]).loo_score()
    )
    seen = np.flatnonzero(keep)
    left = [
        Regressor(bandwidth=0.2).fit(x[seen[seen != i]], y[seen[seen != i]]).predict(x[[i]])[0]
        for i in seen
    ]
    expected = 1 - np.sum((y[seen] - left) ** 2) / np.sum((y[seen] - y[seen].mean()) ** 2)
    assert model.loo_score() == pytest.approx(expected, rel=1e-9)
    searched = Regressor().fit(x, y)
    assert searched.loo_score() >= model.loo_score()
    assert np.isfinite(searched.predict_interval(x[:2])).all()


def _line_at(x, y, weight, asked) -> float:
    """Weighted least squares about a query, slopes along its own columns; means fill the gaps."""
    there = ~np.isnan(asked)
    design = [np.ones(len(y))]
    for column, place in zip(x.T[there], asked[there], strict=True):
        known = ~np.isnan(column)
        mean = np.average(column[known], weights=weight[known])
        design.append(np.where(known, column, mean) - place)
    root = np.sqrt(weight)
    return np.linalg.lstsq(np.stack(design, 1) * root[:, None], y * root, rcond=1e-12)[0][0]


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_a_missing_number_tells_a_line_nothing_of_its_slope(kernel) -> None:
    random = np.random.default_rng(2)
    x = random.uniform(0, 1, (59, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.1 * random.standard_normal(59)
    x[random.uniform(size=x.shape) < 0.15] = np.nan
    asked = np.array([[0.3, np.nan, 0.7], [0.4, 0.5, 0.6], [np.nan, np.nan, 0.5]])
    h = np.array([0.7, 0.8, 0.9])
    model = Regressor(kernel, h, degree=1).fit(x, y)
    weights = Regressor(kernel, h).fit(x, y).weights(asked)
    expected = [_line_at(x, y, *each) for each in zip(weights, asked, strict=True)]
    np.testing.assert_allclose(model.predict(asked), expected, rtol=1e-8)
    left = [
        Regressor(kernel, h, degree=1, empty="prior")
        .fit(np.delete(x, i, axis=0), np.delete(y, i))
        .predict(x[[i]])[0]
        for i in range(59)
        if not np.isnan(x[i]).all()
    ]
    seen = ~np.isnan(x).all(axis=1)
    expected = 1 - np.sum((y[seen] - left) ** 2) / np.sum((y[seen] - y[seen].mean()) ** 2)
    assert model.loo_score() == pytest.approx(expected, rel=1e-8)
    for criterion in ("loo", "aicc", "gcv"):
        searched = Regressor(kernel, criterion, degree=1, empty="prior").fit(x, y)
        assert searched.loo_score() > 0.5
    assert np.isfinite(model.predict_interval(asked)).all()


def test_a_line_of_one_column_does_without_rows_that_miss_it() -> None:
    x, y = np.linspace(0, 1, 23)[:, None], np.linspace(0, 1, 23) ** 2
    holes = np.where(np.arange(23)[:, None] % 7 == 3, np.nan, x)
    there = ~np.isnan(holes[:, 0])
    model = Regressor(bandwidth=0.1, degree=1).fit(holes, y)
    without = Regressor(bandwidth=0.1, degree=1).fit(x[there], y[there])
    np.testing.assert_allclose(model.predict(x), without.predict(x), rtol=1e-12)
    with pytest.warns(NoNeighboursWarning, match="1 of 2 queries"):
        assert np.isnan(model.predict([[np.nan], [0.5]])).tolist() == [True, False]


def test_what_shares_no_number_is_not_seen() -> None:
    x, y = np.array([[0.0, np.nan], [1.0, np.nan], [np.nan, 2.0]]), np.array([1.0, 2.0, 7.0])
    model = Regressor(bandwidth=1.0).fit(x, y)
    assert model.predict([[np.nan, 5.0]]) == 7.0
    with pytest.warns(NoNeighboursWarning, match="1 of 1 queries"):
        assert np.isnan(model.predict([[np.nan, np.nan]])).all()
    near = Regressor("boxcar", 0.1, empty="nearest").fit(x, y)
    assert near.predict([[0.8, np.nan], [np.nan, 9.0]]).tolist() == [2.0, 7.0]
    with pytest.raises(ValueError, match="X must hold a number in some row"):
        Regressor().fit([[np.nan], [np.nan]], [1.0, 2.0])


def test_a_missing_category_tells_nothing() -> None:
    table, y, _ = _mixed()
    table = table[["number", "kind"]].astype({"kind": object})
    table.loc[5, "kind"] = None
    model = Regressor(bandwidth=0.2, categorical=["kind"], smoothing=0.3).fit(table, y)
    asked = pd.DataFrame({"number": [0.4, 0.4], "kind": ["b", None]})
    k = np.exp(-0.5 * ((0.4 - table["number"].to_numpy()) / 0.2) ** 2)
    own = np.where(table["kind"] == "b", 0.7, 0.15)
    own[5] = 1 / 3
    expected = [(k * own) @ y / (k * own).sum(), k @ y / k.sum()]
    np.testing.assert_allclose(model.predict(asked), expected, rtol=1e-12)
    ((_, weights, _),) = weight_batches.weights(*model._fitted, model._keys(asked))
    np.testing.assert_allclose(weights @ y[model.rows_], expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # statsmodels' own
@pytest.mark.parametrize("degree", [0, 1])
def test_categories_agree_with_statsmodels(degree) -> None:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    table, y, order = _mixed()
    coded = np.column_stack(
        [table["number"], table["kind"].map(ord), [order.index(each) for each in table["size"]]]
    )
    kind = "lc" if degree == 0 else "ll"
    if degree == 1:  # statsmodels takes codes for numbers in its slopes: one kind of column only
        peer = KernelReg(y, coded[:, :1], var_type="c", reg_type=kind, bw=[0.2])
        model = Regressor(bandwidth=0.2, degree=1).fit(table[["number"]], y)
        np.testing.assert_allclose(model.predict(table[["number"]]), peer.fit()[0], rtol=1e-8)
        return
    peer = KernelReg(y, coded, var_type="cuo", reg_type=kind, bw=[0.2, 0.3, 0.4])
    for frame in (table, pl.from_pandas(table), pa.Table.from_pandas(table)):
        model = Regressor(
            bandwidth=0.2,
            categorical=["kind"],
            ordered={"size": order},
            smoothing={"kind": 0.3, "size": 0.4},
        ).fit(frame, y)
        np.testing.assert_allclose(model.predict(frame), peer.fit()[0], rtol=1e-10)
    assert model.smoothing_.tolist() == [0.3, 0.4]
    by_number = Regressor(bandwidth=0.2, categorical=[1], ordered=[2], smoothing=[0.3, 0.4])
    np.testing.assert_allclose(by_number.fit(coded, y).predict(coded), peer.fit()[0], rtol=1e-10)


def test_the_order_of_categories_is_searched_for_and_helps() -> None:
    table, y, order = _mixed(83)
    table["size"] = pd.Categorical(table["size"], order, ordered=True)
    # At one bandwidth: what is searched for is how much neighbouring sizes share.
    known = Regressor(categorical="auto", bandwidth=0.4).fit(table, y)
    assert [names.ordered for names in known.columns_.names] == [False, True]
    assert 0 <= known.smoothing_[1] < 0.5
    apart = Regressor(categorical=["kind", "size"], bandwidth=0.4)
    apart.fit(table.astype({"size": str}), y)
    assert known.loo_score() > apart.loo_score() - 0.01
    fixed = Regressor(categorical="auto", bandwidth=0.4, smoothing=0.0).fit(table, y)
    assert fixed.smoothing_.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("smoothing", "text"),
    [
        (0.9, r"^smoothing of column 'kind' must lie between 0 and 0.666667; got 0.9$"),
        (-0.1, r"^smoothing of column 'kind' must lie between 0 and 0.666667; got -0.1$"),
        ([0.1, 0.2], r"^smoothing must be one number or one for each of 1 columns of categories"),
        ({"size": 0.1}, r"^smoothing must have a number for each of the columns kind; got"),
    ],
)
def test_wrong_smoothings(smoothing, text) -> None:
    table, y, _ = _mixed()
    with pytest.raises(ValueError, match=text):
        Regressor(categorical=["kind"], smoothing=smoothing).fit(table[["number", "kind"]], y)


def test_wrong_columns() -> None:
    table, y, _ = _mixed()
    with pytest.raises(ValueError, match=r"column 'kind' must hold numbers, dates or times; got"):
        Regressor(bandwidth=1.0).fit(table, y)
    with pytest.raises(ValueError, match="ordered names the column 'colour', which X does not"):
        Regressor(ordered=["colour"]).fit(table, y)
    with pytest.raises(ValueError, match="ordered must be None, a list of columns, or a mapping"):
        Regressor(ordered="size").fit(table, y)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "numpy", "objects"])
def test_dates_are_counted_in_days(library) -> None:
    days = np.arange(40)
    dates = np.datetime64("2024-02-20") + days
    y = np.sin(days / 5)
    listed = [dt.date(2024, 2, 20) + dt.timedelta(int(day)) for day in days]
    x = {
        "pandas": lambda: pd.DataFrame({"day": listed}),
        "polars": lambda: pl.DataFrame({"day": listed}),
        "arrow": lambda: pa.table({"day": listed}),
        "numpy": lambda: dates[:, None],
        "objects": lambda: pd.DataFrame({"day": pd.Series(listed, dtype=object)}),
    }[library]()
    model = Regressor(bandwidth=1.5).fit(x, y)
    expected = Regressor(bandwidth=1.5).fit(days[:, None], y).predict(days[:, None])
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-12)
    if library == "pandas":
        with pytest.raises(ValueError, match="column 'day' must hold dates or times, as in fit"):
            model.predict(pd.DataFrame({"day": [1.0]}))


def test_times_keep_their_nanoseconds_and_zones() -> None:
    start = pd.Timestamp("2024-01-01T00:00:00", tz="Europe/Berlin")
    x = pd.DataFrame({"at": [start + pd.Timedelta(k, "us") for k in range(0, 90, 3)]})
    y = np.arange(30.0)
    model = Regressor(bandwidth=2e-6).fit(x, y)
    expected = Regressor(bandwidth=2.0).fit(np.arange(0.0, 90, 3)[:, None], y)
    found = model.predict(x)
    np.testing.assert_allclose(found, expected.predict(np.arange(0.0, 90, 3)[:, None]), rtol=1e-9)
    utc = pd.DataFrame({"at": x["at"].dt.tz_convert("UTC")})
    np.testing.assert_array_equal(model.predict(utc), found)


def test_booleans_and_nulls_of_every_library() -> None:
    flag = [True, False, None, True, False, True, False]
    number = [1.0, 2.0, 3.0, None, 5.0, 6.0, 7.0]
    y = np.arange(7.0)
    plain = np.array([[1, 1], [0, 2], [np.nan, 3], [1, np.nan], [0, 5], [1, 6], [0, 7.0]])
    expected = Regressor(bandwidth=0.7).fit(plain, y).predict(plain)
    frames = [
        pa.table({"flag": flag, "number": number}),
        pl.DataFrame({"flag": flag, "number": number}),
        pd.DataFrame({"flag": pd.array(flag, "boolean"), "number": pd.array(number, "Float64")}),
        pd.DataFrame({"flag": pd.Series(flag, dtype=object), "number": number}),
    ]
    for frame in frames:
        model = Regressor(bandwidth=0.7).fit(frame, y)
        np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-12)
