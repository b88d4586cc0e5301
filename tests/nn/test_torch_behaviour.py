"""What torch's own tests of its multi-head layer hold it to, held to ours beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
import qkv.nn

LAYERS = [nn.MultiheadAttention, qkv.nn.MultiheadAttention]
both_layers = pytest.mark.parametrize("layer", LAYERS, ids=["torch", "qkv"])

X, FLAT = torch.randn(4, 4, 4), torch.randn(4, 4)


@both_layers
@pytest.mark.parametrize(
    ("query", "key", "value", "found"),
    [
        (X, FLAT, X, "2-D and 3-D"), (X, X, FLAT, "3-D and 2-D"), (X, FLAT, FLAT, "2-D and 2-D"),
        (FLAT, X, FLAT, "3-D and 2-D"), (FLAT, FLAT, X, "2-D and 3-D"),
    ],
)  # fmt: skip
def test_axes_that_do_not_fit(
    layer: Any, query: Tensor, key: Tensor, value: Tensor, found: str
) -> None:
    text = rf"expected `key` and `value` to be {query.ndim}-D but found {found} tensors"
    with pytest.raises(AssertionError, match=text):
        layer(4, 4)(query, key, value)


@both_layers
def test_masks_whose_axes_do_not_fit(layer: Any) -> None:
    mha = layer(4, 4)
    wrong = torch.zeros(4, dtype=torch.bool)
    with pytest.raises(AssertionError, match="`key_padding_mask` to be `None` or 2-D but found"):
        mha(X, X, X, key_padding_mask=wrong)
    with pytest.raises(AssertionError, match="`key_padding_mask` to be `None` or 1-D but found"):
        mha(FLAT, FLAT, FLAT, key_padding_mask=wrong.expand(4, 4))
    for tokens in (X, FLAT):
        text = "`attn_mask` to be `None`, 2-D or 3-D but found 1-D tensor instead"
        with pytest.raises(AssertionError, match=text):
            mha(tokens, tokens, tokens, attn_mask=wrong)


@both_layers
def test_other_mistakes_have_torchs_types(layer: Any) -> None:
    with pytest.raises(AssertionError, match="num_heads"):
        layer(8, 3)
    with pytest.raises(ValueError, match="embed_dim"):
        layer(0, 3)
    mha = layer(4, 2, batch_first=True)
    with pytest.raises(AssertionError, match="attn_mask"):
        mha(X, X, X, attn_mask=torch.zeros(4, 4, dtype=torch.int))
    with pytest.raises(RuntimeError, match="attn_mask"):
        mha(X, X, X, attn_mask=torch.zeros(3, 4, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="attn_mask"):
        mha(X, X, X, attn_mask=None, is_causal=True)
    with pytest.raises(AssertionError):
        mha(X[..., :3], X, X)


@both_layers
def test_a_bias_of_another_type_than_the_layer(layer: Any) -> None:
    mha = layer(4, 4, batch_first=True, dtype=torch.float64).eval()
    mha.in_proj_bias = nn.Parameter(torch.randn(12).half())
    mha(X.double(), X.double(), X.double())
    mha(X.double(), X.double().clone(), X.double().clone())


def test_both_give_the_same_answer_with_it() -> None:
    mine, theirs = (
        kind(4, 4, batch_first=True, dtype=torch.float64).eval() for kind in reversed(LAYERS)
    )
    mine.load_state_dict(theirs.state_dict())
    for each in (mine, theirs):
        each.in_proj_bias = nn.Parameter(torch.linspace(-1, 1, 12).half())
    x = X.double()
    torch.testing.assert_close(mine(x, x, x)[0], theirs(x, x, x)[0], rtol=0, atol=1e-2)


def test_autocast_takes_tensors_of_several_types_as_torchs_kernel_does() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = nn.functional.scaled_dot_product_attention(query.bfloat16(), key, value)
        got = qkv.attend(query.bfloat16(), key, value)
        assert got.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-2)
        assert qkv.attend(query, key, value).dtype == torch.float32  # nothing to settle
    with pytest.raises(TypeError, match=r"^key must be torch\.bfloat16 to match query; got"):
        qkv.attend(query.bfloat16(), key, value)


def test_a_size_given_for_the_base_of_a_gate_is_named() -> None:
    with pytest.raises(TypeError, match=r"^base must be a similarity; got int 8$"):
        qkv.Gated(16, 16, 8)  # type: ignore[arg-type]


@both_layers
@pytest.mark.parametrize("options", [{}, {"kdim": 3, "vdim": 3}, {"bias": False}], ids=str)
@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
def test_torchs_function_takes_the_parameters_of_the_layer(
    layer: Any, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Code that calls torch's function finds what it needs, and where it looks for it."""
    mha = layer(6, 2, dtype=torch.float64, **options, **extra)
    query = torch.randn(5, 2, 6, dtype=torch.float64)
    key = torch.randn(7, 2, options.get("kdim", 6), dtype=torch.float64)
    hidden = torch.rand(5, 7) < 0.3
    hidden[:, 0] = False
    separate = not mha._qkv_same_embed_dim
    assert separate == ("kdim" in options)
    answer, weights = nn.functional.multi_head_attention_forward(
        query, key, key, 6, 2, mha.in_proj_weight, mha.in_proj_bias, mha.bias_k, mha.bias_v,
        mha.add_zero_attn, mha.dropout, mha.out_proj.weight, mha.out_proj.bias, mha.training,
        attn_mask=hidden, use_separate_proj_weight=separate, q_proj_weight=mha.q_proj_weight,
        k_proj_weight=mha.k_proj_weight, v_proj_weight=mha.v_proj_weight,
    )  # fmt: skip
    own_answer, own_weights = mha(query, key, key, attn_mask=hidden)
    torch.testing.assert_close(own_answer, answer, rtol=0, atol=1e-12)
    torch.testing.assert_close(own_weights, weights, rtol=0, atol=1e-12)


