"""Sums over sorted one-dimensional keys against plain loops."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.operators.sorted import sorted_keys as line_module
from qkv.operators.sorted.sorted_keys import KERNELS, SortedKeys

BANDWIDTHS = [1e-4, 0.02, 0.3, 40.0]


def _expected(key, value, weight, query, kernel, h, leave_out=False):
    """Every sum in float64, key by key."""
    log_kernel = oracle.kernel(kernel, h)
    answers, totals = [], []
    for i, x in enumerate(query):
        copies = [w - min(w, 1) if leave_out and j == i else w for j, w in enumerate(weight)]
        logs = [
            log_kernel([x], [k]) + math.log(w) if w > 0 else -math.inf
            for k, w in zip(key, copies, strict=True)
        ]
        peak = max(logs)
        if peak == -math.inf:
            answers.append([0.0] * value.shape[1])
            totals.append(-math.inf)
            continue
        parts = [math.exp(log - peak) for log in logs]
        total = math.fsum(parts)
        answers.append(
            [math.fsum(p * v for p, v in zip(parts, c, strict=True)) / total for c in value.T]
        )
        totals.append(math.log(total) + peak)
    return np.array(answers), np.array(totals)


def _data(offset: float, seed: int = 0):
    random = np.random.default_rng(seed)
    key = np.round(random.random(211) * 2**20) / 2**20 + offset
    key[:17] = key[17]  # ties
    value = random.standard_normal((211, 2)) + np.array([5, 0])
    weight = random.integers(1, 4, 211) * 0.7
    query = np.concatenate([random.random(23), random.uniform(-2, 3, 13)]) + offset
    return key, value, weight, query


@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("h", BANDWIDTHS)
def test_answers_equal_the_oracle(kernel: str, h: float, offset: float) -> None:
    key, value, weight, query = _data(offset)
    line = SortedKeys(key, value, weight)
    answer, log_total = _expected(key, value, weight, query, kernel, h)
    said = line.pool(query, kernel, h)
    np.testing.assert_allclose(said.answer, answer, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(said.log_total, log_total, rtol=1e-11, atol=1e-11)
    answer, log_total = _expected(key, value, weight, key, kernel, h, leave_out=True)
    said = line.pool_others(kernel, h)
    np.testing.assert_allclose(said.answer, answer, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(said.log_total, log_total, rtol=1e-10, atol=1e-10)


@given(
    kernel=st.sampled_from(KERNELS),
    key=st.lists(st.floats(-100, 100), min_size=1, max_size=40),
    query=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=7),
    h=st.floats(1e-3, 1e3),
)
def test_any_keys(kernel: str, key: list[float], query: list[float], h: float) -> None:
    value = np.arange(len(key), dtype=float)[:, None] ** 2
    said = SortedKeys(np.array(key), value).pool(np.array(query), kernel, h)
    answer, log_total = _expected(key, value, np.ones(len(key)), query, kernel, h)
    seen = np.isfinite(log_total)
    # A kernel that is almost 0 at its very edge may round to 0, here or there.
    clear = ~seen | (log_total > -20) | (kernel in ("gaussian", "laplacian"))
    # Logarithms of weights are as large as u²/2, and so is what they lose by rounding.
    u = max(abs(a - b) for a in query for b in key) / h if kernel == "gaussian" else 0.0
    lost = 1e-9 + 4 * np.finfo(float).eps * u**2 * value.max(initial=0.0)
    np.testing.assert_allclose(said.answer[clear], answer[clear], rtol=1e-9, atol=lost)
    np.testing.assert_array_equal(np.isfinite(said.log_total[clear]), seen[clear])


@pytest.mark.parametrize("kernel", sorted({*KERNELS} - {"gaussian", "laplacian"}))
def test_answers_stay_within_the_values_that_are_seen(kernel: str) -> None:
    """A value of 1e12 in the same cell, out of sight, must not move an answer."""
    key = np.concatenate([np.linspace(0, 0.5, 400), [0.99]])
    value = np.concatenate([np.ones(400), [1e12]])[:, None]
    said = SortedKeys(key, value).pool(np.array([-0.6, -0.55]), kernel, 1.0)
    np.testing.assert_allclose(said.answer, 1.0, rtol=1e-3)


def test_far_away_the_nearest_key_answers() -> None:
    key, value = np.array([0.0, 1.0, 2.0]), np.array([[3.0], [5.0], [7.0]])
    for kernel in ("gaussian", "laplacian"):
        said = SortedKeys(key, value).pool(np.array([-1e6, 1e6]), kernel, 0.01)
        np.testing.assert_array_equal(said.answer[:, 0], [3.0, 7.0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_with_a_large_offset_keep_their_digits(kernel: str) -> None:
    key, value, weight, query = _data(0.0)
    value = np.round(value * 2**10) / 2**10  # so that the offset rounds nothing
    for h in (0.02, 0.3):
        said = SortedKeys(key, value + 1e9, weight).pool(query, kernel, h)
        answer, log_total = _expected(key, value, weight, query, kernel, h)
        expected = np.where(np.isfinite(log_total)[:, None], answer + 1e9, 0.0)
        np.testing.assert_allclose(said.answer, expected, rtol=0, atol=np.spacing(2e9))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_thread_may_begin_anywhere(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with queries beyond all keys, whose windows reach over several cells."""
    monkeypatch.setattr(line_module, "_LEAST", 2)
    monkeypatch.setattr(line_module, "_CHUNK", 2)
    key, query = np.linspace(0, 4, 400), np.linspace(-1, 5, 31)
    value, weight = np.sin(key)[:, None], np.ones(400)
    for h in (0.7, 1.1, 3.0):
        said = SortedKeys(key, value).pool(query, kernel, h)
        answer, log_total = _expected(key, value, weight, query, kernel, h)
        np.testing.assert_allclose(said.log_total, log_total, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(said.answer, answer, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*KERNELS, "euclidean"])
