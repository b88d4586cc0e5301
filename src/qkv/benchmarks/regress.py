"""Kernel regression against statsmodels, scikit-learn and KeOps, and against sorting alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import seconds

Array = npt.NDArray[np.float64]


def measure() -> Iterator[Figure]:
    random = np.random.default_rng(0)
    yield from _statsmodels(random)
    yield from _keops(random)
    yield from _radius_neighbours(random)
    yield from _bandwidth(random)
    yield from _whole_search(random)
    yield from _million(random)
    yield from _timestamps(random)


def _wave(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """The slides' function: 2 sin x + x, with unit noise."""
    x = random.uniform(0, 4, n)
    return x, 2 * np.sin(x) + x + random.standard_normal(n)


def _model(x: Array, y: Array, **options: Any) -> Any:
    return qkv.NadarayaWatsonRegressor(**options).fit(x[:, None], y)


def _once(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _statsmodels(random: np.random.Generator) -> Iterator[Figure]:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    (x, y), queries = _wave(random, 10_000), random.uniform(0, 4, 1_000)
    model = _model(x, y, bandwidth=0.1)
    peer = KernelReg(y, x, var_type="c", reg_type="lc", bw=[0.1])
    same = float(np.abs(model.predict(queries[:, None]) - peer.fit(queries)[0]).max())
    slow, our_time = seconds(lambda: peer.fit(queries), lambda: model.predict(queries[:, None]))
    name = "predict, Gaussian, n = 10,000, m = 1,000, against statsmodels"
    yield Figure(name, slow / our_time, "×", "≥ 50")
    yield Figure("… largest difference", same, "", "≤ 1e-6")


def _keops(random: np.random.Generator) -> Iterator[Figure]:
    from pykeops.torch import LazyTensor

    (x, y), queries = _wave(random, 100_000), random.uniform(0, 4, 2_000)
    h = 0.1
    model = _model(x, y, bandwidth=h)
    query, key = torch.from_numpy(queries[:, None]), torch.from_numpy(x[:, None])
    value = torch.from_numpy(y[:, None])

    def peer() -> Any:
        pairs = LazyTensor(query[:, None, :] / h) - LazyTensor(key[None, :, :] / h)
        scores = -(pairs**2).sum(-1) / 2
        return scores.sumsoftmaxweight(LazyTensor(value[None, :, :]), axis=1)

    same = float(np.abs(peer().numpy()[:, 0] - model.predict(queries[:, None])).max())
    slow, our_time = seconds(peer, lambda: model.predict(queries[:, None]))
    name = "predict, Gaussian, n = 100,000, m = 2,000, against KeOps"
    yield Figure(name, slow / our_time, "×", "≥ 30", f"largest difference {same:.1e}")


def _radius_neighbours(random: np.random.Generator) -> Iterator[Figure]:
    from sklearn.neighbors import RadiusNeighborsRegressor

    (x, y), queries = _wave(random, 100_000), random.uniform(0, 4, (2_000, 1))
    model = _model(x, y, kernel="boxcar", bandwidth=0.1)
    peer = RadiusNeighborsRegressor(radius=0.1).fit(x[:, None], y)
    same = float(np.abs(peer.predict(queries) - model.predict(queries)).max())
    slow, our_time = seconds(lambda: peer.predict(queries), lambda: model.predict(queries))
    name = "boxcar, n = 100,000, m = 2,000, against RadiusNeighborsRegressor"
    yield Figure(name, slow / our_time, "×", "≥ 30")
    yield Figure("… largest difference", same, "", "≤ 1e-10")


def _bandwidth(random: np.random.Generator) -> Iterator[Figure]:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    x, y = _wave(random, 1_000)
    start = time.perf_counter()
    peer = KernelReg(y, x, var_type="c", reg_type="lc", bw="cv_ls")
    slow = time.perf_counter() - start
    (our_time,) = seconds(lambda: _model(x, y))

    def error(h: float) -> float:
        return float(1 - _model(x, y, bandwidth=h).loo_score())

    yield Figure("LOO bandwidth, n = 1,000, against statsmodels", slow / our_time, "×", "≥ 100")
    ours, theirs = float(_model(x, y).bandwidth_[0]), float(abs(peer.bw[0]))
    note = f"bandwidths {ours:.4f} and {theirs:.4f}"
    yield Figure(
        "… LOO error / statsmodels'", error(ours) / error(theirs), "×", "≤ 1.0000001", note
    )


def _whole_search(random: np.random.Generator) -> Iterator[Figure]:
    x, y = _wave(random, 100_000)
    key, value = torch.from_numpy(x[:, None]), torch.from_numpy(y[:, None])

    def one_pass() -> None:
        qkv.attend(key, key, value, similarity=qkv.Gaussian(0.1), operator="fused")

    qkv.attend(key[:9], key, value, similarity=qkv.Gaussian(0.1), operator="fused")
    _model(x[:100], y[:100])
    full, search = _once(one_pass), min(_once(lambda: _model(x, y)) for _ in range(2))
    note = f"{search:.2f} s, one fused pass {full:.2f} s"
    yield Figure("whole LOO search, n = 100,000 / one fused pass", search / full, "×", "≤ 3", note)


def _million(random: np.random.Generator) -> Iterator[Figure]:
    n = 10**6
    x, y = random.uniform(0, 4, 2 * n), random.standard_normal(2 * n)
    queries = random.uniform(0, 4, 2 * n)
    for kernel in ("boxcar", "triangular", "epanechnikov", "biweight", "tricube"):

        def both(m: int, kernel: str = kernel) -> None:
            """Fit, which sorts the keys, and predict."""
            _model(x[:m], y[:m], kernel=kernel, bandwidth=0.01).predict(queries[:m, None])

        sort, once, twice = seconds(
            lambda: np.argsort(x[:n]),
            lambda: both(n),
            lambda: both(2 * n),
        )
        name = f"{kernel}, 10⁶ keys and queries, unsorted / argsort of the keys"
        yield Figure(name, once / sort, "×", "≤ 15", f"argsort {1e3 * sort:.0f} ms")
        yield Figure("… at 2·10⁶ / at 10⁶", twice / once, "×", "≤ 2.3")
    for h in (0.001, 0.1):
        model = _model(x[:n], y[:n], bandwidth=h)
        sort, our_time = seconds(
            lambda: np.argsort(x[:n]),
            lambda: _model(x[:n], y[:n], bandwidth=h).predict(queries[:n, None]),  # noqa: B023
        )
        some = queries[:200]
        logits = -0.5 * ((some[:, None] - x[None, :n]) / h) ** 2
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        exact = np.array([np.dot(row, y[:n]) / row.sum() for row in weight.astype(np.longdouble)])
        scale = np.array([np.dot(row, np.abs(y[:n])) / row.sum() for row in weight])
        error = float((np.abs(model.predict(some[:, None]) - exact) / scale).max())
        name = f"aim: Gaussian, 10⁶ keys and queries, bandwidth {h} / argsort"
        yield Figure(name, our_time / sort, "×", "≤ 40", f"argsort {1e3 * sort:.0f} ms")
        yield Figure("… largest error, relative to the weighted |y|", error, "", "≤ 1e-12")


def _timestamps(random: np.random.Generator) -> Iterator[Figure]:
    """Keys on a grid that 1e9 leaves exact, so that a difference is ours and not the input's."""
    x, y = _wave(random, 100_000)
    x = np.round(x * 2**20) / 2**20
    queries = np.round(random.uniform(-1, 5, 2_000) * 2**20) / 2**20
    worst = 0.0
    for kernel in ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "tricube"):
        near, far = (
            _model(x + offset, y, kernel=kernel, bandwidth=0.05, empty="prior").predict(
                queries[:, None] + offset
            )
            for offset in (0.0, 1e9)
        )
        worst = max(worst, float(np.abs(near - far).max()))
    yield Figure("keys shifted by 1e9, largest difference", worst, "", "≤ 1e-6")
