"""Dense answers computed in place and differentiated by hand, against the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import qkv
from qkv.operators import dense, plain
from qkv.problem import validate
from qkv.similarity import distance
from qkv.similarity.distance import by_differences, squared_distance

BATCH, N, M, D, D_V = 3, 71, 83, 5, 7  # more pairs than plain.FEW_PAIRS

SIMILARITIES: list[Any] = [
    None,
    qkv.Cosine(0.7),
    qkv.Gated(D, D),
    qkv.Additive(D, D, 11),
    qkv.Laplacian(1.5),
    qkv.Boxcar(3.0),
    qkv.Tricube(3.0, learnable=True),
    "equal",
]
MASKS: list[Any] = [
    None,
    qkv.mask.Causal(),
    qkv.mask.Lengths([83, 0, 40]),
    qkv.mask.Lengths([40]),
    torch.arange(M) % 3 == 0,
    torch.linspace(-1, 1, N * M, dtype=torch.float64).reshape(N, M),
]


def _tokens() -> list[Tensor]:
    torch.manual_seed(5)
    return [
        torch.randn(BATCH, size, d, dtype=torch.float64, requires_grad=True)
        for size, d in ((N, D), (M, D), (M, D_V))
    ]


@pytest.mark.parametrize("few_pairs", [0, 10**9], ids=["by hand", "by torch"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_answers_and_gradients_are_those_of_the_formula(
    similarity: Any, mask: Any, few_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "FEW_PAIRS", few_pairs)
    monkeypatch.setattr(plain, "FEW_SCORES", few_pairs)
    similarity = qkv.similarity.as_similarity(similarity).double()
    tokens = _tokens()
    if isinstance(mask, Tensor) and mask.is_floating_point():
        mask = mask.clone().requires_grad_()
    problem = validate(*tokens, similarity, mask)
    in_logarithms = similarity.may_vanish and problem.bias is not None
    assert plain.serves(problem) is not in_logarithms
    query, key = similarity.prepare(problem.query, problem.key)
    expected, _ = dense.pool(problem, similarity.log_score(query, key), problem.value, problem.bias)
    found, _ = dense.answer(problem)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(dense.answer(problem)[0], expected)
    wanted = [*tokens, *similarity.parameters()]
    if isinstance(mask, Tensor) and mask.requires_grad:
        wanted.append(mask)
    upstream = torch.randn_like(expected)
    for gradient, formula in zip(
        torch.autograd.grad(found, wanted, upstream),
        torch.autograd.grad(expected, wanted, upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, formula)


@pytest.mark.parametrize("few", [0, 10**9], ids=["no differences", "differences"])
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("spread", [1.0, 1e2])
@pytest.mark.parametrize("d", [3, 61])
def test_distances_lose_no_more_than_the_formula(
    d: int, spread: float, offset: float, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where keys lie far from the origin, and far from each other."""
    monkeypatch.setattr(distance, "FEW_FEATURES", few)
    torch.manual_seed(2)
    query, key = (spread * torch.randn(2, size, d) + offset for size in (41, 53))
    key[:, :41] = query + 0.1 * torch.randn(2, 41, d)  # each query has a neighbour
    weights = torch.randn(2, 41, 53) * torch.eye(41, 53) if spread > 1 else torch.randn(2, 41, 53)

    def run(function: Any, dtype: torch.dtype) -> list[Tensor]:
        tokens = [x.to(dtype).requires_grad_() for x in (query, key)]
        found = function(*tokens, 0.8)
        gradients = torch.autograd.grad(found, tokens, weights.to(dtype))
        return [x.detach().double() for x in (found, *gradients)]

    exact = run(by_differences, torch.float64)
    for own, naive, true in zip(
        run(squared_distance, torch.float32), run(by_differences, torch.float32), exact, strict=True
    ):
        scale = true.abs().max() * torch.finfo(torch.float32).eps
        assert (own - true).norm() <= 2 * (naive - true).norm() + scale


def test_units_that_squares_cannot_hold_are_divided_by_first() -> None:
    query, key = 1e-25 * torch.randn(7, 3), 1e-25 * torch.randn(5, 3)
    exact = by_differences(query.double(), key.double(), 1e-25)
    torch.testing.assert_close(
        squared_distance(query, key, 1e-25).double(), exact, rtol=1e-5, atol=0
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of torch's own
@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_autocast_and_forward_derivatives_take_the_formula(similarity: Any) -> None:
    similarity = qkv.similarity.as_similarity(similarity).float()
    query, key, value = (x.detach().float().requires_grad_() for x in _tokens())
    with torch.autocast("cpu", torch.bfloat16):
        answer = qkv.attend(query, key, value, similarity=similarity)
        torch.autograd.grad(answer.sum(), value)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(value.detach(), torch.ones_like(value))
        fixed = query.detach(), key.detach()
        answer = qkv.attend(*fixed, dual, similarity=similarity, operator="dense")
        tangent = forward_ad.unpack_dual(answer).tangent
    filled = answer.detach().abs().sum(-1) > 0
    torch.testing.assert_close(tangent[filled], torch.ones_like(tangent[filled]))


def test_one_length_for_all_is_no_mask() -> None:
    query, key, value = _tokens()
    plan = qkv.explain(query, key, value, mask=qkv.mask.Lengths([40, 40, 40]))
    assert f"{N} queries × 40 keys" in str(plan)
    assert "mask" not in str(plan).splitlines()[0]
    one = qkv.explain(query[:, :1], key, value, mask=qkv.mask.Causal())
    assert "mask" not in str(one).splitlines()[0]
    junk = key.detach().clone()
    junk[:, 40:] = torch.nan
    found = qkv.attend(query, junk, value, mask=qkv.mask.Lengths([40]))
    torch.testing.assert_close(found, qkv.attend(query, key[:, :40], value[:, :40]))


@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("d", [5, plain.NARROW + 1])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_what_keys_get_of_queries(n: int, d: int, scale: float) -> None:
    pairs, rows = torch.randn(3, n, 11), torch.randn(3, n, d)
    wanted = scale * torch.einsum("bnm,bnd->bmd", pairs, rows)
    torch.testing.assert_close(plain._to_keys(pairs, rows, scale), wanted)


def test_gradients_of_few_pairs_are_not_copied_from_some_keys_into_all() -> None:
    query, key, value = _tokens()
    one_length = qkv.mask.Lengths([40])
    few = validate(query[:, :9], key, value, None, one_length).simplified()
    assert few.m == M
    with torch.no_grad():
        assert validate(query[:, :9], key, value, None, one_length).simplified().m == 40
    answer = qkv.attend(query[:, :9], key, value, mask=one_length)
    wanted = qkv.attend(query[:, :9], key[:, :40], value[:, :40])
    torch.testing.assert_close(answer, wanted)
