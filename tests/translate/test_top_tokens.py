"""The likeliest tokens: as softmax and a sort would find them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qkv.translate.data.vocabulary import BEGIN, END, PAD
from qkv.translate.decoding import top_tokens
from qkv.translate.decoding.top_tokens import TopTokenFinder


def layer(vocabulary: int, dtype: torch.dtype, scale: float = 1.0) -> nn.Linear:
    torch.manual_seed(vocabulary)
    made = nn.Linear(7, vocabulary, dtype=dtype)
    with torch.no_grad():
        made.weight *= scale
        made.bias.normal_()
    return made


@settings(max_examples=40, deadline=None)
@given(
    vocabulary=st.one_of(st.integers(4, 40), st.sampled_from([255, 256, 257, 521, 1009])),
    count=st.integers(1, 23),
    wide=st.booleans(),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_they_are_those_of_a_softmax_and_a_sort(
    vocabulary: int, count: int, wide: bool, scale: float, seed: int
) -> None:
    dtype = torch.float64 if wide else torch.float32
    output = layer(vocabulary, dtype, scale)
    features = torch.randn(3, 2, 7, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        found = TopTokenFinder(output, 6, count)(features)
        scores = features.double() @ output.weight.double().mT + output.bias.double()
    log_p = torch.log_softmax(scores, dim=-1).numpy()
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if wide else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(found.end, log_p[..., END], **tolerance)
    for row in np.ndindex(3, 2):
        mine = log_p[row].copy()
        mine[[PAD, BEGIN]] = -np.inf
        best = np.sort(mine)[::-1][:count]
        there = int(np.isfinite(best).sum())
        np.testing.assert_allclose(found.log_p[row][:there], best[:there], **tolerance)
        assert (found.log_p[row][there:] == -np.inf).all()
        # Each is the log p of the token it is said to be of, and no token comes twice.
        chosen = found.tokens[row][:there]
        np.testing.assert_allclose(found.log_p[row][:there], mine[chosen], **tolerance)
        assert len(set(chosen.tolist())) == there


def test_padding_and_the_beginning_never_come_though_they_be_the_likeliest() -> None:
    output = layer(1009, torch.float32)
    with torch.no_grad():
        output.bias[[PAD, BEGIN]] = 50.0
        found = TopTokenFinder(output, 5, 3)(torch.randn(5, 7))
        scores = output(torch.zeros(5, 7))
    assert not np.isin(found.tokens, [PAD, BEGIN]).any()
    assert (found.log_p < -30.0).all()  # and yet they are part of the sum
    assert scores.shape == (5, 1009)


@pytest.mark.parametrize("vocabulary", [61, 50_021])
def test_what_all_scores_have_in_common_costs_no_digits(vocabulary: int) -> None:
    """In float32, whose numbers near 10⁴ are 2⁻¹⁰ apart: multiples of that are added exactly."""
    output = layer(vocabulary, torch.float32, scale=0.0)
    with torch.no_grad():
        output.bias.mul_(2**10).round_().div_(2**10)
        near = TopTokenFinder(output, 2, 5)(torch.zeros(2, 7))
        wanted = torch.log_softmax(output.bias.double(), -1)
        output.bias += 1e4
        far = TopTokenFinder(output, 2, 5)(torch.zeros(2, 7))
    for mine, moved in zip(near, far, strict=True):
        np.testing.assert_allclose(mine, moved, rtol=1e-11)
    np.testing.assert_allclose(far.end, wanted[END].expand(2), rtol=1e-6)
    np.testing.assert_allclose(far.log_p, wanted[far.tokens], rtol=1e-6)


def test_rows_are_taken_in_parts_where_scores_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    output, features = layer(521, torch.float64), torch.randn(11, 7, dtype=torch.float64)
    with torch.no_grad():
        whole = TopTokenFinder(output, 11, 4)(features)
        monkeypatch.setattr(top_tokens, "_SCORES", 3 * 521)
        parts = TopTokenFinder(output, 11, 4)
        assert len(parts.room) == 3
        for mine, wanted in zip(parts(features), whole, strict=True):
            np.testing.assert_allclose(mine, wanted)


def test_half_types_are_searched_as_they_are() -> None:
    output = layer(61, torch.float32).to(torch.bfloat16)
    features = torch.randn(2, 3, 7).to(torch.bfloat16)
    with torch.no_grad():
        found = TopTokenFinder(output, 6, 5)(features)
        wanted = torch.log_softmax(features.float() @ output.weight.float().mT + output.bias, -1)
    wanted[..., [PAD, BEGIN]] = -torch.inf
    np.testing.assert_allclose(found.log_p, wanted.topk(5).values.numpy(), atol=0.05)
