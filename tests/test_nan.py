"""NaN in what is attended to shows, whatever the operator and however few the keys."""

from __future__ import annotations

import pytest
import torch

import qkv

OPERATORS = ("dense", "streamed", "sdpa", "banded", None)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


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


@pytest.mark.parametrize("n", [16, 41, 131])
@pytest.mark.parametrize(
    "mask",
    [qkv.mask.Window(0, 0), qkv.mask.Window(2, 0), qkv.mask.Blocks(2), qkv.mask.Blocks(5)],
    ids=repr,
)
def test_nan_shows_where_each_query_sees_few_keys(mask: qkv.mask.Mask, n: int) -> None:
    for operator in OPERATORS:
        for where in ("query", "key"):
            tokens = _tokens(n, torch.float32)
            tokens[where][:, 1, n // 2, 2] = torch.nan
            answer = qkv.attend(**tokens, mask=mask, operator=operator)
            assert answer[:, 1, n // 2].isnan().all(), (operator, where)
            assert not answer[:, 0].isnan().any(), (operator, where)


@pytest.mark.parametrize("m", [1, 3, 15, 16])
def test_the_total_of_a_query_that_is_not_a_number_is_none(m: int) -> None:
    tokens = _tokens(m, torch.float32)
    tokens["query"][:, 1, 0, 2] = torch.nan
    for operator in ("dense", "streamed", "sdpa", None):
        partial = qkv.attend_partial(**tokens, operator=operator)
        assert partial.log_total[:, 1, 0].isnan().all(), operator
        assert partial.log_total[:, 0].isfinite().all(), operator