@both_layers
def test_a_mask_for_each_head_is_one_for_each_entry_repeated(layer: Any) -> None:
    mha = layer(6, 3, batch_first=True, dtype=torch.float64)
    query, key = torch.randn(4, 2, 6).double(), torch.randn(4, 5, 6).double()
    mask = torch.rand(4, 2, 5) < 0.4
    mask[..., 0] = False
    whole, _ = mha(query, key, key, attn_mask=mask.repeat_interleave(3, dim=0))
    for entry in range(4):
        alone, _ = mha(query[entry], key[entry], key[entry], attn_mask=mask[entry])
        torch.testing.assert_close(whole[entry], alone, rtol=0, atol=1e-12)


@both_layers
def test_the_sizes_of_masks_and_the_axes_of_queries(layer: Any) -> None:
    mha = layer(4, 4)
    with pytest.raises(AssertionError, match=r"Expected `attn_mask` shape to be \(4, 4, 4\)"):
        mha(FLAT, FLAT, FLAT, attn_mask=torch.zeros(5, 4, 4, dtype=torch.bool))
    line = torch.zeros(4)
    with pytest.raises(AssertionError, match="batched 3D tensor but received 1-D query tensor"):
        mha(line, line, line)


@both_layers
@torch.no_grad()
def test_two_masks_at_once_where_torch_has_a_fast_path(layer: Any) -> None:
    mha = layer(14, 7, batch_first=True).eval()
    x = torch.rand(8, 5, 14)
    pairs, padding = torch.rand(5, 5) < 0.4, torch.rand(8, 5) < 0.4
    pairs[:, 0] = padding[:, 0] = False
    got, _ = mha(x, x, x, attn_mask=pairs, key_padding_mask=padding, need_weights=False)
    together = (pairs | padding.unsqueeze(1)).repeat_interleave(7, dim=0)
    expected, _ = mha(x, x, x.clone(), attn_mask=together, need_weights=False)
    torch.testing.assert_close(got, expected)


def test_an_encoder_with_padding_is_one_graph() -> None:
    encoder_layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, dtype=torch.float64)
    encoder_layer.self_attn = qkv.nn.MultiheadAttention(
        16, 2, batch_first=True, dtype=torch.float64
    )
    encoder = nn.TransformerEncoder(encoder_layer, 1).eval()
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    x, padding = torch.randn(1, 11, 16).double(), torch.rand(1, 11) > 0.5
    padding[..., 0] = False
    got = compiled(x, mask=None, src_key_padding_mask=padding)
    expected = encoder(x, mask=None, src_key_padding_mask=padding.clone())
    kept = ~padding[0]
    torch.testing.assert_close(got[0, kept], expected[0, : len(kept)][kept], rtol=0, atol=1e-9)
