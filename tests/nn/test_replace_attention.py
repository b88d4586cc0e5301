from __future__ import annotations

import pytest
import torch
from torch import nn

import qkv
from qkv.nn import MultiheadAttention, swap

BATCH, N, D, HEADS = 3, 5, 12, 2


def transformer() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(D, HEADS, 23, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("training", [True, False])
def test_a_model_answers_as_before(training: bool) -> None:
    model, x = transformer().train(training), torch.randn(BATCH, N, D)
    padding = torch.arange(N) >= torch.tensor([[5], [3], [4]])
    causal = nn.Transformer.generate_square_subsequent_mask(N)
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding), model(x, mask=causal, is_causal=True)
        swap(model)
        got = model(x, src_key_padding_mask=padding), model(x, mask=causal, is_causal=True)
    assert not any(isinstance(module, nn.MultiheadAttention) for module in model.modules())
    kept = ~padding  # what stands at padded places is nobody's business
    torch.testing.assert_close(got[0][kept], expected[0][kept], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=1e-5)


def test_another_similarity_is_not_bypassed_in_eval_mode() -> None:
    model, x = transformer().eval(), torch.randn(BATCH, N, D)
    with torch.no_grad():
        before = model(x)
        after = swap(model, similarity=qkv.Additive)(x)
    assert not torch.allclose(before, after)
    assert len([p for name, p in model.named_parameters() if "similarity" in name]) > 0


def test_parameters_are_the_very_same_so_an_optimiser_goes_on() -> None:
    model = transformer()
    before = dict(model.named_parameters())
    after = dict(swap(model).named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_a_layer_held_twice_stays_one() -> None:
    layer = nn.MultiheadAttention(D, HEADS, kdim=7, add_bias_kv=True)
    model = swap(nn.ModuleDict({"a": layer, "b": nn.ModuleList([layer])}))
    assert isinstance(model["a"], MultiheadAttention)
    assert model["a"] is model["b"][0]  # type: ignore[index]
    assert model["a"].bias_k is layer.bias_k


def test_a_layer_itself_cannot_be_replaced_in_place() -> None:
    with pytest.raises(TypeError, match=r"model must hold torch.nn.MultiheadAttention layers"):
        swap(nn.MultiheadAttention(D, HEADS))


def translator() -> nn.Transformer:
    return nn.Transformer(D, HEADS, 1, 2, 23, dropout=0.0, batch_first=True).eval()


def test_a_mask_by_position_is_not_for_another_sequence() -> None:
    # Aligned to the end, a window of 1 would hide the source from most of the targets.
    model, source, target = translator(), torch.randn(BATCH, 4, D), torch.randn(BATCH, 17, D)
    reference = translator()
    reference.load_state_dict(model.state_dict())
    swap(model, mask=qkv.mask.Window(1, 1))
    near = (torch.arange(17)[:, None] - torch.arange(17)).abs() <= 1
    with torch.no_grad():
        got = model(source, target)
        expected = reference(source, target, src_mask=~near[:4, :4], tgt_mask=~near)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_what_goes_by_scores_and_what_is_named_counts_for_cross_attention_too() -> None:
    source, target = torch.randn(BATCH, 4, D), torch.randn(BATCH, 17, D)
    model, names = translator(), ("decoder.layers.0.multihead_attn", "decoder.layers.1.self_attn")
    with qkv.record(model := swap(model, mask=qkv.mask.TopK(1))) as calls, torch.no_grad():
        model(source, target)
    assert all(call.mask is not None for call in calls)
    model = swap(translator(), mask={"decoder.*.multihead_attn": qkv.mask.Window(2, 2)})
    with qkv.record(model) as calls, torch.no_grad():
        model(source, target)
    masks = {call.name: call.mask for call in calls}
    assert isinstance(masks[names[0]], qkv.mask.Window)
    assert masks[names[1]] is None


def test_a_name_that_no_layer_has_is_told() -> None:
    with pytest.raises(ValueError, match=r"mask names 'cross'; torch.nn.MultiheadAttention layers"):
        swap(transformer(), mask={"cross": qkv.mask.Causal()})
