"""Searches and leave-one-out on real data: against brute force, refitting and peers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings

import datasets
import numpy as np
import pyarrow as pa
import pytest

import qkv
from qkv.regression import BandwidthWarning
from qkv.regression.criteria import CRITERIA, along
from qkv.regression.kernels import NAMES
from qkv.regression.local import LeaveOneOut
from qkv.regression.moments import one_by_one
from qkv.regression.training_data import Keys
from qkv.staircase import staircase

Regressor = qkv.NadarayaWatsonRegressor


def _fit(x, y, *options, **more):
    """Whatever the search says of edges; tests of that ask for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandwidthWarning)
        return Regressor(*options, **more).fit(x, y)


def _refitted(x, y, kernel, bandwidth, degree, rows):
    """What a fit without each row says of it."""
    found = []
    for row in rows:
        rest = np.arange(len(y)) != row
        model = Regressor(kernel, bandwidth, degree, empty="prior").fit(x[rest], y[rest])
        found.append(model.predict(x[row : row + 1])[0])
    return np.array(found)


def _excess(model, degree: int, criterion: str, grids) -> float:
    """How much worse the bandwidths found are than the best of a grid, as a share of the error."""
    left_out = LeaveOneOut(model.examples_, model.kernel_, degree)

    def error(bandwidth) -> float:
        width = model.width_._replace(bandwidth=np.array(bandwidth))
        return CRITERIA[criterion](model.examples_, left_out.at(width))

    best = min(error(each) for each in itertools.product(*grids))
    found = error(model.bandwidth_)
    return found - best if criterion == "aicc" else found / best - 1


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar", "epanechnikov", "tricube"])
@pytest.mark.parametrize("name", ["engel", "sunspots", "cars", "iris"])
def test_no_bandwidth_of_a_fine_grid_does_better(name, kernel, criterion, degree) -> None:
    x, y = datasets.SETS[name]()
    model = _fit(x, y, kernel, criterion, degree)
    extent = np.ptp(x)
    grid = np.geomspace(extent / len(x) / 4, 4 * extent, 89)
    assert _excess(model, degree, criterion, [grid]) < 1e-3


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("degree", [0, 1])
def test_no_pair_of_bandwidths_of_a_grid_does_better(criterion, degree) -> None:
    x, y = datasets.SEVERAL["diabetes"]()
    x, y = x[:101, [0, 2]], y[:101]
    model = _fit(x, y, bandwidth=criterion, degree=degree)
    grids = [np.geomspace(np.ptp(column) / 30, 20 * np.ptp(column), 18) for column in x.T]
    assert _excess(model, degree, criterion, grids) < 1e-3


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar"])
def test_no_pair_of_bandwidths_does_better_with_few_rows(kernel, criterion, degree) -> None:
    """21 rows: curves with many valleys, which no line from one another leads to."""
    x, y = datasets.SEVERAL["stackloss"]()
    model = _fit(x, y, kernel, criterion, degree)
    grids = [np.geomspace(np.ptp(column) / 30, 20 * np.ptp(column), 20) for column in x.T]
    assert _excess(model, degree, criterion, grids) < 1e-3


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("name", "degree"), [("engel", 0), ("cars", 0), ("cars", 1)])
def test_no_step_of_a_boxcars_curve_is_lower(name, degree, criterion) -> None:
    x, y = datasets.SETS[name]()
    model = _fit(x, y, "boxcar", criterion, degree)
    ends = np.unique(np.abs(x - x.T))
    steps = (ends[:-1] + ends[1:]) / 2
    assert _excess(model, degree, criterion, [steps[:: 1 + len(steps) // 2000]]) < 1e-6


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["cars", "longley", "iris"])
def test_a_staircase_is_what_each_bandwidth_says(name, weighted, degree) -> None:
    x, y = datasets.SETS[name]()
    random = np.random.default_rng(0)
    weight = random.integers(1, 4, len(y)) if weighted else None
    model = Regressor("boxcar", np.ptp(x), degree).fit(x, y, sample_weight=weight)
    examples = model.examples_
    left_out = LeaveOneOut(examples, model.kernel_, degree)
    stairs = staircase(examples.keys.number[:, 0], examples.target, examples.copies, degree)
    for criterion, error in CRITERIA.items():
        curve = along(stairs, criterion, examples.copies.sum())
        for step in random.choice(len(stairs.width), min(23, len(stairs.width)), replace=False):
            width = model.width_._replace(bandwidth=stairs.width[[step]])
            expected = error(examples, left_out.at(width))
            assert curve[step] == pytest.approx(expected, rel=1e-6), (criterion, width)


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize(
    ("sets", "name", "widths"),
    [
        (datasets.SETS, "cars", (0.4, 1.5, 6.0, 50.0)),
        (datasets.SETS, "longley", (3e3, 1e5)),
        (datasets.SEVERAL, "stackloss", (0.7, 4.0)),
    ],
)
def test_leave_one_out_is_refitting(kernel, degree, sets, name, widths) -> None:
    x, y = sets[name]()
    for h in widths:
        model = Regressor(kernel, h, degree).fit(x, y)
        others = LeaveOneOut(model.examples_, model.kernel_, degree).at(model.width_)
        answer = np.empty(len(y))
        answer[model.rows_] = others.answer[:, 0] + model.examples_.pivot
        rows = range(0, len(y), 2)
        expected = _refitted(x, y, kernel, h, degree, rows)
        np.testing.assert_allclose(answer[rows], expected, rtol=1e-7, err_msg=f"h = {h}")


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_outliers_are_left_out_too(kernel, degree) -> None:
    """In engel's data a few rows lie far from all others, and weigh all in their own fits."""
    x, y = datasets.SETS["engel"]()
    far = np.argsort(x[:, 0])[-12:]
    for h in (20.0, 134.0, 507.5):
        model = Regressor(kernel, h, degree).fit(x, y)
        others = LeaveOneOut(model.examples_, model.kernel_, degree).at(model.width_)
        answer = np.empty(len(y))
        answer[model.rows_] = others.answer[:, 0] + model.examples_.pivot
        np.testing.assert_allclose(
            answer[far], _refitted(x, y, kernel, h, degree, far), rtol=1e-6, err_msg=f"h = {h}"
        )


def test_the_score_of_local_lines_is_leave_one_out() -> None:
    x, y = datasets.SETS["engel"]()
    model = Regressor(bandwidth=507.47788885, degree=1).fit(x, y)
    assert model.loo_score() == pytest.approx(-0.58, abs=0.01)
    expected = _refitted(x, y, "gaussian", 507.47788885, 1, range(len(y)))
    score = 1 - ((y - expected) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert model.loo_score() == pytest.approx(score, abs=1e-9)
    assert _fit(x, y, degree=1).loo_score() > 0.8


def test_an_infinite_candidate_does_not_spoil_the_search() -> None:
    x, y = datasets.SEVERAL["diabetes"]()
    for criterion in ("aicc", "gcv"):
        model = Regressor(bandwidth=criterion, degree=1).fit(x, y)  # no warning: it could decide
        assert model.loo_score() > 0.48
    for seed in range(3):
        random = np.random.default_rng(seed)
        x = random.uniform(0, 1, (40, 2))
        y = np.sin(5 * x[:, 0]) + 0.3 * random.standard_normal(40)
        for criterion in ("aicc", "gcv"):
            model = _fit(x, y, bandwidth=criterion)
            grids = [[0.02, 0.05, 0.1, 0.2, 0.5], [0.1, 1.0, 9.0]]
            assert _excess(model, 0, criterion, grids) < 1e-3


def test_a_best_at_an_edge_is_told() -> None:
    x, y = datasets.SETS["sunspots"]()
    with pytest.warns(BandwidthWarning, match="the narrowest bandwidth does best, 0.25"):
        model = Regressor().fit(x, y)
    assert model.loo_score() == pytest.approx(0.9193, abs=1e-4)
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (67, 2))
    with pytest.warns(
        BandwidthWarning, match="the widest bandwidth does best, and wider ones no worse"
    ):
        Regressor("gaussian").fit(x, random.standard_normal(67))
    with pytest.warns(
        BandwidthWarning, match=r"do not determine .* 3 are too few for bandwidth='aicc'"
    ):
        Regressor(bandwidth="aicc").fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 1.5])


