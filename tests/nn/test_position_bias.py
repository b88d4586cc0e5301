"""Layers whose scores know positions: a bias reaches every path, and is learned with its layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qkv
from qkv.bias import Alibi, alibi_slopes
from qkv.nn import EncoderLayer, KVCache, MultiheadAttention, SelfAttention

BATCH, N, D, HEADS = 2, 11, 12, 3


def _layer(similarity: object = None) -> MultiheadAttention:
    slopes = nn.Parameter(torch.tensor([0.1, 0.5, 0.9]))
    return MultiheadAttention(
        D, HEADS, batch_first=True, similarity=similarity, position_bias=Alibi(slopes)
    )


@pytest.mark.parametrize("similarity", [None, "laplacian", qkv.Additive], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_it_is_torchs_attn_mask_of_all_that_is_added(similarity: object, causal: bool) -> None:
    layer, x = _layer(similarity), torch.randn(BATCH, N, D)
    mask = qkv.mask.Causal() if causal else None
    position = torch.arange(N)
    whole = layer.position_bias(position[:, None], position).detach()  # (heads, n, m)
    whole = whole.repeat(BATCH, 1, 1)
    bias, layer.position_bias = layer.position_bias, None
    expected, expected_weights = layer(x, x, x, attn_mask=whole, mask=mask)
    layer.position_bias = bias
    found, weights = layer(x, x, x, mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)
    alone, _ = layer(x, x, x, mask=mask, need_weights=False)
    torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)


def test_its_parameters_are_the_layers_own() -> None:
    layer, x = _layer(), torch.randn(BATCH, N, D)
    assert "position_bias.slopes" in dict(layer.named_parameters())
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    assert layer.position_bias.slopes.grad.abs().min() > 0


def test_a_cache_gives_what_the_whole_gives() -> None:
    layer, x = _layer().eval(), torch.randn(BATCH, N, D)
    layer.mask = qkv.mask.Causal()
    with torch.no_grad():
        whole, _ = layer(x, x, x, need_weights=False)
        cache = KVCache(N)
        steps = [layer(t, t, t, need_weights=False, cache=cache)[0] for t in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_encoders_hand_it_on() -> None:
    x, bias = torch.randn(BATCH, N, D), Alibi(alibi_slopes(HEADS).float())
    layer = EncoderLayer(D, HEADS, 17, dropout=0.0, position_bias=bias)
    plain = EncoderLayer(D, HEADS, 17, dropout=0.0)
    plain.load_state_dict(layer.state_dict())
    assert not torch.allclose(layer(x), plain(x))
    torch.testing.assert_close(layer(x), plain(x, mask=bias))


def test_self_attention_takes_one() -> None:
    x, bias = torch.randn(N, D), Alibi([0.3])
    layer, plain = SelfAttention(D, 5, 7, bias=bias), SelfAttention(D, 5, 7)
    plain.load_state_dict(layer.state_dict())
    x = x.unsqueeze(0)
    assert not torch.allclose(layer(x), plain(x))
    torch.testing.assert_close(layer(x), plain(x, mask=bias))
    torch.testing.assert_close(layer.weights(x), plain.weights(x, mask=bias))


def test_extra_keys_stand_nowhere() -> None:
    layer = MultiheadAttention(D, HEADS, add_zero_attn=True, position_bias=lambda i, j: i * j)
    x = torch.randn(N, D)
    with pytest.raises(ValueError, match="cannot be used with add_bias_kv or add_zero_attn"):
        layer(x, x, x)
