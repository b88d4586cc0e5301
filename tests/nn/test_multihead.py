"""What qkv's MultiheadAttention does beyond torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.nn import MultiheadAttention, Rotary

BATCH, N, M, HEADS, HEAD, HIDDEN = 2, 5, 7, 6, 4, 11
D = HEADS * HEAD

SIMILARITIES: dict[str, Any] = {
    "none": None,
    "named": "cosine",
    "kernel": qkv.Gaussian(bandwidth=2.0),
    "learned bandwidth": qkv.Gaussian(bandwidth=2.0, learnable=True),
    "pattern": qkv.Additive(HEAD, HEAD, HIDDEN),
    "class": qkv.Bilinear,
    "gated": qkv.Gated,
    "each its own": [qkv.Additive(HEAD, HEAD, HIDDEN), qkv.Dot(), qkv.Cosine()] * 2,
}
every_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)


def layer_of(**options: Any) -> MultiheadAttention:
    return MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64, **options)


def words(n: int = N) -> Tensor:
    return torch.randn(BATCH, n, D, dtype=torch.float64)


def head_by_head(layer: MultiheadAttention, query: Tensor, key: Tensor, mask: Any = None) -> Tensor:
    """The definition, one head at a time, with plain slices of the parameters."""
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    assert weight is not None
    assert bias is not None
    shared = HEADS // layer.kv_heads
    kv = layer.kv_heads * HEAD
    answers = []
    for head in range(HEADS):
        q, group = slice(head * HEAD, (head + 1) * HEAD), head // shared
        k = slice(D + group * HEAD, D + (group + 1) * HEAD)
        v = slice(D + kv + group * HEAD, D + kv + (group + 1) * HEAD)
        similarity: Any = layer.similarity
        answers.append(
            qkv.attend(
                query @ weight[q].T + bias[q],
                key @ weight[k].T + bias[k],
                key @ weight[v].T + bias[v],
                similarity=similarity[head]
                if isinstance(similarity, nn.ModuleList)
                else similarity,
                mask=mask,
                operator="dense",
            )
        )
    return layer.out_proj(torch.cat(answers, dim=-1))  # type: ignore[no-any-return]


@every_similarity
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_every_head_asks_the_formula(similarity: Any, kv_heads: int) -> None:
    layer = layer_of(similarity=similarity, kv_heads=kv_heads)
    query, key, mask = words(), words(M), qkv.mask.Lengths([M, 3])
    expected = head_by_head(layer, query, key, mask)
    for need_weights in (True, False):
        answer, _ = layer(query, key, key, mask=mask, need_weights=need_weights)
        torch.testing.assert_close(answer, expected)
    answer, _ = layer(query, key, key, key_padding_mask=torch.arange(M) >= torch.tensor([[M], [3]]))
    torch.testing.assert_close(answer, expected)


def test_heads_have_parameters_of_their_own_unless_told_to_share() -> None:
    own = layer_of(similarity=qkv.Additive(HEAD, HEAD, HIDDEN))
    assert len({similarity.weight[0].item() for similarity in own.similarity}) == HEADS  # type: ignore[union-attr, index, operator, misc]
    shared = qkv.Additive(HEAD, HEAD, HIDDEN)
    together = layer_of(similarity=[shared] * HEADS)
    assert sum("weight" in name for name, _ in together.named_parameters()) < 6
    assert together.similarity[3] is shared  # type: ignore[index]


@every_similarity
def test_every_parameter_gets_a_gradient(similarity: Any) -> None:
    layer = layer_of(similarity=similarity)
    x = words()
    layer(x, x, x, need_weights=False)[0].sin().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name


def test_masks_of_the_layer_the_call_and_torch_combine() -> None:
    layer = layer_of(mask=qkv.mask.Causal(), similarity=qkv.Additive)
    x = words()
    not_self = torch.eye(N, dtype=torch.bool)
    not_self[0] = False
    per_head = torch.rand(BATCH, HEADS, N, N) < 0.2
    _, weights = layer(
        x,
        x,
        x,
        attn_mask=per_head.flatten(0, 1),
        mask=qkv.mask.Lengths([N, 3]) & ~not_self,
        average_attn_weights=False,
    )
    allowed = torch.ones(N, N, dtype=torch.bool).tril() & ~not_self & ~per_head
    allowed[1, ..., 3:] = False
    assert torch.equal(weights > 0, allowed)


def test_extra_keys_stand_beside_a_qkv_mask() -> None:
    layer = layer_of(mask=qkv.mask.Causal(), add_bias_kv=True, add_zero_attn=True)
    x = words()
    _, weights = layer(x, x, x)
    assert weights.shape == (BATCH, N, N + 2)
    assert torch.equal(weights[0, :, :N] > 0, torch.ones(N, N, dtype=torch.bool).tril())
    assert (weights[..., N:] > 0).all()
    with pytest.raises(ValueError, match=r"TopK\(2\)\) cannot be used with add_bias_kv"):
        layer(x, x, x, mask=qkv.mask.TopK(2))


@every_similarity
def test_padding_has_no_influence_not_even_as_nan(similarity: Any) -> None:
    layer = layer_of(similarity=similarity)
    x = words(M)
    whole, _ = layer(x[:1, :3], x[:1, :3], x[:1, :3], need_weights=False)
    x[0, 3:] = torch.nan
    for need_weights in (True, False):
        padded, _ = layer(x, x, x, mask=qkv.mask.Lengths([3, M]), need_weights=need_weights)
        torch.testing.assert_close(padded[0, :3], whole[0])


def test_rotary_knows_distances_not_places() -> None:
    layer = layer_of(rotary=Rotary())
    x = words()
    _, weights = layer(x, x, x)
    moved = torch.cat([words(3), x], dim=1)
    _, later = layer(moved, moved, moved, mask=qkv.mask.Allowed(torch.arange(N + 3) >= 3))
    torch.testing.assert_close(later[:, 3:, 3:], weights)
    order = torch.tensor([1, 0, 2, 3, 4])
    _, mixed = layer(x[:, order], x[:, order], x[:, order])
    assert not torch.allclose(mixed, weights[:, order][:, :, order])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_is_a_rotation_by_position(interleaved: bool) -> None:
    x, rotary = torch.randn(N, HEAD, dtype=torch.float64), Rotary(interleaved=interleaved)
    turned = rotary(x, start=3)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    for j, (left, right) in enumerate(pairs):
        for i in range(N):
            turn = torch.polar(
                torch.tensor(1.0).double(), torch.tensor((i + 3) / 10000 ** (2 * j / HEAD)).double()
            )
            expected = torch.complex(x[i, left], x[i, right]) * turn
            torch.testing.assert_close(torch.complex(turned[i, left], turned[i, right]), expected)


@pytest.mark.parametrize("similarity", [None, "cosine", qkv.Additive], ids=str)
def test_compiled_it_is_one_graph_and_the_same(similarity: Any) -> None:
    layer = layer_of(similarity=similarity)
    x = words()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for need_weights in (True, False):
        torch.testing.assert_close(
            compiled(x, x, x, need_weights=need_weights, mask=qkv.mask.Causal()),
            layer(x, x, x, need_weights=need_weights, mask=qkv.mask.Causal()),
        )


@pytest.mark.parametrize("similarity", [None, qkv.Additive])
def test_exported(similarity: Any) -> None:
    layer, x = layer_of(similarity=similarity), words()
    program = torch.export.export(layer, (x, x, x), {"need_weights": False})
    torch.testing.assert_close(
        program.module()(x, x, x, need_weights=False), layer(x, x, x, need_weights=False)
    )


@every_similarity
def test_autocast(similarity: Any) -> None:
    layer = layer_of(similarity=similarity).float()
    x = words().float()
    expected, _ = layer(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        for need_weights in (True, False):
            answer, _ = layer(x, x, x, need_weights=need_weights)
            assert answer.dtype == torch.bfloat16
            torch.testing.assert_close(answer.float(), expected, rtol=0.05, atol=0.05)
            answer.sum().backward()


@every_similarity
def test_deferred_initialisation_copies_and_dtypes(similarity: Any) -> None:
    layer = MultiheadAttention(D, HEADS, similarity=similarity, device="meta")
    assert all(parameter.is_meta for parameter in layer.parameters())
    if similarity is None:
        assert layer(*[torch.empty(N, BATCH, D, device="meta")] * 3)[0].shape == (N, BATCH, D)
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        nn.init.constant_(parameter, torch.nan)
    layer.reset_parameters()
    drawn = [name for name, p in layer.named_parameters() if not p.isfinite().all()]
    assert all("bandwidth" in name for name in drawn)
    copied = copy.deepcopy(layer_of(similarity=similarity)).to(torch.bfloat16)
    x = words().bfloat16()
    assert copied(x, x, x)[0].dtype == torch.bfloat16


def test_it_says_what_it_is() -> None:
    layer = layer_of(kv_heads=2, dropout=0.25, mask=qkv.mask.Causal(), similarity=qkv.Additive)
    text = repr(layer)
    assert "embed_dim=24, num_heads=6, kv_heads=2, dropout=0.25, batch_first=True" in text
    assert "mask=Causal()" in text
    assert "Additive" in text


X = torch.randn(BATCH, N, D)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: MultiheadAttention(7, 2),
            r"embed_dim must be a positive multiple of num_heads; got",
        ),
        (
            lambda: MultiheadAttention(D, HEADS, kv_heads=4),
            r"kv_heads must divide num_heads=6; got 4",
        ),
        (
            lambda: MultiheadAttention(D, HEADS, dropout=1.0),
            r"dropout must be at least 0 and below 1",
        ),
        (
            lambda: MultiheadAttention(D, HEADS, similarity=[qkv.Dot()]),
            r"similarity must be one for each of the 6 heads; got 1",
        ),
        (lambda: MultiheadAttention(D, HEADS, similarity="dott"), r"did you mean 'dot'"),
        (
            lambda: _call(X[0, 0], X, X),
            r"query should be unbatched 2D or batched 3D tensor but received 1-D query tensor",
        ),
        (
            lambda: _call(X, X[:, :, 1:], X),
            r"key must have shape \(2, 5, 24\) to match query \(2, 5, 24\); got \(2, 5, 23\)",
        ),
        (lambda: _call(X, X, X[:, 1:]), r"value must have shape \(2, 5, 24\) to match query"),
        (
            lambda: _call(X, X, X, attn_mask=torch.zeros(N, M)),
            r"Expected `attn_mask` shape to be \(12, 5, 5\) or \(5, 5\); got \(5, 7\)",
        ),
        (
            lambda: _call(X, X, X, key_padding_mask=torch.zeros(N, BATCH)),
            r"key_padding_mask must have shape \(2, 5\); got \(5, 2\)",
        ),
        (
            lambda: _call(X, X, X, is_causal=True),
            r"is_causal=True says of attn_mask that it is causal",
        ),
        (
            lambda: _call(X, None, None),
            r"key and value may both be None only where cache holds some",
        ),
        (
            lambda: MultiheadAttention(9, 3, rotary=Rotary())(*[torch.randn(2, 9)] * 3),
            r"rotary needs heads of even size; got 3",
        ),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_mask_of_whole_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=r"attn_mask must be boolean \(True = may not attend\)"):
        _call(X, X, X, attn_mask=torch.zeros(N, N, dtype=torch.int64))


def _call(*args: Any, **options: Any) -> Any:
    return MultiheadAttention(D, HEADS, batch_first=True)(*args, **options)
