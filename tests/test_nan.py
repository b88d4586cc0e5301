"""NaN and infinity in what is attended to show, whatever the operator and however few the keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import qkv
from qkv.mask import MaskLike
from qkv.similarity import SimilarityLike
from qkv.with_weights import attend_with_weights

OPERATORS = ("dense", "streamed", "sdpa", "banded", None)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _tokens(n: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(n)
    return {name: torch.randn(2, 3, n, 5).to(dtype) for name in ("query", "key", "value")}


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("operator", ["dense", "streamed", "sdpa", None])
def test_nan_shows_however_few_the_keys(operator: str | None, where: str, grad: bool) -> None:
    for dtype in DTYPES:
        for m in (1, 2, 3, 7, 8, 15, 16, 17):
            for mask in (None, qkv.mask.Causal()):
                tokens = _tokens(m, dtype)
                tokens[where][:, 1, 0, 2] = torch.nan
                tokens["query"].requires_grad_(grad)
                answer = qkv.attend(**tokens, mask=mask, operator=operator)
                assert answer[:, 1, 0].isnan().any(-1).all(), (dtype, m, mask)
                assert not answer[:, 0].isnan().any(), (dtype, m, mask)


@pytest.mark.parametrize("n", [5, 9, 16, 41, 131])
@pytest.mark.parametrize(
    "mask",
    [qkv.mask.Window(0, 0), qkv.mask.Window(2, 0), qkv.mask.Blocks(2), qkv.mask.Blocks(5)],
    ids=repr,
)
def test_nan_shows_where_each_query_sees_few_keys(mask: qkv.mask.Mask, n: int) -> None:
    for operator in OPERATORS:
        for where in ("query", "key"):
            for place in (n // 2, n - 1):
                tokens = _tokens(n, torch.float32)
                tokens[where][:, 1, place, 2] = torch.nan
                answer = qkv.attend(**tokens, mask=mask, operator=operator)
                assert answer[:, 1, place].isnan().all(), (operator, where)
                assert not answer[:, 0].isnan().any(), (operator, where)


@pytest.mark.parametrize("operator", ["dense", "streamed", "sdpa", None])
def test_nan_in_all_keys_shows(operator: str | None) -> None:
    for dtype in DTYPES:
        for m in (1, 2, 7, 15, 17):
            for mask in (None, qkv.mask.Causal(), qkv.mask.Lengths([m, m])):
                tokens = _tokens(m, dtype)
                tokens["key"][:, 1] = torch.nan
                partial = qkv.attend_partial(**tokens, mask=mask, operator=operator)
                assert partial.answer[:, 1].isnan().all(), (dtype, m, mask)
                assert partial.log_total[:, 1].isnan().all(), (dtype, m, mask)
                assert partial.answer[:, 0].isfinite().all(), (dtype, m, mask)


def test_totals_tell_of_nan_where_there_are_no_values() -> None:
    """Answers without columns cannot show what leaked from a masked key."""
    tokens = _tokens(33, torch.float32)
    tokens["key"][:, 1, 4, 2] = torch.nan
    tokens["value"] = tokens["value"][..., :0]
    partial = qkv.attend_partial(**tokens, mask=qkv.mask.Window(2, 1))
    touched = torch.arange(33).sub(4).abs().le(2) & (torch.arange(33) >= 3)
    assert partial.log_total[:, 1, touched].isnan().all()
    assert partial.log_total[:, 1, ~touched].isfinite().all()


@pytest.mark.parametrize("m", [1, 3, 15, 16])
def test_the_total_of_a_query_that_is_not_a_number_is_none(m: int) -> None:
    tokens = _tokens(m, torch.float32)
    tokens["query"][:, 1, 0, 2] = torch.nan
    for operator in ("dense", "streamed", "sdpa", None):
        partial = qkv.attend_partial(**tokens, operator=operator)
        assert partial.log_total[:, 1, 0].isnan().all(), operator
        assert partial.log_total[:, 0].isfinite().all(), operator


# Infinity in an attended key or value: what the formula gives in IEEE arithmetic.


N, D = 23, 5  # an odd number of keys, more than fill a register

#: Similarities, each with an operator of its own kind and the formula of its scores.
ASKED = {
    "dense": "scaled_dot", "streamed": "laplacian", "sdpa": "scaled_dot", "banded": "scaled_dot",
    "fused": "laplacian", "topk": "scaled_dot", "lookup": "equal", "sorted": "laplacian",
}  # fmt: skip

HALF = {torch.bfloat16: 0.06, torch.float16: 0.01}


def _scores(similarity: str, query: Tensor, key: Tensor) -> Tensor:
    gap = query.unsqueeze(-2) - key.unsqueeze(-3)
    match similarity:
        case "laplacian":
            return -gap.square().sum(-1).sqrt()
        case "equal":
            return torch.where((gap == 0).all(-1), 0.0, -torch.inf).double()
    return query @ key.mT / math.sqrt(query.shape[-1])


class _Reached(NamedTuple):
    mask: MaskLike | None
    allowed: Tensor  # (2, N, N)
    top: int | None = None


def _masks(operator: str) -> Iterator[_Reached]:
    every = torch.ones(2, N, N, dtype=torch.bool)
    lengths = (torch.arange(N) < torch.tensor([[[17]], [[N]]])).expand(2, N, N)
    if operator == "topk":
        yield _Reached(qkv.mask.TopK(3), every, 3)
        yield _Reached(qkv.mask.TopK(3) & qkv.mask.Causal(), every.tril(), 3)
        return
    if operator != "banded":
        yield _Reached(None, every)
    if operator in ("lookup", "sorted"):
        return
    yield _Reached(qkv.mask.Causal(), every.tril())
    yield _Reached(qkv.mask.Window(3, 2), every.tril(2).triu(-3))
    if operator != "banded":
        yield _Reached(qkv.mask.Lengths([17, N]), lengths)


def _by_formula(
    similarity: str, query: Tensor, key: Tensor, value: Tensor, asked: _Reached
) -> Tensor:
    """Answers in IEEE arithmetic; what is hidden takes no part."""
    allowed = asked.allowed
    scores = torch.where(allowed, _scores(similarity, query, key), -torch.inf)
    if asked.top is not None:
        rank = scores.nan_to_num(torch.inf, torch.inf, -torch.inf)
        best = torch.sort(rank, dim=-1, descending=True, stable=True).indices[..., : asked.top]
        allowed = allowed & torch.zeros_like(allowed).scatter(-1, best, True)
        scores = torch.where(allowed, scores, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    parts = weights.unsqueeze(-1) * value.unsqueeze(-3)  # (2, N, N, d_v)
    return torch.where(allowed.unsqueeze(-1), parts, 0.0).sum(-2)


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("operator", ASKED)
def test_infinity_is_arithmetic_whichever_operator_answers(
    operator: str, where: str, grad: bool
) -> None:
    similarity = ASKED[operator]
    for dtype in DTYPES:
        tolerance = {"rtol": HALF.get(dtype, 1e-4), "atol": HALF.get(dtype, 1e-6)}
        for asked in _masks(operator):
            for number in (torch.inf, -torch.inf):
                tokens = _infinite(operator, dtype, where, number)
                wide = [x.double() for x in tokens.values()]
                plain = _by_formula(similarity, *wide, asked)  # type: ignore[arg-type]
                tokens["query"].requires_grad_(grad)
                for name in (operator, None):
                    found = _answer(tokens, similarity, asked.mask, name)
                    if found is None:
                        continue
                    same = torch.isclose(found, plain, **tolerance, equal_nan=True)
                    assert same.all(), (name, dtype, asked.mask, number)
                    touched = asked.allowed[..., 4]
                    if where != "query":
                        assert found[~touched].isfinite().all(), (name, dtype, asked.mask, number)


@pytest.mark.parametrize("m", [1, 3, 16, 41])
@pytest.mark.parametrize(
    ("similarity", "operators"),
    [
        ("laplacian", ("dense", "streamed", "fused")),
        ("scaled_dot", ("dense", "streamed", "sdpa", "fused")),
        (qkv.Boxcar(99.0), ("dense", "streamed", "fused")),
    ],
    ids=["laplacian", "scaled dot", "boxcar"],
)
def test_a_query_infinitely_far_from_all_keys_finds_nothing(
    similarity: SimilarityLike, operators: tuple[str, ...], m: int
) -> None:
    """So that parts of the keys merge to what all of them say."""
    for mask in (None, qkv.mask.Causal(), qkv.mask.Lengths([m, m])):
        tokens = _tokens(m, torch.float32)
        for name in ("query", "key"):
            tokens[name] = tokens[name].abs() + 0.1
        tokens["query"][:, 1] = -torch.inf if similarity == "scaled_dot" else torch.inf
        for operator in (*operators, None):
            asked = {"similarity": similarity, "mask": mask, "operator": operator}
            partial = qkv.attend_partial(**tokens, **asked)  # type: ignore[arg-type]
            assert (partial.answer[:, 1] == 0).all(), (operator, mask)
            assert (partial.log_total[:, 1] == -torch.inf).all(), (operator, mask)
            assert (partial.log_total[:, 0] > -torch.inf).all(), (operator, mask)
            assert (qkv.attend(**tokens, **asked)[:, 1] == 0).all(), (operator, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_parts_that_hold_infinite_keys_merge_to_the_whole(pieces: int) -> None:
    tokens = _tokens(20, torch.float64)
    tokens["key"][:, 1, 4:8] = torch.inf
    tokens["key"][:, 2, 4:8] = -torch.inf
    for similarity in ("laplacian", "gaussian", "euclidean"):
        query, key, value = tokens.values()
        parts = [
            qkv.attend_partial(query, *each, similarity=similarity)
            for each in zip(key.chunk(pieces, -2), value.chunk(pieces, -2), strict=True)
        ]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merge(part)
        whole = qkv.attend(query, key, value, similarity=similarity)
        assert whole.isfinite().all()
        torch.testing.assert_close(merged.answer, whole)


def test_what_is_not_finite_in_a_masked_key_moves_nothing() -> None:
    """Beside an attended infinity, which has every answer computed once more."""
    for similarity in ("scaled_dot", "laplacian", "gaussian"):
        for mask in (qkv.mask.Causal(), qkv.mask.Lengths([11, 15]), qkv.mask.Window(3, 1)):
            tokens = _tokens(17, torch.float32)
            tokens["key"][..., 2, 0] = torch.inf
            plain = qkv.attend(**tokens, similarity=similarity, mask=mask)
            hidden = ~mask.allowed(qkv.mask.base.Tile(0, 17, 17, 17, (2, 3), plain.device))
            hidden = hidden.expand(2, 3, 17, 17)
            for j in (12, 16):
                other = {name: x.clone() for name, x in tokens.items()}
                other["key"][..., j, 1] = torch.nan
                other["value"][..., j, :] = -torch.inf
                moved = qkv.attend(**other, similarity=similarity, mask=mask)
                rows = hidden[..., j]
                assert torch.equal(moved[rows].nan_to_num(7.5), plain[rows].nan_to_num(7.5))


def _infinite(operator: str, dtype: torch.dtype, where: str, number: float) -> dict[str, Tensor]:
    torch.manual_seed(3)
    d = 1 if operator == "sorted" else D
    tokens = {name: torch.randn(2, N, d).to(dtype) for name in ("query", "key", "value")}
    if operator == "lookup":
        tokens["query"], tokens["key"] = tokens["query"].round(), tokens["key"].round()
    tokens[where][:, 4, 0] = number
    return tokens


def _answer(
    tokens: dict[str, Tensor], similarity: str, mask: MaskLike | None, operator: str | None
) -> Tensor | None:
    """The answer in float64; None where the operator declines numbers that are not finite."""
    options: dict[str, Any] = {"similarity": similarity, "mask": mask, "operator": operator}
    try:
        return qkv.attend(**tokens, **options).detach().double()
    except ValueError as error:
        if operator != "sorted" or "does not support this input" not in str(error):
            raise
        return None


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("similarity", ["laplacian", "scaled_dot"])
def test_weights_of_infinite_keys_are_those_that_made_the_answer(
    similarity: str, grad: bool
) -> None:
    for asked in _masks("dense"):
        for where in ("query", "key"):
            tokens = _infinite("dense", torch.float64, where, torch.inf)
            scores = _scores(similarity, tokens["query"], tokens["key"])
            scores = torch.where(asked.allowed, scores, -torch.inf)
            empty = (scores == -torch.inf).all(-1, keepdim=True)
            wanted = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
            plain = _by_formula(similarity, *tokens.values(), asked)  # type: ignore[arg-type]
            tokens["query"].requires_grad_(grad)
            how: dict[str, Any] = {"similarity": similarity, "mask": asked.mask}
            answer, weights = attend_with_weights(**tokens, **how)
            assert torch.isclose(weights, wanted, equal_nan=True).all(), asked.mask
            assert torch.isclose(answer, plain, equal_nan=True).all(), asked.mask
            query, key = tokens["query"], tokens["key"]
            alone = qkv.weights(query, key, **how, rows=slice(2, 9))
            assert torch.isclose(alone, wanted[:, 2:9], equal_nan=True).all(), asked.mask


class _Projected(torch.nn.Module):
    """A formula that projects tokens before it compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_key = torch.nn.Linear(D, 7), torch.nn.Linear(D, 7)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        gap = self.of_query(query).unsqueeze(-2) - self.of_key(key).unsqueeze(-3)
        return -gap.abs().sum(-1)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize(
    "similarity",
    [
        lambda: qkv.Additive(D, D, 7), lambda: qkv.Gated(D, D), lambda: qkv.Bilinear(D, D),
        lambda: qkv.Cosine(0.7, learnable=True), lambda: qkv.Laplacian(2.0, learnable=True),
        lambda: 0.5 * qkv.Additive(D, D, 7) + qkv.Dot(), _Projected,
    ],
    ids=["additive", "gated", "bilinear", "cosine", "laplacian", "sum", "callable"],
)  # fmt: skip
def test_what_is_masked_reaches_no_gradient_of_a_projection(
    similarity: Any, name: str, number: float
) -> None:
    """Which torch differentiates, outside of the kernels: 0 times NaN is NaN."""
    torch.manual_seed(2)
    module = similarity()
    tokens = {each: torch.randn(2, 90, D) for each in ("query", "key", "value")}
    allowed = torch.ones(2, 90, 90, dtype=torch.bool).tril()
    hidden = 4 if name == "query" else 89
    allowed[1, 4], allowed[1, :, 89] = False, False
    tokens[name][1, hidden, 2] = number
    plain = {each: x.nan_to_num(0.0, 0.0, 0.0) for each, x in tokens.items()}
    found = []
    for given in (tokens, plain):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        answer = qkv.attend(*leaves, similarity=module, mask=allowed)
        grads = torch.autograd.grad(answer.square().sum(), [*leaves, *module.parameters()])
        found.append((answer, *grads))
    for own, wanted in zip(*found, strict=True):
        assert own.isfinite().all()
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)
