"""What the estimators compute, against loops, against peers, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import RadiusNeighborsRegressor

import qkv
from qkv.regression import (
    BandwidthWarning,
    Nearest,
    NoNeighboursWarning,
    kd_tree,
    progress,
    weight_batches,
)
from qkv.regression.kernels import NAMES, as_kernel, at
from qkv.regression.local import LeaveOneOut
from qkv.regression.pool import pool

Regressor = qkv.NadarayaWatsonRegressor


def _loop(x, y, query, kernel, h, weight=None):
    """Eq. 4 as three loops."""
    weight = [1.0] * len(x) if weight is None else weight
    found = []
    for q in query:
        k = [
            math.exp(oracle.kernel(kernel, h)(q, row)) * w for row, w in zip(x, weight, strict=True)
        ]
        found.append([sum(a * b for a, b in zip(k, c, strict=True)) / sum(k) for c in y.T])
    return np.array(found)


def _sample(n: int, d: int, k: int = 1, seed: int = 0):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (n, d))
    y = np.sin(4 * x).sum(axis=1, keepdims=True) * np.arange(1, k + 1)
    return x, y + 0.1 * random.standard_normal((n, k))


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize("d", [1, 3])
def test_the_answer_is_equation_4(kernel: str, d: int) -> None:
    x, y = _sample(53, d, 2)
    h = [0.7, 0.9, 1.1][:d] if d > 1 else 0.7
    weight = np.random.default_rng(1).integers(0, 3, 53)
    model = Regressor(kernel, h).fit(x, y, sample_weight=weight)
    expected = _loop(x.tolist(), y, x[:7].tolist(), kernel, h, weight)
    np.testing.assert_allclose(model.predict(x[:7]), expected, rtol=1e-10)
    weights = model.weights(x[:7])
    np.testing.assert_allclose(weights @ y[: weights.shape[1]], expected, rtol=1e-10)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar", "tricube"])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("d", [1, 2])
def test_leave_one_out_leaves_one_out(kernel: str, degree: int, d: int) -> None:
    x, y = _sample(31, d)
    model = Regressor(kernel, 0.9, degree).fit(x, y[:, 0])
    examples = model.examples_
    others = LeaveOneOut(model.examples_, model.kernel_, degree).at(model.width_)
    for i in (0, 7, 30):
        keep = np.arange(31) != i
        rest = Regressor(kernel, 0.9, degree).fit(
            examples.keys.number[keep], examples.target[keep, 0]
        )
        expected = rest.predict(examples.keys.number[i : i + 1])
        np.testing.assert_allclose(others.answer[i], expected, rtol=1e-8)


def test_leave_one_out_of_isolated_examples_keeps_its_digits() -> None:
    x = np.array([[0.0, 0.0], [10.0, 0.0], [11.0, 0.0]])
    model = Regressor(bandwidth=0.5).fit(x, [1.0, 2.0, 5.0])
    others = LeaveOneOut(model.examples_, model.kernel_, 0).at(model.width_)
    np.testing.assert_allclose(others.answer[:, 0], [2.0, 5.0, 2.0], rtol=1e-12)


def test_a_local_line_follows_a_line_to_the_edge() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (67, 2))
    y = 3 + x @ [2.0, -5.0]
    for offset in (0.0, 1e6):
        model = Regressor(bandwidth=0.2, degree=1).fit(x + offset, y)
        asked = np.array([[0.0, 0.0], [0.5, 1.0]])
        np.testing.assert_allclose(model.predict(asked + offset), 3 + asked @ [2, -5], atol=1e-6)
    narrow = Regressor(bandwidth=1e-4, degree=1).fit(x, y)  # spread over 10,000 bandwidths
    np.testing.assert_allclose(narrow.predict(x[:3]), y[:3], rtol=1e-9)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # statsmodels' own
def test_agrees_with_statsmodels() -> None:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y = _sample(97, 1)
    asked = np.linspace(0, 1, 13)[:, None]
    for degree, kind in ((0, "lc"), (1, "ll")):
        peer = KernelReg(y[:, 0], x[:, 0], var_type="c", reg_type=kind, bw=[0.13])
        own = Regressor(bandwidth=0.13, degree=degree).fit(x, y[:, 0])
        np.testing.assert_allclose(own.predict(asked), peer.fit(asked[:, 0])[0], rtol=1e-6)


def test_agrees_with_radius_neighbours_and_scikit_fda() -> None:
    from skfda.misc.hat_matrix import NadarayaWatsonHatMatrix

    x, y = _sample(97, 1)
    asked = np.linspace(0, 1, 13)[:, None]
    peer = RadiusNeighborsRegressor(radius=0.2).fit(x, y[:, 0])
    own = Regressor("boxcar", 0.2).fit(x, y[:, 0])
    np.testing.assert_allclose(own.predict(asked), peer.predict(asked), rtol=1e-12)
    hat = NadarayaWatsonHatMatrix(bandwidth=0.13)
    matrix = hat(delta_x=np.abs(asked - x.T), X_train=x, X=asked)
    own = Regressor(bandwidth=0.13).fit(x, y[:, 0])
    np.testing.assert_allclose(own.predict(asked), matrix @ y[:, 0], rtol=1e-9)


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_the_search_finds_a_good_bandwidth(criterion: str, kernel: str) -> None:
    x, y = _sample(211, 1)
    model = Regressor(kernel, criterion).fit(x, y[:, 0])
    asked = np.linspace(0, 1, 101)[:, None]
    truth = np.sin(4 * asked[:, 0])

    def error(h: float) -> float:
        model = Regressor(kernel, h, empty="prior").fit(x, y[:, 0])
        return float(np.square(model.predict(asked) - truth).mean())

    best = min(error(h) for h in np.geomspace(0.005, 1, 25))
    assert error(float(model.bandwidth_[0])) < 2 * best
    assert model.cv_curve_[:, -1].min() == pytest.approx(
        model.cv_curve_[np.argmin(np.abs(model.cv_curve_[:, 0] - model.bandwidth_[0])), -1]
    )
    assert (model.cv_curve_[:, 0] > 0).all()


def test_a_column_that_says_nothing_is_smoothed_away() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (151, 2))
    y = np.sin(6 * x[:, 0]) + 0.1 * random.standard_normal(151)
    wide = Regressor().fit(x, y).bandwidth_
    assert wide[1] > 10 * wide[0]


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([[1.0]], [2.0], "there is one example only"),
        ([[1.0], [2.0]], [3.0, 3.0], "the target is constant"),
        ([[1.0], [1.0]], [3.0, 4.0], "all examples have the same key"),
    ],
)
def test_told_when_the_data_cannot_decide(x, y, reason: str) -> None:
    with pytest.warns(BandwidthWarning, match=reason):
        model = Regressor().fit(x, y)
    assert (model.bandwidth_ > 0).all()
    assert model.predict([[1.0]]) == pytest.approx(np.mean(y))


def test_far_from_the_data() -> None:
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([3.0, 5.0, 7.0])
    assert Regressor(bandwidth=0.1).fit(x, y).predict([[1e5]]) == 7.0
    far = [[1.1], [9.0]]
    with pytest.warns(NoNeighboursWarning, match="1 of 2 queries have no example within reach"):
        assert np.isnan(Regressor("boxcar", 0.2).fit(x, y).predict(far)).tolist() == [False, True]
    assert Regressor("boxcar", 0.2, empty="nearest").fit(x, y).predict(far)[1] == 7
    assert Regressor("boxcar", 0.2, empty="prior").fit(x, y).predict(far)[1] == 5
    with pytest.raises(ValueError, match="1 of 2 queries have no example within reach; a wider"):
        Regressor("boxcar", 0.2, empty="raise").fit(x, y).predict(far)


@pytest.mark.parametrize("noise", ["even", "uneven", "skewed"])
def test_intervals_cover_new_observations(noise: str) -> None:
    """On the mean of 60 samples, whose shares deviate by 3.4 points: its standard error is 0.44."""
    random = np.random.default_rng(3)
    covered = []
    for _ in range(60):
        x = random.uniform(0, 4, (1100, 1))
        error = random.standard_normal(1100)
        if noise == "uneven":
            error *= 0.2 + x[:, 0]
        if noise == "skewed":
            error = random.exponential(size=1100)
        y = 2 * np.sin(x[:, 0]) + x[:, 0] + error
        model = Regressor(bandwidth=0.2).fit(x[:100], y[:100])
        bounds = model.predict_interval(x[100:], 0.9)
        assert bounds.shape == (1000, 2)
        covered.append((bounds[:, 0] <= y[100:]) & (y[100:] <= bounds[:, 1]))
    assert abs(np.mean(covered) - 0.903) < 3 * 0.0044


def test_quantiles_neighbours_weights_and_std() -> None:
    x, y = np.arange(5.0)[:, None], np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    model = Regressor("boxcar", 1.5).fit(x, y)
    assert model.predict_quantile([[2.0]], [0.1, 0.5, 0.9]).tolist() == [[1.0, 2.0, 4.0]]
    assert model.effective_neighbours([[2.0], [0.0]]) == pytest.approx([3.0, 2.0])
    top = model.weights([[0.0]], top=3)
    assert top.shape == (1, 3)
    assert top["index"].tolist() == [[0, 1, -1]]
    assert top["weight"].tolist() == [[0.5, 0.5, 0.0]]
    answer, std = model.predict(x, return_std=True)
    assert answer.shape == std.shape == (5,)
    assert (std > 0).all()


def test_mixed_keys_against_a_loop() -> None:
    random = np.random.default_rng(0)
    number, kind = random.uniform(0, 1, 59), random.choice(["a", "b", "c"], 59)
    y = np.sin(5 * number) + (kind == "b") + 0.1 * random.standard_normal(59)
    table = pd.DataFrame({"number": number, "kind": kind})
    model = Regressor(bandwidth=0.2, categorical="auto").fit(table, y)
    share = model.smoothing_[0]
    asked = pd.DataFrame({"number": [0.3, 0.8], "kind": ["b", "never seen"]})
    for row, found in zip(asked.itertuples(), model.predict(asked), strict=True):
        k = np.exp(-0.5 * ((row.number - number) / 0.2) ** 2)
        k = k * np.where(kind == row.kind, 1 - share, share / 2)
        assert found == pytest.approx(k @ y / k.sum())
    searched = Regressor(categorical=["kind"]).fit(table, y)
    assert 0 <= searched.smoothing_[0] < 0.3
    assert searched.loo_score() > 0.85
    alone = Regressor(categorical="auto").fit(table[["kind"]], y)
    assert np.isfinite(alone.predict(table[["kind"]])).all()


def test_adaptive_widths_see_k_neighbours() -> None:
    x, y = _sample(83, 2)
    model = Regressor("boxcar", Nearest(5)).fit(x, y[:, 0])
    near = model.effective_neighbours(np.random.default_rng(1).uniform(0, 1, (11, 2)))
    assert near == pytest.approx(5)
    searched = Regressor("tricube", "knn").fit(x, y[:, 0])
    assert 1 < searched.width_.neighbors < 40
    assert searched.loo_score() > 0.9


@pytest.mark.parametrize("kernel", ["boxcar", "epanechnikov", "tricube"])
@pytest.mark.parametrize("d", [2, 3])
def test_the_tree_equals_the_rows(kernel: str, d: int) -> None:
    x, y = _sample(499, d)
    model = Regressor(kernel, 0.1).fit(x, y)
    query = np.random.default_rng(1).uniform(-0.2, 1.2, (41, d))
    said = kd_tree.pool(at(as_kernel(kernel), np.full(d, 0.1)), query, x, y)
    asked = model._keys(query)
    ((_, weights, totals),) = weight_batches.weights(*model._fitted, asked)
    np.testing.assert_allclose(said.answer, weights @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(said.log_total, totals, rtol=1e-12)


def test_a_tree_serves_where_few_pairs_are_near() -> None:
    x, y = _sample(4099, 2)
    kernel = at(as_kernel("boxcar"), np.full(2, 0.01))
    assert kd_tree.near_pairs_are_few(kernel, x, x)
    assert not kd_tree.near_pairs_are_few(at(kernel, np.full(2, 2.0)), x, x)
    model = Regressor("boxcar", 0.01).fit(x, y)
    said = pool(*model._fitted, model._keys(x[:1100]), y)
    (_, weights, _), *_ = weight_batches.weights(*model._fitted, model._keys(x[:5]))
    np.testing.assert_allclose(said.answer[:5], weights @ y, rtol=1e-12)


def test_the_classifier_gives_the_share_of_attention() -> None:
    x = np.array([[0.0], [1.0], [3.0]])
    model = qkv.NadarayaWatsonClassifier(bandwidth=1.0).fit(x, ["b", "a", "b"])
    k = np.exp(-0.5 * (0.5 - x[:, 0]) ** 2)
    expected = [k[1] / k.sum(), (k[0] + k[2]) / k.sum()]
    np.testing.assert_allclose(model.predict_proba([[0.5]])[0], expected)
    assert model.predict([[3.0]]) == ["b"]
    far = qkv.NadarayaWatsonClassifier("boxcar", 0.5).fit(x, ["b", "a", "b"])
    np.testing.assert_allclose(far.predict_proba([[99.0]]), [[1 / 3, 2 / 3]])


@settings(max_examples=12)
@given(
    keys=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    scale=st.sampled_from([1e-150, 1e-9, 1.0, 1e9, 1e150]),
    kernel=st.sampled_from(NAMES),
    bandwidth=st.sampled_from(["loo", "scott", "knn"]),
    constant=st.booleans(),
    seed=st.integers(0, 9),
)
@pytest.mark.filterwarnings("ignore::qkv.regression.BandwidthWarning")
def test_ties_scales_constant_columns_and_weights_of_0(
    keys, scale, kernel, bandwidth, constant, seed
) -> None:
    random = np.random.default_rng(seed)
    x = np.array(keys, dtype=float)[:, None] * scale
    if constant:
        x = np.column_stack([x, np.full(len(x), 7.0)])
    y = random.standard_normal(len(x))
    weight = random.integers(0, 3, len(x))
    weight[0] = 1
    model = Regressor(kernel, bandwidth, empty="nearest").fit(x, y, sample_weight=weight)
    answer = model.predict(x)
    seen = y[weight > 0]
    assert (model.bandwidth_ > 0).all()
    assert (answer >= seen.min() - 1e-9).all()
    assert (answer <= seen.max() + 1e-9).all()
    repeated = np.repeat(np.arange(len(x)), weight)
    again = Regressor(kernel, bandwidth, empty="nearest").fit(x[repeated], y[repeated])
    np.testing.assert_allclose(again.predict(x), answer, atol=1e-6)


def test_a_long_search_shows_a_bar(monkeypatch, capsys) -> None:
    x = np.linspace(0, 4, 101)[:, None]
    y = np.sin(x[:, 0]) + np.random.default_rng(0).standard_normal(101)
    model = qkv.NadarayaWatsonRegressor(verbose=True)
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    model.fit(x, y)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    model.fit(x, y)
    shown = capsys.readouterr().err
    assert "searching the bandwidth" in shown
    assert "100%" in shown
    qkv.NadarayaWatsonRegressor().fit(x, y)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_however_far_the_nearest_answers(kernel) -> None:
    """Also where distances in bandwidths are beyond what floats can square."""
    x, y = np.array([[1.0], [2.0], [4.0]]), np.array([5.0, 6.0, 7.0])
    narrow = qkv.NadarayaWatsonRegressor(kernel, 1e-160).fit(x, y)
    assert narrow.predict([[2.0], [2.4], [3.1], [-9.0]]).tolist() == [6.0, 6.0, 7.0, 5.0]
    wide = qkv.NadarayaWatsonRegressor(kernel, 1.0).fit(x, y)
    assert wide.predict([[1e200]]) == 6.0  # all are as near
    both = qkv.NadarayaWatsonRegressor(kernel, [1e-160, 1e-158]).fit(np.hstack([x, x]), y)
    assert both.predict([[2.2, 1.0]]).tolist() == [6.0]


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "epanechnikov"])
@pytest.mark.parametrize("offset", [1e9, -1e12])
def test_targets_far_from_zero_keep_the_digits_of_their_spread(offset, kernel, degree) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (401, 1))
    far = np.sin(5 * x[:, 0]) + 0.1 * random.standard_normal(401) + offset
    near = far - offset  # exact
    asked = np.linspace(0.1, 0.9, 7)[:, None]
    model, plain = (
        qkv.NadarayaWatsonRegressor(kernel, 0.05, degree).fit(x, y) for y in (far, near)
    )
    (answer, std), (expected, plain_std) = (
        each.predict(asked, return_std=True) for each in (model, plain)
    )
    np.testing.assert_allclose(answer - offset, expected, atol=abs(offset) * 3e-16)
    np.testing.assert_allclose(std, plain_std, rtol=1e-9)
    assert model.loo_score() == pytest.approx(plain.loo_score(), rel=1e-9)
    assert set(model.predict_quantile(asked, 0.5).ravel()) <= set(far)


def test_small_targets_beside_large_ones_keep_their_digits() -> None:
    x, y = np.arange(4.0)[:, None], np.array([1e-9, 3e-9, 1e9, 1.1e9])
    model = qkv.NadarayaWatsonRegressor("boxcar", 1.2).fit(x, y)
    assert model.predict([[0.0]]) == pytest.approx(2e-9, rel=1e-12)