@pytest.mark.parametrize("name", ["engel", "sunspots", "nile", "iris", "cars"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar", "epanechnikov"])
def test_a_database_looks_as_wide_as_the_regressor(name, kernel) -> None:
    x, y = datasets.SETS[name]()
    model = _fit(x, y, kernel, empty="prior")
    table = qkv.Database(pa.table({"x": x[:, 0], "y": y}), key="x", value="y")
    answer = table.query(float(x[3, 0]), similarity=kernel)
    assert answer.value == pytest.approx(model.predict(x[3:4])[0], rel=1e-9)


def test_a_database_of_two_columns_looks_as_wide_as_the_regressor() -> None:
    x, y = datasets.SEVERAL["diabetes"]()
    x, y = x[:97, [0, 2]], y[:97]
    model = _fit(x, y)
    rows = pa.table({"a": x[:, 0], "b": x[:, 1], "y": y})
    answer = qkv.Database(rows, key=["a", "b"], value="y").query(
        (0.01, 0.02), similarity="gaussian"
    )
    assert answer.value == pytest.approx(model.predict([[0.01, 0.02]])[0], rel=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # statsmodels' own
@pytest.mark.parametrize("name", ["engel", "nile", "sunspots", "iris", "cars"])
@pytest.mark.parametrize(("degree", "kind"), [(0, "lc"), (1, "ll")])
def test_predictions_agree_with_statsmodels(name, degree, kind) -> None:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y = datasets.SETS[name]()
    h = np.ptp(x) / 9
    asked = np.linspace(x.min(), x.max(), 31)
    peer = KernelReg(y, x[:, 0], var_type="c", reg_type=kind, bw=[h]).fit(asked)[0]
    own = Regressor(bandwidth=h, degree=degree).fit(x, y).predict(asked[:, None])
    np.testing.assert_allclose(own, peer, rtol=1e-8)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:invalid value:RuntimeWarning"
)  # theirs
@pytest.mark.parametrize("name", ["nile", "cars", "stackloss"])
@pytest.mark.parametrize(("criterion", "method"), [("loo", "cv_ls"), ("aicc", "aic")])
def test_bandwidths_are_no_worse_than_those_of_statsmodels(name, criterion, method) -> None:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y = datasets.SETS[name]()
    peer = KernelReg(y, x[:, 0], var_type="c", reg_type="lc", bw=method)
    model = _fit(x, y, bandwidth=criterion)
    assert _excess(model, 0, criterion, [[abs(float(peer.bw[0]))]]) < 1e-6


def test_one_row_cannot_tell() -> None:
    model = Regressor(bandwidth=1.0).fit([[2.0]], [3.0])
    with pytest.warns(BandwidthWarning, match="R² cannot be estimated from one row of data"):
        assert np.isnan(model.loo_score())
    with pytest.warns(
        BandwidthWarning, match="the interval cannot be estimated from one row of data"
    ):
        assert np.isnan(model.predict_interval([[2.0]])).all()
    with pytest.warns(
        BandwidthWarning, match="the standard deviation cannot be estimated from one row of data"
    ):
        answer, std = model.predict([[2.0]], return_std=True)
    assert answer == 3.0
    assert np.isnan(std).all()


def test_rows_of_no_weight_keep_their_columns() -> None:
    x, y = datasets.SETS["cars"]()
    weight = np.ones(50)
    weight[-3:] = 0
    weights = Regressor(bandwidth=2.0).fit(x, y, sample_weight=weight).weights(x[:7])
    assert weights.shape == (7, 50)
    assert (weights[:, -3:] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_a_database_needs_no_estimator_to_choose() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('sklearn', 'scipy')))\n"
        "import numpy as np, pyarrow as pa, qkv\n"
        "x = np.linspace(0, 1, 30); rows = pa.table({'x': x, 'y': np.sin(9 * x) + x % 0.1})\n"
        "found = qkv.Database(rows, key='x', value='y').query(0.5, similarity='gaussian')\n"
        "assert 'leave-one-out' in str(found.plan), found.plan"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize("h", [0.02, 0.5, 30.0, 1e5])
def test_windows_are_what_rows_say(kernel, h) -> None:
    """Moments by windows of sorted keys against those by all weights; offsets cost no digits."""
    random = np.random.default_rng(0)
    key = np.sort(np.concatenate([random.uniform(0, 9, 53), [40.0, 1e3, 1e3, 1e4]])) + 1e6
    weight = random.integers(1, 3, 57).astype(float)
    target = random.standard_normal((57, 2)) + 1e5
    model = Regressor(kernel, h, degree=1).fit(key[:, None], target, sample_weight=weight)
    examples, shape, width = model._fitted
    for own in (None, np.arange(57)):
        query = (
            examples.keys
            if own is not None
            else Keys(key[:41, None] + 0.01, np.empty((41, 0), np.int64))
        )
        windows = one_by_one(examples, shape, width, query, own, line=True)
        by_rows = one_by_one(examples, shape, width, query, own, line=False)
        seen = by_rows.log_total > -np.inf
        assert (seen == (windows.log_total > -np.inf)).all()
        for found, expected, near in zip(windows, by_rows, (1e-9, 1e-9, 0, 1e-4, 0), strict=True):
            np.testing.assert_allclose(found[seen], expected[seen], rtol=1e-8, atol=near)
