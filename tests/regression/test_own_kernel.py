"""A kernel of someone's own: a function of the distance in bandwidths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import qkv
from qkv import NadarayaWatsonRegressor as Regressor

RNG = np.random.default_rng(3)
X, Y = RNG.uniform(0, 4, (211, 2)), RNG.normal(size=211)


def cauchy(u: Tensor) -> Tensor:
    return 1 / (1 + u**2)


@pytest.mark.parametrize("columns", [1, 2])
def test_answers_are_those_of_the_sum_written_out(columns: int) -> None:
    x, query = X[:, :columns], RNG.uniform(0, 4, (17, columns))
    model = Regressor(kernel=cauchy, bandwidth=0.3).fit(x, Y)
    squared = (((query[:, None] - x[None]) / 0.3) ** 2).sum(-1)
    weights = 1 / (1 + squared)
    expected = weights @ Y / weights.sum(1)
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-9)


@pytest.mark.parametrize("bandwidth", [0.4, "loo", "knn"])
def test_a_known_kernel_written_as_a_function_gives_the_same(bandwidth: float | str) -> None:
    own = Regressor(kernel=lambda u: torch.exp(-0.5 * u * u), bandwidth=bandwidth).fit(X, Y)
    known = Regressor(kernel="gaussian", bandwidth=bandwidth).fit(X, Y)
    np.testing.assert_allclose(own.bandwidth_, known.bandwidth_, rtol=1e-3)
    np.testing.assert_allclose(own.predict(X[:19]), known.predict(X[:19]), rtol=1e-3, atol=1e-4)


def test_where_it_vanishes_nothing_is_in_sight() -> None:
    model = Regressor(kernel=lambda u: (1 - u).clamp(min=0), bandwidth=0.1, empty="prior")
    answer = model.fit(X, Y).predict([[40.0, 40.0]])
    np.testing.assert_allclose(answer, Y.mean())


def test_the_kernel_is_derived_and_learns_its_bandwidth() -> None:
    similarity = qkv.similarity.OfDistance(cauchy, bandwidth=0.7, learnable=True).double()
    tensors = [torch.randn(2, 13, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    tensors.append(similarity.bandwidth.log)
    fused, dense = (
        qkv.attend(*tensors[:3], similarity=similarity, operator=operator)
        for operator in ("fused", "dense")
    )
    torch.testing.assert_close(fused, dense)
    for own, other in zip(
        torch.autograd.grad(fused.sin().sum(), tensors),
        torch.autograd.grad(dense.sin().sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("cauchy", r"a qkv.Kernel or a function of the distance in bandwidths; got 'cauchy'$"),
        (qkv.Gaussian, r"a qkv.Kernel or a function .*; got <class"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Regressor(kernel=kernel).fit(X, Y)


def test_a_function_must_give_a_weight_for_each_distance() -> None:
    model = Regressor(kernel=lambda u: u.sum(), bandwidth=0.3)
    with pytest.raises(ValueError, match="a weight for each distance"):
        model.fit(X, Y).predict(X[:3])
    with pytest.raises(TypeError, match=r"function must be a callable u -> weight; got int$"):
        qkv.similarity.OfDistance(3)  # type: ignore[arg-type]


def test_a_function_cannot_be_saved(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"can be saved; got function$"):
        Regressor(kernel=cauchy, bandwidth=0.3).fit(X, Y).save(tmp_path / "model")
