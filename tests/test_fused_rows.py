"""Keys as rows: few queries of wide tokens, and the gradients of all; held to the plain formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.operators.fused.launch import Call, Launch

D, D_V, BATCH = 19, 23, 2

SIMILARITIES: dict[str, Any] = {
    "additive": lambda: qkv.Additive(D, D, 17),
    "gated": lambda: qkv.Gated(D, D, base=qkv.ScaledDot()),
    "euclidean": qkv.Euclidean,
    **{
        name: lambda name=name: getattr(qkv, name.capitalize())(6.5, learnable=True)
        for name in ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov")
    },
    "biweight": lambda: qkv.Biweight(7.5, learnable=True),
    "tricube": lambda: qkv.Tricube(7.5, learnable=True),
}


def _tokens(n: int, m: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(n * 100 + m)
    return [
        torch.randn(BATCH, rows, d, dtype=dtype).requires_grad_()
        for rows, d in ((n, D), (m, D), (m, D_V))
    ]


def _run(
    operator: str, similarity: Any, tokens: list[Tensor], **options: Any
) -> tuple[Tensor, ...]:
    torch.manual_seed(5)  # of dropout
    answer = qkv.attend(*tokens, similarity=similarity, operator=operator, **options)
    upstream = torch.cos(torch.arange(answer.numel(), dtype=answer.dtype)).view(answer.shape)
    leaves = [*tokens, *similarity.parameters()]
    return answer, *torch.autograd.grad(answer, leaves, upstream, materialize_grads=True)


def _masks(n: int, m: int) -> dict[str, dict[str, Any]]:
    torch.manual_seed(7)
    return {
        "none": {},
        "causal": {"mask": qkv.mask.Causal()},
        "lengths": {"mask": qkv.mask.Lengths([m, m // 3])},
        "boolean": {"mask": torch.rand(n, m) > 0.5},
        "bias": {"mask": torch.randn(1, m, dtype=torch.float64)},
        "dropout": {"dropout": 0.3},
    }


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize(("n", "m"), [(1, 50), (2, 17), (3, 131), (11, 29)])
def test_answers_and_gradients_are_those_of_the_formula(name: str, n: int, m: int) -> None:
    torch.manual_seed(3)
    similarity = SIMILARITIES[name]().double()
    tokens = _tokens(n, m)
    for options in _masks(n, m).values():
        fused = _run("fused", similarity, tokens, **options)
        for own, plain in zip(fused, _run("dense", similarity, tokens, **options), strict=True):
            torch.testing.assert_close(own, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_few_queries_of_wide_tokens_take_keys_as_rows(name: str) -> None:
    tokens = [token.detach() for token in _tokens(3, 50)]
    call = Call(*tokens, torch.ones(D, dtype=torch.float64), *(None,) * 5, name, 0.0)
    assert Launch(call).key_rows
    wide = call._replace(query=torch.cat([call.query] * 2, dim=-2))
    assert not Launch(wide).key_rows  # six queries are worth turning the keys
    assert Launch(call).width == 64  # fifty keys in whole vectors, not a tile of 256


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("n", [1, 11])
def test_what_is_masked_has_no_influence_even_if_it_is_not_finite(name: str, n: int) -> None:
    torch.manual_seed(3)
    similarity = SIMILARITIES[name]().double()
    tokens = _tokens(n, 50)
    mask = qkv.mask.Lengths([50, 31])
    clean = _run("fused", similarity, tokens, mask=mask)
    with torch.no_grad():
        tokens[1][1, 40, 3], tokens[1][1, 33, 0] = torch.nan, torch.inf
        tokens[2][1, 49, 5] = torch.nan
    for own, before in zip(_run("fused", similarity, tokens, mask=mask), clean, strict=True):
        torch.testing.assert_close(own, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["additive", "gated", "gaussian", "tricube"])
def test_nan_in_an_attended_key_shows(name: str) -> None:
    torch.manual_seed(3)
    similarity = SIMILARITIES[name]().double()
    tokens = [token.detach() for token in _tokens(2, 50)]
    tokens[1][1, 40, 3] = torch.nan
    answer = qkv.attend(*tokens, similarity=similarity, operator="fused")
    assert answer[1].isnan().all()
    assert answer[0].isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_additive_scores_at_any_magnitude(scale: float) -> None:
    """Beyond the range of e^2x the direct form serves, for whole fours of keys and the rest."""
    torch.manual_seed(3)
    similarity = SIMILARITIES["additive"]().double()
    tokens = [token.detach().mul(scale).requires_grad_() for token in _tokens(1, 51)]
    fused, dense = (_run(each, similarity, tokens) for each in ("fused", "dense"))
    for own, plain in zip(fused, dense, strict=True):
        torch.testing.assert_close(own, plain, rtol=1e-8, atol=1e-9)


def test_memory_is_kept_and_let_go() -> None:
    from qkv.jit import scratch

    similarity = SIMILARITIES["laplacian"]().double()
    tokens = [token.detach() for token in _tokens(11, 29)]
    qkv.attend(*tokens, similarity=similarity, operator="fused")
    assert scratch._free
    held = {memory.data_ptr() for memory in scratch._free}
    qkv.attend(*tokens, similarity=similarity, operator="fused")
    assert {memory.data_ptr() for memory in scratch._free} & held
    scratch.release_memory()
    assert not scratch._free


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, 9.0, 25.0, 400.0, -9.0, -25.0, -400.0])
def test_a_single_query_saturates_as_tanh_does(shift: float, dtype: torch.dtype) -> None:
    """Where e^2x would overflow, or is all but 0."""
    torch.manual_seed(3)
    similarity = qkv.Additive(D, D, 33).to(dtype)
    with torch.no_grad():
        assert similarity.query_projection.bias is not None
        similarity.query_projection.bias[::3] += shift
    tokens = _tokens(1, 30, dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {}
    fused = _run("fused", similarity, tokens)
    for own, plain in zip(fused, _run("dense", similarity, tokens), strict=True):
        assert own.isfinite().all()
        torch.testing.assert_close(own, plain, **tolerance)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_single_query_meets_what_is_not_finite_as_the_formula_does(number: float) -> None:
    similarity = qkv.Additive(D, D, 17).double()
    for name in (0, 1):
        tokens = [token.detach().clone() for token in _tokens(1, 31)]
        tokens[name][1, -1, 2] = number
        fused, dense = (
            qkv.attend(*tokens, similarity=similarity, operator=operator)
            for operator in ("fused", "dense")
        )
        torch.testing.assert_close(fused, dense, equal_nan=True)
        hidden = qkv.mask.Lengths([30, 30])
        masked = qkv.attend(*tokens, similarity=similarity, mask=hidden, operator="fused")
        assert masked[0].isfinite().all()
        assert bool(masked[1].isfinite().all()) is (name == 1 or not torch.isnan(fused[1]).any())
