"""Examples on the workers of a Dask cluster: the answers of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import qkv

distributed = pytest.importorskip("distributed")
arrays = pytest.importorskip("dask.array")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _data(d: int, rows: int = 211) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, d))
    return x, np.sin(x).sum(axis=1) + 100.0, rng.normal(size=(23, d))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("d", [1, 3])
def test_regression_is_that_of_one_machine(client: Any, kernel: str, d: int) -> None:
    x, y, query = _data(d)
    options: dict[str, Any] = {"kernel": kernel, "bandwidth": 0.9, "empty": "prior"}
    alone = qkv.NadarayaWatsonRegressor(**options).fit(x, y)
    chunks = (50, d)
    lazy_x, lazy_y = arrays.from_array(x, chunks), arrays.from_array(y, 50)
    shared = qkv.NadarayaWatsonRegressor(**options).fit(lazy_x, lazy_y)
    expected = alone.predict(query)
    found = shared.predict(query)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    later = shared.predict(arrays.from_array(query, (9, d)))
    assert isinstance(later, arrays.Array)
    np.testing.assert_allclose(later.compute(), expected, rtol=1e-12)


def test_several_targets_and_frames(client: Any) -> None:
    frames = pytest.importorskip("dask.dataframe")
    x, y, query = _data(2)
    both = np.stack([y, -y], axis=1)
    frame = frames.from_pandas(pd.DataFrame(x, columns=["a", "b"]), npartitions=3, sort=False)
    targets = frames.from_pandas(pd.DataFrame(both, columns=["p", "q"]), npartitions=3, sort=False)
    alone = qkv.NadarayaWatsonRegressor(bandwidth=[0.5, 0.8]).fit(x, both)
    shared = qkv.NadarayaWatsonRegressor(bandwidth=[0.5, 0.8]).fit(frame, targets)
    np.testing.assert_allclose(shared.predict(query), alone.predict(query), rtol=1e-12)


def test_classes_are_those_of_one_machine(client: Any) -> None:
    x, y, query = _data(2)
    names = np.where(y > 100.3, "high", np.where(y < 99.5, "low", "mid"))
    alone = qkv.NadarayaWatsonClassifier(bandwidth=0.4).fit(x, names)
    shared = qkv.NadarayaWatsonClassifier(bandwidth=0.4).fit(
        arrays.from_array(x, (70, 2)), arrays.from_array(names, 70)
    )
    np.testing.assert_allclose(
        shared.predict_proba(query), alone.predict_proba(query), rtol=1e-11, atol=1e-13
    )
    assert list(shared.predict(query)) == list(alone.predict(query))


@pytest.mark.parametrize(
    ("d", "rows", "kernel", "wanted"),
    [
        (1, 3011, "gaussian", "loo"),
        (1, 3011, "epanechnikov", "gcv"),
        (2, 1103, "gaussian", "aicc"),
        (1, 211, "boxcar", "loo"),  # few rows, searched by this process
        (3, 1103, "gaussian", "silverman"),
    ],
)
def test_the_searched_bandwidth_is_that_of_one_machine(
    client: Any, d: int, rows: int, kernel: str, wanted: str
) -> None:
    rng = np.random.default_rng(5)
    x, y, query = _data(d, rows)
    x[::7] = np.round(x[::7], 1)  # copies, within parts and between them
    y = y + rng.normal(scale=0.3, size=rows)
    options: dict[str, Any] = {"kernel": kernel, "bandwidth": wanted, "empty": "prior"}
    alone = qkv.NadarayaWatsonRegressor(**options).fit(x, y)
    chunks = (rows // 3, 0, rows - rows // 3)  # uneven, and one empty
    lazy_x = arrays.from_array(x, (chunks, d))
    shared = qkv.NadarayaWatsonRegressor(**options).fit(lazy_x, arrays.from_array(y, (chunks,)))
    np.testing.assert_allclose(shared.bandwidth_, alone.bandwidth_, rtol=1e-9)
    curves = (np.sort(model.cv_curve_[:, -1]) for model in (shared, alone))
    np.testing.assert_allclose(*curves, rtol=1e-9)
    np.testing.assert_allclose(shared.predict(query), alone.predict(query), rtol=1e-9)


def test_what_is_not_distributed_is_named(client: Any) -> None:
    x, y, query = _data(2)
    lazy_x, lazy_y = arrays.from_array(x, (70, 2)), arrays.from_array(y, 70)
    model = qkv.NadarayaWatsonRegressor(bandwidth="knn", degree=1, empty="nearest")
    expected = r"^on Dask arrays these are not distributed: bandwidth='knn' .*, degree=1, empty='n"
    with pytest.raises(ValueError, match=expected):
        model.fit(lazy_x, lazy_y)
    model = qkv.NadarayaWatsonRegressor(bandwidth=1.0)
    with pytest.raises(TypeError, match=r"^y must be a Dask array or frame as X is; got ndarray$"):
        model.fit(lazy_x, y)
    model.fit(lazy_x, lazy_y)
    with pytest.raises(ValueError, match=r"only predict and predict_proba are distributed$"):
        model.predict_interval(query)
    with pytest.raises(ValueError, match=r"^X must have shape \(n, 2\); got \(23, 1\)$"):
        model.predict(query[:, :1])


def test_without_a_client_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = _data(2)

    def nobody() -> None:
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", nobody)
    with pytest.raises(ValueError, match=r"^fit on Dask arrays needs a dask.distributed.Client"):
        qkv.NadarayaWatsonRegressor(bandwidth=1.0).fit(
            arrays.from_array(x, (70, 2)), arrays.from_array(y, 70)
        )
