"""Attention written out in plain torch code is followed from the product to the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.recording import Call, WeighedCall

BATCH, HEADS, N, M, D = 3, 2, 5, 7, 11

SEEN = torch.ones(N, M, dtype=torch.bool).tril(2)
BIAS = torch.linspace(-1, 1, N * M).reshape(N, M)

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda q, k: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(D), dim=-1),
    "method": lambda q, k: q.matmul(k.mT).mul(0.3).softmax(-1),
    "scaled first": lambda q, k: F.softmax((q * 0.2) @ k.mT, dim=-1),
    "number first": lambda q, k: (0.5 * (q @ k.mT)).softmax(-1),
    "tensor scale": lambda q, k: ((q @ k.mT) / torch.tensor(3.0)).softmax(-1),
    "mask added": lambda q, k: (q @ k.mT * 0.3 + BIAS).softmax(-1),
    "mask first": lambda q, k: (BIAS + q @ k.mT).softmax(3),
    "filled": lambda q, k: (q @ k.mT).masked_fill(~SEEN, -torch.inf).softmax(-1),
    "filled by name": lambda q, k: (q @ k.mT).masked_fill(mask=~SEEN, value=-1e9).softmax(-1),
    "where": lambda q, k: torch.where(SEEN, q @ k.mT, torch.tensor(-1e30)).softmax(-1),
    "capped": lambda q, k: (torch.tanh(q @ k.mT * 0.3 / 5) * 5 + BIAS).softmax(-1),
    "in float32": lambda q, k: F.softmax(q @ k.mT, dim=-1, dtype=torch.float32).to(q.dtype),
    "both masks": lambda q, k: ((q @ k.mT).masked_fill(~SEEN, -1e9) + BIAS).float().softmax(-1),
}


def in_place(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT
    scores *= 0.3
    scores += BIAS
    return scores.softmax(-1)


FORMS["in place"] = in_place


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inference", [False, True])
def test_forms_of_writing_it_out(form: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        query, key = torch.randn(BATCH, HEADS, N, D), torch.randn(BATCH, HEADS, M, D)
        with qkv.record() as calls:
            weights = FORMS[form](query, key)
            weights @ key
        assert len(calls) == 1
        torch.testing.assert_close(calls[0].weights(), weights, rtol=0, atol=1e-6)


def test_three_axes_by_bmm_and_baddbmm() -> None:
    query, key, bias = torch.randn(BATCH, N, D), torch.randn(BATCH, M, D), torch.randn(BATCH, N, M)
    with qkv.record() as calls:
        plain = torch.bmm(query, key.mT).softmax(-1)
        biased = torch.baddbmm(bias, query, key.mT, beta=0.5, alpha=0.2).softmax(-1)
    for call, expected in zip(calls, (plain, biased), strict=True):
        torch.testing.assert_close(call.weights()[:, 0], expected, rtol=0, atol=1e-6)


def test_a_model_of_ones_own_gets_its_module_names() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(D, 3), nn.Linear(D, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(3)
            return F.dropout(F.softmax(scores, dim=-1), 0.1) @ x

    model = nn.Sequential(Head(), nn.ReLU(), Head())
    with qkv.record(model) as calls:
        model(torch.randn(BATCH, N, D))
    assert [call.name for call in calls] == ["0", "2"]


TEMPERATURE = nn.Parameter(torch.tensor([0.3, 1.7]).view(HEADS, 1, 1))

FORMS |= {
    "einsum": lambda q, k: (torch.einsum("bhid,bhjd->bhij", q, k) * 0.3).softmax(-1),
    "einsum, tokens first": lambda q, k: torch.einsum(
        "bqhd, bkhd -> bhqk", q.transpose(1, 2), k.transpose(1, 2)
    ).softmax(-1),
    "einsum, keys first": lambda q, k: torch.einsum("bhjd,bhid->bhij", k, q).softmax(-1),
    "learned temperature": lambda q, k: (q @ k.mT * TEMPERATURE).detach().softmax(-1),
    "divided by one of each row": lambda q, k: (q @ k.mT / (q.norm(dim=-1, keepdim=True))).softmax(
        -1
    ),
    "softmax of a keyword": lambda q, k: torch.softmax(input=q @ k.mT, dim=-1),
}


@pytest.mark.parametrize(
    "form", ["einsum", "einsum, tokens first", "einsum, keys first", "learned temperature"]
)
def test_these_too_are_understood_and_kept_in_linear_memory(form: str) -> None:
    query, key = torch.randn(BATCH, HEADS, N, D), torch.randn(BATCH, HEADS, M, D)
    with torch.no_grad(), qkv.record() as calls:
        weights = FORMS[form](query, key)
    assert type(calls[0]) is Call
    torch.testing.assert_close(calls[0].weights(), weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(calls[0].weights(rows=[2], heads=[1]), weights[:, 1:, 2:3])


def with_sink(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT
    sink = torch.full((*scores.shape[:-1], 1), 0.4)
    return torch.cat([scores, sink], dim=-1).softmax(-1)


def by_exponentials(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def piece_by_piece(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT
    scores[:, 0] = 0
    return scores.softmax(-1)


OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda q, k: (q @ k.mT).relu().softmax(-1),
    "relu in place": lambda q, k: (q @ k.mT).relu_().softmax(-1),
    "an option": lambda q, k: torch.add(q @ k.mT, BIAS, alpha=2).softmax(-1),
    "bias, then scale": lambda q, k: ((q @ k.mT + BIAS) * 0.3).softmax(-1),
    "in logarithms": lambda q, k: (q @ k.mT).view(-1, N, M).log_softmax(-1).exp(),
    "keys as rows": lambda q, k: (k @ q.mT).softmax(-2).mT,
    "another order of axes": lambda q, k: (
        torch.einsum("bhid,bhjd->ijbh", q, k).permute(2, 3, 0, 1).softmax(3)
    ),
    "sink": with_sink,
    "exponentials": by_exponentials,
    "piece by piece": piece_by_piece,
}


@pytest.mark.parametrize("form", OTHERS)
def test_of_what_is_not_understood_the_weights_are_kept(form: str) -> None:
    query, key = torch.randn(BATCH, HEADS, N, D), torch.randn(BATCH, HEADS, M, D)
    with qkv.record() as calls:
        weights = OTHERS[form](query, key)
    assert [type(call) for call in calls] == [WeighedCall]
    assert not calls.missed
    expected = weights if weights.ndim == 4 else weights.unsqueeze(1)
    torch.testing.assert_close(calls[0].weights(), expected)
    torch.testing.assert_close(calls[0].weights(rows=slice(1, 3)), expected[..., 1:3, :])
    assert calls[0].top(2).keys.shape == (*expected.shape[:-1], 2)
    with pytest.raises(ValueError, match="the scores of this call are not known, only its weights"):
        calls[0].log_total  # noqa: B018


@pytest.mark.parametrize(
    "other",
    [
        lambda x, weight: (x @ weight.T).softmax(-1),  # a classifier
        lambda x, weight: F.linear(x, weight).softmax(-1),
        lambda x, weight: x.softmax(-1),
        lambda x, weight: F.linear((x @ x.mT).softmax(-1)[:0] @ x[:0], weight).softmax(-1),
    ],
)
def test_what_is_not_attention_is_not_recorded(other: Callable[..., Tensor]) -> None:
    with qkv.record() as calls:
        other(torch.randn(BATCH, N, D), nn.Parameter(torch.randn(13, D)))
    assert len(calls) <= 1  # the product of tokens, where there is one
    assert not calls.missed