def test_the_operator_agrees_with_the_reference(name: str, dtype: torch.dtype) -> None:
    query, key = torch.rand(2, 5, 1).to(dtype), torch.rand(2, 7, 1).to(dtype)
    value = torch.randn(2, 7, 3).to(dtype)
    found = qkv.attend(query, key, value, similarity=name, operator="sorted")
    exact = [tensor.double() for tensor in (query, key, value)]
    expected = qkv.attend(*exact, similarity=name, operator="dense")
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


def test_the_planner_sorts_one_dimensional_keys() -> None:
    query, key, value = torch.rand(512, 1), torch.rand(1024, 1), torch.randn(1024, 2)
    plan = qkv.explain(query, key, value, similarity=qkv.Tricube(0.1))
    assert plan.operator == "sorted"
    assert "near-linear" in plan.reason
    assert qkv.explain(query[:9], key, value, similarity="boxcar").operator != "sorted"


@pytest.mark.parametrize("name", [*KERNELS, "euclidean"])
def test_leave_one_out_is_a_mask(name: str) -> None:
    key, value = torch.randn(2, 103, 1).double(), torch.randn(2, 103, 3).double()
    key[:, 50:60] = key[:, 40:50]  # several at one place: each leaves out itself alone
    options = {"similarity": name, "mask": qkv.mask.ExceptSelf()}
    found = qkv.attend_partial(key, key, value, **options, operator="sorted")
    expected = qkv.attend_partial(key, key, value, **options, operator="dense")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="the queries must be the keys themselves"):
        qkv.attend(key + 0.1, key, value, **options, operator="sorted")
    with pytest.raises(ValueError, match="no mask but ExceptSelf of as many queries as keys"):
        qkv.attend(key[:, 1:], key, value, **options, operator="sorted")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda q, k, v: (q.expand(5, 2), k.expand(7, 2), v),
            "keys have 2 dimensions and",
        ),
        (lambda q, k, v: (q, k * torch.nan, v), "NaN or inf would contaminate the prefix sums"),
        (lambda q, k, v: (q, k, v.clone().requires_grad_()), "no backward pass"),
    ],
)
def test_what_is_declined(change, reason: str) -> None:
    tensors = change(torch.rand(5, 1), torch.rand(7, 1), torch.randn(7, 3))
    with pytest.raises(ValueError, match=reason):
        qkv.attend(*tensors, similarity="gaussian", operator="sorted")


@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("kernel", KERNELS)
def test_short_runs_of_queries_are_answered_alike(kernel: str, offset: float, monkeypatch) -> None:
    """Compact kernels sum up no more keys at once than a run of queries may see."""
    key, value, weight, query = _data(offset)
    for h in (1e-4, 0.02, 0.1):
        monkeypatch.setattr(line_module, "_RUN", 2**16)
        line = SortedKeys(key, value, weight)
        whole = (*line.pool(query, kernel, h), *line.pool_others(kernel, h))
        monkeypatch.setattr(line_module, "_RUN", 19)
        runs = (*line.pool(query, kernel, h), *line.pool_others(kernel, h))
        for expected, found in zip(whole, runs, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
