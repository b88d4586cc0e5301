"""Additive scores of few pairs: as loops would find them."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.similarity.pair_scores import additive_scores
from qkv.translate import RNNConfig, Translator


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("scale", [0.0, 0.3, 5.0, 1e4])
def test_scores_are_those_of_the_formula(
    dtype: torch.dtype, tolerance: float, scale: float
) -> None:
    torch.manual_seed(1)
    query, key = scale * torch.randn(2, 3, 37).to(dtype), scale * torch.randn(2, 5, 37).to(dtype)
    key[0, 1] = -query[0, 2]  # sums of 0 between large numbers
    weight = torch.randn(37).to(dtype)
    with torch.no_grad():
        scores = additive_scores(query, key, weight)
    assert scores is not None
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        sums = (query[b, i] + key[b, j]).tolist()
        wanted = sum(w * math.tanh(x) for w, x in zip(weight.tolist(), sums, strict=True))
        assert scores[b, i, j].item() == pytest.approx(wanted, abs=37 * tolerance)


def test_nan_shows() -> None:
    query, key = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    key[0, 1, 2] = math.nan
    with torch.no_grad():
        scores = additive_scores(query, key, torch.ones(3))
    assert scores is not None
    assert scores.isnan().tolist() == [[[False, True]] * 2]


def test_keys_that_all_heads_share() -> None:
    torch.manual_seed(3)
    query, key, weight = torch.randn(2, 5, 3, 7), torch.randn(2, 1, 11, 7), torch.randn(7)
    scores = additive_scores(query, key, weight)
    assert scores is not None
    torch.testing.assert_close(scores, (query[..., None, :] + key[..., None, :, :]).tanh() @ weight)


def test_gradients_take_the_formula() -> None:
    query, key, weight = torch.randn(2, 3), torch.randn(5, 3), torch.randn(3, requires_grad=True)
    assert additive_scores(query, key, weight) is None
    with torch.no_grad():
        assert additive_scores(query, key, weight) is not None


def test_a_model_looks_alike_with_and_without_a_way_back() -> None:
    torch.manual_seed(2)
    model = Translator(RNNConfig(embedding=5, hidden=7), source=11, target=13).double().eval()
    memory = model.encode(torch.randint(4, 11, (3, 6)), torch.tensor([6, 2, 5]))
    state = torch.randn(3, 4, 7, dtype=torch.float64)
    with torch.no_grad():
        quick = model.look(memory, state)
    torch.testing.assert_close(quick, model.look(memory, state).detach())


def test_one_query_and_more_keys_than_a_unit_of_work() -> None:
    torch.manual_seed(4)
    query, key, weight = torch.randn(1, 5), torch.randn(203, 5), torch.randn(5)
    scores = additive_scores(query, key, weight)
    assert scores is not None
    torch.testing.assert_close(scores, (query[:, None] + key[None]).tanh() @ weight)
