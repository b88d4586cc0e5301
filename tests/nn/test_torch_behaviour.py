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
