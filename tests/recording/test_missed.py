"""What a recording has not, it names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.recording import Missed, WeighedCall

BATCH, N, D = 3, 5, 8


class SquareAttention(nn.Module):
    """Scores that are no product, and a softmax."""

    def forward(self, x: Tensor) -> Tensor:
        scores = -(x[..., :, None, :] - x[..., None, :, :]).abs().sum(-1)
        return scores.softmax(-1) @ x


class HiddenAttn2(nn.Module):
    """Weights that come from nowhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1).view(-1, 1)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


def model() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()
    return nn.Sequential(layer, Block(SquareAttention()), Block(HiddenAttn2()), nn.Softmax(-1))


def test_what_got_away_is_named_in_a_warning_and_in_missed() -> None:
    network = model()
    text = r"^not all attention was recorded, see calls.missed: 1.attention: a softmax over \(3, 5"
    with (
        pytest.warns(UserWarning, match=text) as told,
        torch.no_grad(),
        qkv.record(network) as calls,
    ):
        network(network(torch.randn(BATCH, N, D)))
    assert [call.name for call in calls] == ["0.self_attn"] * 2
    assert calls.missed == [
        Missed("1.attention", "a softmax over (3, 5, 5) that is not a product of queries and keys"),
        Missed("2.attention", "HiddenAttn2 ran without a recognised attention call"),
    ]
    assert len(told) == 1


def test_a_failing_model_is_not_said_to_have_missed_anything() -> None:
    network = nn.Sequential(model()[0], Block(SquareAttention()))
    with pytest.raises(AssertionError), qkv.record(network) as calls:
        network(torch.randn(BATCH, N, D + 1))
    assert not calls.missed


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("family", ["deberta-v2", "bloom", "xlnet", "gpt_oss", "gptj", "mpt"])
def test_every_layer_of_models_that_compute_attention_themselves_is_there(family: str) -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    from integrations import families

    network = families._model(family, "eager")
    asked = next(families._arguments(network))
    with torch.no_grad(), qkv.record(network) as calls:
        output = network(**asked, output_attentions=True)
    assert not calls.missed
    assert len({call.layer for call in calls}) == 2
    for call, expected in zip(calls, output.attentions, strict=True):
        got = call.weights()
        if family == "gpt_oss":
            assert isinstance(call, WeighedCall)
            got = got[..., :-1]  # the sink
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_windows_that_are_moved_about_are_missed_and_not_mistaken() -> None:
    pytest.importorskip("transformers", reason="pip install transformers")
    from integrations import families

    network = families._model("longformer", "eager")
    asked = next(families._arguments(network))
    with (
        pytest.warns(UserWarning, match="LongformerSelfAttention ran without a recognised"),
        torch.no_grad(),
        qkv.record(network) as calls,
    ):
        network(**asked)
    assert {missed.name for missed in calls.missed} == {
        "encoder.layer.0.attention.self",
        "encoder.layer.1.attention.self",
    }


def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) | (key < 2 + head)


def slopes(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.tanh(score / 3) * 3 - 0.1 * (head + 1) * (query - key).abs()


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", [None, slopes])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flex_attention_with_its_functions(change: Any, kv_heads: int) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query = torch.randn(2, 4, 7, D)
    key, value = torch.randn(2, 2, kv_heads, 9, D).unbind()
    mask = create_block_mask(rule, 2, 4, 7, 9, device="cpu")
    with torch.no_grad(), qkv.record() as calls:
        answer = flex_attention(query, key, value, change, mask, scale=0.4, enable_gqa=kv_heads < 4)
    weights = calls[0].weights()
    assert weights.shape == (2, 4, 7, 9)
    values = value.repeat_interleave(4 // kv_heads, dim=1)
    torch.testing.assert_close(weights @ values, answer, rtol=0, atol=1e-5)
    seen = rule(torch.tensor(0), torch.arange(4).view(4, 1, 1), torch.arange(7)[:, None],
                torch.arange(9))  # fmt: skip
    assert weights[:, ~seen].eq(0).all()
    assert re.search("7 queries × 9 keys", repr(calls[0]))
