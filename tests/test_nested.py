"""Nested (jagged) tensors in and out: sequences of several lengths, each attended to on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv import mask as masks
from qkv.nn import MultiheadAttention

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

LENGTHS, KEY_LENGTHS, HEADS, D, D_V = (5, 1, 11, 3), (7, 2, 1, 13), 3, 4, 6


def sequences(lengths: tuple[int, ...], *shape: int) -> list[Tensor]:
    return [torch.randn(n, *shape, dtype=torch.float64, requires_grad=True) for n in lengths]


def nested(parts: list[Tensor]) -> Tensor:
    made: Tensor = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return made.transpose(1, 2) if made.ndim == 4 else made


def each(parts: tuple[list[Tensor], ...], heads: bool, **options: Any) -> list[Tensor]:
    """The definition: every sequence on its own."""
    found = []
    for tokens in zip(*parts, strict=True):
        turned = [x.transpose(0, 1) if heads else x for x in tokens]
        answer = qkv.attend(*turned, **options, operator="dense")
        found.append(answer.transpose(0, 1) if heads else answer)
    return found


SIMILARITIES: dict[str, Any] = {
    "dot": None,
    "additive": qkv.Additive(D, D, 7).double(),
    "gaussian": qkv.Gaussian(0.8),
    "epanechnikov": qkv.Epanechnikov(2.5),
    "gated": qkv.Gated(D, D, qkv.ScaledDot()).double(),
    "capped": qkv.ScaledDot().soft_cap(1.5),
    "formula": lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().sum(-1),
    "equal": "equal",
}


@pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Window(2, 1), "cross"], ids=str)
def test_answers_and_gradients_are_those_of_each_sequence(
    similarity: Any, heads: bool, mask: Any
) -> None:
    cross = mask == "cross"
    options: dict[str, Any] = {"similarity": similarity, "mask": None if cross else mask}
    own = (HEADS,) if heads else ()
    key_lengths = KEY_LENGTHS if cross else LENGTHS
    parts = (
        sequences(LENGTHS, *own, D), sequences(key_lengths, *own, D),
        sequences(key_lengths, *own, D_V),
    )  # fmt: skip
    expected = each(parts, heads, **options)
    tokens = [nested(part) for part in parts]
    got = qkv.attend(*tokens, **options)
    assert got.layout == torch.jagged
    assert got.shape[:-1] == tokens[0].shape[:-1]
    found = [x.transpose(0, 1) if heads else x for x in got.unbind()]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    leaves = [x for part in parts for x in part]
    wanted, pulled = (
        torch.autograd.grad(sum(x.sin().sum() for x in answers), leaves, allow_unused=True)  # type: ignore[arg-type]
        for answers in (expected, found)
    )
    for left, right in zip(pulled, wanted, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if left is None else left,
            torch.zeros(()) if right is None else right,
            rtol=0, atol=1e-9,
        )  # fmt: skip


def test_as_torch_has_it() -> None:
    query = nested([x.detach().float() for x in sequences(LENGTHS, HEADS, D)])
    tokens = [query, query.sin(), query.exp()]
    expected = F.scaled_dot_product_attention(*tokens)
    got = qkv.attend(*tokens)
    assert got.shape == expected.shape
    torch.testing.assert_close(got.values(), expected.values())
    torch.testing.assert_close((got - expected).values(), torch.zeros_like(got.values()))


def test_grouped_heads_and_a_plan() -> None:
    query = nested(sequences(LENGTHS, 6, D))
    key, value = (nested(sequences(LENGTHS, 2, D)) for _ in range(2))
    got = qkv.attend(query, key, value, enable_gqa=True)
    repeated = [x.unbind()[2].repeat_interleave(3, dim=0) for x in (key, value)]
    expected = qkv.attend(query.unbind()[2], *repeated)
    torch.testing.assert_close(got.unbind()[2], expected, rtol=0, atol=1e-10)
    assert "Documents" in str(qkv.explain(query, key, value, enable_gqa=True))


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("similarity", [None, qkv.Additive], ids=["dot", "additive"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_layer(options: dict[str, Any], similarity: Any, cross: bool) -> None:
    layer = MultiheadAttention(12, 3, batch_first=True, similarity=similarity, **options).double()
    parts = sequences(LENGTHS, 12)
    others = sequences(KEY_LENGTHS, 12) if cross else parts
    query, key = nested(parts), nested(others)
    got, weights = layer(query, key, key)
    assert weights is None
    for found, tokens, keys in zip(got.unbind(), parts, others, strict=True):
        expected, _ = layer(tokens, keys, keys, need_weights=False)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(got.values().sin().sum(), layer.out_proj.weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda x: qkv.attend(x, x.values(), x), TypeError, "key is a plain tensor"),
        (
            lambda x: qkv.attend(x, x, x, mask=masks.Blocks(3)),
            ValueError,
            r"must depend on the distance of positions alone.*got Blocks\(3\)",
        ),
        (
            lambda x: qkv.attend(x, nested(sequences((2, 3), D)), x),
            ValueError,
            "key must hold 4 sequences to match query; got 2",
        ),
        (
            lambda x: qkv.attend(x, x, nested(sequences(KEY_LENGTHS, D))),
            ValueError,
            "value must have the lengths of key",
        ),
        (
            lambda x: MultiheadAttention(D, 1, batch_first=True)(
                x.float(), x.float(), x.float(), attn_mask=torch.zeros(3, 3)
            ),
            ValueError,
            "a layer takes query, key, value and mask= only",
        ),
    ],
)  # fmt: skip
def test_mistakes(ask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(nested(sequences(LENGTHS, D)))


def test_documents_with_keys_of_their_own() -> None:
    mask = masks.Documents(LENGTHS, KEY_LENGTHS)
    with pytest.raises(ValueError, match="numbers 20 and 23 tokens, which must be all queries"):
        qkv.attend(*torch.zeros(3, 20, 2).unbind(), mask=mask)
    with pytest.raises(ValueError, match="key_lengths must be one for each of 2 documents; got 3"):
        masks.Documents([1, 2], [1, 2, 3])


def test_an_encoder_of_torchs_around_our_layer_is_as_it_was() -> None:
    """Where torch's kernel bypasses the layer that it asks, it must compute what that would."""
    encoder = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dropout=0.0).eval()
    words = torch.randn(3, 7, 12)
    for options in ({}, {"similarity": qkv.Cosine()}, {"mask": masks.Causal()}):
        layer = MultiheadAttention(12, 2, batch_first=True, **options)  # type: ignore[arg-type]
        assert layer._qkv_same_embed_dim == (not options)
        layer.load_state_dict(encoder.self_attn.state_dict(), strict=False)
        encoder.self_attn = layer
        slow = encoder(words)
        with torch.no_grad():
            torch.testing.assert_close(encoder(words), slow, rtol=0, atol=1e-5)
    assert not MultiheadAttention(12, 2, kdim=5)._qkv_same_embed_dim
