"""Equality by hashing against a dictionary of rows, and against the formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.operators.lookup import ops


def _expected(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log totals from a dictionary; Python's floats know that -0.0 == 0.0."""
    groups: dict[tuple[float, ...], list[list[float]]] = {}
    for row, said in zip(key.tolist(), value.tolist(), strict=True):
        groups.setdefault(tuple(row), []).append(said)
    answers, totals = [], []
    for row in query.tolist():
        said = groups.get(tuple(row), [])
        columns = zip(*said, strict=True) if said else [[0.0]] * value.shape[-1]
        answers.append([math.fsum(column) / max(1, len(said)) for column in columns])
        totals.append(math.log(len(said)) if said else -math.inf)
    return torch.tensor(answers, dtype=torch.float64), torch.tensor(totals, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 5])
def test_many_rows_equal_a_dictionary(columns: int, dtype: torch.dtype) -> None:
    kinds = round(1000 ** (1 / columns))
    query = torch.randint(-kinds, kinds, (3001, columns)).to(dtype)
    key = torch.randint(-kinds, kinds, (2003, columns)).to(dtype)
    value = torch.randn(2003, 7).to(dtype)
    answer, totals = _expected(query, key, value)
    found = qkv.attend_partial(query, key, value, similarity="equal", operator="lookup")
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(found.answer, answer.to(dtype), **close)
    torch.testing.assert_close(found.log_total, totals.to(found.log_total.dtype))


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, math.inf, -math.inf, 1e300, 2.0**-1074])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1), st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_numbers_at_the_edges_equal_a_dictionary(keys: Any, queries: Any) -> None:
    key, query = torch.tensor(keys).double(), torch.tensor([*keys[:2], *queries]).double()
    value = torch.arange(len(keys), dtype=torch.float64).unsqueeze(-1)
    answer, _ = _expected(query, key, value)
    found = qkv.attend(query, key, value, similarity="equal", operator="lookup")
    torch.testing.assert_close(found, answer)


def test_rows_that_meet_in_the_table_are_told_apart() -> None:
    """Of 40,000 rows in 131,072 slots thousands meet: only comparing rows tells them apart."""
    key = torch.cartesian_prod(torch.arange(200.0), torch.arange(200.0))
    value = torch.arange(40_000.0).unsqueeze(-1)
    found = qkv.attend(key.flip(0), key, value, similarity="equal", operator="lookup")
    assert torch.equal(found, value.flip(0))
    missing = qkv.attend(key + 0.5, key, value, similarity="equal", operator="lookup")
    assert (missing == 0).all()


def test_nan_shows_as_in_the_formula() -> None:
    """In a query it spoils that query; in a key every query that may see it."""
    query, key, value = torch.randn(2, 5, 3), torch.randn(2, 7, 3), torch.randn(2, 7, 2)
    key[:, 2] = query[:, 1]
    query[0, 3, 1] = torch.nan
    key[1, 6, 0] = torch.nan
    for mask in (None, qkv.mask.Lengths([7, 6]), qkv.mask.Lengths([0, 7])):
        found, reference = (
            qkv.attend_partial(query, key, value, similarity="equal", mask=mask, operator=operator)
            for operator in ("lookup", "dense")
        )
        torch.testing.assert_close(found.answer, reference.answer, equal_nan=True)
        torch.testing.assert_close(found.log_total, reference.log_total, equal_nan=True)


def test_gradients_of_any_order() -> None:
    query = torch.randint(0, 3, (2, 1, 5, 1)).double().requires_grad_()
    key = torch.randint(0, 3, (3, 7, 1)).double().requires_grad_()
    value = torch.randn(2, 3, 7, 2, dtype=torch.float64, requires_grad=True)

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        answer = qkv.attend(query, key, value, similarity="equal", operator="lookup")
        return answer.square()

    wanted = torch.autograd.grad(function(query, key, value).sum(), (query, key, value))
    assert (wanted[0] == 0).all()
    assert (wanted[1] == 0).all()
    torch.autograd.gradcheck(lambda value: function(query, key, value), (value,))
    torch.autograd.gradgradcheck(lambda value: function(query, key, value), (value,))


def test_it_says_what_it_does_not_look_up() -> None:
    query, key, value = torch.randn(5, 2), torch.randn(7, 2), torch.randn(7, 3)
    for options, reason in (
        ({"similarity": "boxcar"}, "Boxcar is not Equal"),
        ({"mask": qkv.mask.Causal()}, r"to see the same keys, unlike Causal\(\)"),
        ({"mask": torch.randn(7)}, "a hash look-up does not support biases"),
        ({"dropout": 0.5}, "a hash look-up does not support dropout"),
    ):
        with pytest.raises(ValueError, match=reason):
            qkv.attend(query, key, value, operator="lookup", **{"similarity": "equal", **options})
    with pytest.raises(ValueError, match="not supported inside torch"):
        torch.func.vmap(
            lambda query: qkv.attend(query, key, value, similarity="equal", operator="lookup")
        )(query.unsqueeze(0))


def test_equal_works_under_vmap() -> None:
    query, key, value = torch.randn(3, 5, 2), torch.randn(7, 2), torch.randn(7, 3)
    key[2] = query[1, 1]
    found = torch.func.vmap(lambda q: qkv.attend(q, key, value, similarity="equal"))(query)
    torch.testing.assert_close(found, qkv.attend(query, key, value, similarity="equal"))


def test_the_sums_are_an_operator_as_torch_wants_it() -> None:
    group = torch.tensor([[0, 2, 0, -1, 1]])
    rows = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(ops.sum_of_groups, (rows, group, 4))
    torch.library.opcheck(ops.take, (rows, group))
    torch.library.opcheck(ops.match, (torch.randn(2, 5, 3), torch.randn(2, 7, 3), None))


@pytest.mark.skipif(not can_measure_memory(), reason="read from Linux's /proc")
def test_memory_is_linear_in_tokens() -> None:
    n = 100_000
    key = torch.randint(0, n, (n, 1)).float()
    value = torch.randn(n, 1, requires_grad=True)

    def run() -> None:
        answer = qkv.attend(key, key, value, similarity="equal")
        torch.autograd.grad(answer.sum(), value)

    run()
    assert peak_extra_bytes(run) < 60 * 2**20  # all pairs: 40 GB
