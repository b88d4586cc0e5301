from __future__ import annotations

import pytest
import torch

import qkv
from qkv.nn import SelfAttention

BATCH, N, D, D_Q, D_V = 2, 5, 7, 3, 11


def test_it_is_the_formula_of_the_text() -> None:
    layer, x = SelfAttention(D, D_Q, D_V).double(), torch.randn(N, D, dtype=torch.float64)
    query, key, value = (x @ w.weight.T for w in (layer.query, layer.key, layer.value))
    weights = torch.softmax(query @ key.T / D_Q**0.5, dim=-1)
    torch.testing.assert_close(layer.weights(x), weights)
    torch.testing.assert_close(layer(x), weights @ value)
    assert layer(x).shape == (N, D_V)


@pytest.mark.parametrize("similarity", [None, "cosine", "gaussian", qkv.Additive(D_Q, D_Q, 13)])
def test_permuting_the_words_permutes_the_answers(similarity: object) -> None:
    layer, x = SelfAttention(D, D_Q, D_V, similarity), torch.randn(BATCH, N, D)  # type: ignore[arg-type]
    order = torch.randperm(N)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


def test_a_word_that_comes_later_is_not_seen_under_a_causal_mask() -> None:
    layer, x = SelfAttention(D, D_Q, D_V), torch.randn(BATCH, N, D)
    changed = x.clone()
    changed[:, 3] += 1
    before = layer(x, mask=qkv.mask.Causal())
    after = layer(changed, mask=qkv.mask.Causal())
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=0, atol=0)
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_a_learned_similarity_learns() -> None:
    layer = SelfAttention(D, D_Q, D_V, qkv.Additive(D_Q, D_Q, 13))
    layer(torch.randn(BATCH, N, D)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert "similarity.weight" in layer.state_dict()


def test_deferred_initialisation() -> None:
    layer = SelfAttention(D, D_Q, D_V, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(N, D)).isfinite().all()


def test_bad_shape() -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., n, 7\); got \(5, 3\)"):
        SelfAttention(D, D_Q, D_V)(torch.randn(N, 3))
